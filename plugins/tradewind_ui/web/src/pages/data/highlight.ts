export type Piece = { readonly isMatch: boolean; readonly text: string };

const MAX_MATCHES = 2000;
const SPECIAL = /[\\^$.*+?()[\]{}|]/gu;

/** Split a text at the terms, in any case. Longer terms win; after 2,000 matches the rest is one piece. */
export const splitByTerms = (text: string, terms: readonly string[]): readonly Piece[] => {
  const wanted = terms.filter((term) => term !== "").sort((a, b) => b.length - a.length);
  if (wanted.length === 0) {
    return [{ isMatch: false, text }];
  }
  const pieces: Piece[] = [];
  let end = 0;
  const pattern = new RegExp(wanted.map((term) => term.replace(SPECIAL, "\\$&")).join("|"), "giu");
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) {
      pieces.push({ isMatch: false, text: text.slice(end, match.index) });
    }
    pieces.push({ isMatch: true, text: match[0] });
    end = match.index + match[0].length;
    if (pieces.length >= 2 * MAX_MATCHES) {
      break;
    }
  }
  return end < text.length || pieces.length === 0 ? [...pieces, { isMatch: false, text: text.slice(end) }] : pieces;
};

const AND = " & ";

const columnOf = (condition: string, columns: readonly string[]): string | undefined => {
  const name = condition.slice(0, Math.max(0, condition.search(/[:=]/u)));
  return columns.includes(name) ? name : undefined;
};

/** Return the conditions `column:text` or `column=value` of a filter, as the server reads it; none of a text. */
export const conditionsOf = (filter: string, columns: readonly string[]): readonly string[] =>
  [filter.split(AND), [filter]].find((parts) => parts.every((part) => columnOf(part, columns) !== undefined)) ?? [];

/** Return the filter with these conditions on a column instead of those that it has. */
export const withCondition = (filter: string, columns: readonly string[], column: string, condition?: string): string =>
  [...conditionsOf(filter, columns).filter((each) => columnOf(each, columns) !== column), ...(condition === undefined ? [] : [condition])].join(AND);

/** Return the texts that a filter looks for, without those of columns that are left out. */
export const termsOfFilter = (filter: string, columns: readonly string[], leftOut: string): readonly string[] => {
  const conditions = conditionsOf(filter, columns);
  return conditions.length === 0
    ? [filter]
    : conditions.filter((each) => !each.startsWith(leftOut)).map((each) => each.slice(each.search(/[:=]/u) + 1));
};
