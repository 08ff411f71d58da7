import { Stack } from "@chakra-ui/react";
import { useMemo } from "react";

import type { Schemas } from "../../api/client";
import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { Empty } from "../../components/Empty";
import { formatBytes } from "../../components/format";
import { usePane } from "./context";
import { Marked } from "./Marked";
import { NameFilter } from "./NameFilter";
import { PathLink } from "./PathLink";
import type { Description } from "./views";

type ListedFile = Schemas["ListedFile"];

const columnsOf = (terms: readonly string[]): readonly Column<ListedFile>[] => [
  { cell: ({ name, path }) => <PathLink isInRow path={path}><Marked terms={terms} text={name} /></PathLink>, header: "Name", id: "name", value: ({ name }) => name, width: 420 },
  { cell: ({ size }) => formatBytes(size), end: true, header: "Size", id: "size", value: ({ size }) => size, width: 100 },
  { cell: ({ checksum }) => <code title={checksum ?? undefined}>{checksum}</code>, header: "Checksum", id: "checksum", value: ({ checksum }) => checksum, width: 280 },
];

/** The files of a result, as its manifest lists them. */
export const FilesView = ({ description }: { readonly description: Description }) => {
  const { open, pane, terms, update } = usePane();
  const { filter = "" } = pane;
  const columns = useMemo(() => columnsOf([...terms, filter]), [filter, terms]);
  const files = useMemo(
    () => (description.files ?? []).filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase())),
    [description.files, filter],
  );

  return (
    <Stack gap={2}>
      <NameFilter />
      <DataTable
        columns={columns}
        empty={<Empty title="No file">{filter === "" ? "There is no manifest, or it lists no file. A step writes it when it commits its result." : `No name contains “${filter}”.`}</Empty>}
        label={`Files of ${description.path}`}
        onRowClick={({ path }) => open(path)}
        onSort={(sort) => update({ sort })}
        rowKey={({ path }) => path}
        rows={files}
        sort={pane.sort ?? ""}
      />
    </Stack>
  );
};

export default FilesView;
