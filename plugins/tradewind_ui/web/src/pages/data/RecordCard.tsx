import { Badge, Box, Card, HStack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { formatCount } from "../../components/format";
import type { Cell, Row, RowPage } from "./cells";
import { cellsOf } from "./cells";
import { WholeText } from "./WholeText";

export type CardProps = { readonly page: RowPage; readonly row: Row; readonly terms: readonly string[] };

export const nameOfRow = (row: Row) => (typeof row.number === "number" ? `Record ${formatCount(row.number)}` : `Record at ${row.at}`);

/** The frame of a record: its number, marks, and why it cannot be read. */
export const RecordFrame = ({ badges, children, row }: { readonly badges?: ReactNode; readonly children: ReactNode; readonly row: Row }) => (
  <Card.Root aria-label={nameOfRow(row)} as="article" size="sm" variant="outline">
    <Card.Header>
      <HStack>
        <Text color="fg.muted" fontSize="sm" fontWeight="medium">
          {nameOfRow(row)}
        </Text>
        {badges}
      </HStack>
    </Card.Header>
    <Card.Body gap={3}>{row.problem ? <Text color="fg.error">{row.problem}</Text> : children}</Card.Body>
  </Card.Root>
);

export const Field = ({ at, cell, terms }: { readonly at: string; readonly cell: Cell; readonly terms: readonly string[] }) => (
  <Box>
    <HStack gap={2}>
      <Text color="fg.muted" fontSize="xs" fontWeight="semibold" overflowWrap="anywhere">
        {cell.column}
      </Text>
      <Badge size="xs" variant="plain">
        {cell.type}
      </Badge>
    </HStack>
    {cell.value === null ? (
      <Text color="fg.subtle" fontSize="sm">
        none
      </Text>
    ) : (
      <WholeText at={at} cell={cell} terms={terms} />
    )}
  </Box>
);

/** One record, its long texts wrapped. */
export const RecordCard = ({ page, row, terms }: CardProps) => (
  <RecordFrame row={row}>
    {cellsOf(page, row).map((cell) => (
      <Field at={row.at} cell={cell} key={cell.column} terms={terms} />
    ))}
  </RecordFrame>
);
