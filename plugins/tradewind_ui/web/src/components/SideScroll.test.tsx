import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";

import { SideScroll } from "./SideScroll";

it("fades at its edge while there is more, also after the window was made narrower", () => {
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(300);
  const width = vi.spyOn(HTMLElement.prototype, "scrollWidth", "get").mockReturnValue(300);
  const { container } = render(
    <ChakraProvider value={defaultSystem}>
      <SideScroll>rows</SideScroll>
    </ChakraProvider>,
  );
  const edge = container.querySelector<HTMLElement>("[aria-hidden]");
  expect(edge?.hidden).toBe(true);
  width.mockReturnValue(500);
  fireEvent(globalThis.window, new Event("resize"));
  expect(edge?.hidden).toBe(false);
  const scroller = screen.getByText("rows");
  scroller.scrollLeft = 200;
  fireEvent.scroll(scroller);
  expect(edge?.hidden).toBe(true);
});
