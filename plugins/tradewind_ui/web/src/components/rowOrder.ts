import type { Column, Value } from "./tableParts";

const COLLATOR = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

/** Compare two values: numbers by size, texts by the words and numbers in them, other pairs by their types. */
const compared = (a: Value, b: Value): number => {
  if (typeof a === "string" && typeof b === "string") {
    return COLLATOR.compare(a, b);
  }
  return typeof a === typeof b ? Number(a) - Number(b) : typeof a < typeof b ? -1 : 1;
};

const isMissing = (value: Value) => value === undefined || value === null;

export const sortOf = (sort: string | undefined) => ({ id: sort?.replace(/^-/u, "") ?? "", isDescending: sort?.startsWith("-") === true });

/** Return the order of rows as indices, missing values last; undefined for the order that they have. */
export const orderOf = <Row>(rows: readonly Row[], columns: readonly Column<Row>[], sort: string | undefined): readonly number[] | undefined => {
  const { id, isDescending } = sortOf(sort);
  const value = columns.find((column) => column.id === id)?.value;
  if (value === undefined) {
    return undefined;
  }
  const values = rows.map(value);
  const indices = values.map((_, index) => index);
  const sign = isDescending ? -1 : 1;
  const present = indices.filter((index) => !isMissing(values[index])).sort((a, b) => sign * compared(values[a], values[b]));
  return [...present, ...indices.filter((index) => isMissing(values[index]))];
};

/** Return the order after a click on a column: texts ascend at first, numbers descend; then the reverse; then none. */
export const sortAfterClick = <Row>(rows: readonly Row[], { id, value }: Column<Row>, sort: string | undefined): string => {
  const example = value === undefined ? undefined : rows.find((row) => !isMissing(value(row)));
  const first = example !== undefined && typeof value?.(example) === "string" ? id : `-${id}`;
  const second = first === id ? `-${id}` : id;
  return sort === first ? second : sort === second ? "" : first;
};
