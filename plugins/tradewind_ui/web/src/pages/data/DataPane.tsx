import { Box, Button, Heading, HStack, Stack } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import type { KeyboardEvent } from "react";

import { usePane } from "./context";
import { Crumbs } from "./Crumbs";
import { nameOf, parentOf } from "./paths";
import { Roots } from "./Roots";
import { Shown } from "./Shown";

const isTyping = (event: KeyboardEvent) =>
  event.target instanceof HTMLElement && event.target.closest("input, textarea, select, [contenteditable], [role=menu], [role=slider]") !== null;

/** One path with its breadcrumb; Backspace goes to the folder above. */
export const DataPane = () => {
  const { address, close, hasRoom, index, open, openBeside, pane, roots, wantedFocus } = usePane();
  const heading = useRef<HTMLHeadingElement>(null);

  // A screen reader hears where a link has led. A folder's table takes the focus when it appears: now, if it is known.
  useEffect(() => {
    if (wantedFocus !== undefined && document.activeElement?.hasAttribute("data-index") !== true) {
      heading.current?.focus();
    }
  }, [pane.path, wantedFocus]);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Backspace" && pane.path !== "" && !isTyping(event) && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      open(parentOf(pane.path, roots), pane.path);
    }
  };

  return (
    <Box aria-label={`Pane ${index + 1}`} as="section" flex="1 1 26rem" minW="0" onKeyDown={onKeyDown}>
      <Stack gap={3}>
        <HStack align="start" justify="space-between">
          <Crumbs />
          <HStack gap={1}>
            {hasRoom && pane.path !== "" ? (
              <Button onClick={() => openBeside(parentOf(pane.path, roots))} size="2xs" title="Open another path beside this one" variant="ghost">
                Split
              </Button>
            ) : null}
            {address.panes.length > 1 ? (
              <Button aria-label={`Close pane ${index + 1}`} onClick={close} size="2xs" variant="ghost">
                Close
              </Button>
            ) : null}
          </HStack>
        </HStack>
        <Heading _focusVisible={{ outline: "none" }} as="h2" overflowWrap="anywhere" ref={heading} size="md" tabIndex={-1}>
          {pane.path === "" ? "Data" : nameOf(pane.path)}
        </Heading>
        {pane.path === "" ? <Roots /> : <Shown key={pane.path} />}
      </Stack>
    </Box>
  );
};
