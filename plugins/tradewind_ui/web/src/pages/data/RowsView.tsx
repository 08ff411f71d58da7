import { Box, Button, ButtonGroup, HStack, Stack } from "@chakra-ui/react";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { Empty } from "../../components/Empty";
import { Loading } from "../../components/Frame";
import { NO_PLACE } from "./address";
import type { RowPage } from "./cells";
import { usePane } from "./context";
import { conditionsOf, termsOfFilter, withCondition } from "./highlight";
import { Note } from "./Note";
import { isFirst } from "./places";
import { useRows } from "./queries";
import { RecordCard } from "./RecordCard";
import { Refusal } from "./Refusal";
import { ColumnMenu, Pager, SubmittedInput } from "./RowControls";
import { RowTable } from "./RowTable";
import { SampleCard, SCORE } from "./SampleCard";
import { TokenCard } from "./TokenCard";
import type { Description } from "./views";

export type RowsViewName = "cards" | "samples" | "table" | "tokens";

const CARDS = { cards: RecordCard, samples: SampleCard, tokens: TokenCard };
const ROWS: Record<RowsViewName, number> = { cards: 20, samples: 20, table: 100, tokens: 20 };

/** Keeps the samples to which a metric gives 1, or 0. Which is better, their file does not say. */
const ZeroOrOne = ({ metric, names }: { readonly metric: string; readonly names: readonly string[] }) => {
  const { pane, update } = usePane();
  const filterOf = (condition?: string) => withCondition(pane.filter ?? "", names, metric, condition);
  const short = metric.slice(SCORE.length);
  const choices = [
    { filter: filterOf(), name: "All" },
    { filter: filterOf(`${metric}=1`), name: `${short} 1` },
    { filter: filterOf(`${metric}=0`), name: `${short} 0` },
  ];

  return (
    <ButtonGroup aria-label={`Samples by ${short}`} attached role="group" size="sm" variant="outline">
      {choices.map(({ filter, name }) => (
        <Button
          aria-pressed={(pane.filter ?? "") === filter}
          key={name}
          onClick={() => update({ ...NO_PLACE, filter })}
          variant={(pane.filter ?? "") === filter ? "solid" : "outline"}
        >
          {name}
        </Button>
      ))}
    </ButtonGroup>
  );
};

/** Whether a metric is 0 or 1: others, such as a likelihood, have no two sides. */
const isZeroOrOne = ({ columns, rows }: RowPage, metric: string) => {
  const at = columns.findIndex(({ name }) => name === metric);
  return rows.every(({ values }) => [0, 1, null, undefined].includes(values[at] as 0));
};

const NoRows = ({ filter, page }: { readonly filter: string; readonly page: RowPage }) => (
  <Empty title={filter === "" ? "There are no rows here" : "No row matches"}>
    {page.next ? "This part of the file has none. Next goes on after it." : "The file ends here."}
  </Empty>
);

const limitOf = (text: string | undefined, view: RowsViewName) => {
  const limit = Number(text ?? ROWS[view]);
  return Number.isInteger(limit) && limit > 0 ? Math.min(limit, 10_000) : ROWS[view];
};

/** Rows of a file, as a table or as one card each. */
export const RowsView = ({ description, view }: { readonly description: Description; readonly view: RowsViewName }) => {
  const { pane, terms, update } = usePane();
  const client = useQueryClient();
  const limit = limitOf(pane.limit, view);
  const found = useRows(pane, limit);
  const page = found.data;
  const names = (description.columns?.length ? description.columns : (page?.columns ?? [])).map(({ name }) => name);
  const filter = pane.filter ?? "";
  const marked = [...terms, ...termsOfFilter(filter, names, SCORE)];
  const scores = names.filter((name) => name.startsWith(SCORE));
  const metric = scores.find((name) => conditionsOf(filter, names).some((each) => each.startsWith(`${name}=`))) ?? scores[0];
  // The buttons stay while another page loads.
  const [isBinary, setIsBinary] = useState(false);
  const isSeenBinary = page !== undefined && metric !== undefined ? isZeroOrOne(page, metric) : isBinary;
  if (isSeenBinary !== isBinary) {
    setIsBinary(isSeenBinary);
  }
  const beginAnew = () => {
    // Pages that were read before the file changed would come back for a moment.
    client.removeQueries({ queryKey: ["data", "rows"] });
    update(NO_PLACE);
  };
  const Card = view === "table" ? undefined : CARDS[view];

  return (
    <Stack gap={3}>
      <HStack flexWrap="wrap" gap={2}>
        <SubmittedInput label="Filter rows" onSubmit={(text) => update({ ...NO_PLACE, filter: text })} placeholder="Filter: text, column:text, column=value" value={filter} width="20rem" />
        <ColumnMenu names={names} />
        {view === "samples" && metric !== undefined && isBinary ? <ZeroOrOne metric={metric} names={names} /> : null}
      </HStack>
      {found.error ? <Refusal error={found.error} retry={found.refetch} /> : null}
      {found.error && !isFirst(pane) ? (
        <Button alignSelf="start" onClick={beginAnew} size="sm" variant="outline">
          Begin at the first rows
        </Button>
      ) : null}
      {page === undefined ? (
        found.isPending ? <Loading /> : null
      ) : (
        <>
          <Note text={page.note} />
          <Pager isByNumber={description.by_number === true} isLoading={found.isPlaceholderData} limit={limit} page={page} />
          {page.rows.length === 0 ? (
            <NoRows filter={filter} page={page} />
          ) : Card === undefined ? (
            <RowTable page={page} terms={marked} />
          ) : (
            <Stack gap={3} opacity={found.isPlaceholderData ? 0.6 : 1}>
              {page.rows.map((row) => (
                // Cards out of view are not laid out: a page may have 10,000.
                <Box css={{ containIntrinsicSize: "auto 240px", contentVisibility: "auto" }} key={row.at}>
                  <Card page={page} row={row} terms={marked} />
                </Box>
              ))}
            </Stack>
          )}
        </>
      )}
    </Stack>
  );
};

export default RowsView;
