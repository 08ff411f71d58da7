import { Box, Heading, HStack, SimpleGrid, Text, VStack } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";

import { Empty } from "../../components/Empty";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { ClusterCard } from "./ClusterCard";
import { ClusterDetails } from "./ClusterDetails";
import { HistoryBars } from "./HistoryBars";
import { isRefusal, useFleet } from "./queries";
import type { Cluster, Orphan } from "./queries";
import { SliceLegend } from "./SliceBlocks";
import { UpkeepReport } from "./UpkeepReport";

/** The cluster of the address, else the first with an alarm, else the default one. */
const chosenOf = (clusters: readonly Cluster[], name: string | null): Cluster | undefined =>
  clusters.find((each) => each.name === name) ??
  clusters.find(({ alarms }) => alarms.length > 0) ??
  clusters.find((each) => each.is_default) ??
  clusters[0];

const Orphans = ({ orphans }: { readonly orphans: readonly Orphan[] }) =>
  orphans.length === 0 ? null : (
    <Box aria-label="Clusters that are not in the fleet file" as="section">
      <Heading as="h2" mb={2} size="lg">
        Not in the fleet file
      </Heading>
      {orphans.map(({ cluster, names, project, zone }) => (
        <Text fontSize="sm" key={`${cluster} ${zone}`} overflowWrap="anywhere">
          {cluster} has resources in {project}, {zone}: {names.slice(0, 20).join(", ")}
          {names.length > 20 ? ` and ${names.length - 20} more` : ""}.
        </Text>
      ))}
    </Box>
  );

/** The clusters of the fleet file: slices, jobs, locks, tokens, alarms, and the last days. */
const Fleet = () => {
  const [address, setAddress] = useSearchParams();
  const { data, error } = useFleet();
  if (data === undefined && isRefusal(error)) {
    return (
      <Empty title="You may not see the clusters">
        Only users who may read connections see clusters and their tokens&apos; ages. An administrator can give your role this
        permission.
      </Empty>
    );
  }
  if (data === undefined) {
    return error === null ? <Loading /> : <Problem error={error} />;
  }
  if (!data.is_configured) {
    return (
      <Empty title="No fleet file is configured">
        This page shows the clusters that a fleet file describes. Set fleet_file of [tradewind] in Airflow&apos;s configuration
        to its path.
      </Empty>
    );
  }
  const chosen = chosenOf(data.clusters, address.get("cluster"));
  const choose = (cluster: string) =>
    setAddress((old) => {
      const next = new URLSearchParams(old);
      next.set("cluster", cluster);
      return next;
    });

  return (
    <Box h="full" overflowY="auto" p={4}>
      <VStack align="stretch" gap={6}>
        <HStack flexWrap="wrap" gap={4} justify="space-between">
          <Heading as="h1" size="xl">
            Fleet
          </Heading>
          <SliceLegend />
        </HStack>
        {error === null ? null : <Problem error={error} />}
        {data.problem === null ? null : <Problem error={new Error(data.problem)} />}
        <SimpleGrid gap={4} minChildWidth={{ base: "100%", sm: "380px" }}>
          {data.clusters.map((cluster) => (
            <ClusterCard
              cluster={cluster}
              isChosen={cluster.name === chosen?.name}
              key={cluster.name}
              onChoose={() => choose(cluster.name)}
            />
          ))}
        </SimpleGrid>
        {chosen === undefined ? null : <ClusterDetails cluster={chosen} />}
        <HistoryBars />
        <UpkeepReport problem={data.upkeep_problem} upkeep={data.upkeep} />
        <Orphans orphans={data.orphans} />
      </VStack>
    </Box>
  );
};

export default Fleet;
