import { Badge } from "@chakra-ui/react";
import type { BadgeProps } from "@chakra-ui/react";

import type { Schemas } from "../api/client";

/** What a plan decides about a step. Pages, logs and the command line use these names. */
export type Decision = Schemas["Decision"];

/** In the order in which a user looks at them. */
export const DECISIONS: ReadonlyArray<Decision> = ["RUN", "WAIT", "BLOCKED", "REUSE", "PRUNED"];

/** Palettes of Airflow's theme, which has light and dark forms of each. */
export const PALETTES: Record<Decision, string> = {
  BLOCKED: "red",
  PRUNED: "gray",
  REUSE: "green",
  RUN: "blue",
  WAIT: "orange",
};

/** What each decision was made for. A plan does not know how the run went on, so these are true before and after it. */
export const MEANINGS: Record<Decision, string> = {
  BLOCKED: "It or an input had failed before, or its lease could not be read, when the run was planned",
  PRUNED: "Its output was missing when the run was planned, but no step that was to run reads it",
  REUSE: "Its output existed when the run was planned",
  RUN: "Its output was missing when the run was planned, or a rerun was requested",
  WAIT: "Another run was making it when this run was planned; this run was to reuse the result",
};

export const isDecision = (text: string): text is Decision => (DECISIONS as ReadonlyArray<string>).includes(text);

export const DecisionBadge = ({ decision, ...props }: BadgeProps & { readonly decision: Decision }) => (
  <Badge colorPalette={PALETTES[decision]} flexShrink={0} size="sm" title={MEANINGS[decision]} variant="solid" {...props}>
    {decision}
  </Badge>
);
