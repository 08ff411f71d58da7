import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import type { ReactNode } from "react";
import { MemoryRouter } from "react-router-dom";
import { expect, it, vi } from "vitest";

import type { Schemas } from "../../api/client";
import { EvaluationBoard } from "./EvaluationBoard";
import Experiments from "./index";
import { outputRow, score } from "./samples";

// Roles are computed from styles, which takes seconds on a busy machine.
vi.setConfig({ testTimeout: 60_000 });

const show = (children: ReactNode, address = "/") =>
  render(
    <ChakraProvider value={defaultSystem}>
      <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
        <MemoryRouter initialEntries={[address]}>{children}</MemoryRouter>
      </QueryClientProvider>
    </ChakraProvider>,
  );

const PAGE: Schemas["OutputsPage"] = {
  admitted: 3,
  experiments: [{ name: "nightly", states: { finished: 3 } }],
  notes: ["There may be more outputs: narrow the prefix."],
  offset: 0,
  prefix: "/store",
  order: 1,
  reading_s: null,
  roots: ["/store", "gs://b"],
  rows: [outputRow("a", "2"), outputRow("a", "1"), outputRow("b")],
  took_s: 2,
  total: 3,
};

/** Answers of the server; the client takes the browser's `fetch` when it is loaded. */
const server = vi.hoisted(() => {
  const state = { answer: "", asked: [] as string[], status: 200 };
  globalThis.fetch = (request) => {
    state.asked.push((request as Request).url);
    const headers = { "Content-Type": "application/json" };
    return Promise.resolve(new Response(state.answer, { headers, status: state.status }));
  };
  return state;
});

const serve = (status: number, answer: unknown) => {
  Object.assign(server, { answer: JSON.stringify(answer), asked: [], status });
  return server;
};

it("shows outputs with links, folded versions and what is left out", async () => {
  serve(200, PAGE);
  const user = userEvent.setup();
  show(<Experiments />);
  const table = await screen.findByRole("grid", { name: "Outputs by experiment and step" });
  expect(screen.getByText(/3 outputs below \/store, read in 2 s/u)).toBeTruthy();
  expect(screen.getByText(/narrow the prefix/u)).toBeTruthy();
  expect(within(table).getByText("3 finished")).toBeTruthy();
  expect(within(table).getByRole("link", { name: "Data of a 2" }).getAttribute("href")).toBe(
    "/plugin/tradewind_data?path=%2Fstore%2Fa-2",
  );
  expect(within(table).getAllByText("pinned")).toHaveLength(1);
  expect(within(table).queryByText("earlier version")).toBeNull();
  await user.click(within(table).getByRole("button", { expanded: false, name: "1 earlier" }));
  expect(within(table).getByText("earlier version")).toBeTruthy();
});

it("asks the server for the view in the address", async () => {
  const { asked } = serve(200, PAGE);
  show(<Experiments />, "/?prefix=gs%3A%2F%2Fb&state=failed&text=x&pinned=true&experiment=");
  await screen.findByRole("grid");
  const [query] = asked.map((url) => new URL(url).searchParams);
  expect([query?.get("prefix"), query?.get("state"), query?.get("text"), query?.get("pinned"), query?.get("experiment")]).toEqual(
    ["gs://b", "failed", "x", "true", ""],
  );
  expect(["failed", "never ran", "output gone"].map((name) => screen.getByRole("button", { name }).ariaPressed)).toEqual(["true", "false", "false"]);
});

it("lets the server sort all outputs, and shows them without groups", async () => {
  const { asked } = serve(200, PAGE);
  const user = userEvent.setup();
  show(<Experiments />);
  await user.click(await screen.findByRole("button", { name: "Size" }));
  const table = await screen.findByRole("grid", { name: "Outputs" });
  expect(asked.map((url) => new URL(url).searchParams.get("sort"))).toEqual([null, "-size"]);
  expect(within(table).getByRole("columnheader", { name: /Size/u }).getAttribute("aria-sort")).toBe("descending");
  expect(within(table).getAllByRole("row")).toHaveLength(1 + PAGE.rows.length);
  await user.click(screen.getByRole("button", { name: "Group by experiment" }));
  expect(await screen.findByRole("grid", { name: "Outputs by experiment and step" })).toBeTruthy();
});

it("says that the store is being read", async () => {
  serve(200, { ...PAGE, admitted: 0, reading_s: 12, rows: [], total: 0 });
  show(<Experiments />);
  expect(await screen.findByText(/Reading the records below \/store for 12 s/u)).toBeTruthy();
});

it("shows more of one list, also while a newer one is read", async () => {
  serve(200, { ...PAGE, admitted: 4, total: 4 });
  show(<Experiments />);
  const more = await screen.findByRole("button", { name: "Show more" });
  serve(200, { ...PAGE, admitted: 4, offset: 3, order: 2, reading_s: 5, rows: [outputRow("c")], total: 4 });
  await userEvent.setup().click(more);
  expect(await screen.findByRole("link", { name: /Data of c/u })).toBeTruthy();
  const { asked } = serve(200, { ...PAGE, admitted: 4, order: 2, total: 4 });
  await waitFor(() => expect(asked.map((url) => new URL(url).searchParams.get("offset"))).toEqual(["0", "3"]), { timeout: 25_000 });
});

it("shows the sentence of a store that does not answer, and asks again", async () => {
  const { asked } = serve(503, { detail: "gs://b: the store cannot be reached" });
  show(<Experiments />);
  expect(await screen.findByText("gs://b: the store cannot be reached")).toBeTruthy();
  await userEvent.setup().click(screen.getByRole("button", { name: "Try again" }));
  await waitFor(() => expect(asked.length).toBeGreaterThan(1));
});

it("says what would make outputs appear", async () => {
  serve(200, { ...PAGE, admitted: 0, experiments: [], rows: [], total: 0 });
  show(<Experiments />);
  expect(await screen.findByText("There are no outputs below /store")).toBeTruthy();
});

it("shows a score's interval as text, and why a score has no number", () => {
  const board: Schemas["Board"] = {
    higher_is_better: true,
    metric: "acc",
    pooled_tasks: 57,
    scores: [score({ samples: { filter: "task=mmlu & score/acc=0", path: "/store/measured/samples.parquet", wrong: 50 } }), score({ low: null, high: null, value: 0.25, output_path: "/b" }), score({ output_path: "/c", scored: 80, status: "incomplete", value: null })],
    task: "mmlu",
    title: "mmlu acc ↑ (version 1, 57 tasks pooled by document)",
  };
  show(<EvaluationBoard board={board} />);
  const [, first, second, third] = screen.getAllByRole("row").map((row) => row.textContent);
  expect(first).toContain("0.4 to 0.6");
  expect(screen.getByRole("link", { name: "50 wrong" }).getAttribute("href")).toBe(
    "/plugin/tradewind_data?path=%2Fstore%2Fmeasured%2Fsamples.parquet&filter=task%3Dmmlu%20%26%20score%2Facc%3D0",
  );
  expect(second).toContain("no interval");
  expect(third).toContain("incomplete");
  expect(third).toContain("80 of 100");
  expect(screen.getByText(/57 tasks count as one set; it is no mean of their scores/u)).toBeTruthy();
});
