import { Badge, Box, Button, HStack, Heading, Text, VStack } from "@chakra-ui/react";

import { formatCount } from "../../components/format";
import type { Cluster } from "./queries";
import { SliceBlocks } from "./SliceBlocks";
import { StateBadge, STOPPED } from "./StateBadge";

const usedText = (cluster: Cluster): string | undefined => {
  const tpu = cluster.ray?.used.find(({ name }) => name === "TPU");
  return tpu === undefined ? undefined : `${formatCount(tpu.used)} of ${formatCount(tpu.total)} TPU chips in use`;
};

const Facts = ({ cluster }: { readonly cluster: Cluster }) => {
  const { cloud, lock, ray } = cluster;
  const unknown = cloud?.state === STOPPED ? undefined : "Its jobs are unknown";
  const jobs = ray === null ? unknown : `${ray.running} running, ${ray.waiting} waiting`;

  return (
    <VStack align="stretch" color="fg.muted" fontSize="sm" gap={0}>
      {jobs === undefined ? null : <Text>{[jobs, usedText(cluster)].filter(Boolean).join(" · ")}</Text>}
      {lock?.state === "held" ? (
        <Text>
          {lock.holder}: {lock.operation}, {lock.phase}
        </Text>
      ) : null}
    </VStack>
  );
};

const Slices = ({ cluster: { cloud } }: { readonly cluster: Cluster }) => {
  if (cloud?.state === STOPPED || cloud?.pools.length === 0) {
    const later = cloud.pools.map(({ kind, minimum }) => `${minimum} ${kind}`).join(", ");
    return (
      <Text color="fg.muted" fontSize="sm">
        {later === "" ? "No slices" : `${later} when it runs`}
      </Text>
    );
  }
  return cloud?.pools.map((pool) => (
    <SliceBlocks key={pool.kind} pool={pool} slices={cloud.lines.filter((line) => line.is_slice && line.kind === pool.kind)} />
  ));
};

type Props = { readonly cluster: Cluster; readonly isChosen: boolean; readonly onChoose: () => void };

/** One cluster: its slices, jobs and alarms. */
export const ClusterCard = ({ cluster, isChosen, onChoose }: Props) => (
  <Box
    aria-label={`Cluster ${cluster.name}`}
    as="section"
    bg="bg.panel"
    borderColor={isChosen ? "border.emphasized" : "border"}
    borderWidth="1px"
    boxShadow={isChosen ? "md" : undefined}
    p={4}
    rounded="md"
  >
    <VStack align="stretch" gap={3}>
      <HStack gap={2} justify="space-between">
        <HStack flexWrap="wrap" gap={2}>
          <Heading as="h2" size="md">
            {cluster.name}
          </Heading>
          <StateBadge problem={cluster.cloud_problem} state={cluster.cloud?.state} />
          {cluster.is_default ? <Badge variant="outline">default</Badge> : null}
          {cluster.owner === null ? null : <Badge variant="outline">only {cluster.owner}</Badge>}
        </HStack>
        <Button aria-pressed={isChosen} onClick={onChoose} size="xs" variant={isChosen ? "subtle" : "outline"}>
          Details
        </Button>
      </HStack>
      <Text color="fg.muted" fontSize="sm" mt={-2}>
        {cluster.project}, {cluster.zone}
      </Text>
      <Slices cluster={cluster} />
      <Facts cluster={cluster} />
      {cluster.alarms.length > 0 ? (
        <VStack align="stretch" as="ul" gap={1} listStyleType="none">
          {cluster.alarms.map((alarm) => (
            <Box as="li" borderColor="orange.solid" borderStartWidth="3px" fontSize="sm" key={alarm} ps={2}>
              {alarm}
            </Box>
          ))}
        </VStack>
      ) : null}
    </VStack>
  </Box>
);
