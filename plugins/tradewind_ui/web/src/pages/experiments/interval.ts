import type { Schemas } from "../../api/client";

type Score = Schemas["BoardScore"];

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
  return from === to ? { from: from - 0.5, to: to + 0.5 } : { from, to };
};

/** Return the place of a value on the axis, in percent. */
export const placeOf = (value: number, { from, to }: Axis): number => (100 * (value - from)) / (to - from);
