import { Alert, Badge, Code, DataList, Heading, HStack, Link, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import { DataLink } from "../../components/DataLink";
import { DecisionBadge, isDecision } from "../../components/decisions";
import { formatSince, formatTime } from "../../components/format";
import { runLink, stepLink } from "../../components/links";
import { Sentence } from "../../components/Sentence";
import { StateBadge } from "../../components/states";
import type { About } from "./queries";

const Fact = ({ children, name }: { readonly children: ReactNode; readonly name: string }) => (
  <DataList.Item>
    <DataList.ItemLabel minW="24">{name}</DataList.ItemLabel>
    <DataList.ItemValue display="block" minW={0} overflowWrap="anywhere">
      {children}
    </DataList.ItemValue>
  </DataList.Item>
);

const PageLink = ({ children, to }: { readonly children: string; readonly to: string }) => (
  <Link asChild color="fg.info">
    <RouterLink to={to}>{children}</RouterLink>
  </Link>
);

/** What the time of the last write to the record means. */
const WRITTEN: Record<string, string> = {
  "at work": "Last sign",
  failed: "Failed",
  finished: "Finished",
  stopped: "Stopped",
};

/** What the step is, its state, and why the run made or reused it. */
export const Header = ({ about }: { readonly about: About }) => {
  const { decision, made_by, reason, state, written_at } = about;
  const maker = made_by && about.is_by_other_run ? (stepLink(made_by) ?? runLink(made_by)) : undefined;

  return (
    <Stack gap={3}>
      <HStack flexWrap="wrap" gap={3}>
        <Heading as="h1" overflowWrap="anywhere" size="xl">
          {about.name}
        </Heading>
        <Code size="md">{about.hash}</Code>
        {state ? (
          <StateBadge size="md" state={state}>
            {about.attempt > 0 && state === "at work" ? `, attempt ${about.attempt}` : ""}
            {about.is_by_other_run ? ", by another run" : ""}
          </StateBadge>
        ) : (
          <Badge size="md">state unknown</Badge>
        )}
        {maker !== undefined ? <PageLink to={maker}>Open that run</PageLink> : undefined}
        {about.is_forced ? <Badge size="md">forced</Badge> : undefined}
      </HStack>
      {decision && isDecision(decision) ? (
        <Text overflowWrap="anywhere">
          The plan of this run: <DecisionBadge decision={decision} /> <Sentence text={reason ?? ""} />
        </Text>
      ) : undefined}
      {about.problem === null || about.problem === undefined ? undefined : (
        <Alert.Root status="warning">
          <Alert.Indicator />
          <Alert.Description overflowWrap="anywhere">
            <Sentence text={about.problem} />
          </Alert.Description>
        </Alert.Root>
      )}
      <DataList.Root gap={2} orientation="horizontal" size="sm">
        <Fact name="Output">
          <DataLink path={about.output_path} />
        </Fact>
        {about.producer ? (
          <Fact name="Producer">
            {maker === undefined ? about.producer : <PageLink to={maker}>{about.producer}</PageLink>}
          </Fact>
        ) : undefined}
        {typeof written_at === "number" ? (
          <Fact name={WRITTEN[state ?? ""] ?? "Changed"}>
            {formatSince(written_at)}, {formatTime(written_at)}
          </Fact>
        ) : undefined}
        {about.place ? <Fact name="Runs on">{about.place}</Fact> : undefined}
        {about.estimate ? <Fact name="Estimate">{about.estimate}</Fact> : undefined}
        {about.links.length === 0 ? undefined : (
          <Fact name="Links">
            <HStack flexWrap="wrap" gap={4}>
              {about.links.map(({ name, url }) => (
                <Link color="fg.info" href={url} key={name} rel="noreferrer" target="_blank">
                  {name} ↗
                </Link>
              ))}
            </HStack>
          </Fact>
        )}
      </DataList.Root>
    </Stack>
  );
};
