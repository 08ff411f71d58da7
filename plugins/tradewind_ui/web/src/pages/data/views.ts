import type { Schemas } from "../../api/client";

export type Description = Schemas["Description"];

export type ViewName =
  | "arrays" | "cards" | "entries" | "files" | "image" | "markdown" | "samples" | "table" | "text" | "tokens";

export const TITLES: Record<ViewName, string> = {
  arrays: "Arrays",
  cards: "Cards",
  entries: "Folder",
  files: "Manifest",
  image: "Image",
  markdown: "Document",
  samples: "Samples",
  table: "Table",
  text: "Text",
  tokens: "Tokens",
};

const SAMPLE_COLUMNS = ["prompt", "target", "answer"];

const waysOf = (view: Description["views"][number], { columns, format }: Pick<Description, "columns" | "format">): ViewName[] => {
  if (view === "text") {
    return format === "markdown" ? ["markdown", "text"] : ["text"];
  }
  if (view !== "rows") {
    return [view];
  }
  if (format === "token_cache") {
    return ["tokens", "table"];
  }
  const isSamples = SAMPLE_COLUMNS.every((name) => columns?.some((column) => column.name === name) === true);
  return isSamples ? ["samples", "table", "cards"] : ["table", "cards"];
};

/** Return the ways to show a path, the best first. */
export const viewsOf = (description: Pick<Description, "columns" | "format" | "views">): readonly ViewName[] =>
  description.views.flatMap((view) => waysOf(view, description));
