import { Alert, Box, chakra, List, Stack, Text } from "@chakra-ui/react";

import type { Schemas } from "../../api/client";
import { DataLink, SamplesLink } from "../../components/DataLink";
import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatCount, formatNumber, pluralize } from "../../components/format";
import { useEvaluation } from "./queries";
import type { Ids } from "./queries";
import { Section } from "./Section";

type Row = Schemas["ScoreRow"];

const WIDTH = 90;

/** The 95 % interval of a share as a line with a dot; nothing for a metric that is no share. */
const Interval = ({ row: { high, low, value } }: { readonly row: Row }) => {
  if (typeof low !== "number" || typeof high !== "number" || typeof value !== "number" || low < 0 || high > 1) {
    return undefined;
  }
  return (
    <chakra.svg aria-hidden display="inline-block" height="14px" me={2} verticalAlign="middle" width={`${WIDTH}px`}>
      <chakra.line stroke="border" strokeWidth={1} x1={0} x2={WIDTH} y1={7} y2={7} />
      <chakra.line stroke="blue.solid" strokeWidth={3} x1={low * WIDTH} x2={high * WIDTH} y1={7} y2={7} />
      <chakra.circle cx={value * WIDTH} cy={7} fill="fg" r={3} />
    </chakra.svg>
  );
};

const arrow = (isHigherBetter: boolean | null | undefined) =>
  isHigherBetter === true ? " ↑" : isHigherBetter === false ? " ↓" : "";

const COLUMNS: readonly Column<Row>[] = [
  {
    cell: ({ members, task }) => (members > 0 ? `${task} (${pluralize(members, "task")})` : task),
    header: "Task",
    id: "task",
    value: ({ task }) => task,
    width: 200,
  },
  {
    cell: ({ higher_is_better, metric }) => `${metric}${arrow(higher_is_better)}`,
    header: "Metric",
    id: "metric",
    value: ({ metric }) => metric,
    width: 130,
  },
  {
    cell: ({ value }) => (typeof value === "number" ? formatNumber(value) : "–"),
    end: true,
    header: "Score",
    id: "score",
    value: ({ value }) => value ?? undefined,
    width: 80,
  },
  {
    cell: (row) => (
      <Box as="span" whiteSpace="nowrap">
        <Interval row={row} />
        {typeof row.low === "number" && typeof row.high === "number"
          ? `${formatNumber(row.low)} to ${formatNumber(row.high)}`
          : "–"}
      </Box>
    ),
    header: "95 % interval",
    id: "interval",
    value: ({ low }) => low ?? undefined,
    width: 240,
  },
  {
    cell: ({ documents, scored }) => `${formatCount(scored)} of ${formatCount(documents)}`,
    end: true,
    header: "Documents",
    id: "documents",
    value: ({ documents, scored }) => (documents > 0 ? scored / documents : 0),
    width: 110,
  },
  {
    cell: ({ samples }) => <SamplesLink samples={samples} />,
    end: true,
    header: "Answers",
    id: "answers",
    value: ({ samples }) => samples?.wrong ?? undefined,
    width: 100,
  },
  { header: "Shots", id: "shots", end: true, value: ({ shots }) => shots ?? undefined, width: 60 },
  {
    cell: ({ error, status }) => <span title={error ?? undefined}>{status}</span>,
    header: "Status",
    id: "status",
    value: ({ status }) => status,
    width: 110,
  },
];

/** The scores of an evaluation with their intervals and how many documents they cover. */
export const Evaluation = ({ ids }: { readonly ids: Ids }) => {
  const { data, error } = useEvaluation(ids);

  return (
    <Section title="Evaluation">
      {error === null ? undefined : <Problem error={error} />}
      {data === undefined && error === null ? <Loading /> : undefined}
      {data === undefined ? undefined : (
        <Stack gap={3}>
          {data.error ? (
            <Alert.Root status="error">
              <Alert.Indicator />
              <Alert.Description overflowWrap="anywhere">{data.error}</Alert.Description>
            </Alert.Root>
          ) : undefined}
          <DataTable
            columns={COLUMNS}
            empty={<Text color="fg.muted">No task has a score.</Text>}
            label="Scores"
            rowKey={({ metric, task }, index) => `${task}/${metric}/${index}`}
            rows={data.rows}
          />
          {data.left_out > 0 ? <Text color="fg.muted">{pluralize(data.left_out, "row")} left out.</Text> : undefined}
          <Text color="fg.muted" fontSize="sm">
            Documents without a score count in the interval at their worst and at their best. With less than 90 % of the
            documents there is no number.
          </Text>
          <List.Root color="fg.muted" fontSize="sm" ps={5}>
            <List.Item overflowWrap="anywhere">
              Model: {data.is_model_stored ? <DataLink path={data.model_path} /> : data.model_path}
            </List.Item>
            {data.facts.map((fact) => (
              <List.Item key={fact} overflowWrap="anywhere">
                {fact}
              </List.Item>
            ))}
          </List.Root>
        </Stack>
      )}
    </Section>
  );
};
