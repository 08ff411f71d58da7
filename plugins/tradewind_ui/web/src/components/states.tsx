import { Badge } from "@chakra-ui/react";
import type { BadgeProps } from "@chakra-ui/react";
import type { ReactNode } from "react";

import type { Schemas } from "../api/client";

/** State of an output; `tradewind status` and addresses use these names. */
export type State = Schemas["RecordState"];

export const STATES: ReadonlyArray<State> = ["finished", "at work", "failed", "stopped", "gone", "unreadable lease", "none"];

/** What pages call each state: as the reasons of a plan do, which say more than "none". */
export const LABELS: Record<State, string> = {
  "at work": "at work",
  failed: "failed",
  finished: "finished",
  gone: "output gone",
  none: "never ran",
  stopped: "stopped",
  "unreadable lease": "unreadable lease",
};

const STATE_PALETTES: Record<State, string> = {
  "at work": "blue",
  failed: "red",
  finished: "green",
  gone: "purple",
  none: "gray",
  stopped: "orange",
  "unreadable lease": "red",
};

/** What each state means, as the command line's manual says it. */
export const STATE_MEANINGS: Record<State, string> = {
  "at work": "A process makes or removes it now",
  failed: "The function of the last attempt failed",
  finished: "It is a result",
  gone: "It was a result, but its files are gone",
  none: "There was never an attempt",
  stopped: "The last attempt was stopped or lost",
  "unreadable lease": "Its lease cannot be read, so its state is unknown: a user has to look at it",
};

export const isState = (text: string): text is State => (STATES as ReadonlyArray<string>).includes(text);

type Props = BadgeProps & {
  /** Stands behind the state's name. */
  readonly children?: ReactNode;
  readonly state: State;
};

export const StateBadge = ({ children, state, ...props }: Props) => (
  <Badge colorPalette={STATE_PALETTES[state]} title={STATE_MEANINGS[state]} {...props}>
    {LABELS[state]}
    {children}
  </Badge>
);
