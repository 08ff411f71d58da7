import { Badge, Box, Button, HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { LuFile, LuFileQuestion, LuFolder, LuPackage } from "react-icons/lu";

import type { Schemas } from "../../api/client";
import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { Empty } from "../../components/Empty";
import { formatBytes, formatSince, formatTime, pluralize } from "../../components/format";
import { Loading } from "../../components/Frame";
import { usePane } from "./context";
import { MakerLink, makerText, OutputTag } from "./MakerLink";
import { Marked } from "./Marked";
import { NameFilter } from "./NameFilter";
import { Note } from "./Note";
import { PathLink } from "./PathLink";
import { useEntries } from "./queries";
import { Refusal } from "./Refusal";

type Entry = Schemas["Entry"];

const ICONS = { file: LuFile, folder: LuFolder, other: LuFileQuestion, output: LuPackage };

const secondsOf = (iso: string | null | undefined) => (iso ? Date.parse(iso) / 1000 : undefined);

const Name = ({ entry, terms }: { readonly entry: Entry; readonly terms: readonly string[] }) => {
  const Icon = ICONS[entry.kind];

  return (
  <HStack gap={2} title={entry.target ? `${entry.name} → ${entry.target}` : entry.name}>
    <Icon aria-hidden="true" style={{ flexShrink: 0 }} />
    <Box flexShrink="0" maxW="calc(100% - 24px)" truncate>
      <PathLink focus="first" isInRow path={entry.path}>
        <Marked terms={terms} text={entry.kind === "file" || entry.kind === "other" ? entry.name : `${entry.name}/`} />
      </PathLink>
    </Box>
    {entry.made_by ? <OutputTag made={entry.made_by} /> : null}
    {entry.target ? <Badge>link</Badge> : null}
  </HStack>
  );
};

const Age = ({ modified }: { readonly modified: string | null | undefined }) => {
  const seconds = secondsOf(modified);
  return seconds === undefined ? null : <span title={formatTime(seconds)}>{formatSince(seconds)}</span>;
};

const useColumns = (terms: readonly string[]): readonly Column<Entry>[] => {
  const { hasRoom, openBeside } = usePane();
  return useMemo(
    () => [
      { cell: (entry) => <Name entry={entry} terms={terms} />, header: "Name", id: "name", value: (entry) => entry.name, width: 420 },
      { header: "Kind", id: "kind", value: (entry) => entry.format ?? entry.kind, width: 90 },
      {
        cell: (entry) => (typeof entry.size === "number" ? formatBytes(entry.size) : ""),
        end: true, header: "Size", id: "size", value: (entry) => entry.size, width: 90,
      },
      { cell: (entry) => <Age modified={entry.modified} />, header: "Changed", id: "changed", value: (entry) => secondsOf(entry.modified), width: 130 },
      {
        cell: (entry) => (entry.made_by ? <MakerLink made={entry.made_by} /> : null),
        header: "Made by", id: "maker", value: (entry) => (entry.made_by ? makerText(entry.made_by) : undefined), width: 200,
      },
      {
        cell: (entry) => (
          <Button aria-label={`Show ${entry.name} beside this`} disabled={!hasRoom} onClick={() => openBeside(entry.path)} size="2xs" tabIndex={-1} variant="ghost">
            Beside
          </Button>
        ),
        header: "", id: "beside", width: 80,
      },
    ],
    [hasRoom, openBeside, terms],
  );
};

const NoEntries = ({ filter }: { readonly filter: string }) =>
  filter === "" ? (
    <Empty title="This folder is empty">Steps write their outputs below the prefix of a run. They appear here as soon as they exist.</Empty>
  ) : (
    <Empty title="No name matches">No loaded name contains “{filter}”.</Empty>
  );

/** Records begin with a dot; the files of users come first. */
const hiddenLast = (one: { readonly name: string }, other: { readonly name: string }) =>
  Number(one.name.startsWith(".")) - Number(other.name.startsWith("."));

/** The entries of a folder. */
export const Folder = () => {
  const { open, pane, terms, update, wantedFocus } = usePane();
  const { filter = "", path, prefix = "", sort = "" } = pane;
  const listing = useEntries(path, prefix);
  const marked = useMemo(() => [...terms, filter, prefix], [filter, prefix, terms]);
  const columns = useColumns(marked);
  const pages = listing.data?.pages;
  const all = useMemo(() => (pages ?? []).flatMap((page) => page.entries).sort(hiddenLast), [pages]);
  const entries = useMemo(() => all.filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase())), [all, filter]);
  const [latest] = pages?.slice(-1) ?? [];

  if (listing.isPending) {
    return <Loading />;
  }
  if (latest === undefined) {
    return listing.error ? <Refusal error={listing.error} retry={listing.refetch} /> : null;
  }
  return (
    <Stack gap={2}>
      <HStack flexWrap="wrap">
        <NameFilter />
        {listing.hasNextPage && filter !== "" && filter !== prefix ? (
          <Button onClick={() => update({ filter: undefined, prefix: filter })} size="sm" variant="outline">
            Ask the store for names that begin with “{filter}”
          </Button>
        ) : null}
        {prefix === "" ? null : (
          <Button onClick={() => update({ prefix: undefined })} size="sm" variant="subtle">
            Names that begin with “{prefix}” ✕
          </Button>
        )}
        <Text aria-live="polite" color="fg.muted" fontSize="sm">
          {entries.length === all.length ? "" : `${pluralize(entries.length, "match").replace(/matchs$/u, "matches")} among `}
          {pluralize(all.length, "name")}
          {listing.hasNextPage ? " so far" : ""}
        </Text>
      </HStack>
      <Note text={latest.note} />
      <DataTable
        columns={columns}
        empty={<NoEntries filter={filter} />}
        focusOn={wantedFocus}
        key={`${path}?${prefix}`}
        label={`Entries of ${path}`}
        onRowClick={(entry) => open(entry.path, "first")}
        onSort={(next) => update({ sort: next })}
        rowKey={(entry) => entry.path}
        rows={entries}
        sort={sort}
      />
      {listing.error ? <Refusal error={listing.error} retry={listing.fetchNextPage} /> : null}
      {listing.hasNextPage ? (
        <Button alignSelf="start" loading={listing.isFetchingNextPage} onClick={() => void listing.fetchNextPage()} size="sm" variant="outline">
          Load more
        </Button>
      ) : null}
    </Stack>
  );
};
