import { Stack } from "@chakra-ui/react";
import { useMemo } from "react";

import type { Schemas } from "../../api/client";
import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { Empty } from "../../components/Empty";
import { formatBytes, formatCount } from "../../components/format";
import { usePane } from "./context";
import { Marked } from "./Marked";
import { NameFilter } from "./NameFilter";
import type { Description } from "./views";

type ArrayInfo = Schemas["ArrayInfo"];

const columnsOf = (terms: readonly string[]): readonly Column<ArrayInfo>[] => [
  { cell: ({ name }) => <span title={name}><Marked terms={terms} text={name} /></span>, header: "Name", id: "name", value: ({ name }) => name, width: 420 },
  {
    cell: ({ shape }) => (shape.length === 0 ? "scalar" : shape.map(formatCount).join(" × ")),
    header: "Shape", id: "shape", value: ({ shape }) => shape.reduce((all, each) => all * each, 1), width: 180,
  },
  { header: "Type", id: "dtype", value: ({ dtype }) => dtype, width: 100 },
  { cell: ({ size }) => formatBytes(size), end: true, header: "Size", id: "size", value: ({ size }) => size, width: 100 },
];

/** The arrays of a checkpoint. */
export const ArraysView = ({ description }: { readonly description: Description }) => {
  const { pane, terms, update } = usePane();
  const { filter = "" } = pane;
  const columns = useMemo(() => columnsOf([...terms, filter]), [filter, terms]);
  const arrays = useMemo(
    () => (description.arrays ?? []).filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase())),
    [description.arrays, filter],
  );

  return (
    <Stack gap={2}>
      <NameFilter />
      <DataTable
        columns={columns}
        empty={<Empty title="No array">{filter === "" ? "The checkpoint lists none." : `No name contains “${filter}”.`}</Empty>}
        label={`Arrays of ${description.path}`}
        onSort={(sort) => update({ sort })}
        rowKey={({ name }) => name}
        rows={arrays}
        sort={pane.sort ?? ""}
      />
    </Stack>
  );
};

export default ArraysView;
