import { Box, HStack, Stack, Text } from "@chakra-ui/react";

import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { pluralize } from "../../components/format";
import { AttemptCard } from "./AttemptCard";
import { Section } from "./Section";
import { EVENTS, PHASES } from "./TimeAxis";
import { axesOf } from "./timeAxis";
import type { Attempt } from "./timeAxis";
import { useAttempts } from "./queries";
import type { Ids } from "./queries";

const Legend = ({ attempts }: { readonly attempts: readonly Attempt[] }) => {
  const phases = new Set<string>(attempts.flatMap((attempt) => attempt.phases.map(({ kind }) => kind)));
  const events = new Set<string>(attempts.flatMap((attempt) => attempt.events.map(({ kind }) => kind)));

  return (
    <HStack aria-hidden color="fg.muted" flexWrap="wrap" fontSize="xs" gap={3}>
      {Object.entries(PHASES)
        .filter(([kind]) => phases.has(kind))
        .map(([kind, color]) => (
          <HStack gap={1} key={kind}>
            <Box bg={color} borderRadius="sm" h={3} w={3} />
            {kind}
          </HStack>
        ))}
      {Object.entries(EVENTS)
        .filter(([kind]) => events.has(kind))
        .map(([kind, [sign, color]]) => (
          <HStack gap={1} key={kind}>
            <Text as="span" color={color} fontWeight="bold">
              {sign}
            </Text>
            {kind}
          </HStack>
        ))}
    </HStack>
  );
};

/** All attempts at the output, the newest first. */
export const Attempts = ({ ids, isActive }: { readonly ids: Ids; readonly isActive: boolean }) => {
  const { data, error } = useAttempts(ids, isActive);
  if (error !== null) {
    return (
      <Section title="Attempts">
        <Problem error={error} />
      </Section>
    );
  }
  if (data === undefined) {
    return (
      <Section title="Attempts">
        <Loading />
      </Section>
    );
  }
  const { attempts, left_out, now } = data;
  const axes = axesOf(attempts, now);
  const isOwn = ({ made_by: by }: Attempt) => by?.dag === ids.path.dag_id && by.run === ids.path.run_id;
  const hasOthers = !attempts.every(isOwn);

  return (
    <Section aside={<Legend attempts={attempts} />} title="Attempts">
      {attempts.length === 0 ? (
        <Text color="fg.muted">No attempt has started. The first one appears here when its task claims the output.</Text>
      ) : (
        <Stack gap={5}>
          {attempts.map((attempt, index) => (
            <AttemptCard attempt={attempt} axis={axes[index]} isOwn={hasOthers && isOwn(attempt)} key={attempt.number} now={now} />
          ))}
        </Stack>
      )}
      {left_out > 0 ? <Text color="fg.muted">{pluralize(left_out, "older attempt")} not shown.</Text> : undefined}
    </Section>
  );
};
