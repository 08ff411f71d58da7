import { Box, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { formatCount } from "../../components/format";
import type { Row, RowPage } from "./cells";
import { textOf } from "./cells";
import { usePane } from "./context";
import { Marked } from "./Marked";
import { useRow } from "./queries";
import { RecordCard } from "./RecordCard";
import { Refusal } from "./Refusal";

const SHOWN_CHARS = 300;
const NUMBERS = /^(u?int|float|double|decimal|number)/iu;

/** Without line ends: a row of the table is one line. */
const inLine = (text: string) => text.slice(0, SHOWN_CHARS).replace(/\s+/gu, " ");

const WIDTHS = { char: 8, max: 480, min: 90, padding: 32, rows: 50 };

/** The width of a column by its longest text among the first rows, in pixels. */
const widthOf = (rows: readonly Row[], at: number, name: string) => {
  const lengths = rows.slice(0, WIDTHS.rows).map((row) => textOf(row.values[at] ?? null).length);
  const longest = Math.max(name.length, ...lengths);
  return Math.min(Math.max(longest * WIDTHS.char + WIDTHS.padding, WIDTHS.min), WIDTHS.max);
};

const columnsOf = ({ columns, rows }: RowPage, terms: readonly string[]): readonly Column<Row>[] => [
  { cell: (row) => (typeof row.number === "number" ? formatCount(row.number) : ""), end: true, header: "#", id: "#", value: (row) => row.number, width: 80 },
  ...columns.map(({ name, type }, at): Column<Row> => ({
    cell: (row) =>
      row.problem ? (
        at === 0 ? <Text as="span" color="fg.error" title={row.problem}>{row.problem}</Text> : null
      ) : (
        <>
          <Marked terms={terms} text={inLine(textOf(row.values[at] ?? null))} />
          {row.cut?.includes(at) === true ? <Text as="span" color="fg.muted">…</Text> : null}
        </>
      ),
    end: NUMBERS.test(type),
    header: name,
    id: `column ${at}`,
    value: (row) => row.values[at],
    width: NUMBERS.test(type) ? 110 : widthOf(rows, at, name),
  })),
];

const Chosen = ({ terms }: { readonly terms: readonly string[] }) => {
  const { pane } = usePane();
  const found = useRow(pane.path, pane.row);
  const row = found.data?.rows[0];

  return (
    <Box aria-live="polite" flex="1 1 20rem" maxH="70vh" minW="0" overflow="auto">
      {found.error ? <Refusal error={found.error} retry={found.refetch} /> : null}
      {found.data !== undefined && row !== undefined ? <RecordCard page={found.data} row={row} terms={terms} /> : null}
    </Box>
  );
};

/** Rows as a table; the chosen one stands beside it, whole. */
export const RowTable = ({ page, terms }: { readonly page: RowPage; readonly terms: readonly string[] }) => {
  const { pane, update } = usePane();
  const columns = useMemo(() => columnsOf(page, terms), [page, terms]);

  return (
    <Stack align="stretch" direction={{ base: "column", lg: "row" }} gap={3}>
      <Box flex="2 1 30rem" minW="0">
        <DataTable
          columns={columns}
          label={`Rows of ${page.path}`}
          onRowClick={(row) => update({ row: row.at === pane.row ? undefined : row.at })}
          rowKey={(row) => row.at}
          rows={page.rows}
          selected={pane.row}
        />
      </Box>
      {pane.row === undefined ? null : <Chosen terms={terms} />}
    </Stack>
  );
};
