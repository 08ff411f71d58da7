import { Badge, HStack, Text } from "@chakra-ui/react";

import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { DECISIONS, DecisionBadge } from "../../components/decisions";
import { Empty } from "../../components/Empty";
import { Sentence } from "../../components/Sentence";
import { marksOf } from "./model";
import type { Step } from "./model";

type Props = {
  /** Whether there are steps that a filter hides. */
  readonly isFiltered: boolean;
  readonly height: string;
  readonly label: string;
  readonly onSort: (sort: string) => void;
  readonly select: (taskId: string) => void;
  readonly selected: string;
  readonly sort: string;
  readonly steps: ReadonlyArray<Step>;
};

const COLUMNS: ReadonlyArray<Column<Step>> = [
  {
    cell: (step) => (
      <HStack gap={1}>
        <DecisionBadge decision={step.decision} />
        {marksOf(step).map((mark) => (
          <Badge colorPalette="orange" key={mark} size="xs">
            {mark}
          </Badge>
        ))}
      </HStack>
    ),
    header: "Decision",
    id: "decision",
    value: (step) => DECISIONS.indexOf(step.decision),
    width: 130,
  },
  { header: "Step", id: "name", value: (step) => step.name, width: 260 },
  { cell: (step) => <Text fontFamily="mono">{step.hash}</Text>, header: "Version", id: "version", value: (step) => step.hash, width: 90 },
  { cell: (step) => <Sentence text={step.reason} />, header: "Reason", id: "reason", value: (step) => step.reason, width: 420 },
  { header: "Estimate", id: "estimate", value: (step) => step.estimate ?? undefined, width: 170 },
  { header: "Runs on", id: "place", value: (step) => step.place ?? undefined, width: 140 },
  { end: true, header: "Attempt", id: "attempt", value: (step) => step.attempt || undefined, width: 90 },
  { header: "Producer", id: "producer", value: (step) => step.producer ?? undefined, width: 260 },
];

/** The steps as a table, one line each. A line's step opens its panel. */
export const StepTable = ({ height, isFiltered, label, onSort, select, selected, sort, steps }: Props) => (
  <DataTable
    columns={COLUMNS}
    empty={
      isFiltered ? (
        <Empty title="No step matches">Show all steps, or those of another decision.</Empty>
      ) : (
        <Empty title="The plan has no steps">Its DAG has none, or the run asks for none of them.</Empty>
      )
    }
    height={height}
    label={label}
    onRowClick={(step) => select(step.task_id)}
    onSort={onSort}
    rowKey={(step) => step.task_id}
    rows={steps}
    selected={selected}
    sort={sort}
  />
);
