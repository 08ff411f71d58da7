import { Box, Table } from "@chakra-ui/react";
import { flexRender } from "@tanstack/react-table";
import type { Header, Row as TableRow } from "@tanstack/react-table";
import type { KeyboardEvent, MouseEvent, ReactNode } from "react";

type Value = boolean | number | string | null | undefined;

export type Column<Row> = {
  /** Draws the cell; without it, the cell shows `value`. */
  readonly cell?: (row: Row) => ReactNode;
  /** Numbers stand at the end. */
  readonly end?: boolean;
  readonly header: string;
  readonly id: string;
  /** What the column sorts by. A column without it does not sort. */
  readonly value?: (row: Row) => Value;
  /** Pixels at the start; 160 without it. Columns share what the window has more. */
  readonly width?: number;
};

export const MIN_WIDTH = 48;
const STEP_PX = 24;
const ARIA_SORT = { asc: "ascending", desc: "descending" } as const;

const isOfCell = (event: KeyboardEvent | MouseEvent) =>
  event.target instanceof Element && event.target.closest("a, button, input, select, textarea, label") !== null;

export const Gap = ({ px }: { readonly px: number }) =>
  px > 0 ? (
    <tr aria-hidden="true" style={{ height: px }}>
      <td style={{ padding: 0 }} />
    </tr>
  ) : null;

export const HeaderCell = <Row,>({ end, header }: { readonly end: boolean; readonly header: Header<Row, unknown> }) => {
  const { column } = header;
  const sorted = column.getIsSorted();
  const text = flexRender(column.columnDef.header, header.getContext());
  const resize = (event: KeyboardEvent) => {
    if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      event.preventDefault();
      const size = Math.max(MIN_WIDTH, column.getSize() + (event.key === "ArrowLeft" ? -STEP_PX : STEP_PX));
      header.getContext().table.setColumnSizing((sizes) => ({ ...sizes, [column.id]: size }));
    }
  };

  return (
    <Table.ColumnHeader
      aria-sort={sorted === false ? undefined : ARIA_SORT[sorted]}
      bg="bg.subtle"
      position="relative"
      textAlign={end ? "end" : "start"}
      width={`${header.getSize()}px`}
    >
      {column.getCanSort() ? (
        <Box
          aria-keyshortcuts="Shift+ArrowLeft Shift+ArrowRight"
          asChild
          cursor="pointer"
          fontWeight="inherit"
          maxW="full"
          overflow="hidden"
          textOverflow="ellipsis"
          whiteSpace="nowrap"
        >
          <button onClick={column.getToggleSortingHandler()} onKeyDown={resize} type="button">
            {text}
            <span aria-hidden="true">{sorted === false ? "" : sorted === "asc" ? " ↑" : " ↓"}</span>
          </button>
        </Box>
      ) : (
        text
      )}
      <Box
        _hover={{ bg: "border.emphasized" }}
        aria-hidden="true"
        bg={column.getIsResizing() ? "border.emphasized" : undefined}
        cursor="col-resize"
        h="full"
        insetEnd="0"
        onMouseDown={header.getResizeHandler()}
        onTouchStart={header.getResizeHandler()}
        position="absolute"
        top="0"
        touchAction="none"
        w="6px"
      />
    </Table.ColumnHeader>
  );
};

type LineProps<Row> = {
  readonly columns: readonly Column<Row>[];
  readonly gap: number;
  readonly index: number;
  readonly isActive: boolean;
  readonly isSelected: boolean | undefined;
  readonly measure: ((element: HTMLElement | null) => void) | undefined;
  readonly onClick: ((row: Row) => void) | undefined;
  readonly onFocus: () => void;
  readonly row: TableRow<Row>;
};

/** One row, after the space of those before it that are not drawn. */
export const Line = <Row,>({ columns, gap, index, isActive, isSelected, measure, onClick, onFocus, row }: LineProps<Row>) => (
  <>
    <Gap px={gap} />
    <Table.Row
      _focusVisible={{ outline: "2px solid", outlineColor: "colorPalette.focusRing", outlineOffset: "-2px" }}
      _hover={onClick === undefined ? undefined : { bg: "bg.muted" }}
      aria-rowindex={index + 2}
      aria-selected={isSelected}
      bg={isSelected === true ? "bg.emphasized" : undefined}
      cursor={onClick === undefined ? undefined : "pointer"}
      data-index={index}
      onClick={onClick === undefined ? undefined : (event) => isOfCell(event) || onClick(row.original)}
      onFocus={onFocus}
      ref={measure}
      scrollMarginTop="40px"
      tabIndex={isActive ? 0 : -1}
    >
      {row.getVisibleCells().map((cell, at) => (
        <Table.Cell
          key={cell.id}
          overflow="hidden"
          textAlign={columns[at]?.end === true ? "end" : "start"}
          textOverflow="ellipsis"
          whiteSpace="nowrap"
        >
          {flexRender(cell.column.columnDef.cell, cell.getContext())}
        </Table.Cell>
      ))}
    </Table.Row>
  </>
);
