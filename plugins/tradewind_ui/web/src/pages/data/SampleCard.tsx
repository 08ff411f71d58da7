import { Badge, SimpleGrid } from "@chakra-ui/react";

import { formatNumber } from "../../components/format";
import type { Cell } from "./cells";
import { cellsOf } from "./cells";
import type { CardProps } from "./RecordCard";
import { Field, RecordFrame } from "./RecordCard";

export const SCORE = "score/";
const TEXTS = ["prompt", "target", "answer"];
const QUIET = ["prompt_sha256", "task", "document", "error"];

const ScoreBadge = ({ cell }: { readonly cell: Cell }) => {
  const { value } = cell;
  // Of some metrics 1 is better, of others 0: no colour says right or wrong.
  return typeof value === "number" ? (
    <Badge colorPalette={value === 1 ? "blue" : "gray"}>
      {cell.column.slice(SCORE.length)} {formatNumber(value)}
    </Badge>
  ) : null;
};

/** What a model answered for one document, beside the right answer. */
export const SampleCard = ({ page, row, terms }: CardProps) => {
  const cells = cellsOf(page, row);
  const named = (name: string) => cells.find((cell) => cell.column === name);
  const fieldOf = (name: string) => {
    const cell = named(name);
    return cell === undefined ? null : <Field at={row.at} cell={cell} key={name} terms={terms} />;
  };
  const others = cells.filter(({ column }) => !TEXTS.includes(column) && !QUIET.includes(column) && !column.startsWith(SCORE));

  return (
    <RecordFrame
      badges={
        <>
          {named("task")?.text ? <Badge variant="outline">{named("task")?.text}</Badge> : null}
          {named("document")?.text ? <Badge variant="outline">document {named("document")?.text}</Badge> : null}
          {cells.filter(({ column }) => column.startsWith(SCORE)).map((cell) => <ScoreBadge cell={cell} key={cell.column} />)}
          {named("error")?.text ? <Badge colorPalette="orange">error: {named("error")?.text}</Badge> : null}
        </>
      }
      row={row}
    >
      {fieldOf("prompt")}
      <SimpleGrid columns={{ base: 1, md: 2 }} gap={3}>
        {fieldOf("answer")}
        {fieldOf("target")}
      </SimpleGrid>
      {others.map(({ column }) => fieldOf(column))}
    </RecordFrame>
  );
};
