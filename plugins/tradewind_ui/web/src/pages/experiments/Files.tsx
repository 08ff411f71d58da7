import { Button, Code, HStack, Text, VStack } from "@chakra-ui/react";
import { useMemo } from "react";

import type { Schemas } from "../../api/client";
import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { Empty } from "../../components/Empty";
import { formatCount, pluralize } from "../../components/format";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { LABELS, STATES } from "../../components/states";
import { NO_FILTER } from "./address";
import type { ChangeView } from "./address";
import { Notes, Reading } from "./Notes";
import { useFiles } from "./queries";

type FileRow = Schemas["ListedExperiment"];

const columnsOf = (change: ChangeView): readonly Column<FileRow>[] => [
  {
    cell: (file) => (
      <Button
        color="fg.info"
        fontWeight="inherit"
        h="auto"
        onClick={() => change({ ...NO_FILTER, file: file.path, tab: "outputs" })}
        p={0}
        size="sm"
        title={`Show the outputs that ${file.path} names`}
        variant="plain"
      >
        {file.name}
      </Button>
    ),
    header: "Experiment",
    id: "name",
    value: (file) => file.name,
    width: 240,
  },
  {
    cell: (file) => <span title={file.created}>{file.created.slice(0, 16).replace("T", " ")}</span>,
    header: "Written",
    id: "created",
    value: (file) => file.created,
    width: 150,
  },
  { header: "User", id: "user", value: (file) => file.user, width: 110 },
  {
    cell: (file) =>
      file.problem === null ? (
        <HStack gap={2}>
          {STATES.filter((state) => file.counts.states[state] !== undefined).map((state) => (
            <span key={state}>{`${formatCount(file.counts.states[state] ?? 0)} ${LABELS[state]}`}</span>
          ))}
          {file.missing > 0 ? (
            <Text color="fg.muted" title="Never begun, or removed since">{`${file.missing} without a record`}</Text>
          ) : null}
          {file.elsewhere > 0 ? (
            <Text color="fg.muted" title="Not below this prefix: choose a folder above it to see them">{`${file.elsewhere} in other folders`}</Text>
          ) : null}
        </HStack>
      ) : (
        <Text color="fg.error" title={file.problem}>
          {file.problem}
        </Text>
      ),
    header: "Outputs",
    id: "states",
    width: 320,
  },
  { end: true, header: "Steps", id: "steps", value: (file) => file.steps, width: 80 },
  {
    cell: (file) =>
      file.commit ? (
        <Code title={file.commit} variant="plain">
          {file.commit.slice(0, 8)}
        </Code>
      ) : null,
    header: "Commit",
    id: "commit",
    width: 105,
  },
  { header: "Defined in", id: "caller", value: (file) => file.caller, width: 260 },
];

/** Files that executors write beside a prefix: which steps belong to an experiment. */
export const Files = ({ change, prefix }: { readonly change: ChangeView; readonly prefix: string }) => {
  const files = useFiles(prefix);
  const columns = useMemo(() => columnsOf(change), [change]);

  if (files.error !== null) {
    return <Problem error={files.error} />;
  }
  if (files.data === undefined) {
    return <Loading />;
  }
  const { left_out: leftOut, notes, prefix: read, reading_s: seconds } = files.data;
  if (seconds !== null && files.data.files.length === 0) {
    return <Reading prefix={read} seconds={seconds} />;
  }
  return (
    <VStack align="stretch" gap={3}>
      <Notes notes={notes} />
      <Text color="fg.muted" fontSize="sm">
        {`${pluralize(files.data.files.length, "file")} in ${read}/experiments and the same folder of its parents. Each plan and each run of Marin's executor with new versions writes one.${leftOut > 0 ? ` ${pluralize(leftOut, "file")} of its parents that name no output below ${read} are not shown.` : ""}`}
      </Text>
      <DataTable
        columns={columns}
        empty={
          <Empty title="No executor has written a file here">
            {`The first plan of a DAG, or a run of Marin's executor, writes experiments/NAME-HASH.json into its prefix.`}
          </Empty>
        }
        label="Files of experiments"
        rowKey={(file) => file.path}
        rows={files.data.files}
        sort="-created"
      />
    </VStack>
  );
};
