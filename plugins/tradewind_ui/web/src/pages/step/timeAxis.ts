import type { Schemas } from "../../api/client";

export type Attempt = Schemas["AttemptReport"];
export type Span = { readonly end: number; readonly start: number };
export type Tick = { readonly at: number; readonly label: string };

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];
const MAX_TICKS = 6;
/** Attempts with longer pauses between them would be thin lines on one axis, so that each has its own. */
const MAX_PAUSES = 4;

/** Return when an attempt began and ended, or the present for one that runs; undefined if its file says neither. */
export const spanOf = (attempt: Attempt, now: number): Span | undefined => {
  const times = [
    ...attempt.phases.flatMap((phase) => [phase.started_at, phase.ended_at ?? phase.started_at]),
    ...attempt.events.map((event) => event.at),
    ...[attempt.started_at, attempt.ended_at].filter((time) => typeof time === "number"),
    ...(attempt.is_active ? [now] : []),
  ];
  if (times.length === 0) {
    return undefined;
  }
  const start = times.reduce((one, other) => Math.min(one, other));
  const end = times.reduce((one, other) => Math.max(one, other));
  return { end: Math.max(end, start + 1), start };
};

/** Return the axis of each attempt: one for all, or each its own if the pauses between them are long. */
export const axesOf = (attempts: readonly Attempt[], now: number): (Span | undefined)[] => {
  const spans = attempts.map((attempt) => spanOf(attempt, now));
  const known = spans.filter((span) => span !== undefined);
  if (known.length < 2) {
    return spans;
  }
  const all = { end: Math.max(...known.map(({ end }) => end)), start: Math.min(...known.map(({ start }) => start)) };
  const busy = known.reduce((sum, { end, start }) => sum + end - start, 0);
  return all.end - all.start > MAX_PAUSES * busy ? spans : spans.map((span) => span && all);
};

const UNITS = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
] as const;

/** Return at most six round times after the start of an axis, in one unit. */
export const ticksOf = ({ end, start }: Span): Tick[] => {
  const length = end - start;
  const step = STEPS.find((each) => length / each <= MAX_TICKS) ?? Math.ceil(length / MAX_TICKS / 86_400) * 86_400;
  const count = Math.floor(length / step);
  const [seconds, unit] = UNITS.find(([size]) => step % size === 0) ?? [1, "s"];
  return Array.from({ length: count + 1 }, (_, index) => ({
    at: start + index * step,
    label: index === 0 ? "0" : `${(index * step) / seconds} ${unit}`,
  }));
};

/** Return where a time is on an axis, in percent of its length. */
export const percent = (at: number, { end, start }: Span): number =>
  Math.min(100, Math.max(0, ((at - start) / (end - start)) * 100));
