import { Badge, Box, Code, Text } from "@chakra-ui/react";
import { useRef, useState } from "react";
import type { KeyboardEvent } from "react";

/** A line of a config, as the package's `plans.stored_versions.ConfigEntry`: those below it follow it. */
export type ConfigEntry = {
  readonly depth: number;
  readonly is_input: boolean;
  readonly is_versioned: boolean;
  readonly key: string;
  readonly path: string;
  readonly size: number;
  readonly text?: string | null;
};

type Props = { readonly entries: readonly ConfigEntry[]; readonly label: string };

/** Larger parts are closed at first. */
const MAX_OPEN = 40;

const isBranch = (entry: ConfigEntry | undefined) => (entry?.size ?? 0) > 0;

/** Return the lines that are seen: those below a closed one are not. */
export const visibleLines = (entries: readonly ConfigEntry[], closed: ReadonlySet<number>): number[] => {
  const lines: number[] = [];
  for (let index = 0; index < entries.length; index += 1) {
    lines.push(index);
    if (closed.has(index)) {
      index += entries[index]?.size ?? 0;
    }
  }
  return lines;
};

const closedAtFirst = (entries: readonly ConfigEntry[]) =>
  new Set(entries.flatMap((entry, index) => (entry.size > MAX_OPEN && entries.length > 2 * MAX_OPEN ? [index] : [])));

const parentOf = (entries: readonly ConfigEntry[], index: number): number => {
  const depth = entries[index]?.depth ?? 0;
  let at = index - 1;
  while (at >= 0 && (entries[at]?.depth ?? 0) >= depth) {
    at -= 1;
  }
  return at;
};

/** A config as a tree: arrow keys move, open and close, as in other trees. Versioned values are marked. */
export const ConfigTree = ({ entries, label }: Props) => {
  const [closed, setClosed] = useState<ReadonlySet<number>>(() => closedAtFirst(entries));
  const [current, setCurrent] = useState(0);
  const tree = useRef<HTMLDivElement>(null);
  const lines = visibleLines(entries, closed);

  const focus = (index: number | undefined) => {
    if (index !== undefined && index >= 0) {
      setCurrent(index);
      tree.current?.querySelector<HTMLElement>(`[data-line="${index}"]`)?.focus();
    }
  };
  const toggle = (index: number, isClosed: boolean) => {
    const next = new Set(closed);
    if (isClosed) {
      next.add(index);
    } else {
      next.delete(index);
    }
    setClosed(next);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const at = lines.indexOf(current);
    const isOpen = isBranch(entries[current]) && !closed.has(current);
    const moves: Record<string, () => void> = {
      ArrowDown: () => focus(lines[at + 1]),
      ArrowLeft: () => (isOpen ? toggle(current, true) : focus(parentOf(entries, current))),
      ArrowRight: () => (isOpen ? focus(lines[at + 1]) : toggle(current, false)),
      ArrowUp: () => focus(lines[at - 1]),
      End: () => focus(lines.at(-1)),
      Enter: () => toggle(current, isOpen),
      Home: () => focus(lines[0]),
    };
    const move = moves[event.key];
    if (move !== undefined) {
      event.preventDefault();
      move();
    }
  };

  return (
    <Box aria-label={label} fontSize="sm" onKeyDown={onKeyDown} ref={tree} role="tree">
      {lines.map((index) => {
        const entry = entries[index];
        if (entry === undefined) {
          return undefined;
        }
        const { depth, is_input, is_versioned, key, path, text } = entry;
        const canOpen = isBranch(entry);

        return (
          <Box
            _focusVisible={{ outline: "2px solid", outlineColor: "border.emphasized" }}
            _hover={{ bg: "bg.subtle" }}
            alignItems="baseline"
            aria-expanded={canOpen ? !closed.has(index) : undefined}
            aria-level={depth + 1}
            aria-selected={index === current}
            cursor={canOpen ? "pointer" : undefined}
            data-line={index}
            display="flex"
            gap={2}
            key={index}
            onClick={() => {
              setCurrent(index);
              if (canOpen) {
                toggle(index, !closed.has(index));
              }
            }}
            ps={depth * 5}
            py="1px"
            role="treeitem"
            tabIndex={index === current ? 0 : -1}
            title={path}
          >
            <Text aria-hidden as="span" color="fg.muted" flexShrink={0} w={3}>
              {canOpen ? (closed.has(index) ? "▸" : "▾") : ""}
            </Text>
            <Text as="span" color={canOpen ? undefined : "fg.muted"} flexShrink={0} fontWeight={canOpen ? "medium" : undefined} maxW="50%" overflowWrap="anywhere">
              {key}
            </Text>
            {typeof text === "string" ? (
              <Code background="transparent" color="fg" fontSize="xs" minW={0} overflowWrap="anywhere" whiteSpace="pre-wrap">
                {text}
              </Code>
            ) : (
              <Text as="span" color="fg.muted" fontSize="xs">
                {closed.has(index) ? `${entry.size} lines` : ""}
              </Text>
            )}
            {is_versioned && !canOpen ? (
              <Badge colorPalette="blue" size="xs">
                versioned
              </Badge>
            ) : undefined}
            {is_input ? (
              <Badge colorPalette="purple" size="xs">
                input
              </Badge>
            ) : undefined}
          </Box>
        );
      })}
    </Box>
  );
};
