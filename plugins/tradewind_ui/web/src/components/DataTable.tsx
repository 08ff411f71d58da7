import { Box, Table } from "@chakra-ui/react";
import { defaultRangeExtractor, useVirtualizer } from "@tanstack/react-virtual";
import type { VirtualItem } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import type { KeyboardEvent, ReactNode } from "react";

import { targetRow } from "./rowKeys";
import { orderOf, sortAfterClick, sortOf } from "./rowOrder";
import { useEdge } from "./SideScroll";
import { Edge, Gap, HeaderCell, Line } from "./tableParts";
import type { Column, Value } from "./tableParts";

export type { Column, Value };

type Props<Row> = {
  readonly columns: readonly Column<Row>[];
  /** What stands instead of rows, and says why there are none. */
  readonly empty?: ReactNode;
  /** The row that has the focus when the table appears: its key, or "first". Without it, the focus stays. */
  readonly focusOn?: string;
  /** The most that the table takes, as CSS; 70vh without it. */
  readonly height?: string;
  /** The rows come in the order that `sort` says: the table only tells it. */
  readonly isInOrder?: boolean;
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

/** The lines to draw, with the pixels of those before each that are not drawn. */
const withGaps = (items: readonly VirtualItem[]) =>
  items.map((item, at) => ({ gap: item.start - (items[at - 1]?.end ?? 0), index: item.index }));

const widthOf = <Row,>({ id, width = 160 }: Column<Row>, widths: Readonly<Record<string, number>>) => widths[id] ?? width;

/** The rows in their order. Nothing is built for rows that are not drawn, of which there may be very many. */
const useOrdered = <Row,>({ columns, isInOrder = false, onSort, rowKey, rows, sort }: Props<Row>) => {
  const [own, setOwn] = useState(sort);
  const sorting = onSort === undefined ? own : sort;
  const order = useMemo(() => (isInOrder ? undefined : orderOf(rows, columns, sorting)), [columns, isInOrder, rows, sorting]);
  const at = (index: number) => order?.[index] ?? index;
  const keyAt = (index: number) => {
    const row = rows[at(index)];
    return row === undefined ? undefined : rowKey(row, at(index));
  };

  return {
    click: (column: Column<Row>) => {
      const next = sortAfterClick(rows, column, sorting);
      setOwn(next);
      onSort?.(next);
    },
    /** Return where a key is, first looking where it was; 0 for a key that is not there. */
    indexOf: (key: string | undefined, hint: number) => {
      if (key === undefined || keyAt(hint) === key) {
        return hint;
      }
      const found = rows.findIndex((_, index) => keyAt(index) === key);
      return Math.max(0, found);
    },
    keyAt,
    rowAt: (index: number) => rows[at(index)],
    sorting: sortOf(sorting),
  };
};

const rowHeight = () => ROW_PX;

/** A table whose rows are drawn only where they are seen. Arrows, Page Up and Down, Home and End move between rows. */
export const DataTable = <Row,>(props: Props<Row>) => {
  const { columns, empty, focusOn, height = "70vh", label, onRowClick, rows, selected } = props;
  const { edge, scroller, showEdge } = useEdge();
  const wantsFocus = useRef(focusOn !== undefined);
  const { click, indexOf, keyAt, rowAt, sorting } = useOrdered(props);
  const [widths, setWidths] = useState<Readonly<Record<string, number>>>({});
  const [focused, setFocused] = useState({ index: 0, key: focusOn === "first" ? undefined : (focusOn ?? selected) });
  const active = Math.min(indexOf(focused.key, focused.index), Math.max(0, rows.length - 1));
  // eslint-disable-next-line react-hooks/incompatible-library -- nothing here is memoized
  const virtualizer = useVirtualizer({
    count: rows.length,
    estimateSize: rowHeight,
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
    const row = rowAt(active);
    if (event.target instanceof HTMLElement && event.target.dataset["index"] === undefined) {
      return;
    }
    const next = targetRow(event.key, active, rows.length);
    if (next !== undefined) {
      event.preventDefault();
      wantsFocus.current = true;
      virtualizer.scrollToIndex(next);
      setFocused({ index: next, key: keyAt(next) });
    } else if (event.key === "Enter" && row !== undefined && onRowClick !== undefined) {
      event.preventDefault();
      onRowClick(row);
    }
  };

  return (
    <Box minW="0" position="relative">
      <Box borderWidth="1px" maxH={height} onScroll={showEdge} overflow="auto" ref={scroller} rounded="md">
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
          width={`${columns.reduce((sum, column) => sum + widthOf(column, widths), 0)}px`}
        >
          <Table.Header>
            <Table.Row aria-rowindex={1}>
              {columns.map((column) => (
                <HeaderCell
                  end={column.end === true}
                  key={column.id}
                  onSort={column.value === undefined ? undefined : () => click(column)}
                  onWidth={(width) => setWidths((before) => ({ ...before, [column.id]: width }))}
                  sorted={column.id !== sorting.id ? "" : sorting.isDescending ? "desc" : "asc"}
                  text={column.header}
                  width={widthOf(column, widths)}
                />
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {lines.map(({ gap, index }) => {
              const [row, key] = [rowAt(index), keyAt(index)];
              return row === undefined ? null : (
                <Line
                  columns={columns}
                  gap={gap}
                  index={index}
                  isActive={index === active}
                  isSelected={selected === undefined ? undefined : key === selected}
                  key={key}
                  measure={isShort ? undefined : virtualizer.measureElement}
                  onClick={onRowClick}
                  onFocus={() => setFocused({ index, key })}
                  row={row}
                />
              );
            })}
            {isShort || last === undefined ? null : <Gap px={virtualizer.getTotalSize() - last.end} />}
          </Table.Body>
        </Table.Root>
        {rows.length === 0 ? empty : null}
      </Box>
      <Edge ref={edge} />
    </Box>
  );
};
