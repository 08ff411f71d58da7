import { Badge, Box, Button, Code, Collapsible, Heading, HStack, Stack, Table, Text } from "@chakra-ui/react";

import { DataLink } from "../../components/DataLink";
import { formatCount, formatDuration, formatNumber, formatTime, pluralize } from "../../components/format";
import { TimeAxis } from "./TimeAxis";
import type { Attempt, Span } from "./timeAxis";

const OUTCOMES: Record<string, string> = { failed: "red", lost: "orange", stopped: "orange", succeeded: "green" };

/** What an attempt cost, in words. */
export const costOf = ({ cost, failures, goodput, preemptions, restarts }: Attempt): string[] => {
  if (cost === null || cost === undefined) {
    return [];
  }
  const { down_s = 0, lost_steps = 0, resources, slice_hours, wall_s, waiting_s = 0 } = cost;
  const parts = [`${formatDuration(wall_s)}${resources ? ` on ${resources}` : ""}`];
  if (waiting_s >= 1) {
    parts.push(`waited ${formatDuration(waiting_s)} for slices`);
  }
  if (preemptions > 0) {
    parts.push(pluralize(preemptions, "preemption"));
  }
  if (failures > 0) {
    parts.push(pluralize(failures, "failure"));
  }
  if (restarts > 0) {
    parts.push(`${pluralize(restarts, "restart")}, ${formatDuration(down_s)} until the next step besides the waits`);
  }
  if (lost_steps > 0) {
    parts.push(`${pluralize(lost_steps, "step")} made again`);
  }
  if (typeof slice_hours === "number") {
    parts.push(`${formatNumber(slice_hours)} slice hours`);
  }
  if (typeof goodput === "number") {
    parts.push(`goodput ${(goodput * 100).toFixed(0)} %`);
  }
  return parts;
};

const Events = ({ attempt }: { readonly attempt: Attempt }) => (
  <Box overflowX="auto">
    <Table.Root aria-label={`Events of attempt ${attempt.number}`} size="sm">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader>Time</Table.ColumnHeader>
          <Table.ColumnHeader>Event</Table.ColumnHeader>
          <Table.ColumnHeader textAlign="end">Step</Table.ColumnHeader>
          <Table.ColumnHeader>What it cost</Table.ColumnHeader>
          <Table.ColumnHeader>Reason</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {attempt.events.map(({ at, cause, down_s, kind, lost_steps, reason, step }, index) => (
          <Table.Row key={`${kind}/${at}/${index}`} verticalAlign="top">
            <Table.Cell whiteSpace="nowrap">{formatTime(at)}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">
              {kind}
              {cause ? ` (${cause})` : ""}
            </Table.Cell>
            <Table.Cell textAlign="end">{typeof step === "number" ? formatCount(step) : ""}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">
              {[
                lost_steps > 0 ? pluralize(lost_steps, "step") : "",
                typeof down_s === "number" ? `${formatDuration(down_s)} until the next step` : "",
              ]
                .filter((part) => part !== "")
                .join(", ")}
            </Table.Cell>
            <Table.Cell overflowWrap="anywhere">{reason}</Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

type Props = {
  readonly attempt: Attempt;
  readonly axis: Span | undefined;
  /** The run of this page made the attempt, and others made others. */
  readonly isOwn: boolean;
  readonly now: number;
};

/** One attempt: its end and its cost in a line, its time on an axis, and below that what happened. */
export const AttemptCard = ({ attempt, axis, isOwn, now }: Props) => {
  const { commit, is_active, job, logs, number, outcome, problem, producer, reason, traceback } = attempt;
  const state = is_active ? "running" : (outcome ?? "end not recorded");
  const cost = costOf(attempt);

  return (
    <Collapsible.Root lazyMount unmountOnExit>
      <HStack flexWrap="wrap" gap={3}>
        <Heading as="h3" size="sm">
          Attempt {number}
        </Heading>
        <Badge colorPalette={is_active ? "blue" : (OUTCOMES[outcome ?? ""] ?? "gray")}>{state}</Badge>
        {isOwn ? <Badge variant="outline">by this run</Badge> : undefined}
        <Collapsible.Trigger asChild>
          <Button aria-label={`Events and logs of attempt ${number}`} ms="auto" size="xs" variant="ghost">
            Events and logs
          </Button>
        </Collapsible.Trigger>
      </HStack>
      <Text color="fg.muted" fontSize="sm">
        {cost.join(" · ")}
      </Text>
      {reason ? (
        <Text fontSize="sm" lineClamp={4} mt={1} overflowWrap="anywhere" whiteSpace="pre-wrap">
          {reason}
        </Text>
      ) : undefined}
      {problem ? (
        <Text color="fg.warning" fontSize="sm" overflowWrap="anywhere">
          {problem}
        </Text>
      ) : undefined}
      {axis === undefined ? undefined : <TimeAxis attempt={attempt} axis={axis} now={now} />}
      <Collapsible.Content>
        <Stack gap={3} mt={2} ps={2}>
          <Text fontSize="sm" overflowWrap="anywhere">
            {[producer, job === "" ? "" : `job ${job}`, commit ? `commit ${commit.slice(0, 12)}` : ""]
              .filter((part) => part !== "")
              .join(" · ")}{" "}
            <DataLink path={logs}>Logs of the driver and of each host</DataLink>
          </Text>
          {attempt.events.length === 0 ? undefined : <Events attempt={attempt} />}
          {attempt.left_out > 0 ? (
            <Text color="fg.muted">{formatCount(attempt.left_out)} older intervals and events are left out.</Text>
          ) : undefined}
          {traceback ? (
            <Code
              aria-label={`Traceback of attempt ${number}`}
              display="block"
              fontSize="xs"
              maxH="400px"
              overflow="auto"
              p={3}
              role="region"
              tabIndex={0}
              whiteSpace="pre"
            >
              {traceback}
            </Code>
          ) : undefined}
        </Stack>
      </Collapsible.Content>
    </Collapsible.Root>
  );
};
