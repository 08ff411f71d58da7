import { Box, Table } from "@chakra-ui/react";
import { getCoreRowModel, getSortedRowModel, useReactTable } from "@tanstack/react-table";
import type { Row as TableRow, SortingState, Table as TableModel } from "@tanstack/react-table";
import { defaultRangeExtractor, useVirtualizer } from "@tanstack/react-virtual";
import type { VirtualItem } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import type { KeyboardEvent, ReactNode } from "react";

import { targetRow } from "./rowKeys";
import { Gap, HeaderCell, Line, MIN_WIDTH } from "./tableParts";
import type { Column } from "./tableParts";

export type { Column };

type Props<Row> = {
  readonly columns: readonly Column<Row>[];
  /** What stands instead of rows, and says why there are none. */
  readonly empty?: ReactNode;
  /** The row that has the focus when the table appears: its key, or "first". Without it, the focus stays. */
  readonly focusOn?: string;
  /** The most that the table takes, as CSS; 70vh without it. */
  readonly height?: string;
  /** What a screen reader calls the table. */
  readonly label: string;
  /** A click on a row, or Enter. Links and buttons in cells keep their own clicks. */
  readonly onRowClick?: (row: Row) => void;
  readonly onSort?: (sort: string) => void;
  readonly rowKey: (row: Row, index: number) => string;
  readonly rows: readonly Row[];
  /** Key of the row that is marked as chosen. */
  readonly selected?: string;
  /** Column by which rows are sorted: "size", or "-size" for descending. With `onSort` the caller keeps it. */
  readonly sort?: string;
};

const ROW_PX = 37;
/** Up to here all rows are drawn: the browser's own search finds them. */
const MAX_DRAWN = 60;

const sortingOf = (sort: string | undefined): SortingState =>
  sort === undefined || sort === "" ? [] : [{ desc: sort.startsWith("-"), id: sort.replace(/^-/u, "") }];

/** The lines to draw, with the pixels of those before each that are not drawn. */
const withGaps = (items: readonly VirtualItem[]) =>
  items.map((item, at) => ({ gap: item.start - (items[at - 1]?.end ?? 0), index: item.index }));

/** TanStack's model of the table: what is sorted how, and how wide columns are. */
const useModel = <Row,>({ columns, onSort, rowKey, rows, sort }: Props<Row>): TableModel<Row> => {
  const [own, setOwn] = useState<SortingState>(() => sortingOf(sort));
  const sorting = onSort === undefined ? own : sortingOf(sort);
  const definitions = useMemo(
    () =>
      columns.map(({ cell, header, id, value, width }) => ({
        accessorFn: (row: Row): unknown => value?.(row) ?? undefined,
        cell: ({ row }: { row: TableRow<Row> }) => (cell === undefined ? value?.(row.original) : cell(row.original)),
        enableSorting: value !== undefined,
        header,
        id,
        minSize: MIN_WIDTH,
        size: width ?? 160,
        sortUndefined: "last" as const,
      })),
    [columns],
  );

  // eslint-disable-next-line react-hooks/incompatible-library -- nothing here is memoized
  return useReactTable<Row>({
    columnResizeMode: "onChange",
    columns: definitions,
    data: rows as Row[],
    getCoreRowModel: getCoreRowModel(),
    getRowId: rowKey,
    getSortedRowModel: getSortedRowModel(),
    onSortingChange: (change) => {
      const next = typeof change === "function" ? change(sorting) : change;
      setOwn(next);
      onSort?.(next[0] === undefined ? "" : `${next[0].desc ? "-" : ""}${next[0].id}`);
    },
    state: { sorting },
  });
};

/** A table whose rows are drawn only where they are seen. Arrows, Page Up and Down, Home and End move between rows. */
export const DataTable = <Row,>(props: Props<Row>) => {
  const { columns, empty, focusOn, height = "70vh", label, onRowClick, selected } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const wantsFocus = useRef(focusOn !== undefined);
  const table = useModel(props);
  const { rows } = table.getRowModel();
  const [activeId, setActiveId] = useState(focusOn ?? selected);
  const active = Math.max(0, rows.findIndex((row) => row.id === activeId));
  // eslint-disable-next-line react-hooks/incompatible-library -- nothing here is memoized
  const virtualizer = useVirtualizer({
    count: rows.length,
    estimateSize: () => ROW_PX,
    getItemKey: (index) => rows[index]?.id ?? index,
    getScrollElement: () => scroller.current,
    overscan: 12,
    // The row with the focus stays drawn when it is scrolled away; otherwise the focus would be lost.
    rangeExtractor: (range) => [...new Set([...defaultRangeExtractor(range), active])].sort((a, b) => a - b),
    scrollPaddingStart: ROW_PX,
  });
  const isShort = rows.length <= MAX_DRAWN;
  const lines = isShort ? rows.map((_, index) => ({ gap: 0, index })) : withGaps(virtualizer.getVirtualItems());
  const last = virtualizer.getVirtualItems().at(-1);

  useEffect(() => {
    if (wantsFocus.current && rows.length > 0) {
      const line = scroller.current?.querySelector<HTMLElement>(`[data-index="${active}"]`);
      if (line) {
        wantsFocus.current = false;
        line.focus();
      } else {
        virtualizer.scrollToIndex(active);
      }
    }
  });

  const onKeyDown = (event: KeyboardEvent) => {
    const row = rows[active];
    if (event.target instanceof HTMLElement && event.target.dataset["index"] === undefined) {
      return;
    }
    const next = targetRow(event.key, active, rows.length);
    if (next !== undefined) {
      event.preventDefault();
      wantsFocus.current = true;
      virtualizer.scrollToIndex(next);
      setActiveId(rows[next]?.id);
    } else if (event.key === "Enter" && row !== undefined && onRowClick !== undefined) {
      event.preventDefault();
      onRowClick(row.original);
    }
  };

  return (
    <Box borderWidth="1px" maxH={height} overflow="auto" ref={scroller} rounded="md">
      <Table.Root
        aria-colcount={columns.length}
        aria-label={label}
        aria-rowcount={rows.length + 1}
        minW="full"
        onKeyDown={onKeyDown}
        role="grid"
        size="sm"
        stickyHeader
        tableLayout="fixed"
        width={`${table.getTotalSize()}px`}
      >
        <Table.Header>
          {table.getHeaderGroups().map((group) => (
            <Table.Row aria-rowindex={1} key={group.id}>
              {group.headers.map((header, at) => (
                <HeaderCell end={columns[at]?.end === true} header={header} key={header.id} />
              ))}
            </Table.Row>
          ))}
        </Table.Header>
        <Table.Body>
          {lines.map(({ gap, index }) => {
            const row = rows[index];
            return row === undefined ? null : (
              <Line
                columns={columns}
                gap={gap}
                index={index}
                isActive={index === active}
                isSelected={selected === undefined ? undefined : row.id === selected}
                key={row.id}
                measure={isShort ? undefined : virtualizer.measureElement}
                onClick={onRowClick}
                onFocus={() => setActiveId(row.id)}
                row={row}
              />
            );
          })}
          {isShort || last === undefined ? null : <Gap px={virtualizer.getTotalSize() - last.end} />}
        </Table.Body>
      </Table.Root>
      {rows.length === 0 ? empty : null}
    </Box>
  );
};
