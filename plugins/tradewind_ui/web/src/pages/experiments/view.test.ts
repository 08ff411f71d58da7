import { describe, expect, it } from "vitest";

import type { Schemas } from "../../api/client";
import { formatView, hasFilter, NO_FILTER, parseView } from "./address";
import { axisOf, placeOf } from "./interval";
import { runLink, stepLink } from "../../components/links";
import { linesOf } from "./rows";
import { outputRow, score } from "./samples";

describe("the address", () => {
  it("keeps a view, and says nothing of what is not chosen", () => {
    const address = "file=%2Fa.json&prefix=gs%3A%2F%2Fb&producer=ada&task=arc&text=x&experiment=&pinned=true&sort=-size&tab=files&state=finished&state=at+work";
    expect(formatView(parseView(new URLSearchParams(address))).toString()).toBe(address);
    expect(formatView(parseView(new URLSearchParams(""))).toString()).toBe("");
  });

  it("ignores values that are none", () => {
    const view = parseView(new URLSearchParams("tab=x&state=x&state=failed&pinned=1&sort=-color"));
    expect([view.tab, view.states, view.isPinned, view.sort]).toEqual(["outputs", ["failed"], false, undefined]);
  });

  it("knows whether outputs are left out", () => {
    const view = parseView(new URLSearchParams("prefix=/a&tab=files&task=x"));
    expect(hasFilter(view)).toBe(false);
    expect(hasFilter({ ...view, experiment: "" })).toBe(true);
    expect(hasFilter({ ...view, experiment: "", states: ["gone"], text: "a", ...NO_FILTER })).toBe(false);
  });
});

describe("links", () => {
  const { status } = outputRow("a").output;

  it("lead to the run and the task that made the output", () => {
    expect(runLink(status)).toBe("/dags/nightly/runs/manual__1+0/plugin/tradewind_plan");
    expect(stepLink(status)).toBe("/dags/nightly/runs/manual__1+0/tasks/a/plugin/tradewind_step");
    expect(stepLink({ ...status, map_index: 3 })).toContain("/tasks/a/mapped/3/plugin/");
  });

  it("cannot leave the page of a DAG", () => {
    expect(runLink({ ...status, dag: "../../x?y#z" })).toBe("/dags/..%2F..%2Fx%3Fy%23z/runs/manual__1+0/plugin/tradewind_plan");
  });

  it("are missing outside Airflow", () => {
    expect(runLink({ ...status, dag: "" })).toBeUndefined();
    expect(stepLink({ ...status, task: "" })).toBeUndefined();
  });
});

describe("lines of the table", () => {
  const rows = [outputRow("a", "2"), outputRow("a", "1"), outputRow("b"), outputRow("c", "1", "")];
  const states: Schemas["StateCounts"][] = [{ name: "nightly", states: { finished: 3 } }];
  const keys = (toggled: string[]) =>
    linesOf(rows, states, new Set(toggled)).map((line) =>
      line.kind === "experiment" ? line.name || "unknown" : `${line.kind} ${line.row.output.step}${line.row.output.version}`,
    );

  it("fold earlier versions under the newest", () => {
    expect(keys([])).toEqual(["nightly", "step a2", "step b1", "unknown", "step c1"]);
    expect(keys(["step nightly a"])).toEqual(["nightly", "step a2", "version a1", "step b1", "unknown", "step c1"]);
    expect(keys(["experiment nightly"])).toEqual(["nightly", "unknown", "step c1"]);
  });

  it("have keys of their own", () => {
    const lines = linesOf(rows, states, new Set(["step nightly a"]));
    expect(new Set(lines.map((line) => line.key)).size).toBe(lines.length);
  });
});

describe("the axis of intervals", () => {
  it("has space for all ends", () => {
    const axis = axisOf([score({ high: 3, low: 1, value: 2 }), score({ high: null, low: null, value: 0 })]);
    expect(axis).toEqual({ from: -0.12, to: 3.12 });
    expect(placeOf(1.5, axis ?? { from: 0, to: 1 })).toBeCloseTo(50);
  });

  it("exists for one score, and not without any", () => {
    expect(axisOf([score({ high: null, low: null, value: 2 })])).toEqual({ from: 1.5, to: 2.5 });
    expect(axisOf([score({ high: null, low: null, value: null })])).toBeUndefined();
  });
});
