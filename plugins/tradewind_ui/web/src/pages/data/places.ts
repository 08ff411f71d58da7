import { NO_PLACE } from "./address";
import type { Pane } from "./address";
import type { RowPage } from "./cells";

type Change = Partial<Pane>;
type Place = Pick<Pane, "at" | "cursor" | "start">;

/** Whether a page begins where the file does. */
export const isFirst = ({ at, cursor, start }: Place): boolean =>
  cursor === undefined && (at === undefined || Number(at) === 0) && (start === undefined || Number(start) === 0);

/** Return the change of the address that leads to the page after; undefined at the end of the file. */
export const placeAfter = (page: RowPage): Change | undefined =>
  page.next ? { ...NO_PLACE, cursor: page.next } : undefined;

/** Return the place of a pane alone. */
export const placeAlone = ({ at, cursor, start }: Place): Change => ({ ...NO_PLACE, at, cursor, start });

/** Return a place with what ends those of a page: the server then refuses it if the file has changed since. */
const markedAs = (row: RowPage["rows"][number], place: number): string => `${place}${/@.*$/u.exec(row.at)?.[0] ?? ""}`;

/** Return the change that leads to the page before; undefined if nothing tells where that begins.
 *
 * Row numbers tell it where a file finds rows by number. Else it is where the user came from, if from there. */
export const placeBefore = (pane: Pane, page: RowPage, limit: number, isByNumber: boolean, visited: Readonly<Record<string, Change>>): Change | undefined => {
  const [row] = page.rows;
  if (isFirst(pane)) {
    return undefined;
  }
  const cameFrom = pane.cursor === undefined ? undefined : visited[pane.cursor];
  if (cameFrom === undefined && isByNumber && typeof row?.number === "number" && !pane.filter) {
    const start = Math.max(0, row.number - 1 - limit);
    return { ...NO_PLACE, cursor: start === 0 ? undefined : markedAs(row, start) };
  }
  return cameFrom;
};
