import { Input } from "@chakra-ui/react";
import { useRef, useState } from "react";

import { usePane } from "./context";

const PAUSE_MS = 200;

/** Filters names while the user types. The address follows after a pause. */
export const NameFilter = () => {
  const { pane, update } = usePane();
  const given = pane.filter ?? "";
  const [shown, setShown] = useState({ given, text: given });
  const timer = useRef<number | undefined>(undefined);
  // The address has changed by something else, such as the Back button.
  if (shown.given !== given) {
    setShown({ given, text: given });
  }
  const type = (text: string) => {
    setShown({ given, text });
    globalThis.clearTimeout(timer.current);
    timer.current = globalThis.setTimeout(() => update({ filter: text }), PAUSE_MS) as unknown as number;
  };

  return <Input aria-label="Filter by name" maxW="20rem" onChange={(event) => type(event.target.value)} placeholder="Filter by name" size="sm" type="search" value={shown.text} />;
};
