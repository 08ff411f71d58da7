import { Badge, Box, Button, Code, HStack, Link, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { Column, Value } from "../../components/DataTable";
import { formatBytes, formatCount, formatSince, formatTime, pluralize } from "../../components/format";
import type { Schemas } from "../../api/client";
import { LABELS, STATES, StateBadge } from "../../components/states";
import { dataLink, runLink, stepLink } from "../../components/links";
import type { Line, OutputRow } from "./rows";

const COMMIT_CHARS = 8;

export const UNKNOWN_EXPERIMENT = "Without a known experiment";

const PageLink = ({ children, label, to }: { readonly children: ReactNode; readonly label?: string; readonly to: string }) => (
  <Link asChild color="fg.info">
    <RouterLink aria-label={label} to={to}>
      {children}
    </RouterLink>
  </Link>
);

const Toggle = ({ children, isOpen, onClick }: { readonly children: ReactNode; readonly isOpen: boolean; readonly onClick: () => void }) => (
  <Button aria-expanded={isOpen} fontWeight="inherit" h="auto" minW="0" onClick={onClick} p={0} size="sm" variant="plain">
    <Box aria-hidden="true" as="span" color="fg.muted" textAlign="center" w="1em">
      {isOpen ? "▾" : "▸"}
    </Box>
    {children}
  </Button>
);

/** What a cell shows of an output; an experiment's line has only its name. */
const ofOutput = (show: (row: OutputRow) => ReactNode) => (line: Line) =>
  line.kind === "experiment" ? null : show(line.row);

const Producer = ({ output: { experiment, status } }: Pick<OutputRow, "output">) => {
  const run = runLink(status);
  if (status.producer === "") {
    return <Text color="fg.muted">unknown</Text>;
  }
  return (
    <span title={status.producer}>
      {run === undefined ? (
        status.producer
      ) : (
        <PageLink to={run}>{status.dag === experiment ? status.run : `${status.dag}, ${status.run}`}</PageLink>
      )}
    </span>
  );
};

const Size = ({ details }: { readonly details: Schemas["OutputDetails"] }) =>
  typeof details.size_bytes === "number" ? (
    <span title={pluralize(details.files ?? 0, "file")}>{formatBytes(details.size_bytes)}</span>
  ) : (
    <Text as="span" color="fg.muted" title={details.problem ?? "Its manifest does not say"}>
      {details.problem ? "unreadable" : "–"}
    </Text>
  );

const shownOf = ({ shown, states }: Extract<Line, { kind: "experiment" }>) => {
  const counts = STATES.flatMap((state) => (states[state] === undefined ? [] : [`${formatCount(states[state])} ${LABELS[state]}`]));
  const total = Object.values(states).reduce((sum, count) => sum + count, 0);
  return shown < total ? `${formatCount(shown)} of ${pluralize(total, "output")} shown` : counts.join(", ");
};

const Name = ({ line, onToggle }: { readonly line: Line; readonly onToggle: (key: string) => void }) => {
  if (line.kind === "experiment") {
    return (
      <Toggle isOpen={line.isOpen} onClick={() => onToggle(line.key)}>
        <Text as="span" fontWeight="semibold">
          {line.name === "" ? UNKNOWN_EXPERIMENT : line.name}
        </Text>
        <Text as="span" color="fg.muted" fontWeight="normal">
          {shownOf(line)}
        </Text>
      </Toggle>
    );
  }
  const { output } = line.row;
  const to = stepLink(output.status);
  const name = to === undefined ? output.step : <PageLink to={to}>{output.step}</PageLink>;
  if (line.kind === "output") {
    return (
      <>
        {name}{" "}
        <Text as="span" color="fg.muted">
          {output.experiment}
        </Text>
      </>
    );
  }
  return (
    <HStack gap={2} ps={line.kind === "step" ? 5 : 10}>
      {line.kind === "step" ? name : <Text color="fg.muted">earlier version</Text>}
      {line.kind === "step" && line.older > 0 ? (
        <Toggle isOpen={line.isOpen} onClick={() => onToggle(line.key)}>
          <Text as="span" color="fg.muted" fontWeight="normal">
            {`${line.older} earlier`}
          </Text>
        </Toggle>
      ) : null}
    </HStack>
  );
};

const valueOf = (value: (row: OutputRow) => Value) => (line: Line) => (line.kind === "experiment" ? undefined : value(line.row));

/** Columns of the outputs; `onToggle` opens and closes a group. The server sorts by those with a value. */
export const columnsOf = (onToggle: (key: string) => void): readonly Column<Line>[] => [
  {
    cell: (line) => <Name line={line} onToggle={onToggle} />,
    header: "Step",
    id: "step",
    value: valueOf(({ output }) => output.step),
    width: 300,
  },
  {
    cell: ofOutput(({ output }) => <Code variant="plain">{output.version || "–"}</Code>),
    header: "Version",
    id: "version",
    width: 90,
  },
  {
    cell: ofOutput(({ output }) => (
      <HStack gap={2}>
        <StateBadge state={output.status.state} />
        {output.is_pinned ? (
          <Badge title="gc leaves it" variant="outline">
            pinned
          </Badge>
        ) : null}
      </HStack>
    )),
    header: "State",
    id: "state",
    value: valueOf(({ output }) => output.status.state),
    width: 160,
  },
  {
    cell: ofOutput(({ details: { result } }) => <span title={result}>{result}</span>),
    header: "Result",
    id: "result",
    width: 190,
  },
  {
    cell: ofOutput(({ output: { status } }) =>
      status.since === null ? "–" : <span title={formatTime(status.since)}>{formatSince(status.since)}</span>,
    ),
    header: "Changed",
    id: "since",
    value: valueOf(({ output }) => output.status.since),
    width: 125,
  },
  {
    cell: ofOutput(({ details }) => <Size details={details} />),
    end: true,
    header: "Size",
    id: "size",
    value: valueOf(({ details }) => details.size_bytes),
    width: 95,
  },
  { cell: ofOutput(({ output }) => <Producer output={output} />), header: "Made by", id: "producer", width: 220 },
  {
    cell: ofOutput(({ details }) =>
      details.commit ? (
        <Code title={details.commit} variant="plain">
          {details.commit.slice(0, COMMIT_CHARS)}
        </Code>
      ) : (
        ""
      ),
    ),
    header: "Commit",
    id: "commit",
    width: 105,
  },
  {
    cell: ofOutput(({ output }) => (
      <PageLink label={`Data of ${output.step} ${output.version}`} to={dataLink(output.status.output_path)}>
        Data
      </PageLink>
    )),
    header: "Output",
    id: "data",
    width: 75,
  },
];
