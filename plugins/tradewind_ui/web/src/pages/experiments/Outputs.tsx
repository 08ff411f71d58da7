import { Button, HStack, Text, VStack } from "@chakra-ui/react";
import { useCallback, useMemo, useState } from "react";

import { DataTable } from "../../components/DataTable";
import { Empty } from "../../components/Empty";
import { formatCount, formatDuration, pluralize } from "../../components/format";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { hasFilter, NO_FILTER, orderOf } from "./address";
import type { ChangeView, View } from "./address";
import { columnsOf } from "./columns";
import { Filters } from "./Filters";
import { Notes, Reading } from "./Notes";
import { useOutputs } from "./queries";
import { flatLinesOf, linesOf } from "./rows";

type Props = { readonly change: ChangeView; readonly view: View };

const NO_ROWS: readonly never[] = [];

/** All outputs below the prefix, by experiment and step. */
export const Outputs = ({ change, view }: Props) => {
  const outputs = useOutputs(view);
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const toggle = useCallback(
    (key: string) =>
      setToggled((now) => new Set(now.has(key) ? [...now].filter((each) => each !== key) : [...now, key])),
    [],
  );
  const columns = useMemo(() => columnsOf(toggle), [toggle]);
  const pages = outputs.data?.pages ?? NO_ROWS;
  const rows = useMemo(() => pages.flatMap((page) => page.rows), [pages]);
  const [first] = pages;
  const experiments = first?.experiments ?? NO_ROWS;
  const isFlat = view.sort !== undefined;
  const lines = useMemo(
    () => (isFlat ? flatLinesOf(rows) : linesOf(rows, experiments, toggled)),
    [isFlat, rows, experiments, toggled],
  );

  if (outputs.error !== null) {
    return (
      <VStack align="start" gap={3}>
        <Problem error={outputs.error} />
        <Button onClick={() => void outputs.refetch()} size="sm" variant="outline">
          Try again
        </Button>
      </VStack>
    );
  }
  if (first === undefined) {
    return <Loading />;
  }
  if (first.reading_s !== null && first.total === 0) {
    return <Reading prefix={first.prefix} seconds={first.reading_s} />;
  }
  return (
    <VStack align="stretch" gap={3}>
      <Filters change={change} experiments={experiments} view={view} />
      {view.file === "" ? null : (
        <Text color="fg.muted" overflowWrap="anywhere">{`Only outputs that ${view.file} names.`}</Text>
      )}
      <Notes notes={first.notes} />
      <HStack flexWrap="wrap" gap={3}>
        <Text aria-live="polite" color="fg.muted" fontSize="sm">
          {`${hasFilter(view) ? `${formatCount(first.admitted)} of ` : ""}${pluralize(first.total, "output")} below ${first.prefix}${first.took_s < 1 ? "" : `, read in ${formatDuration(first.took_s)}`}`}
        </Text>
        {isFlat ? (
          <Button onClick={() => change({ sort: undefined })} size="xs" variant="outline">
            Group by experiment
          </Button>
        ) : null}
      </HStack>
      <DataTable
        columns={columns}
        empty={
          <Empty title={first.total === 0 ? `There are no outputs below ${first.prefix}` : "No output matches"}>
            {first.total === 0 ? (
              "A step that has begun appears here. Choose another prefix, or run a DAG whose outputs are below this one."
            ) : (
              <Button onClick={() => change(NO_FILTER)} size="sm" variant="outline">
                Show all outputs
              </Button>
            )}
          </Empty>
        }
        isInOrder
        label={isFlat ? "Outputs" : "Outputs by experiment and step"}
        onSort={(sort) => change({ sort: orderOf(sort) })}
        rowKey={(line) => line.key}
        rows={lines}
        sort={view.sort ?? ""}
      />
      {outputs.hasNextPage ? (
        <HStack gap={3}>
          <Button loading={outputs.isFetchingNextPage} onClick={() => void outputs.fetchNextPage()} size="sm" variant="outline">
            Show more
          </Button>
          <Text color="fg.muted">{`${formatCount(rows.length)} of ${formatCount(first.admitted)} shown`}</Text>
        </HStack>
      ) : null}
    </VStack>
  );
};
