import { Alert, Box, DataList, Heading, Link, Text, VStack } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { DataTable } from "../../components/DataTable";
import { formatDuration } from "../../components/format";
import { JOBS, RESOURCES, STALLED, WAITS } from "./columns";
import type { Cluster } from "./queries";

/** Why a fact is missing, or old. */
const Note = ({ text, what }: { readonly text: string | null; readonly what: string }) =>
  text === null ? null : (
    <Alert.Root size="sm" status="warning">
      <Alert.Indicator />
      <Alert.Content>
        <Alert.Title>{what}</Alert.Title>
        <Alert.Description overflowWrap="anywhere">{text}</Alert.Description>
      </Alert.Content>
    </Alert.Root>
  );

const Part = ({ children, title }: { readonly children: ReactNode; readonly title: string }) => (
  <Box as="section" aria-label={title}>
    <Heading as="h3" mb={2} size="sm">
      {title}
    </Heading>
    {children}
  </Box>
);

const Fact = ({ children, label }: { readonly children: ReactNode; readonly label: string }) => (
  <DataList.Item>
    <DataList.ItemLabel>{label}</DataList.ItemLabel>
    <DataList.ItemValue overflowWrap="anywhere">{children}</DataList.ItemValue>
  </DataList.Item>
);

const tokenText = ({ token, token_problem: problem }: Cluster): string => {
  if (token === null) {
    return problem ?? "unknown";
  }
  if (token.version === null || token.version === undefined) {
    return `${token.secret} has no enabled version`;
  }
  const age = token.age_s === null || token.age_s === undefined ? "of unknown age" : `${formatDuration(token.age_s)} old`;
  const others = (token.enabled ?? 0) > 1 ? `; ${(token.enabled ?? 0) - 1} older versions are enabled too` : "";
  return `Version ${token.version}, ${age}${others}`;
};

const lockText = ({ lock, lock_problem: problem }: Cluster): string =>
  lock === null ? (problem ?? "unknown") : lock.state === "free" ? `Free. ${lock.sentence}` : (lock.sentence ?? lock.state);

const Facts = ({ cluster }: { readonly cluster: Cluster }) => (
  <DataList.Root orientation="horizontal" size="sm">
    <Fact label="Head">
      {cluster.ray === null ? (
        "does not answer"
      ) : (
        <span>
          <Link href={cluster.ray.address} rel="noreferrer" target="_blank" variant="underline">
            {cluster.ray.address}
          </Link>
          {` answers: Ray ${cluster.ray.version ?? "of unknown version"}, ${cluster.ray.nodes} nodes`}
        </span>
      )}
    </Fact>
    <Fact label="Connection">{cluster.connection}</Fact>
    <Fact label="Lock">{lockText(cluster)}</Fact>
    <Fact label="Token">{tokenText(cluster)}</Fact>
  </DataList.Root>
);

/** All facts about one cluster. */
export const ClusterDetails = ({ cluster }: { readonly cluster: Cluster }) => {
  const { cloud, ray, stalled } = cluster;

  return (
    <Box aria-label={`Details of ${cluster.name}`} as="section" borderWidth="1px" p={4} rounded="md">
      <VStack align="stretch" gap={5}>
        <Heading as="h2" size="lg">
          {cluster.name}
        </Heading>
        <Note text={cluster.cloud_problem} what={cloud === null ? "Google Cloud does not say what there is" : "Google Cloud is slow"} />
        <Note text={cluster.ray_problem} what={ray === null ? "The head does not answer" : "The head is slow"} />
        <Note text={cluster.stalled_problem} what="The records of running steps cannot be read" />
        <Facts cluster={cluster} />
        {stalled.length > 0 ? (
          <Part title="Steps without progress">
            <DataTable columns={STALLED} height="40vh" label="Steps without progress" rowKey={(step) => step.job} rows={stalled} />
          </Part>
        ) : null}
        {ray === null ? null : (
          <Part title={`Jobs: ${ray.running} running, ${ray.waiting} waiting`}>
            {ray.jobs.length === 0 ? (
              <Text color="fg.muted">No job runs or waits.</Text>
            ) : (
              <DataTable columns={JOBS} height="40vh" label="Jobs" rowKey={(job) => job.job} rows={ray.jobs} />
            )}
            {ray.is_cut === true ? <Text color="fg.muted">More jobs or waits are not shown.</Text> : null}
          </Part>
        )}
        {ray === null || ray.waits.length === 0 ? null : (
          <Part title="What running jobs wait for">
            <DataTable
              columns={WAITS}
              height="40vh"
              label="What running jobs wait for"
              rowKey={(wait) => `${wait.job} ${wait.kind} ${wait.resources}`}
              rows={ray.waits}
            />
          </Part>
        )}
        {cloud === null ? null : (
          <Part title="Machines and slices">
            {cloud.lines.length === 0 ? (
              <Text color="fg.muted">There are none. Start the cluster with: tradewind cluster start {cluster.name}</Text>
            ) : (
              <DataTable
                columns={RESOURCES}
                height="50vh"
                label="Machines and slices"
                rowKey={(line) => `${line.kind} ${line.name}`}
                rows={cloud.lines}
              />
            )}
            {(cloud.left_out ?? 0) > 0 ? <Text color="fg.muted">{cloud.left_out} more are not shown.</Text> : null}
          </Part>
        )}
      </VStack>
    </Box>
  );
};
