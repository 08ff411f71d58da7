import type { Schemas } from "../../api/client";

export type Row = Schemas["Row"];
export type RowPage = Schemas["RowPage"];
export type Scalar = Row["values"][number];

/** A value of a row, with what the page shows of it. */
export type Cell = {
  readonly column: string;
  readonly isCut: boolean;
  readonly isNested: boolean;
  readonly text: string;
  readonly type: string;
  readonly value: Scalar;
};

/** Missing values are shown as nothing: `null` would look like a text. */
export const textOf = (value: Scalar): string => (value === null ? "" : String(value));

export const cellsOf = (page: Pick<RowPage, "columns">, row: Row): readonly Cell[] =>
  page.columns.map(({ name, type }, at) => {
    const value = row.values[at] ?? null;
    return {
      column: name,
      isCut: row.cut?.includes(at) === true,
      isNested: row.nested?.includes(at) === true,
      text: textOf(value),
      type,
      value,
    };
  });

/** Lay nested values out over lines; a text that does not parse, since it was cut, stays as it is. */
export const laidOut = (text: string): string => {
  try {
    return JSON.stringify(JSON.parse(text), undefined, 2);
  } catch {
    return text;
  }
};

/** Parse a list of token ids, or of the texts of tokens; whatever of it was not cut. */
export const listOf = (text: string): readonly (number | string)[] => {
  const parsed = (candidate: string): unknown => {
    try {
      return JSON.parse(candidate);
    } catch {
      return undefined;
    }
  };
  const list = parsed(text) ?? parsed(`${text.slice(0, text.lastIndexOf(","))}]`);
  return Array.isArray(list) ? list.filter((each): each is number | string => ["number", "string"].includes(typeof each)) : [];
};
