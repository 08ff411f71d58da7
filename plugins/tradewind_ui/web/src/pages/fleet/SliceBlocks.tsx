import { Box, HStack, Text } from "@chakra-ui/react";

import type { Pool, Resource } from "./queries";

type Tone = Resource["health"] | "missing";

const MAX_BLOCKS = 96;
const ORDER: readonly Tone[] = ["ready", "coming", "incomplete", "gone", "missing"];
/** Beside its colour each kind of block has its own outline or height, for those who see no colours. */
const STYLES: Record<Tone, Record<string, string>> = {
  coming: { bg: "blue.subtle", borderColor: "blue.solid", borderStyle: "dashed" },
  gone: { bg: "red.solid", borderColor: "red.solid", h: "6px" },
  incomplete: { bg: "orange.subtle", borderColor: "orange.solid", borderWidth: "3px" },
  missing: { bg: "transparent", borderColor: "border.emphasized" },
  ready: { bg: "green.solid", borderColor: "green.solid" },
};
export const MEANINGS: Record<Tone, string> = {
  coming: "on its way",
  gone: "gone",
  incomplete: "without all hosts in Ray",
  missing: "missing",
  ready: "ready",
};

const tonesOf = (pool: Pool, slices: readonly Resource[]): readonly { readonly text: string; readonly tone: Tone }[] => {
  const existing = slices.map((slice) => ({ text: `${slice.name}: ${slice.state}`, tone: slice.health }));
  const missing = Math.max(0, pool.minimum - existing.length);
  return [...existing, ...Array.from({ length: missing }, () => ({ text: "missing", tone: "missing" as const }))].sort(
    (a, b) => ORDER.indexOf(a.tone) - ORDER.indexOf(b.tone),
  );
};

/** Say what the blocks show, as `2 ready, 1 gone`. */
export const describeSlices = (tones: readonly Tone[]): string =>
  ORDER.map((tone) => ({ count: tones.filter((each) => each === tone).length, tone }))
    .filter(({ count }) => count > 0)
    .map(({ count, tone }) => `${count} ${MEANINGS[tone]}`)
    .join(", ") || "none";

const Block = ({ text, tone }: { readonly text?: string; readonly tone: Tone }) => (
  <Box borderWidth="1px" h="12px" rounded="2px" title={text} w="12px" {...STYLES[tone]} />
);

/** The slices of one type, a block each. */
export const SliceBlocks = ({ pool, slices }: { readonly pool: Pool; readonly slices: readonly Resource[] }) => {
  const blocks = tonesOf(pool, slices);
  const words = describeSlices(blocks.map(({ tone }) => tone));
  const left = blocks.length - MAX_BLOCKS;

  return (
    <HStack align="start" gap={3}>
      <Text fontFamily="mono" fontSize="sm" minW="5.5rem">
        {pool.kind}
      </Text>
      <HStack alignItems="end" aria-label={`${pool.kind}: ${words}`} flex="1" flexWrap="wrap" gap="3px" pt="4px" role="img">
        {blocks.slice(0, MAX_BLOCKS).map(({ text, tone }, at) => (
          <Block key={at} text={text} tone={tone} />
        ))}
        {left > 0 ? <Text fontSize="xs">+{left}</Text> : null}
      </HStack>
      <Text color="fg.muted" fontSize="sm" title={words} whiteSpace="nowrap">
        {pool.ready} of {Math.max(pool.minimum, pool.existing)}
      </Text>
    </HStack>
  );
};

/** What each kind of block means. */
export const SliceLegend = () => (
  <HStack color="fg.muted" flexWrap="wrap" fontSize="xs" gap={4}>
    {ORDER.map((tone) => (
      <HStack align="center" gap={1} key={tone}>
        <Block tone={tone} />
        {MEANINGS[tone]}
      </HStack>
    ))}
  </HStack>
);
