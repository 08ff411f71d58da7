import { Box } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import type { ReactNode } from "react";

import { Edge } from "./tableParts";

/** Return what a box that scrolls sideways needs to fade at its edge while there is more. */
export const useEdge = () => {
  const scroller = useRef<HTMLDivElement>(null);
  const edge = useRef<HTMLDivElement>(null);
  const showEdge = () => {
    if (scroller.current !== null && edge.current !== null) {
      const { clientWidth, scrollLeft, scrollWidth } = scroller.current;
      edge.current.hidden = scrollWidth - clientWidth - Math.abs(scrollLeft) <= 1;
    }
  };
  useEffect(() => {
    showEdge();
    globalThis.addEventListener("resize", showEdge);
    return () => globalThis.removeEventListener("resize", showEdge);
  });

  return { edge, scroller, showEdge };
};

/** A table that scrolls sideways where the window is too narrow for it. */
export const SideScroll = ({ children }: { readonly children: ReactNode }) => {
  const { edge, scroller, showEdge } = useEdge();

  return (
    <Box minW="0" position="relative">
      <Box onScroll={showEdge} overflowX="auto" ref={scroller}>
        {children}
      </Box>
      <Edge ref={edge} />
    </Box>
  );
};
