import { Box, Text } from "@chakra-ui/react";

import { formatCount, pluralize } from "../../components/format";
import type { Cell } from "./cells";
import { cellsOf, listOf } from "./cells";
import type { CardProps } from "./RecordCard";
import { Field, RecordFrame } from "./RecordCard";

const MAX_SHOWN = 1000;

/** Spaces and line ends are part of a token, so they are made visible. */
const visible = (token: number | string) => String(token).replaceAll("\n", "⏎\n").replaceAll("\t", "⇥");

const Tokens = ({ cell }: { readonly cell: Cell }) => {
  const tokens = listOf(cell.text);

  return (
    <Box>
      <Text color="fg.muted" fontSize="xs" fontWeight="semibold">
        {cell.column}: {cell.isCut ? "more than " : ""}
        {pluralize(tokens.length, "token")}
      </Text>
      <Box aria-label={`Tokens of ${cell.column}`} as="section" fontFamily="mono" fontSize="sm" maxH="40vh" overflow="auto" overflowWrap="anywhere" tabIndex={0} whiteSpace="pre-wrap">
        {tokens.slice(0, MAX_SHOWN).map((token, at) => (
          <Box
            as="span"
            bg={at % 2 === 0 ? "bg.emphasized" : "bg.info"}
            key={at}
            px={typeof token === "number" ? 1 : 0}
            title={`Token ${formatCount(at + 1)}`}
          >
            {visible(token)}
            {typeof token === "number" ? " " : ""}
          </Box>
        ))}
        {tokens.length > MAX_SHOWN || cell.isCut ? "…" : null}
      </Box>
    </Box>
  );
};

/** A document of a token cache: its text, and its tokens one by one on alternating grounds. */
export const TokenCard = ({ page, row, terms }: CardProps) => {
  const cells = cellsOf(page, row);

  return (
    <RecordFrame row={row}>
      {cells.filter((cell) => !cell.isNested).map((cell) => <Field at={row.at} cell={cell} key={cell.column} terms={terms} />)}
      {cells.filter((cell) => cell.isNested).map((cell) => <Tokens cell={cell} key={cell.column} />)}
    </RecordFrame>
  );
};
