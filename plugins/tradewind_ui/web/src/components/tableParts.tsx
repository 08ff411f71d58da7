import { Box, Table } from "@chakra-ui/react";
import { useRef } from "react";
import type { KeyboardEvent, MouseEvent, ReactNode, Ref } from "react";

export type Value = boolean | number | string | null | undefined;

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

const MIN_WIDTH = 48;
const STEP_PX = 24;
const ARIA_SORT = { "": undefined, asc: "ascending", desc: "descending" } as const;
const ARROWS = { "": "", asc: " ↑", desc: " ↓" } as const;

const isOfCell = (event: KeyboardEvent | MouseEvent) =>
  event.target instanceof Element && event.target.closest("a, button, input, select, textarea, label") !== null;

/** What stands in a cell on one line. A link is in line with its text: as a box of its own it would end without an ellipsis. */
const ON_ONE_LINE = { minW: 0, overflow: "hidden", textOverflow: "ellipsis", whiteSpace: "nowrap" };
const CELL = { ...ON_ONE_LINE, "& a": { ...ON_ONE_LINE, display: "inline" }, "& p": ON_ONE_LINE };

/** Gives a cell its whole text as its title while it does not fit. */
const titleWhatIsCut = ({ currentTarget: cell }: MouseEvent<HTMLElement>) => {
  const isCut = [cell, ...cell.querySelectorAll("*")].some((each) => each.clientWidth > 0 && each.scrollWidth > each.clientWidth);
  cell.title = isCut ? cell.innerText || (cell.textContent ?? "") : "";
};

export const Gap = ({ px }: { readonly px: number }) =>
  px > 0 ? (
    <tr aria-hidden="true" style={{ height: px }}>
      <td style={{ padding: 0 }} />
    </tr>
  ) : null;

/** Where columns go on beyond the window, they fade: a name that ends at the edge would read as whole. */
export const Edge = ({ ref }: { readonly ref: Ref<HTMLDivElement> }) => (
  <Box
    aria-hidden="true"
    bgGradient="to-r"
    bottom="1px"
    css={{ "&[hidden]": { display: "none" } }}
    gradientFrom="transparent"
    gradientTo="bg"
    insetEnd="1px"
    pointerEvents="none"
    position="absolute"
    ref={ref}
    roundedEnd="md"
    top="1px"
    w="32px"
    zIndex="2"
  />
);

type HeaderProps = {
  readonly end: boolean;
  /** Called by a click on the name; undefined for a column that does not sort. */
  readonly onSort: (() => void) | undefined;
  readonly onWidth: (width: number) => void;
  readonly sorted: "" | "asc" | "desc";
  readonly text: string;
  readonly width: number;
};

export const HeaderCell = ({ end, onSort, onWidth, sorted, text, width }: HeaderProps) => {
  const dragged = useRef<{ readonly width: number; readonly x: number }>(undefined);
  const widen = (to: number) => onWidth(Math.max(MIN_WIDTH, to));
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      event.preventDefault();
      widen(width + (event.key === "ArrowLeft" ? -STEP_PX : STEP_PX));
    }
  };

  return (
    <Table.ColumnHeader
      aria-sort={ARIA_SORT[sorted]}
      bg="bg.subtle"
      css={ON_ONE_LINE}
      onMouseEnter={titleWhatIsCut}
      position="relative"
      textAlign={end ? "end" : "start"}
      width={`${width}px`}
    >
      {onSort === undefined ? (
        text
      ) : (
        <Box
          aria-keyshortcuts="Shift+ArrowLeft Shift+ArrowRight"
          asChild
          cursor="pointer"
          fontWeight="inherit"
          maxW="full"
          css={ON_ONE_LINE}
        >
          <button onClick={onSort} onKeyDown={onKeyDown} type="button">
            {text}
            <span aria-hidden="true">{ARROWS[sorted]}</span>
          </button>
        </Box>
      )}
      <Box
        _active={{ bg: "border.emphasized" }}
        _hover={{ bg: "border.emphasized" }}
        aria-hidden="true"
        cursor="col-resize"
        h="full"
        insetEnd="0"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          dragged.current = { width, x: event.clientX };
        }}
        onPointerMove={(event) => {
          if (dragged.current !== undefined) {
            widen(dragged.current.width + event.clientX - dragged.current.x);
          }
        }}
        onLostPointerCapture={() => (dragged.current = undefined)}
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
  readonly row: Row;
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
      onClick={onClick === undefined ? undefined : (event) => isOfCell(event) || onClick(row)}
      onFocus={onFocus}
      ref={measure}
      scrollMarginTop="40px"
      tabIndex={isActive ? 0 : -1}
    >
      {columns.map(({ cell, end, id, value }) => (
        <Table.Cell css={CELL} key={id} onMouseEnter={titleWhatIsCut} textAlign={end === true ? "end" : "start"}>
          {cell === undefined ? value?.(row) : cell(row)}
        </Table.Cell>
      ))}
    </Table.Row>
  </>
);
