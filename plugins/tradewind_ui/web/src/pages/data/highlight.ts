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

/** Return the text that a filter looks for, without the column: the server marks columns by `column:` or `column=`. */
export const termOfFilter = (filter: string, columns: readonly string[]): string => {
  const at = filter.search(/[:=]/u);
  return at > 0 && columns.includes(filter.slice(0, at)) ? filter.slice(at + 1) : filter;
};
