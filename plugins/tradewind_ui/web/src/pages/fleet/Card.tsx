import { Badge, Box, Heading, HStack, Link, Table, Text } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import { SideScroll } from "../../components/SideScroll";
import { CardSpace, keepHeight, PLACE } from "./CardSpace";
import { useHealth } from "./queries";
import type { Health } from "./queries";
import { StateBadge, STOPPED } from "./StateBadge";

const Line = ({ cluster }: { readonly cluster: Health }) => {
  // A stopped cluster has no slices and no jobs; of another one they are unknown while it does not answer.
  const missing = cluster.state === STOPPED ? "–" : "?";
  const [first, ...others] = cluster.alarms;

  return (
    <Table.Row>
      <Table.Cell>
        <Link asChild variant="underline">
          <RouterLink to={`/plugin/tradewind_fleet?cluster=${encodeURIComponent(cluster.name)}`}>{cluster.name}</RouterLink>
        </Link>
      </Table.Cell>
      <Table.Cell>
        <HStack gap={2}>
          <StateBadge state={cluster.state} />
          <Text>{cluster.operation}</Text>
        </HStack>
      </Table.Cell>
      <Table.Cell minW={first === undefined ? undefined : "9rem"}>
        {first === undefined ? null : (
          <Badge colorPalette="orange" title={cluster.alarms.join(" ")} whiteSpace="normal">
            {first}
            {others.length > 0 ? ` +${others.length}` : ""}
          </Badge>
        )}
      </Table.Cell>
      <Table.Cell textAlign="end">
        {cluster.state === STOPPED || cluster.ready === null ? missing : `${cluster.ready} of ${cluster.wanted ?? "?"}`}
      </Table.Cell>
      <Table.Cell textAlign="end">{cluster.running ?? missing}</Table.Cell>
      <Table.Cell textAlign="end">{cluster.waiting ?? missing}</Table.Cell>
    </Table.Row>
  );
};

/** Alarms stand where a narrow window shows them. */
const TITLES = ["Cluster", "State", "Alarms", "Slices ready", "Jobs running", "Waiting"];

const Lines = ({ clusters }: { readonly clusters: readonly Health[] }) => (
  <SideScroll>
    <Table.Root size="sm">
      <Table.Header>
        <Table.Row>
          {TITLES.map((title, at) => (
            <Table.ColumnHeader key={title} textAlign={at > 2 ? "end" : "start"}>
              {title}
            </Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {clusters.map((cluster) => (
          <Line cluster={cluster} key={cluster.name} />
        ))}
      </Table.Body>
    </Table.Root>
  </SideScroll>
);

const Shown = ({ children }: { readonly children: ReactNode }) => {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => keepHeight(box.current?.offsetHeight ?? 0));

  return (
    <Box aria-label="Fleet" as="section" borderWidth="1px" order={PLACE} p={4} ref={box} rounded="md">
      <Heading as="h2" mb={2} size="md">
        Fleet
      </Heading>
      {children}
    </Box>
  );
};

const Sentence = ({ children }: { readonly children: ReactNode }) => (
  <Text color="fg.muted" fontSize="sm">
    {children}
  </Text>
);

/** The fleet on the dashboard, a line for each cluster; nothing without one, or for users who may not see clusters. */
const Card = () => {
  const { data, error } = useHealth();
  const isHidden = data?.is_visible === false || data?.is_configured === false;
  useEffect(() => {
    if (isHidden) {
      keepHeight(0);
    }
  }, [isHidden]);

  if (isHidden) {
    return null;
  }
  if (data === undefined) {
    return error === null ? (
      <CardSpace />
    ) : (
      <Shown>
        <Sentence>{error.message}</Sentence>
      </Shown>
    );
  }
  return (
    <Shown>
      {data.problem !== null ? (
        <Sentence>{data.problem}</Sentence>
      ) : (
        <Lines clusters={data.clusters} />
      )}
    </Shown>
  );
};

export default Card;
