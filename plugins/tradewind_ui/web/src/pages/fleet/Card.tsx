import { Badge, Box, Heading, HStack, Link, Table, Text } from "@chakra-ui/react";
import { Link as RouterLink } from "react-router-dom";

import { isRefusal, useHealth } from "./queries";
import type { Health } from "./queries";

const share = (part: number | null, whole: number | null) => (part === null || whole === null ? "?" : `${part} of ${whole}`);

const Line = ({ cluster }: { readonly cluster: Health }) => (
  <Table.Row>
    <Table.Cell>
      <Link asChild variant="underline">
        <RouterLink to={`/plugin/tradewind_fleet?cluster=${encodeURIComponent(cluster.name)}`}>{cluster.name}</RouterLink>
      </Link>
    </Table.Cell>
    <Table.Cell textAlign="end">{share(cluster.ready, cluster.wanted)}</Table.Cell>
    <Table.Cell textAlign="end">{cluster.running ?? "?"}</Table.Cell>
    <Table.Cell textAlign="end">{cluster.waiting ?? "?"}</Table.Cell>
    <Table.Cell>
      {cluster.alarms.length === 0 ? null : (
        <Badge colorPalette="orange" title={cluster.alarms.join(" ")} whiteSpace="normal">
          {cluster.alarms[0]}
          {cluster.alarms.length > 1 ? ` +${cluster.alarms.length - 1}` : ""}
        </Badge>
      )}
    </Table.Cell>
  </Table.Row>
);

const Sentence = ({ children }: { readonly children: React.ReactNode }) => (
  <Text color="fg.muted" fontSize="sm">
    {children}
  </Text>
);

const Body = () => {
  const { data, error } = useHealth();
  if (data === undefined) {
    if (error === null) {
      return <Sentence>Asking the clusters…</Sentence>;
    }
    return <Sentence>{isRefusal(error) ? "Shown to users who may read connections." : error.message}</Sentence>;
  }
  if (!data.is_configured) {
    return <Sentence>No fleet file is configured: set fleet_file of [tradewind] to its path.</Sentence>;
  }
  if (data.problem !== null) {
    return <Sentence>{data.problem}</Sentence>;
  }
  return (
    <Table.Root size="sm">
      <Table.Header>
        <Table.Row>
          {["Cluster", "Slices ready", "Jobs running", "Waiting", "Alarms"].map((title, at) => (
            <Table.ColumnHeader key={title} textAlign={at > 0 && at < 4 ? "end" : "start"}>
              {title}
            </Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {data.clusters.map((cluster) => (
          <Line cluster={cluster} key={cluster.name} />
        ))}
      </Table.Body>
    </Table.Root>
  );
};

/** The fleet on the dashboard, a line for each cluster. Airflow orders its own parts: the fifth shows its health. */
const Card = () => (
  <Box aria-label="Fleet" as="section" borderWidth="1px" order={5} p={4} rounded="md">
    <HStack justify="space-between" mb={2}>
      <Heading as="h2" size="md">
        Fleet
      </Heading>
    </HStack>
    <Body />
  </Box>
);

export default Card;
