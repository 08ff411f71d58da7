import { Button, HStack, Input, Menu, NativeSelect, Portal, Slider, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { FormEvent } from "react";

import { formatCount, pluralize } from "../../components/format";
import { NO_PLACE } from "./address";
import type { RowPage } from "./cells";
import { usePane } from "./context";
import { isFirst, placeAfter, placeAlone, placeBefore } from "./places";

const JUMP = ["Jump to a part of the file"];
const LIMITS = ["20", "100", "1000", "10000"];

/** A field whose text takes effect with Enter. */
export const SubmittedInput = ({ label, onSubmit, placeholder, value, width }: {
  readonly label: string;
  readonly onSubmit: (text: string) => void;
  readonly placeholder?: string;
  readonly value: string;
  readonly width: string;
}) => {
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    onSubmit(String(new FormData(event.currentTarget).get("text") ?? "").trim());
  };

  return (
    <form onSubmit={submit}>
      <Input aria-label={label} defaultValue={value} key={value} name="text" placeholder={placeholder ?? label} size="sm" title={`${label}: press Enter`} type="search" width={width} />
    </form>
  );
};

/** Chooses the columns that the server sends. */
export const ColumnMenu = ({ names }: { readonly names: readonly string[] }) => {
  const { pane, update } = usePane();
  const [seen, setSeen] = useState<readonly string[]>(names);
  const fresh = names.filter((name) => !seen.includes(name));
  if (fresh.length > 0) {
    setSeen([...seen, ...fresh]);
  }
  const chosen = pane.columns ?? seen;
  const toggle = (name: string) => {
    const next = chosen.includes(name) ? chosen.filter((each) => each !== name) : seen.filter((each) => each === name || chosen.includes(each));
    update({ columns: next.length === 0 || next.length === seen.length ? undefined : next });
  };

  return (
    <Menu.Root closeOnSelect={false}>
      <Menu.Trigger asChild>
        <Button size="sm" variant="outline">
          Columns{pane.columns === undefined ? "" : `: ${chosen.length} of ${seen.length}`}
        </Button>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content maxH="50vh" overflow="auto">
            <Menu.Item onClick={() => update({ columns: undefined })} value="all columns">
              All columns
            </Menu.Item>
            {seen.map((name) => (
              <Menu.CheckboxItem checked={chosen.includes(name)} key={name} onCheckedChange={() => toggle(name)} value={`column ${name}`}>
                {name}
                <Menu.ItemIndicator />
              </Menu.CheckboxItem>
            ))}
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
};

/** Jumps to a fraction of the file. */
const Jump = ({ position }: { readonly position: number | null | undefined }) => {
  const { pane, update } = usePane();
  const start = pane.at === undefined ? (isFirst(pane) ? 0 : (position ?? 0)) : Number(pane.at);
  const [percent, setPercent] = useState(Math.round(start * 100));

  return (
    <HStack minW="12rem">
      <Slider.Root
        aria-label={JUMP}
        flex="1"
        onValueChange={({ value }) => setPercent(value[0] ?? 0)}
        onValueChangeEnd={({ value }) => update({ ...NO_PLACE, at: value[0] ? String(value[0] / 100) : undefined })}
        size="sm"
        value={[percent]}
      >
        <Slider.Control>
          <Slider.Track>
            <Slider.Range />
          </Slider.Track>
          <Slider.Thumb index={0}>
            <Slider.HiddenInput />
          </Slider.Thumb>
        </Slider.Control>
      </Slider.Root>
      <Text color="fg.muted" fontSize="sm" minW="3rem">
        {percent} %
      </Text>
    </HStack>
  );
};

const matchesOf = ({ more, rows, scanned = 0, total }: RowPage, isWhole: boolean) => {
  const [first, last] = [rows[0]?.number, rows.at(-1)?.number];
  const of = typeof total === "number" ? ` of ${formatCount(total)}` : "";
  const place = typeof first === "number" && typeof last === "number" ? `, rows ${formatCount(first)}–${formatCount(last)}${of}` : "";
  if (typeof more !== "number") {
    return `${formatCount(rows.length)} of ${formatCount(scanned)} rows read match${place}`;
  }
  return isWhole
    ? `${formatCount(rows.length)} of ${pluralize(rows.length + more, "matching row")}${place}`
    : `${pluralize(rows.length, "matching row")}${place}; ${formatCount(more)} more after them`;
};

const rangeOf = ({ rows, total }: RowPage) => {
  const [first, last] = [rows[0]?.number, rows.at(-1)?.number];
  const of = typeof total === "number" ? ` of ${formatCount(total)}` : "";
  if (typeof first === "number" && typeof last === "number") {
    return `Rows ${formatCount(first)}–${formatCount(last)}${of}`;
  }
  return `${formatCount(rows.length)} rows${of}`;
};

/** Forwards, backwards, and to a fraction of the file. */
export const Pager = ({ isByNumber, isLoading, limit, page }: {
  readonly isByNumber: boolean;
  readonly isLoading: boolean;
  readonly limit: number;
  readonly page: RowPage;
}) => {
  const { pane, update } = usePane();
  const [visited, setVisited] = useState<Readonly<Record<string, ReturnType<typeof placeAlone>>>>({});
  const [before, after] = [placeBefore(pane, page, limit, isByNumber, visited), placeAfter(page)];
  const goOn = () => {
    if (after?.cursor !== undefined) {
      setVisited({ ...visited, [after.cursor]: placeAlone(pane) });
      update(after);
    }
  };

  return (
    <HStack aria-label="Pages" as="nav" flexWrap="wrap" gap={2}>
      <Button disabled={isFirst(pane)} onClick={() => update(NO_PLACE)} size="sm" variant="outline">
        First
      </Button>
      <Button disabled={before === undefined} onClick={() => update(before ?? {})} size="sm" variant="outline">
        Previous
      </Button>
      <Button disabled={after === undefined} loading={isLoading} onClick={goOn} size="sm" variant="outline">
        Next
      </Button>
      <NativeSelect.Root size="sm" width="auto">
        <NativeSelect.Field aria-label="Rows of a page" onChange={(event) => update({ limit: event.target.value })} value={String(limit)}>
          {[...new Set([...LIMITS, String(limit)])].map((each) => (
            <option key={each} value={each}>
              {formatCount(Number(each))} rows
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
      <Jump key={`${pane.at ?? ""} ${pane.cursor ?? ""} ${pane.start ?? ""} ${page.position ?? ""}`} position={page.position} />
      <Text aria-live="polite" color="fg.muted" fontSize="sm">
        {pane.filter ? matchesOf(page, isFirst(pane)) : rangeOf(page)}
      </Text>
    </HStack>
  );
};
