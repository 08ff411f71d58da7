import { render, screen } from "@testing-library/react";
import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { expect, it, vi } from "vitest";

import { Frame } from "./Frame";

const Broken = (): never => {
  throw new Error("no such column");
};

it("shows the error of a page in its place", async () => {
  const silent = vi.spyOn(console, "error").mockImplementation(() => undefined);
  render(
    <ChakraProvider value={defaultSystem}>
      <Frame>
        <Broken />
      </Frame>
    </ChakraProvider>,
  );
  expect(await screen.findByText("no such column")).toBeTruthy();
  silent.mockRestore();
});
