import { Badge } from "@chakra-ui/react";

import type { State } from "./address";

const PALETTES: Record<State, string> = {
  "at work": "blue",
  failed: "red",
  finished: "green",
  gone: "purple",
  none: "gray",
  stopped: "orange",
  "unreadable lease": "red",
};

/** What each state means, as the command line's manual says it. */
export const MEANINGS: Record<State, string> = {
  "at work": "A process makes or removes it now",
  failed: "The function of the last attempt failed",
  finished: "It is a result",
  gone: "It was a result, but its files are gone",
  none: "There was never an attempt",
  stopped: "The last attempt was stopped or lost",
  "unreadable lease": "Its lease cannot be read, so its state is unknown: a user has to look at it",
};

export const StateBadge = ({ state }: { readonly state: State }) => (
  <Badge colorPalette={PALETTES[state]} title={MEANINGS[state]}>
    {state}
  </Badge>
);
