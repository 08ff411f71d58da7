import type { Schemas } from "../../api/client";
import type { Decision } from "../../components/decisions";
import { formatCount, pluralize } from "../../components/format";

export type Step = Schemas["PlannedStep"];
export type GroupPlan = Schemas["GroupPlan"];

export type Filter = {
  readonly decisions: ReadonlyArray<Decision>;
  readonly input: string;
  readonly name: string;
};

/** Return the steps that a filter keeps; a name matches in any part, whatever its case. */
export const filterSteps = (steps: ReadonlyArray<Step>, { decisions, input, name }: Filter): ReadonlyArray<Step> => {
  const wanted = name.trim().toLowerCase();
  if (decisions.length === 0 && input === "" && wanted === "") {
    return steps;
  }
  return steps.filter(
    (step) =>
      (decisions.length === 0 || decisions.includes(step.decision)) &&
      (input === "" || step.name === input || step.changed_inputs?.includes(input) === true) &&
      (wanted === "" || `${step.name}-${step.hash}`.toLowerCase().includes(wanted)),
  );
};

/** Format as `1,000 steps`, or of filtered ones as `6 of 1,000 steps`. */
export const countsOf = (shown: number, all: number): string =>
  shown === all ? pluralize(all, "step") : `${formatCount(shown)} of ${pluralize(all, "step")}`;

export const countDecisions = (steps: ReadonlyArray<Step>): Record<Decision, number> => {
  const counts: Record<Decision, number> = { BLOCKED: 0, PRUNED: 0, REUSE: 0, RUN: 0, WAIT: 0 };
  for (const { decision } of steps) {
    counts[decision] += 1;
  }
  return counts;
};

/** Return the inputs whose change makes steps run again, with the number of those steps, the most first. */
export const changedInputs = (steps: ReadonlyArray<Step>): Array<readonly [string, number]> => {
  const counts = new Map<string, number>();
  for (const name of steps.flatMap((step) => step.changed_inputs ?? [])) {
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].sort(([a, more], [b, fewer]) => fewer - more || a.localeCompare(b));
};

/** What is to be said of a step beyond its decision. */
export const marksOf = (step: Step): Array<string> => [
  ...(step.is_forced === true ? ["forced"] : []),
  ...(step.is_damaged === true ? ["output damaged"] : []),
];
