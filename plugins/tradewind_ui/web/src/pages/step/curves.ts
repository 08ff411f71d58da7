import type { Schemas } from "../../api/client";

type Curves = Schemas["Curves"];
type Curve = Schemas["Curve"];

const EMPTY = { steps: [], values: [] };

/** Add the points of later rows to a curve: a training that resumed repeats steps, of which the later count. */
const continued = (old: Curve | undefined, next: Curve | undefined, name: string): Curve => {
  const { steps, values } = old ?? EMPTY;
  const first = next?.steps[0];
  const end = first === undefined ? steps.length : steps.findIndex((step) => step >= first);
  const kept = end === -1 ? steps.length : end;
  return {
    name,
    steps: [...steps.slice(0, kept), ...(next?.steps ?? [])],
    values: [...values.slice(0, kept), ...(next?.values ?? [])],
  };
};

/** Return the curves that were known with what a later read found. */
export const merged = (known: Curves | null | undefined, found: Curves | null): Curves | null => {
  if (known === null || known === undefined || found === null || found.is_new) {
    return found;
  }
  const names = [...new Set([...known.curves, ...found.curves].map(({ name }) => name))];
  const of = (curves: readonly Curve[], name: string) => curves.find((curve) => curve.name === name);
  return {
    ...found,
    curves: names.map((name) => continued(of(known.curves, name), of(found.curves, name), name)),
    is_new: known.is_new,
    last_at: found.last_at ?? known.last_at,
    last_step: found.last_step ?? known.last_step,
    names: [...new Set([...known.names, ...found.names])],
    rows: known.rows + found.rows,
    sampled: known.sampled || found.sampled,
  };
};

/** A curve to draw: `isMuted` for the one to compare with. */
export type Line = { readonly isMuted: boolean; readonly label: string } & Pick<Curve, "steps" | "values">;

/** Return the lines over one list of steps, as uPlot wants them: undefined where a line has no point. */
export const aligned = (lines: readonly Line[]): [number[], ...(number | null | undefined)[][]] => {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((one, other) => one - other);
  const columns = lines.map((line) => {
    const values = new Map(line.steps.map((step, index) => [step, line.values[index]]));
    return steps.map((step) => values.get(step));
  });
  return [steps, ...columns];
};
