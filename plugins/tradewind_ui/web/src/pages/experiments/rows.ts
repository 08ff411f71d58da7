import type { Schemas } from "../../api/client";

export type OutputRow = Schemas["OutputRow"];
type States = Schemas["StateCounts"]["states"];

/** A line of the table: an experiment, a step with its newest version, or an older version of it; or any output. */
export type Line =
  | { readonly key: string; readonly kind: "experiment"; readonly isOpen: boolean; readonly name: string; readonly shown: number; readonly states: States }
  | { readonly key: string; readonly kind: "step"; readonly isOpen: boolean; readonly older: number; readonly row: OutputRow }
  | { readonly key: string; readonly kind: "output" | "version"; readonly row: OutputRow };

/** Return a line for each output, in their order. */
export const flatLinesOf = (rows: readonly OutputRow[]): Line[] =>
  rows.map((row) => ({ key: row.output.status.output_path, kind: "output", row }));

const grouped = (rows: readonly OutputRow[], key: (row: OutputRow) => string): Map<string, OutputRow[]> => {
  const groups = new Map<string, OutputRow[]>();
  for (const row of rows) {
    const known = groups.get(key(row));
    if (known === undefined) {
      groups.set(key(row), [row]);
    } else {
      known.push(row);
    }
  }
  return groups;
};

/**
 * Return the lines to show of outputs in order of experiment and step, the newest version first.
 * @param experiments States of all outputs of each experiment.
 * @param toggled Keys of the experiments that are closed and of the steps that are open.
 */
export const linesOf = (
  rows: readonly OutputRow[],
  experiments: readonly Schemas["StateCounts"][],
  toggled: ReadonlySet<string>,
): Line[] => {
  const states = new Map(experiments.map((each) => [each.name, each.states]));
  const lines: Line[] = [];
  for (const [name, own] of grouped(rows, (row) => row.output.experiment)) {
    const key = `experiment ${name}`;
    const isOpen = !toggled.has(key);
    lines.push({ isOpen, key, kind: "experiment", name, shown: own.length, states: states.get(name) ?? {} });
    const steps = isOpen ? grouped(own, (row) => row.output.step) : new Map<string, OutputRow[]>();
    for (const [step, [newest, ...older]] of steps) {
      if (newest !== undefined) {
        const stepKey = `step ${name} ${step}`;
        const isStepOpen = toggled.has(stepKey) && older.length > 0;
        lines.push({ isOpen: isStepOpen, key: stepKey, kind: "step", older: older.length, row: newest });
        if (isStepOpen) {
          lines.push(
            ...older.map((row): Line => ({ key: `output ${row.output.status.output_path}`, kind: "version", row })),
          );
        }
      }
    }
  }
  return lines;
};
