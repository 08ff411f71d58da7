import { Badge, Box, Code, HStack, Link, Stack, Switch, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

/** A value of a config: JSON, or the path inside the output of the step `reads` (`name-hash`). */
export type ConfigValue = { readonly reads?: string | null; readonly text: string };

export type Mark = "ADDED" | "CHANGED" | "INPUT" | "REMOVED" | "SAME";

/** A leaf of a config in two versions, as the package's `plans.config_rows.ConfigRow`. */
export type ConfigRow = {
  readonly keys: ReadonlyArray<string>;
  readonly mark: Mark;
  readonly new?: ConfigValue | null;
  readonly old?: ConfigValue | null;
};

type Props = {
  /** Rows that the server left out, named below the tree. */
  readonly leftOut?: number;
  readonly newTitle?: string;
  readonly oldTitle?: string;
  /** Called with `name-hash` where a value reads another step; without it, the step is plain text. */
  readonly onInput?: (version: string) => void;
  readonly rows: ReadonlyArray<ConfigRow>;
};

const MARKS: Record<Mark, { readonly palette: string; readonly text: string }> = {
  ADDED: { palette: "green", text: "added" },
  CHANGED: { palette: "orange", text: "changed" },
  INPUT: { palette: "blue", text: "input changed" },
  REMOVED: { palette: "red", text: "removed" },
  SAME: { palette: "gray", text: "" },
};

type Line = { readonly depth: number; readonly key: string; readonly label: string; readonly row?: ConfigRow };

/** Return the rows as lines of a tree: a line for each key above a leaf, once. */
export const treeOf = (rows: ReadonlyArray<ConfigRow>): Array<Line> => {
  const lines: Array<Line> = [];
  let above: ReadonlyArray<string> = [];
  for (const row of rows) {
    const parents = row.keys.slice(0, -1);
    let shared = 0;
    while (shared < parents.length && parents[shared] === above[shared]) {
      shared += 1;
    }
    for (let depth = shared; depth < parents.length; depth += 1) {
      lines.push({ depth, key: `${parents.slice(0, depth + 1).join(".")}/`, label: parents[depth] ?? "" });
    }
    const label = row.keys.at(-1) ?? "config";
    lines.push({ depth: parents.length, key: row.keys.join("."), label, row });
    above = parents;
  }
  return lines;
};

const Value = ({ onInput, value }: { readonly value?: ConfigValue | null } & Pick<Props, "onInput">) => {
  if (value === null || value === undefined) {
    return <Text color="fg.muted">–</Text>;
  }
  const { reads, text } = value;
  if (reads === null || reads === undefined) {
    return (
      <Code background="transparent" color="inherit" fontSize="xs" overflowWrap="anywhere" whiteSpace="pre-wrap">
        {text}
      </Code>
    );
  }
  const inside = text === "" ? "" : ` / ${text}`;

  return (
    <Text as="span" overflowWrap="anywhere">
      {onInput === undefined ? (
        reads
      ) : (
        <Link as="button" color="fg.info" onClick={() => onInput(reads)} textAlign="start">
          {reads}
        </Link>
      )}
      {inside}
    </Text>
  );
};

/** A config as a tree, beside that of an earlier version: changed values are marked, equal ones can be hidden. */
export const ConfigDiff = ({ leftOut = 0, newTitle = "This version", oldTitle, onInput, rows }: Props) => {
  const isPair = oldTitle !== undefined;
  const changed = rows.filter((row) => row.mark !== "SAME");
  const [all, setAll] = useState(!isPair || changed.length === 0);
  const shown = treeOf(all ? rows : changed);

  return (
    <Stack gap={2}>
      {isPair && changed.length > 0 ? (
        <Switch.Root checked={all} onCheckedChange={(event) => setAll(event.checked)} size="sm">
          <Switch.HiddenInput />
          <Switch.Control />
          <Switch.Label>Show unchanged values ({rows.length - changed.length})</Switch.Label>
        </Switch.Root>
      ) : undefined}
      <Box overflowX="auto">
        <Table.Root aria-label={isPair ? "Configs of two versions" : "Config"} size="sm">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Config</Table.ColumnHeader>
              {isPair ? <Table.ColumnHeader>{oldTitle}</Table.ColumnHeader> : undefined}
              <Table.ColumnHeader>{isPair ? newTitle : "Value"}</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {shown.map(({ depth, key, label, row }) => {
              const { palette, text } = MARKS[row?.mark ?? "SAME"];
              const isMarked = text !== "" && isPair;

              return (
                <Table.Row bg={isMarked ? "colorPalette.subtle" : undefined} colorPalette={palette} key={key}>
                  <Table.Cell ps={2 + depth * 4} verticalAlign="top">
                    <HStack flexWrap="wrap" gap={1}>
                      <Text color={row === undefined ? "fg.muted" : undefined} overflowWrap="anywhere">
                        {label}
                      </Text>
                      {isMarked ? <Badge size="xs">{text}</Badge> : undefined}
                    </HStack>
                  </Table.Cell>
                  {isPair ? (
                    <Table.Cell verticalAlign="top">
                      {row === undefined ? undefined : <Value onInput={onInput} value={row.old} />}
                    </Table.Cell>
                  ) : undefined}
                  <Table.Cell verticalAlign="top">
                    {row === undefined ? undefined : <Value onInput={onInput} value={row.new} />}
                  </Table.Cell>
                </Table.Row>
              );
            })}
          </Table.Body>
        </Table.Root>
      </Box>
      {leftOut > 0 ? <Text color="fg.muted">{leftOut} more values are not shown.</Text> : undefined}
    </Stack>
  );
};
