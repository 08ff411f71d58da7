import { Box, Button, Checkbox, HStack, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";

import { formatBytes, formatCount } from "../../components/format";
import { Loading } from "../../components/Frame";
import { NO_PLACE } from "./address";
import { usePane } from "./context";
import { Marked } from "./Marked";
import { Note } from "./Note";
import { TEXT_BYTES, useText } from "./queries";
import { Refusal } from "./Refusal";

const FOLLOW_S = 5;

/** Return the numbers of the lines of a text whose first line has that number. */
export const lineNumbers = (text: string, first: number): string => {
  const count = text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
  return Array.from({ length: count }, (_, at) => String(first + at)).join("\n");
};

export const lineEnds = (text: string): number => text.split("\n").length - 1;

const integer = (text: string | undefined) => (text !== undefined && /^-?\d{1,15}$/u.test(text) ? Number(text) : undefined);

const Check = ({ isChecked, label, onChange }: { readonly isChecked: boolean; readonly label: string; readonly onChange: (isChecked: boolean) => void }) => (
  <Checkbox.Root checked={isChecked} onCheckedChange={({ checked }) => onChange(checked === true)} size="sm">
    <Checkbox.HiddenInput />
    <Checkbox.Control />
    <Checkbox.Label>{label}</Checkbox.Label>
  </Checkbox.Root>
);

/** A range of a text: pages of 64 KiB forwards and backwards, and its end. */
export const TextView = () => {
  const { pane, terms, update } = usePane();
  const [isFollowing, setIsFollowing] = useState(false);
  const offset = integer(pane.offset) ?? 0;
  const isTail = offset < 0;
  const found = useText(pane.path, offset, TEXT_BYTES, pane.state, isFollowing && isTail ? FOLLOW_S : undefined);
  const page = found.data;
  const wraps = pane.wrap === "yes";

  if (page === undefined) {
    return found.error ? (
      <Stack gap={2}>
        <Refusal error={found.error} retry={found.refetch} />
        {offset === 0 ? null : (
          <Button alignSelf="start" onClick={() => update(NO_PLACE)} size="sm" variant="outline">
            Begin at the start
          </Button>
        )}
      </Stack>
    ) : (
      <Loading />
    );
  }
  const firstLine = page.start === 0 ? 1 : integer(pane.line);
  const nextLine = firstLine === undefined ? undefined : String(firstLine + lineEnds(page.text));
  const go = (target: number | null | undefined, line?: string) =>
    update(target ? { ...NO_PLACE, line, offset: String(target), state: target < 0 ? undefined : page.state } : NO_PLACE);

  return (
    <Stack gap={2}>
      <HStack aria-label="Parts of the text" as="nav" flexWrap="wrap">
        <Button disabled={page.start === 0} onClick={() => go(0)} size="sm" variant="outline">Start</Button>
        <Button disabled={typeof page.previous !== "number"} onClick={() => go(page.previous)} size="sm" variant="outline">Previous</Button>
        <Button disabled={typeof page.next !== "number"} onClick={() => go(page.next, nextLine)} size="sm" variant="outline">Next</Button>
        <Button onClick={() => go(-TEXT_BYTES)} size="sm" variant={isTail ? "solid" : "outline"}>End</Button>
        {isTail ? <Check isChecked={isFollowing} label={`Follow, every ${FOLLOW_S} s`} onChange={setIsFollowing} /> : null}
        <Check isChecked={wraps} label="Wrap lines" onChange={(isOn) => update({ wrap: isOn ? "yes" : undefined })} />
        <Text color="fg.muted" fontSize="sm">
          Bytes {formatCount(page.start)}–{formatCount(page.end)}
          {typeof page.size === "number" ? ` of ${formatCount(page.size)} (${formatBytes(page.size)})` : ""}
        </Text>
      </HStack>
      {found.error ? <Refusal error={found.error} retry={found.refetch} /> : null}
      <Note text={page.note} />
      <Note text={page.is_binary === true ? "Some bytes are no text in UTF-8; � stands for each." : undefined} />
      <Box aria-label={`Text of ${pane.path}`} as="section" bg="bg.subtle" borderWidth="1px" fontFamily="mono" fontSize="sm" maxH="70vh" overflow="auto" rounded="md" tabIndex={0}>
        <HStack align="start" gap={0}>
          {firstLine === undefined || wraps ? null : (
            <Box aria-hidden="true" as="pre" bg="bg.muted" color="fg.muted" insetStart="0" position="sticky" px={2} textAlign="end" userSelect="none">
              {lineNumbers(page.text, firstLine)}
            </Box>
          )}
          <Box as="pre" overflowWrap={wraps ? "anywhere" : undefined} px={3} whiteSpace={wraps ? "pre-wrap" : "pre"}>
            {page.text === "" ? <Text as="span" color="fg.muted">This part of the file is empty.</Text> : <Marked terms={terms} text={page.text} />}
          </Box>
        </HStack>
      </Box>
    </Stack>
  );
};

export default TextView;
