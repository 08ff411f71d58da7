import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router-dom";
import { expect, test, vi } from "vitest";

import Step from ".";
import { costOf } from "./AttemptCard";
import { aligned, merged } from "./curves";
import { idsOf } from "./queries";
import { axesOf, percent, spanOf, ticksOf } from "./timeAxis";
import type { Attempt } from "./timeAxis";
import { versionBefore } from "./versions";

/** The client of the API takes the browser's function when it is imported. */
const server = vi.hoisted(() => {
  const answers = Object.assign(new Map<string, unknown>(), { asked: [] as URL[] });
  globalThis.fetch = async (request) => {
    answers.asked.push(new URL((request as Request).url));
    const route = /steps\/(\w+)\//u.exec((request as Request).url)?.[1] ?? "";
    const body = JSON.stringify(answers.get(route) ?? { detail: `no ${route}` });
    return new Response(body, { headers: { "Content-Type": "application/json" }, status: answers.has(route) ? 200 : 503 });
  };
  return answers;
});

const NEW = { is_new: true, last_at: null, last_step: 3, names: ["loss"], path: "/m", rows: 4, sampled: false };
const curves = (steps: number[], offset: number, is_new = true) => ({
  ...NEW,
  curves: steps.length === 0 ? [] : [{ name: "loss", steps, values: steps.map((step) => step / 2) }],
  is_new,
  place: `${offset}@00000000`,
});

test.each([
  ["nothing was known", undefined, curves([0, 1], 9), [0, 1]],
  ["the file was replaced", curves([0, 1, 2], 9), curves([0], 4), [0]],
  ["rows were added", curves([0, 1, 2], 9), curves([3, 4], 12, false), [0, 1, 2, 3, 4]],
  ["a training resumed", curves([0, 1, 2, 3], 9), curves([2, 3], 12, false), [0, 1, 2, 3]],
  ["it began again", curves([5, 6], 9), curves([1], 12, false), [1]],
  ["nothing is new", curves([0, 1], 9), curves([], 9, false), [0, 1]],
])("curves are merged when %s", (_, known, found, steps) => {
  expect(merged(known, found)?.curves[0]?.steps).toEqual(steps);
  expect(merged(known, found)?.place).toBe(found.place);
});

test("a file that is gone has no curves", () => {
  expect(merged(curves([0], 4), null)).toBeNull();
});

test("lines of other steps share one list of steps", () => {
  const line = (steps: number[]) => ({ isMuted: false, label: "a", steps, values: steps });
  expect(aligned([line([1, 3]), line([2, 3])])).toEqual([
    [1, 2, 3],
    [1, undefined, 3],
    [undefined, 2, 3],
  ]);
});

const attempt = (started_at: number, ended_at: number | null, more: Partial<Attempt> = {}): Attempt => ({
  cluster: "",
  events: [],
  failures: 0,
  is_active: ended_at === null,
  job: "",
  left_out: 0,
  logs: "/o/.attempts/1",
  number: 1,
  phases: [],
  preemptions: 0,
  producer: "",
  restarts: 0,
  started_at,
  ended_at,
  ...more,
});

test("attempts share an axis unless the pauses between them are long", () => {
  const close = [attempt(150, null), attempt(0, 100)];
  expect(axesOf(close, 200)).toEqual([
    { end: 200, start: 0 },
    { end: 200, start: 0 },
  ]);
  expect(axesOf([attempt(9000, null), attempt(0, 100)], 9100)).toEqual([
    { end: 9100, start: 9000 },
    { end: 100, start: 0 },
  ]);
  expect(spanOf({ ...attempt(0, 0), ended_at: null, started_at: null }, 5)).toBeUndefined();
});

test.each([
  ["an earlier one", [["new", 9], ["this", 5], ["old", 3], ["older", 1]], "old"],
  ["none when all are later", [["newer", 9], ["new", 7], ["this", 5], ["unknown", null]], undefined],
  ["the newest before a version that is not made", [["new", 9], ["old", 3], ["this", null]], "new"],
] as const)("the version before is %s", (_, made, expected) => {
  const versions = made.map(([hash, made_at]) => ({
    differs: "",
    hash,
    is_this: hash === "this",
    made_at,
    output_path: "",
    producer: "",
    state: "finished" as const,
  }));
  expect(versionBefore(versions)?.hash).toBe(expected);
});

test.each([1, 59, 3600, 100_000, 90 * 86_400])("an axis of %d seconds has few ticks", (length) => {
  const ticks = ticksOf({ end: 7 + length, start: 7 });
  expect(ticks.length).toBeGreaterThan(1);
  expect(ticks.length).toBeLessThan(9);
  expect(percent(7 + length / 2, { end: 7 + length, start: 7 })).toBe(50);
});

test.each([
  [14_400, ["0", "1 h", "2 h", "3 h", "4 h"]],
  [9000, ["0", "30 min", "60 min", "90 min", "120 min", "150 min"]],
  [3, ["0", "1 s", "2 s", "3 s"]],
])("ticks of %d seconds have one unit", (end, labels) => {
  expect(ticksOf({ end, start: 0 }).map(({ label }) => label)).toEqual(labels);
});

test("the cost of an attempt is told in words", () => {
  const cost = { down_s: 30, lost_steps: 31, resources: "v4-16", slice_hours: 0.07, wall_s: 310, waiting_s: 48 };
  expect(costOf(attempt(0, 310, { cost, failures: 1, goodput: 0.25, preemptions: 1, restarts: 2 })).join(" · ")).toBe(
    "5 min on v4-16 · waited 48 s for slices · 1 preemption · 1 failure · " +
      "2 restarts, 30 s until the next step besides the waits · 31 steps made again · 0.07 slice hours · goodput 25 %",
  );
  expect(costOf(attempt(0, 1))).toEqual([]);
});

test.each([
  ["3", 3],
  ["-1", -1],
  ["{MAP_INDEX}", -1],
  [undefined, -1],
])("map index %s is %d", (mapIndex, expected) => {
  expect(idsOf({ dagId: "d", mapIndex, runId: "r", taskId: "t" })?.query.map_index).toBe(expected);
});

const show = (answers: Record<string, unknown>) => {
  server.clear();
  Object.entries(answers).forEach(([route, answer]) => server.set(route, answer));
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  render(
    <ChakraProvider value={defaultSystem}>
      <QueryClientProvider client={client}>
        <MemoryRouter>
          <Step dagId="d" runId="r" taskId="t" />
        </MemoryRouter>
      </QueryClientProvider>
    </ChakraProvider>,
  );
  return client;
};

const OWN = { dag: "d", map_index: -1, run: "r", task: "t" };
const ABOUT = {
  attempt: 2,
  decision: "RUN",
  hash: "abc123",
  is_active: false,
  is_forced: false,
  links: [{ name: "Ray job", url: "https://ray.example/jobs/1" }],
  name: "train/tiny",
  output_path: "/store/train/tiny-abc123",
  reason: "failed before: ValueError",
  shows: [],
  state: "failed",
  why_empty: null,
};

test("a task of another operator says why it has no step", async () => {
  show({ about: { ...ABOUT, why_empty: "This task is no step of the run's plan." } });
  expect(await screen.findByText(/This task is no step of the run's plan\./u)).toBeTruthy();
});

test("a step shows its state, its reason, its config, and what a section cannot read", async () => {
  const entry = { depth: 0, is_input: false, is_versioned: true, key: "seed", path: "seed", size: 0, text: "7" };
  show({
    about: { ...ABOUT, is_by_other_run: true, made_by: { ...OWN, run: "later" }, producer: "run later of d" },
    attempts: {
      attempts: [attempt(100, 200, { made_by: { ...OWN, run: "later" }, number: 2 }), attempt(0, 100, { made_by: OWN, outcome: "failed", phases: [{ ended_at: 100, kind: "running", slices: [], started_at: 0 }], reason: "ValueError: <b>no</b>" })],
      left_out: 0,
      now: 200,
    },
    config: {
      config: { entries: [entry], function: "demo.train", inputs: [], left_out: 0, problem: null },
      trackers: [{ name: "W&B", url: "https://wandb.ai/me/tiny/runs/tiny-abc123" }],
    },
  });
  expect(await screen.findByText(/failed before: ValueError/u)).toBeTruthy();
  expect(screen.getByText("failed, by another run")).toBeTruthy();
  expect(screen.getByText("RUN").title).toContain("when the run was planned");
  const links = ["Open that run", "run later of d"].map((name) => screen.getByRole("link", { name }).getAttribute("href"));
  expect(new Set(links)).toEqual(new Set(["/dags/d/runs/later/tasks/t/plugin/tradewind_step"]));
  expect((await screen.findByText("by this run")).closest("div")?.textContent).toContain("Attempt 1");
  expect(await screen.findByText("ValueError: <b>no</b>")).toBeTruthy();
  expect(await screen.findByLabelText("Attempt 1: running 100 s")).toBeTruthy();
  expect(await screen.findByTitle("seed")).toBeTruthy();
  expect(screen.getByText("/store/train/tiny-abc123").getAttribute("href")).toBe(
    "/plugin/tradewind_data?path=%2Fstore%2Ftrain%2Ftiny-abc123",
  );
  expect(screen.getByText("W&B ↗").getAttribute("href")).toBe("https://wandb.ai/me/tiny/runs/tiny-abc123");
  expect(await screen.findByText("no versions")).toBeTruthy();
}, 30_000);

test("a curve can be hidden, and the address keeps the others", async () => {
  vi.stubGlobal("ResizeObserver", class { public disconnect() {} public observe() {} });
  const found = { ...curves([0, 1], 9), curves: ["train/loss", "eval/loss"].map((name) => ({ name, steps: [0], values: [1] })) };
  show({ about: { ...ABOUT, shows: ["metrics"], state: "finished" }, metrics: found, versions: { left_out: 0, versions: [] } });
  fireEvent.click(await screen.findByRole("button", { name: "Hide train/loss" }));
  await waitFor(() => expect(server.asked.some((url) => url.searchParams.getAll("name").join() === "eval/loss")).toBe(true));
}, 60_000);

test("a finished step shows what its function returned", async () => {
  const entry = { depth: 0, is_input: false, is_versioned: false, key: "loss", path: "loss", size: 0, text: "1.25" };
  const about = { ...ABOUT, shows: ["result"], state: "finished" };
  show({ about, result: { entries: [entry], left_out: 3, problem: null }, versions: { left_out: 0, versions: [] } });
  expect((await screen.findByRole("tree", { name: "Result" })).textContent).toBe("loss1.25");
  expect(screen.getByText("At least 3 more values are not shown.")).toBeTruthy();
}, 60_000);

test("shards with rows that were left out are counted, since their table may scroll", async () => {
  const rejected = [0, 1].map((shard) => ({ path: `/store/${shard}`, rejected: 1, rejection: "no language", shard, stage: 1 }));
  const progress = { note: null, problem: null, rejected, stages: [], total_stages: 1 };
  show({ about: { ...ABOUT, shows: ["progress"], state: "finished" }, progress, versions: { left_out: 0, versions: [] } });
  expect(await screen.findByText("Rows left out (2 shards shown)")).toBeTruthy();
}, 60_000);

test("sections look once more when the attempt has ended", async () => {
  const running = { attempts: [attempt(0, null, { phases: [] })], left_out: 0, now: 200 };
  const client = show({ about: { ...ABOUT, is_active: true, state: "at work" }, attempts: running });
  expect(await screen.findByText("running")).toBeTruthy();
  server.set("attempts", { ...running, attempts: [attempt(0, 100, { outcome: "failed", reason: "out of memory" })] });
  server.set("about", ABOUT);
  await client.invalidateQueries({ queryKey: ["step", "about"] });
  expect(await screen.findByText("out of memory")).toBeTruthy();
}, 60_000);
