import { Badge, Code, Field, Heading, NativeSelect, Stack, Table, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { answered, api } from "../../api/client";
import type { Schemas } from "../../api/client";
import { Causes } from "../../components/Causes";
import { ConfigDiff } from "../../components/ConfigDiff";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatDuration, formatSince, pluralize } from "../../components/format";
import type { Step } from "./model";

type Versions = Schemas["StepHistory"];
type Version = Schemas["VersionSummary"];

type Props = {
  readonly dagId: string;
  readonly open: (name: string) => void;
  readonly runId: string;
  readonly step: Step;
};

const OUTCOMES: Record<string, string> = { failed: "red", lost: "orange", stopped: "orange", succeeded: "green" };

const useHistory = (dagId: string, runId: string, taskId: string, against: string | undefined) =>
  useQuery({
    placeholderData: (former: Versions | undefined) => former,
    queryFn: () =>
      answered(
        api.GET("/api/step_history/{dag_id}/{task_id}/{run_id}", {
          params: { path: { dag_id: dagId, run_id: runId, task_id: taskId }, query: { against } },
        }),
      ),
    queryKey: ["step_history", dagId, runId, taskId, against],
    staleTime: 60_000,
  });

const titleOf = ({ hash, made_at: madeAt }: Version): string =>
  madeAt === null || madeAt === undefined ? hash : `${hash}, ${formatSince(madeAt)}`;

const RunRow = ({ run, title }: { readonly run: Version["run"]; readonly title: string }) => (
  <Table.Row>
    <Table.Cell>{title}</Table.Cell>
    <Table.Cell textAlign="end">{run === null ? "–" : formatDuration(run.hours * 3600)}</Table.Cell>
    <Table.Cell>{run?.resources ?? "–"}</Table.Cell>
    <Table.Cell>{run === null ? "–" : <Badge colorPalette={OUTCOMES[run.outcome] ?? "gray"}>{run.outcome}</Badge>}</Table.Cell>
  </Table.Row>
);

/** What attempts at this version and the earlier ones took. */
const Durations = ({ history, step }: { readonly history: Versions; readonly step: Step }) => {
  const runs = history.versions.filter((version) => version.run !== null);
  if (runs.length === 0 && history.run === null) {
    return undefined;
  }
  return (
    <Stack gap={1}>
      <Heading as="h4" size="sm">
        What earlier runs took
      </Heading>
      <Table.Root aria-label="Durations of earlier runs" size="sm">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Version</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Took</Table.ColumnHeader>
            <Table.ColumnHeader>On</Table.ColumnHeader>
            <Table.ColumnHeader>Outcome</Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {history.run === null ? undefined : <RunRow run={history.run} title={`${step.hash}, this version`} />}
          {runs.map((version) => (
            <RunRow key={version.output_path} run={version.run} title={titleOf(version)} />
          ))}
        </Table.Body>
      </Table.Root>
    </Stack>
  );
};

const Difference = ({ history, open, pick, step }: Pick<Props, "open" | "step"> & {
  readonly history: Versions;
  readonly pick: (hash: string) => void;
}) => {
  const version = history.versions.find(({ hash }) => hash === history.compared);
  const config = history.config;

  return (
    <Stack gap={2}>
      <Heading as="h4" size="sm">
        {version === undefined ? "Config" : "Difference to an earlier version"}
      </Heading>
      {version === undefined ? (
        <Text color="fg.muted" fontSize="sm">
          {config === null
            ? "No version record of this step exists yet, neither in the plan nor beside its output."
            : "No earlier version of this step is beside its output."}
        </Text>
      ) : (
        <>
          <Field.Root>
            <NativeSelect.Root size="xs">
              <NativeSelect.Field
                aria-label="Earlier version to compare with"
                onChange={(event) => pick(event.target.value)}
                value={version.hash}
              >
                {history.versions.map((each) => (
                  <option key={each.hash} value={each.hash}>
                    {titleOf(each)}: {pluralize(each.causes.length + each.left_out, "change")}
                  </option>
                ))}
              </NativeSelect.Field>
              <NativeSelect.Indicator />
            </NativeSelect.Root>
          </Field.Root>
          <Causes changes={version.causes} onStep={open} />
          {version.left_out > 0 ? <Text color="fg.muted">and {version.left_out} more</Text> : undefined}
        </>
      )}
      {history.is_complete ? undefined : (
        <Text color="fg.muted" fontSize="sm">
          There are more earlier versions than a page compares: <Code>tradewind why</Code> compares them all.
        </Text>
      )}
      {config === null ? undefined : (
        <ConfigDiff
          key={version?.hash}
          leftOut={config.left_out}
          newTitle={step.hash}
          oldTitle={version?.hash}
          onInput={open}
          rows={config.rows}
        />
      )}
    </Stack>
  );
};

/** A step beside its earlier versions: what changed, down to the input that did, and what they took. */
export const History = ({ dagId, open, runId, step }: Props) => {
  const [against, setAgainst] = useState<string>();
  const { data, error } = useHistory(dagId, runId, step.task_id, against);
  if (error !== null) {
    return <Problem error={error} />;
  }
  if (data === undefined) {
    return <Loading />;
  }
  return (
    <>
      <Difference history={data} open={open} pick={setAgainst} step={step} />
      <Durations history={data} step={step} />
    </>
  );
};
