import { Box, HStack, Heading, Link, Text, VStack } from "@chakra-ui/react";
import { Link as RouterLink } from "react-router-dom";

import type { Schemas } from "../../api/client";
import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { formatSince, formatTime, pluralize } from "../../components/format";
import { taskLink } from "./links";
import type { Upkeep } from "./queries";

type Line = Schemas["UpkeepLine"];

const COLUMNS: readonly Column<Line>[] = [
  { header: "Cluster", id: "cluster", value: (line) => line.cluster, width: 140 },
  { header: "About", id: "about", value: (line) => line.about, width: 110 },
  { header: "Name", id: "name", value: (line) => line.name, width: 240 },
  { cell: (line) => <span title={line.state}>{line.state}</span>, header: "State", id: "state", value: (line) => line.state, width: 380 },
  { header: "Done", id: "done", value: (line) => line.done, width: 200 },
];

/** What `fleet_maintenance` found last. */
export const UpkeepReport = ({ upkeep, problem }: { readonly problem: string | null; readonly upkeep: Upkeep | null }) => {
  const link = upkeep === null ? undefined : taskLink(upkeep);
  const wanted = upkeep === null ? [] : [...upkeep.report.for_a_person, ...upkeep.report.unseen];

  return (
    <Box aria-label="What fleet_maintenance found last" as="section">
      <HStack flexWrap="wrap" gap={3} mb={3}>
        <Heading as="h2" size="lg">
          What fleet_maintenance found last
        </Heading>
        {upkeep === null ? null : (
          <Text color="fg.muted" fontSize="sm" title={formatTime(upkeep.report.at)}>
            {formatSince(upkeep.report.at)}
          </Text>
        )}
        {link === undefined ? null : (
          <Link asChild fontSize="sm" variant="underline">
            <RouterLink to={link}>Its task</RouterLink>
          </Link>
        )}
      </HStack>
      {upkeep === null ? (
        <Text color="fg.muted">{problem} Unpause the DAG fleet_maintenance to have one every ten minutes.</Text>
      ) : (
        <VStack align="stretch" gap={3}>
          {wanted.map((sentence) => (
            <Box borderColor="orange.solid" borderStartWidth="3px" fontSize="sm" key={sentence} overflowWrap="anywhere" ps={2}>
              {sentence}
            </Box>
          ))}
          {upkeep.report.lines.length === 0 ? (
            <Text color="fg.muted">All is well.</Text>
          ) : (
            <DataTable
              columns={COLUMNS}
              height="40vh"
              label="Findings"
              rowKey={(line, index) => `${index} ${line.name}`}
              rows={upkeep.report.lines}
            />
          )}
          {(upkeep.left_out ?? 0) > 0 ? (
            <Text color="fg.muted">The log of the task has {pluralize(upkeep.left_out ?? 0, "more finding")}.</Text>
          ) : null}
        </VStack>
      )}
    </Box>
  );
};
