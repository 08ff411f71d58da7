import { Badge } from "@chakra-ui/react";

/** As the server says it, of a cluster that is stopped. */
export const STOPPED = "there is nothing of it";
const UNKNOWN = { palette: "gray", text: "unknown" };
const STATES: Record<string, { readonly palette: string; readonly text: string }> = {
  "its head is there, and was never set up to the end": { palette: "orange", text: "half made" },
  "its head was set up": { palette: "green", text: "up" },
  "it has more than one head": { palette: "red", text: "several heads" },
  "it has slices and no head": { palette: "red", text: "no head" },
  [STOPPED]: { palette: "gray", text: "stopped" },
};

/** The state of a cluster in a word; `problem` says why it is unknown. */
export const StateBadge = ({ problem, state }: { readonly problem?: string | null; readonly state: string | undefined }) => {
  const { palette, text } = (state === undefined ? undefined : STATES[state]) ?? UNKNOWN;

  return (
    <Badge colorPalette={palette} title={problem ?? state}>
      {text}
    </Badge>
  );
};
