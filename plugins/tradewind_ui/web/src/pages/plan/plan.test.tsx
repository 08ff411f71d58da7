import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { Suspense } from "react";
import { MemoryRouter, useNavigate } from "react-router-dom";
import { describe, expect, it, vi } from "vitest";

// The client takes the browser's `fetch` when it is imported.
const server = vi.hoisted(() => {
  const hoisted: { answer: (url: string) => unknown; asked: Array<string> } = { answer: () => undefined, asked: [] };
  globalThis.fetch = async (request) => {
    const { url } = request as Request;
    hoisted.asked.push(url.replace(/.*\/api/u, ""));
    return new Response(JSON.stringify(hoisted.answer(url)), { headers: { "Content-Type": "application/json" } });
  };
  // In place of elk: all blocks lie in one place.
  globalThis.Worker = class {
    public onmessage: (event: unknown) => void = () => undefined;
    public postMessage({ graph, id }: { readonly graph?: unknown; readonly id: number }) {
      setTimeout(() => this.onmessage({ data: { data: graph, id } }));
    }
  } as unknown as typeof Worker;
  globalThis.ResizeObserver = class {
    public disconnect() {}
    public observe() {}
    public unobserve() {}
  };
  return hoisted;
});

import Plan from ".";
import { parseView, withView } from "./address";
import { bundlesOf } from "./bundles";
import { Plan as Entry, beginPlan } from "./entry";
import { shownFirst } from "./Graph";
import { edgesOf, inColumns, placed } from "./layout";
import { changedInputs, countsOf, filterSteps } from "./model";
import type { Step } from "./model";
import { nearest } from "./neighbours";
import { isPlanning, plansQuery } from "./query";

const step = (name: string, change: Partial<Step> = {}): Step => ({
  attempt: 0,
  changed_inputs: [],
  decision: "RUN",
  hash: "abc123",
  inputs: [],
  is_damaged: false,
  is_forced: false,
  name,
  output_path: `/s/${name}-abc123`,
  reason: "never ran",
  task_id: name,
  ...change,
});

const STEPS = [
  step("raw", { decision: "REUSE", producer: "run monday of nightly, attempt 2", producer_dag: "nightly", producer_run: "monday" }),
  step("clean", { changed_inputs: ["raw"], inputs: ["raw"] }),
  step("train", { changed_inputs: ["raw"], decision: "BLOCKED", inputs: ["clean", "elsewhere"], is_forced: true }),
];

describe("filters", () => {
  it.each([
    [{ decisions: [], input: "", name: "" }, ["raw", "clean", "train"]],
    [{ decisions: ["RUN", "REUSE"], input: "", name: "" }, ["raw", "clean"]],
    [{ decisions: [], input: "", name: " TRAIN-abc " }, ["train"]],
    [{ decisions: ["BLOCKED"], input: "raw", name: "" }, ["train"]],
    [{ decisions: [], input: "raw", name: "r" }, ["raw", "train"]],
  ] as const)("%j keeps %j", (filter, names) => {
    expect(filterSteps(STEPS, filter).map(({ name }) => name)).toEqual(names);
  });

  it("counts the steps that are shown", () => {
    expect([countsOf(1000, 1000), countsOf(6, 1000), countsOf(0, 1)]).toEqual(["1,000 steps", "6 of 1,000 steps", "0 of 1 step"]);
  });

  it("lists the inputs that changed", () => {
    expect(changedInputs(STEPS)).toEqual([["raw", 2]]);
  });

  it("keeps the view in the address, without defaults", () => {
    const params = withView(new URLSearchParams("other=1"), { decisions: ["RUN", "WAIT"], name: "a&b", view: "table" });
    expect(parseView(params)).toMatchObject({ decisions: ["RUN", "WAIT"], name: "a&b", view: "table" });
    expect(`${withView(params, { decisions: [], name: "", view: "graph" })}`).toBe("other=1");
    expect(parseView(new URLSearchParams("decision=RUN,ERASE&view=x"))).toMatchObject({ decisions: ["RUN"], view: "graph" });
  });
});

describe("layout", () => {
  it("has edges between the steps that are there", () => {
    expect(edgesOf(STEPS).map(({ id }) => id)).toEqual(["raw>clean", "clean>train"]);
  });

  it("makes a block of steps with the same inputs and readers", () => {
    const parts = Array.from({ length: 9 }, (_, index) => step(`part${index}`, { inputs: ["raw"] }));
    const merge = step("merge", { inputs: parts.map(({ name }) => name) });
    const blocks = bundlesOf([step("raw"), ...parts, merge]);
    expect(blocks.map(({ members }) => members.length)).toEqual([1, 9, 1]);
    const places = [...placed(blocks, inColumns(blocks)).values()].map(({ x, y }) => `${x} ${y}`);
    expect(new Set(places).size).toBe(11);
  });

  it("makes few blocks of many branches that look alike", () => {
    const branches = Array.from({ length: 300 }, (_, index) => [
      step(`train${index}`, { inputs: ["mix"] }),
      step(`eval${index}`, { inputs: [`train${index}`] }),
    ]);
    expect(bundlesOf([step("mix"), ...branches.flat()]).map(({ members }) => members.length)).toEqual([1, 300, 300]);
  });

  it("first shows all steps, and of many those that have work", () => {
    const many = Array.from({ length: 90 }, (_, index) => step(`${index}`, { decision: index > 80 ? "WAIT" : "REUSE" }));
    expect(shownFirst(STEPS)).toHaveLength(3);
    expect(shownFirst(many).map(({ name }) => name)).toEqual(["81", "82", "83", "84", "85", "86", "87", "88", "89"]);
    expect(shownFirst(many.slice(0, 70))).toHaveLength(70);
  });

  it("goes to the nearest step in the direction of an arrow key", () => {
    const positions = new Map([
      ["a", { x: 0, y: 0 }],
      ["b", { x: 300, y: 0 }],
      ["c", { x: 0, y: 100 }],
    ]);
    expect(["ArrowRight", "ArrowDown", "ArrowLeft", "Enter"].map((key) => nearest(positions, "a", key))).toEqual([
      "b",
      "c",
      undefined,
      undefined,
    ]);
  });
});

const Back = () => {
  const navigate = useNavigate();
  return <button onClick={() => void navigate(-1)}>Back</button>;
};

describe("page", () => {
  const history = { compared: null, config: null, is_complete: true, run: null, versions: [] };
  const show = (answer: unknown, address = "/?view=table", Page = Plan) => {
    server.asked = [];
    server.answer = (url) => (url.includes("step_history") ? history : answer);
    render(
      <ChakraProvider value={defaultSystem}>
        <QueryClientProvider client={new QueryClient()}>
          <MemoryRouter initialEntries={[address]}>
            <Suspense>
              <Page dagId="d" runId="r/1" />
            </Suspense>
            <Back />
          </MemoryRouter>
        </QueryClientProvider>
      </ChakraProvider>,
    );
  };
  const plan = { estimate: "about 2 h on v4-16", prefix: "/s", steps: STEPS, warnings: ["force: 'x' matches no step."] };

  it("shows counts, warnings and the estimate, and filters by a decision", async () => {
    show({ plans: [{ group: "", inputs_left_out: false, left_out: 0, plan, problem: null }], tasks: [] });
    expect(await screen.findByText("3 steps")).toBeTruthy();
    expect(screen.getByText("force: 'x' matches no step.")).toBeTruthy();
    expect(screen.getByText("Estimate: about 2 h on v4-16")).toBeTruthy();
    expect(screen.getByText("forced")).toBeTruthy();
    await userEvent.click(screen.getByRole("button", { name: "1 BLOCKED" }));
    expect(screen.getByText("1 of 3 steps")).toBeTruthy();
    expect(screen.queryByText("clean")).toBeNull();
  }, 30_000);

  it("undoes each change of the view by Back, and typing at once", async () => {
    show({ plans: [{ group: "", inputs_left_out: false, left_out: 0, plan, problem: null }], tasks: [] });
    const user = userEvent.setup();
    await user.click(await screen.findByRole("button", { name: "1 BLOCKED" }));
    const field = screen.getByLabelText<HTMLInputElement>("Filter steps by name");
    for (const text of ["t", "r"]) {
      await user.type(field, text);
      await new Promise((done) => setTimeout(done, 600));
    }
    await user.click(screen.getByText("train"));
    expect(screen.getByRole("button", { name: "Close the step" })).toBeTruthy();
    const back = async () => user.click(screen.getByRole("button", { name: "Back" }));
    await back();
    expect(screen.queryByRole("button", { name: "Close the step" })).toBeNull();
    expect(field.value).toBe("tr");
    await back();
    expect(field.value).toBe("");
    expect(screen.getByText("1 of 3 steps")).toBeTruthy();
    await back();
    expect(screen.getByText("3 steps")).toBeTruthy();
  }, 30_000);

  it("returns the focus to the row that opened a step", async () => {
    show({ plans: [{ group: "", inputs_left_out: true, left_out: 0, plan, problem: null }], tasks: [] });
    const user = userEvent.setup();
    await user.click(await screen.findByText("clean"));
    expect(document.activeElement?.textContent).toBe("clean");
    await user.keyboard("{Escape}");
    expect(screen.queryByRole("button", { name: "Close the step" })).toBeNull();
    expect(document.activeElement?.getAttribute("data-index")).toBe("1");
    expect(screen.getByText(/The steps have too many inputs to draw/u)).toBeTruthy();
  }, 30_000);

  it("opens the step of the address with links to its producer, output and task", async () => {
    show(
      { plans: [{ group: "", inputs_left_out: false, left_out: 0, plan, problem: null }], tasks: [] },
      "/?view=table&step=raw",
    );
    const links = (await screen.findAllByRole("link")).map((link) => link.getAttribute("href"));
    expect(links).toEqual(["/dags/nightly/runs/monday/plugin/tradewind_plan", "/plugin/tradewind_data?path=%2Fs%2Fraw-abc123", "/dags/d/runs/r%2F1/tasks/raw/plugin/tradewind_step"]);
    expect(screen.getByText("Its output existed when the run was planned.")).toBeTruthy();
    expect(server.asked).toEqual(["/plans/d/r%2F1", "/step_history/d/raw/r%2F1"]);
  }, 30_000);

  it("draws the graph in the mode of Airflow's page", async () => {
    document.documentElement.className = "dark";
    show({ plans: [{ group: "", inputs_left_out: false, left_out: 0, plan, problem: null }], tasks: [] }, "/");
    await screen.findByRole("group", { name: /arrow keys/u });
    expect(document.querySelector(".react-flow")?.className).toBe("react-flow dark");
    document.documentElement.className = "";
    await waitFor(() => expect(document.querySelector(".react-flow")?.className).toBe("react-flow light"));
  }, 30_000);

  it("says of a plan without steps that it has none, not that a filter hides them", async () => {
    show({ plans: [{ group: "g", inputs_left_out: false, left_out: 0, plan: { ...plan, steps: [] }, problem: null }], tasks: [] });
    expect(await screen.findByText("The plan has no steps")).toBeTruthy();
    expect(screen.getByRole("heading", { name: "g: 0 steps" })).toBeTruthy();
  });

  it.each([
    [[], "No plan in this run"],
    [[{ is_final: false, state: "running", task_id: "plan" }], "This run has not planned yet"],
    [[{ is_final: true, state: "failed", task_id: "g.plan" }], "This run has no plan"],
  ])("says why there is no plan: %j", async (tasks, title) => {
    show({ plans: [], tasks });
    expect(await screen.findByText(title)).toBeTruthy();
  });

  it("requests the plans once, before the page's code is there", async () => {
    show({ plans: [], tasks: [] }, "/", Entry);
    await Promise.resolve();
    expect(screen.queryByText("No plan in this run")).toBeNull();
    expect(server.asked).toEqual(["/plans/d/r%2F1"]);
    expect(await screen.findByText("No plan in this run")).toBeTruthy();
    expect(server.asked).toEqual(["/plans/d/r%2F1"]);
  });

  it("requests the plans before Airflow's page is there", async () => {
    server.asked = [];
    server.answer = () => ({ plans: [], tasks: [] });
    const client = new QueryClient();
    beginPlan(client, "/a/dags/d/runs/r/tasks");
    expect(server.asked).toEqual([]);
    beginPlan(client, "/a/dags/d/runs/r%2F1/plugin/tradewind_plan");
    await vi.waitFor(() => expect(client.getQueryData(plansQuery("d", "r/1").queryKey)).toBeTruthy());
    expect(server.asked).toEqual(["/plans/d/r%2F1"]);
  });

  it("asks again only while a task plans", () => {
    const task = { state: "running", task_id: "plan" };
    expect(isPlanning({ plans: [], tasks: [{ ...task, is_final: false }] })).toBe(true);
    expect(isPlanning({ plans: [], tasks: [{ ...task, is_final: true }] })).toBe(false);
    expect(isPlanning(undefined)).toBe(false);
  });
});
