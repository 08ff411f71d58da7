import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, test } from "vitest";

import { ConfigTree, visibleLines } from "./ConfigTree";
import type { ConfigEntry } from "./ConfigTree";

const entry = (depth: number, key: string, size = 0): ConfigEntry => ({
  depth,
  is_input: key === "data",
  is_versioned: key === "rate",
  key,
  path: key,
  size,
  text: size === 0 ? "1" : null,
});

const ENTRIES = [entry(0, "data"), entry(0, "optimizer", 3), entry(1, "rate"), entry(1, "betas", 1), entry(2, "[0]"), entry(0, "seed")];

const show = () =>
  render(
    <ChakraProvider value={defaultSystem}>
      <ConfigTree entries={ENTRIES} label="Config" />
    </ChakraProvider>,
  );

const focused = () => document.activeElement?.getAttribute("title");

test("closed lines hide all that is below them", () => {
  expect(visibleLines(ENTRIES, new Set())).toEqual([0, 1, 2, 3, 4, 5]);
  expect(visibleLines(ENTRIES, new Set([3]))).toEqual([0, 1, 2, 3, 5]);
  expect(visibleLines(ENTRIES, new Set([1, 3]))).toEqual([0, 1, 5]);
});

test("keys move, close and open as in other trees", async () => {
  show();
  const user = userEvent.setup();
  await user.tab();
  expect(focused()).toBe("data");
  await user.keyboard("{ArrowDown}{ArrowDown}{ArrowDown}");
  expect(focused()).toBe("betas");
  await user.keyboard("{ArrowLeft}");
  expect(screen.queryByTitle("[0]")).toBeNull();
  await user.keyboard("{ArrowRight}{ArrowRight}");
  expect(focused()).toBe("[0]");
  await user.keyboard("{ArrowLeft}{ArrowLeft}{ArrowLeft}");
  expect(focused()).toBe("optimizer");
  expect(screen.queryByTitle("rate")).toBeTruthy();
  await user.keyboard("{Enter}");
  expect(screen.queryByTitle("rate")).toBeNull();
  await user.keyboard("{End}");
  expect(focused()).toBe("seed");
  await user.keyboard("{Home}");
  expect(focused()).toBe("data");
}, 30_000);

test("a click closes and opens a part, and marks say what a line is", async () => {
  show();
  expect(screen.getByText("versioned")).toBeTruthy();
  expect(screen.getByText("input")).toBeTruthy();
  await userEvent.click(screen.getByText("optimizer"));
  expect(screen.queryByText("versioned")).toBeNull();
  expect(screen.getByTitle("optimizer").getAttribute("aria-expanded")).toBe("false");
});
