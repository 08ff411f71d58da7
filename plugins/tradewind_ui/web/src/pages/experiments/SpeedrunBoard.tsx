import { Badge, Box, Button, Heading, Link, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { Schemas } from "../../api/client";
import { formatCount, formatDuration, formatNumber, formatShortCount } from "../../components/format";
import { dataLink } from "../../components/links";
import { SideScroll } from "../../components/SideScroll";

type Run = Schemas["SpeedrunScore"];

const MAX_ROWS = 20;

const shown = (value: number | null, format: (value: number) => string) => (value === null ? "–" : format(value));

const Row = ({ run }: { readonly run: Run }) => (
  <Table.Row>
    <Table.Cell textAlign="end">{run.rank}</Table.Cell>
    <Table.Cell maxW="320px" overflowWrap="anywhere" whiteSpace="normal">
      <Link asChild color="fg.info">
        <RouterLink to={dataLink(run.output_path)}>{run.label}</RouterLink>
      </Link>
      <Text color="fg.muted" fontSize="xs">
        {run.description}
      </Text>
    </Table.Cell>
    <Table.Cell>{run.author}</Table.Cell>
    <Table.Cell textAlign="end">
      {run.value === null ? (
        <Badge colorPalette="orange" title="The number is infinite or none">
          diverged
        </Badge>
      ) : (
        formatNumber(run.value)
      )}
    </Table.Cell>
    <Table.Cell textAlign="end">{shown(run.flops, (value) => value.toExponential(2))}</Table.Cell>
    <Table.Cell>{run.is_on_frontier ? "yes" : ""}</Table.Cell>
    <Table.Cell textAlign="end">{shown(run.parameters, formatShortCount)}</Table.Cell>
    <Table.Cell textAlign="end">{shown(run.tokens, formatShortCount)}</Table.Cell>
    <Table.Cell textAlign="end">{shown(run.seconds, formatDuration)}</Table.Cell>
    <Table.Cell textAlign="end">{shown(run.devices, formatCount)}</Table.Cell>
  </Table.Row>
);

const HEADS = ["Rank", "Speedrun", "Author", "Score", "FLOPs", "Frontier", "Parameters", "Tokens", "Time", "Devices"];
const TEXTS = ["Speedrun", "Author", "Frontier"];

/** Speedruns by one number, the lowest first. */
export const SpeedrunBoard = ({ board }: { readonly board: Schemas["SpeedrunBoard"] }) => {
  const [isWhole, setIsWhole] = useState(false);
  const runs = isWhole ? board.runs : board.runs.slice(0, MAX_ROWS);
  const more = board.runs.length - runs.length;

  return (
    <Box aria-label={`Speedruns by ${board.metric}`} as="section">
      <Heading as="h2" mb={1} size="sm">
        {`Speedruns by ${board.metric} ↓`}
      </Heading>
      <Text color="fg.muted" fontSize="sm">
        Each is one training, so its score has no interval. Frontier: no run is better for as few FLOPs, or as good for
        fewer.
        {board.metric === "eval_loss" ? " Losses are comparable only between runs with the same validation sets." : ""}
      </Text>
      <SideScroll>
        <Table.Root aria-label={`Speedruns by ${board.metric}`} size="sm">
          <Table.Header>
            <Table.Row>
              {HEADS.map((head) => (
                <Table.ColumnHeader key={head} textAlign={TEXTS.includes(head) ? "start" : "end"}>
                  {head}
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {runs.map((run) => (
              <Row key={run.output_path} run={run} />
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
