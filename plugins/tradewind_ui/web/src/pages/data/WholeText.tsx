import { Box, Button, Text } from "@chakra-ui/react";
import { useState } from "react";

import { formatCount } from "../../components/format";
import type { Cell } from "./cells";
import { laidOut } from "./cells";
import { usePane } from "./context";
import { Marked } from "./Marked";
import { useWholeValue } from "./queries";
import { Refusal } from "./Refusal";

type Props = { readonly at: string; readonly cell: Cell; readonly terms: readonly string[] };

/** A value with its lines wrapped; one that was cut can be opened whole. */
export const WholeText = ({ at, cell, terms }: Props) => {
  const { pane } = usePane();
  const [isWanted, setIsWanted] = useState(false);
  const whole = useWholeValue(pane.path, at, cell.column, isWanted);
  const text = whole.data?.text ?? cell.text;
  const isCode = cell.isNested || typeof cell.value === "number";

  return (
    <Box>
      <Text fontFamily={isCode ? "mono" : undefined} fontSize="sm" maxH="60vh" overflow="auto" overflowWrap="anywhere" tabIndex={text.length > 1000 ? 0 : undefined} whiteSpace="pre-wrap">
        <Marked terms={terms} text={cell.isNested ? laidOut(text) : text} />
        {cell.isCut && whole.data === undefined ? "…" : null}
      </Text>
      {cell.isCut && whole.data === undefined ? (
        <Button aria-label={`Show ${cell.column} whole`} loading={whole.isFetching} mt={1} onClick={() => setIsWanted(true)} size="2xs" variant="outline">
          Show whole
        </Button>
      ) : null}
      {whole.data?.cut === true ? (
        <Text color="fg.muted" fontSize="xs">
          Still cut: the whole has {formatCount(whole.data.chars)} characters. Download the file to see it.
        </Text>
      ) : null}
      {whole.error ? <Refusal error={whole.error} retry={whole.refetch} /> : null}
    </Box>
  );
};
