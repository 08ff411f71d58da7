import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, test, vi } from "vitest";

import { ConfigDiff, treeOf } from "./ConfigDiff";
import type { ConfigRow } from "./ConfigDiff";

const ROWS: Array<ConfigRow> = [
  { keys: ["data"], mark: "INPUT", new: { reads: "data-bbb", text: "" }, old: { reads: "data-aaa", text: "" } },
  { keys: ["optimizer", "rate"], mark: "CHANGED", new: { text: "0.1" }, old: { text: "0.3" } },
  { keys: ["optimizer", "seed"], mark: "SAME", new: { text: "7" }, old: { text: "7" } },
];

const show = (node: React.ReactNode) => render(<ChakraProvider value={defaultSystem}>{node}</ChakraProvider>);

test("a tree has one line for each key above a leaf", () => {
  expect(treeOf(ROWS).map(({ depth, label }) => `${depth} ${label}`)).toEqual([
    "0 data",
    "0 optimizer",
    "1 rate",
    "1 seed",
  ]);
});

test("unchanged values appear when asked for", async () => {
  show(<ConfigDiff oldTitle="abc123" rows={ROWS} />);
  expect(screen.queryByText("seed")).toBeNull();
  expect(screen.getByText("0.3")).toBeTruthy();
  await userEvent.click(screen.getByRole("checkbox"));
  expect(screen.getByText("seed")).toBeTruthy();
});

test("an input can be opened", async () => {
  const onInput = vi.fn();
  show(<ConfigDiff oldTitle="abc123" onInput={onInput} rows={ROWS} />);
  await userEvent.click(screen.getByRole("button", { name: "data-bbb" }));
  expect(onInput).toHaveBeenCalledWith("data-bbb");
});

test("one config alone has no marks", () => {
  show(<ConfigDiff rows={ROWS} />);
  expect(screen.queryByText("changed")).toBeNull();
  expect(screen.getByText("seed")).toBeTruthy();
});
