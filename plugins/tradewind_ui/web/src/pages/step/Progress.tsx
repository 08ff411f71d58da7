import { Alert, Box, Code, Heading, HStack, Progress as Bar, Stack, Table, Text } from "@chakra-ui/react";

import type { Schemas } from "../../api/client";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { formatCount, formatDuration, pluralize } from "../../components/format";
import { DataLink } from "../../components/DataLink";
import { useProgress } from "./queries";
import type { Ids } from "./queries";
import { Section } from "./Section";

type Stage = Schemas["PipelineStage"];
type Rejected = Schemas["RejectedRows"];

const MAX_HEIGHT = "360px";

/** What is known of a stage, in words. */
const partsOf = (stage: Stage): string[] => [
  `${formatCount(stage.done)} of ${pluralize(stage.shards, "shard")}`,
  ...(stage.reused > 0 ? [`${formatCount(stage.reused)} of them there already`] : []),
  ...(stage.running > 0 ? [`${formatCount(stage.running)} running`] : []),
  ...(stage.failed > 0 ? [`${formatCount(stage.failed)} failed`] : []),
  ...(stage.losses > 0 ? [`${formatCount(stage.losses)} lost and begun again`] : []),
  pluralize(stage.rows, "row"),
  ...(stage.rejected > 0 ? [`${pluralize(stage.rejected, "row")} left out`] : []),
  formatDuration(stage.seconds),
];

const Failures = ({ stage }: { readonly stage: Stage }) => (
  <Box borderWidth="1px" maxH={MAX_HEIGHT} overflow="auto" rounded="md" tabIndex={0}>
    <Table.Root aria-label={`Failed shards of stage ${stage.stage}`} size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader textAlign="end">Failed shard</Table.ColumnHeader>
          <Table.ColumnHeader>Error</Table.ColumnHeader>
          <Table.ColumnHeader>At</Table.ColumnHeader>
          <Table.ColumnHeader>Row</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {[...stage.failures].sort((one, other) => one.shard - other.shard).map(({ frame, message, place, row, shard }) => (
          <Table.Row key={shard} verticalAlign="top">
            <Table.Cell textAlign="end">{formatCount(shard)}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{message}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">
              {place}
              {frame === "" ? undefined : <Text color="fg.muted">{frame}</Text>}
            </Table.Cell>
            <Table.Cell>
              {row === "" ? undefined : (
                <Code fontSize="xs" overflowWrap="anywhere" whiteSpace="pre-wrap">
                  {row}
                </Code>
              )}
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

const RejectedRows = ({ rejected }: { readonly rejected: readonly Rejected[] }) => (
  <Stack gap={1}>
    {/* The table may end at the edge of its box, and nothing else says that there is more. */}
    <Heading as="h3" size="sm">
      Rows left out ({pluralize(rejected.length, "shard")} shown)
    </Heading>
    <Box borderWidth="1px" maxH={MAX_HEIGHT} overflow="auto" rounded="md" tabIndex={0}>
      <Table.Root aria-label="Shards with rows that were left out" size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Rows left out</Table.ColumnHeader>
            <Table.ColumnHeader>Shard</Table.ColumnHeader>
            <Table.ColumnHeader>Why the first of them failed</Table.ColumnHeader>
            <Table.ColumnHeader>File</Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rejected.map(({ path, rejected: count, rejection, shard, stage }) => (
            <Table.Row key={`${stage}/${shard}`} verticalAlign="top">
              <Table.Cell>{formatCount(count)}</Table.Cell>
              <Table.Cell whiteSpace="nowrap">
                {formatCount(shard)} of stage {stage}
              </Table.Cell>
              <Table.Cell overflowWrap="anywhere">{rejection}</Table.Cell>
              <Table.Cell overflowWrap="anywhere">
                <DataLink path={path} />
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  </Stack>
);

const StageView = ({ of, stage }: { readonly of: number; readonly stage: Stage }) => (
  <Stack gap={1}>
    <Heading as="h3" size="sm">
      Stage {stage.stage} of {of}: {stage.name}
    </Heading>
    <Bar.Root
      aria-label={`Stage ${stage.stage}: shards done`}
      colorPalette={stage.failed > 0 ? "red" : stage.done >= stage.shards ? "green" : "blue"}
      max={Math.max(stage.shards, 1)}
      size="sm"
      value={Math.min(stage.done, stage.shards)}
    >
      <Bar.Track>
        <Bar.Range />
      </Bar.Track>
    </Bar.Root>
    <Text fontSize="sm">{partsOf(stage).join(" · ")}</Text>
    {stage.stragglers.length > 0 ? (
      <Text color="fg.warning" fontSize="sm" overflowWrap="anywhere">
        Much slower than the others: {stage.stragglers.join(", ")}
      </Text>
    ) : undefined}
    {stage.counters.length > 0 ? (
      <HStack color="fg.muted" flexWrap="wrap" fontSize="sm" gap={3}>
        {stage.counters.map(({ count, name }) => (
          <span key={name}>
            {name} {formatCount(count)}
          </span>
        ))}
      </HStack>
    ) : undefined}
    {stage.failures.length > 0 ? <Failures stage={stage} /> : undefined}
  </Stack>
);

/** How far the pipeline of a data step is. */
export const Progress = ({ ids, isActive }: { readonly ids: Ids; readonly isActive: boolean }) => {
  const { data, error } = useProgress(ids, isActive);
  // The table of a stage has the shards that the other lines of the problem name.
  const hasFailures = data?.stages.some((stage) => stage.failures.length > 0) ?? false;

  return (
    <Section title="Progress">
      {error === null ? undefined : <Problem error={error} />}
      {data === undefined && error === null ? <Loading /> : undefined}
      {data === undefined || data === null ? undefined : (
        <Stack gap={4}>
          {[data.note, hasFailures ? data.problem?.split("\n")[0]?.replace(/:$/u, ".") : data.problem].map((text, index) =>
            text ? (
              <Alert.Root key={text} status={index === 0 ? "warning" : "error"}>
                <Alert.Indicator />
                <Alert.Description overflowWrap="anywhere" whiteSpace="pre-wrap">
                  {text}
                </Alert.Description>
              </Alert.Root>
            ) : undefined,
          )}
          {data.stages.map((stage) => (
            <StageView key={stage.stage} of={data.total_stages} stage={stage} />
          ))}
          {data.rejected.length > 0 ? <RejectedRows rejected={data.rejected} /> : undefined}
        </Stack>
      )}
    </Section>
  );
};
