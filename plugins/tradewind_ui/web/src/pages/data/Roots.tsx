import { Code, Text } from "@chakra-ui/react";

import { DataTable } from "../../components/DataTable";
import type { Column } from "../../components/DataTable";
import { Empty } from "../../components/Empty";
import { usePane } from "./context";
import { PathLink } from "./PathLink";

type Root = { readonly path: string };

const COLUMNS: readonly Column<Root>[] = [
  { cell: ({ path }) => <PathLink isInRow focus="first" path={path}>{path}</PathLink>, header: "Folder or bucket", id: "path", value: ({ path }) => path, width: 480 },
];

/** The folders and buckets that the deployment allows. */
export const Roots = () => {
  const { open, roots, wantedFocus } = usePane();

  return roots.length === 0 ? (
    <Empty title="No folder is allowed yet">
      <Text as="span">
        Data shows what is below the allowed roots of this deployment. An administrator sets them as{" "}
        <Code>[tradewind] allowed_roots</Code> in airflow.cfg of the API server; see docs/security.md.
      </Text>
    </Empty>
  ) : (
    <DataTable columns={COLUMNS} focusOn={wantedFocus} label="Allowed folders and buckets" onRowClick={({ path }) => open(path, "first")} rowKey={({ path }) => path} rows={roots.map((path) => ({ path }))} />
  );
};
