import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { MemoryRouter } from "react-router-dom";
import { beforeEach, expect, it, vi } from "vitest";

import Card from "./Card";
import Fleet from "./index";
import { describeSlices } from "./SliceBlocks";
import { UpkeepReport } from "./UpkeepReport";

type Reply = { readonly body: unknown; readonly status: number };

// The client takes the browser's `fetch` when it is imported.
const answers = vi.hoisted(() => {
  const known = new Map<string, Reply>();
  globalThis.fetch = (request) => {
    const path = new URL(request instanceof Request ? request.url : String(request)).pathname.replace(/^.*\/api/u, "");
    const found = known.get(path) ?? { body: { detail: "Nothing" }, status: 404 };
    return Promise.resolve(Response.json(found.body, { status: found.status }));
  };
  return known;
});

const line = (name: string, health: string, state: string) => ({
  age_s: 7200,
  health,
  hosts: 1,
  in_ray: 1,
  is_current: null,
  is_reserved: false,
  is_slice: true,
  kind: "v4-8",
  name,
  state,
});

const cluster = (name: string, more: object = {}) => ({
  alarms: [],
  cloud: {
    left_out: 0,
    lines: [line("a", "ready", "READY"), line("b", "gone", "PREEMPTED")],
    pools: [{ existing: 2, kind: "v4-8", maximum: 8, minimum: 3, ready: 1 }],
    state: "its head was set up",
  },
  cloud_problem: null,
  connection: name,
  generation: "v4",
  is_default: name === "one",
  lock: { holder: "ada@laptop", operation: "restart", phase: "restarting Ray", sentence: "ada restarts", since: 5, state: "held" },
  lock_problem: null,
  name,
  owner: null,
  project: "p",
  ray: {
    address: "http://10.0.0.2:8265",
    is_cut: false,
    jobs: [
      { dag_id: "nightly", job: "j1", output_path: "", owner: "task train", run_id: "r", status: "RUNNING", step: "train", submitted_at: 5, task_id: "train" },
    ],
    nodes: 2,
    running: 1,
    used: [{ name: "TPU", total: 8, used: 4 }],
    version: "2.60.0",
    waiting: 3,
    waits: [
      { count: 2, dag_id: "nightly", job: "j1", kind: "Ray task", owner: "task train", resources: "4 TPU", run_id: "r", since: 5, step: "train", task_id: "train" },
    ],
  },
  ray_problem: null,
  stalled: [],
  stalled_problem: null,
  token: { age_s: 864_000, enabled: 1, secret: "projects/p/secrets/s", version: 2 },
  token_problem: null,
  zone: "us-central2-b",
  ...more,
});

const DEAD = { alarms: ["The head does not answer."], cloud: null, cloud_problem: "No Google credentials", ray: null, ray_problem: "No answer for 4 s." };
const FLEET = {
  clusters: [cluster("one"), cluster("two", DEAD)],
  is_configured: true,
  orphans: [{ cluster: "old", names: ["x"], project: "p", zone: "z" }],
  problem: null,
  upkeep: null,
  upkeep_problem: "There is no event yet.",
};
const HISTORY = {
  clusters: ["one"],
  days: ["2026-11-28", "2026-11-29"],
  goodput: [{ cluster: "one", day: "2026-11-29", productive_s: 50, share: 0.5, wall_s: 100 }],
  pods: 1,
  preemptions: [{ count: 2, day: "2026-11-28", zone: "us-central2-b" }],
  problems: [],
  reports: 3,
  zones: ["us-central2-b"],
};
const HEALTH = {
  clusters: [
    { alarms: ["Slow", "Odd"], name: "one", operation: "restart by ada@laptop", ready: 1, running: 2, state: "its head was set up", waiting: null, wanted: 3 },
    { alarms: [], name: "two", operation: "", ready: 0, running: null, state: "there is nothing of it", waiting: null, wanted: 4 },
  ],
  is_configured: true,
  is_visible: true,
  problem: null,
};

const cellsOf = (cluster: string) =>
  [...(screen.getByRole("link", { name: cluster }).closest("tr")?.cells ?? [])].map(({ textContent }) => textContent);

beforeEach(() => {
  answers.clear();
});

const show = (page: React.ReactNode, address = "/") =>
  render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[address]}>
        <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
          <main>{page}</main>
        </QueryClientProvider>
      </MemoryRouter>
    </ChakraProvider>,
  );

it("shows each cluster, the alarms, and the details of the one with an alarm", async () => {
  answers.set("/fleet", { body: FLEET, status: 200 }).set("/fleet/history", { body: HISTORY, status: 200 });
  show(<Fleet />);
  const one = await screen.findByLabelText("Cluster one");
  expect(within(one).getByLabelText("v4-8: 1 ready, 1 gone, 1 missing")).toBeTruthy();
  expect(within(one).getByText("1 running, 3 waiting · 4 of 8 TPU chips in use")).toBeTruthy();
  expect(within(one).getByText("ada@laptop: restart, restarting Ray")).toBeTruthy();
  expect(within(screen.getByLabelText("Cluster two")).getByText("The head does not answer.")).toBeTruthy();
  const details = screen.getByLabelText("Details of two");
  expect(within(details).getByText("No Google credentials")).toBeTruthy();
  fireEvent.click(within(one).getByText("Details"));
  const others = await screen.findByLabelText("Details of one");
  expect(within(others).getByText("Version 2, 240.0 h old")).toBeTruthy();
  const tasks = within(others).getAllByText("task train").map((link) => link.getAttribute("href"));
  expect(tasks).toEqual(Array(2).fill("/dags/nightly/runs/r/tasks/train/plugin/tradewind_step"));
  expect(await screen.findByLabelText("us-central2-b: 2026-11-28: 2 preempted")).toBeTruthy();
  expect(screen.getByLabelText("one: 2026-11-29: 50 %")).toBeTruthy();
  expect(screen.getByText(/old has resources in p, z: x/u)).toBeTruthy();
}, 20_000);

it("shows what upkeep found, and what asks for a user", () => {
  const found = { about: "slice" as const, cluster: "one", done: "replaced", is_well: false, name: "ray-one-3", needs_person: false, state: "dead: Google says PREEMPTED" };
  const report = { at: 5, counts: {}, for_a_person: ["one: slice ray-one-5 is stuck"], lines: [found], unseen: ["z: not checked"] };
  const upkeep = { dag_id: "fleet_maintenance", left_out: 3, report, run_id: "r", task_id: "report" };
  show(<UpkeepReport problem={null} upkeep={upkeep} />);
  const section = screen.getByLabelText("What fleet_maintenance found last");
  expect(within(section).getByText("one: slice ray-one-5 is stuck")).toBeTruthy();
  expect(within(section).getByText("z: not checked")).toBeTruthy();
  const table = within(section).getByRole("grid", { name: "Findings" });
  expect(within(table).getByText("ray-one-3")).toBeTruthy();
  expect(within(table).getByText("dead: Google says PREEMPTED").getAttribute("title")).toBe("dead: Google says PREEMPTED");
  expect(within(section).getByText("The log of the task has 3 more findings.")).toBeTruthy();
  expect(within(section).getByText("Its task").getAttribute("href")).toBe("/dags/fleet_maintenance/runs/r/tasks/report");
}, 20_000);

it("shows nothing on the dashboard of a user who may not see clusters", async () => {
  answers.set("/fleet/health", { body: { clusters: [], is_configured: false, is_visible: false, problem: null }, status: 200 });
  localStorage.removeItem("tradewind_fleet_card");
  const { container } = show(<Card />);
  expect(container.querySelector("[aria-hidden]")).toBeTruthy();
  await waitFor(() => expect(container.querySelector("main")?.childElementCount).toBe(0));
  expect(localStorage.getItem("tradewind_fleet_card")).toBe("0");
});

it("shows one line for each cluster on the dashboard", async () => {
  answers.set("/fleet/health", { body: HEALTH, status: 200 });
  show(<Card />);
  expect((await screen.findByRole("link", { name: "one" })).getAttribute("href")).toBe("/plugin/tradewind_fleet?cluster=one");
  expect(cellsOf("one")).toEqual(["one", "uprestart by ada@laptop", "Slow +1", "1 of 3", "2", "?"]);
  expect(screen.getByText("Slow +1").getAttribute("title")).toBe("Slow Odd");
  expect(cellsOf("two")).toEqual(["two", "stopped", "", "–", "–", "–"]);
});

it("describes slices in words", () => {
  expect(describeSlices(["ready", "gone", "ready", "missing"])).toBe("2 ready, 1 gone, 1 missing");
  expect(describeSlices([])).toBe("none");
});
