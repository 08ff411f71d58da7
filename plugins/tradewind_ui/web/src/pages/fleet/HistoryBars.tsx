import { Box, Heading, SimpleGrid, Text, VStack } from "@chakra-ui/react";

import { pluralize } from "../../components/format";
import { Problem } from "../../components/Problem";
import { DayBars } from "./DayBars";
import { useHistory } from "./queries";
import type { History } from "./queries";

const percent = (share: number) => `${(100 * share).toFixed(0)} %`;

const Preemptions = ({ history }: { readonly history: History }) => {
  const most = Math.max(1, ...history.preemptions.map(({ count }) => count));

  return history.zones.map((zone) => {
    const own = history.preemptions.filter((each) => each.zone === zone);
    const total = own.reduce((sum, { count }) => sum + count, 0);
    return (
      <DayBars
        days={history.days}
        describe={(count) => `${count} preempted`}
        key={zone}
        label={zone}
        most={most}
        palette="orange"
        summary={String(total)}
        values={new Map(own.map(({ count, day }) => [day, count]))}
      />
    );
  });
};

const Goodput = ({ history }: { readonly history: History }) =>
  history.clusters.map((cluster) => {
    const own = history.goodput.filter((each) => each.cluster === cluster);
    const wall = own.reduce((sum, each) => sum + each.wall_s, 0);
    const productive = own.reduce((sum, each) => sum + each.productive_s, 0);
    return (
      <DayBars
        days={history.days}
        describe={percent}
        key={cluster}
        label={cluster}
        most={1}
        palette="green"
        summary={wall > 0 ? percent(productive / wall) : "no pods"}
        values={new Map(own.flatMap(({ day, share }) => (share === null ? [] : [[day, share] as const])))}
      />
    );
  });

/** Preempted slices by zone and goodput by cluster, a bar for each day. */
export const HistoryBars = () => {
  const { data, error } = useHistory();
  if (error !== null) {
    return <Problem error={error} />;
  }
  if (data === undefined) {
    return null;
  }
  return (
    <Box aria-label="The last days" as="section">
      <Heading as="h2" mb={3} size="lg">
        The last {data.days.length} days
      </Heading>
      <SimpleGrid gap={6} minChildWidth={{ base: "100%", md: "420px" }}>
        <VStack align="stretch" gap={2}>
          <Heading as="h3" size="sm">
            Preempted slices by zone
          </Heading>
          <Preemptions history={data} />
          <Text color="fg.muted" fontSize="xs">
            From {pluralize(data.reports, "report")} of fleet_maintenance and the timelines of {pluralize(data.pods, "pod")}.
          </Text>
        </VStack>
        <VStack align="stretch" gap={2}>
          <Heading as="h3" size="sm">
            Goodput by cluster
          </Heading>
          <Goodput history={data} />
          <Text color="fg.muted" fontSize="xs">
            Share of the time of pods in steps that count, from their timelines; checkpoints and validation included.
          </Text>
        </VStack>
      </SimpleGrid>
      {data.problems.map((problem) => (
        <Text color="fg.muted" fontSize="xs" key={problem} mt={2} overflowWrap="anywhere">
          Incomplete: {problem}
        </Text>
      ))}
    </Box>
  );
};
