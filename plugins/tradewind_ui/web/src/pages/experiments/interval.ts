import type { Schemas } from "../../api/client";

type Score = Schemas["BoardScore"];

/** Space beside the outermost ends, as a share of the axis, so that these are seen to be ends. */
const MARGIN = 0.04;

/** Ends of an axis. */
export type Axis = { readonly from: number; readonly to: number };

/** Return an axis on which all scores and intervals fit; undefined if there is nothing to draw. */
export const axisOf = (scores: readonly Score[]): Axis | undefined => {
  const ends = scores.flatMap(({ high, low, value }) =>
    [low, high, value].filter((each): each is number => typeof each === "number"),
  );
  if (ends.length === 0) {
    return undefined;
  }
  const [from, to] = [Math.min(...ends), Math.max(...ends)];
  const margin = from === to ? 0.5 : MARGIN * (to - from);
  return { from: from - margin, to: to + margin };
};

/** Return the place of a value on the axis, in percent. */
export const placeOf = (value: number, { from, to }: Axis): number => (100 * (value - from)) / (to - from);
