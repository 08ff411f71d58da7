import { HStack, NativeSelect, Stack, Text } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";

import { Causes } from "../../components/Causes";
import { ConfigDiff } from "../../components/ConfigDiff";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatCount, formatSince } from "../../components/format";
import { LABELS } from "../../components/states";
import { useDifference, useVersions } from "./queries";
import type { Ids } from "./queries";
import { Section } from "./Section";
import { versionBefore } from "./versions";
import type { Version } from "./versions";

const titleOf = ({ differs, hash, is_this, made_at, state }: Version) =>
  [
    is_this ? `${hash} (this)` : hash,
    differs,
    typeof made_at === "number" ? formatSince(made_at) : "",
    state === "finished" ? "" : LABELS[state],
  ]
    .filter((part) => part !== "")
    .join(", ");

type PickProps = {
  readonly label: string;
  readonly onPick: (hash: string) => void;
  readonly value: string;
  readonly versions: readonly Version[];
};

const Pick = ({ label, onPick, value, versions }: PickProps) => (
  <NativeSelect.Root maxW="full" size="sm" width="80">
    <NativeSelect.Field aria-label={label} onChange={(event) => onPick(event.currentTarget.value)} value={value}>
      {value === "" ? <option value="">Choose a version</option> : undefined}
      {versions.map((version) => (
        <option key={version.hash} value={version.hash}>
          {titleOf(version)}
        </option>
      ))}
    </NativeSelect.Field>
    <NativeSelect.Indicator />
  </NativeSelect.Root>
);

const Difference = ({ ids, now, old }: { readonly ids: Ids; readonly now: string; readonly old: string }) => {
  const { data, error } = useDifference(ids, old, now);
  if (error !== null) {
    return <Problem error={error} />;
  }
  if (data === undefined) {
    return <Loading />;
  }
  return data.problem ? (
    <Text color="fg.muted">{data.problem}</Text>
  ) : (
    <Stack gap={4}>
      <Causes changes={data.changes} />
      <ConfigDiff leftOut={data.left_out} newTitle={now} oldTitle={old} rows={data.rows} />
    </Stack>
  );
};

/** Any two versions of the step beside each other; at first, this one and the one before. */
export const Versions = ({ hash, ids }: { readonly hash: string; readonly ids: Ids }) => {
  const { data, error } = useVersions(ids);
  const [parameters, setParameters] = useSearchParams();
  const pick = (name: string) => (value: string) =>
    setParameters((old) => {
      const next = new URLSearchParams(old);
      next.set(name, value);
      return next;
    });
  const versions = data?.versions ?? [];
  const hasOthers = versions.some((version) => !version.is_this);
  const old = parameters.get("old") ?? versionBefore(versions)?.hash ?? "";
  const now = parameters.get("new") ?? hash;

  return (
    <Section
      aside={
        !hasOthers ? undefined : (
          <HStack flexWrap="wrap" gap={2}>
            <Pick label="Earlier version" onPick={pick("old")} value={old} versions={versions} />
            <Text aria-hidden>→</Text>
            <Pick label="Later version" onPick={pick("new")} value={now} versions={versions} />
          </HStack>
        )
      }
      title="Versions"
    >
      {error === null ? undefined : <Problem error={error} />}
      {data === undefined && error === null ? <Loading /> : undefined}
      {data !== undefined && old === "" ? (
        <Text color="fg.muted">
          {hasOthers
            ? "All other versions of this step were made later. Choose two to compare."
            : "No other version of this step is beside its output, so there is nothing to compare."}
        </Text>
      ) : undefined}
      {old === "" ? undefined : <Difference ids={ids} now={now} old={old} />}
      {data !== undefined && data.left_out > 0 ? (
        <Text color="fg.muted">{formatCount(data.left_out)} older versions are not listed.</Text>
      ) : undefined}
    </Section>
  );
};
