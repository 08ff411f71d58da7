import { Badge, Box, Button, Code, Heading, HStack, Link, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { Schemas } from "../../api/client";
import { SamplesLink } from "../../components/DataLink";
import { formatCount, formatNumber, formatTime, pluralize } from "../../components/format";
import { dataLink } from "../../components/links";
import { SideScroll } from "../../components/SideScroll";
import { axisOf } from "./interval";
import { IntervalBar } from "./IntervalBar";

type Score = Schemas["BoardScore"];
type Board = Schemas["Board"];

const MAX_ROWS = 10;
const SUCCEEDED = "succeeded";

const intervalText = ({ high, low, value }: Score): string => {
  if (low === null || high === null) {
    return value === null ? "" : "no interval";
  }
  return `${formatNumber(low)} to ${formatNumber(high)}`;
};

const directionOf = ({ higher_is_better: better }: Board): string => {
  if (better === null) {
    return "Whether more is better is unknown, so the order is that of the names.";
  }
  return better ? "Higher is better." : "Lower is better.";
};

const Row = ({ axis, score }: { readonly axis: ReturnType<typeof axisOf>; readonly score: Score }) => (
  <Table.Row>
    <Table.Cell maxW="320px" overflowWrap="anywhere" whiteSpace="normal">
      <Link asChild color="fg.info">
        <RouterLink to={dataLink(score.output_path)}>{score.label}</RouterLink>
      </Link>
      <Text color="fg.muted" fontSize="xs">{`${score.model}, by ${score.evaluation}`}</Text>
    </Table.Cell>
    <Table.Cell textAlign="end">
      {score.value === null ? (
        <Badge colorPalette="orange" title={score.problem}>
          {score.status}
        </Badge>
      ) : (
        formatNumber(score.value)
      )}
    </Table.Cell>
    <Table.Cell w="30%">{axis === undefined ? null : <IntervalBar axis={axis} score={score} />}</Table.Cell>
    <Table.Cell whiteSpace="nowrap">{intervalText(score)}</Table.Cell>
    <Table.Cell textAlign="end" whiteSpace="nowrap">
      {`${formatCount(score.scored)} of ${formatCount(score.documents)}`}
      {score.value !== null && score.status !== SUCCEEDED ? ` (${score.status})` : ""}
    </Table.Cell>
    <Table.Cell textAlign="end" whiteSpace="nowrap">
      <SamplesLink samples={score.samples} />
    </Table.Cell>
    <Table.Cell whiteSpace="nowrap">
      {formatTime(score.started_at)}
      {score.commit ? (
        <Code display="block" fontSize="xs" title={score.commit} variant="plain" w="fit-content">
          {score.commit.slice(0, 8)}
        </Code>
      ) : null}
    </Table.Cell>
  </Table.Row>
);

/** Scores of one task and metric, the best first, with their 95 % intervals on one axis. */
export const EvaluationBoard = ({ board }: { readonly board: Board }) => {
  const [isWhole, setIsWhole] = useState(false);
  const axis = axisOf(board.scores);
  const shown = isWhole ? board.scores : board.scores.slice(0, MAX_ROWS);
  const more = board.scores.length - shown.length;

  return (
    <Box aria-label={board.title} as="section">
      <HStack align="baseline" flexWrap="wrap" gap={3} mb={1}>
        <Heading as="h2" overflowWrap="anywhere" size="sm">
          {board.title}
        </Heading>
        <Text color="fg.muted" fontSize="sm">
          {directionOf(board)}
          {board.pooled_tasks > 0
            ? ` All documents of ${pluralize(board.pooled_tasks, "task")} count as one set; it is no mean of their scores.`
            : ""}
        </Text>
      </HStack>
      <SideScroll>
        <Table.Root aria-label={`Scores of ${board.title}`} size="sm">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Evaluation</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Score</Table.ColumnHeader>
              <Table.ColumnHeader>
                {axis === undefined ? null : (
                  <HStack color="fg.muted" fontSize="xs" fontWeight="normal" justify="space-between">
                    <span>{formatNumber(axis.from)}</span>
                    <span>{formatNumber(axis.to)}</span>
                  </HStack>
                )}
              </Table.ColumnHeader>
              <Table.ColumnHeader>95 % interval</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Documents</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Answers</Table.ColumnHeader>
              <Table.ColumnHeader>Evaluated</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {shown.map((score) => (
              <Row axis={axis} key={score.output_path} score={score} />
            ))}
          </Table.Body>
        </Table.Root>
      </SideScroll>
      {more > 0 ? (
        <Button mt={1} onClick={() => setIsWhole(true)} size="xs" variant="ghost">
          {`Show ${formatCount(more)} more`}
        </Button>
      ) : null}
    </Box>
  );
};
