import ELK from "elkjs/lib/elk-api.js";
import type { ELK as Engine, ElkNode } from "elkjs/lib/elk-api.js";
import { useEffect, useState } from "react";

import type { Step } from "./model";

export const NODE = { height: 76, width: 250 };

export type Edge = { readonly id: string; readonly source: string; readonly target: string };
export type Point = { readonly x: number; readonly y: number };
export type Layout = { readonly positions: ReadonlyMap<string, Point>; readonly steps: ReadonlyArray<Step> };

const OPTIONS = {
  "elk.algorithm": "layered",
  "elk.direction": "RIGHT",
  "elk.edgeRouting": "POLYLINE",
  "elk.layered.mergeEdges": "true",
  "elk.layered.spacing.nodeNodeBetweenLayers": "70",
  "elk.spacing.nodeNode": "24",
};
/** Above `MAX_CAREFUL` steps: the default strategies take seconds for 1,000. */
const QUICK_OPTIONS = {
  ...OPTIONS,
  "elk.layered.crossingMinimization.greedySwitch.type": "OFF",
  "elk.layered.layering.strategy": "LONGEST_PATH_SOURCE",
  "elk.layered.nodePlacement.strategy": "SIMPLE",
  "elk.layered.thoroughness": "1",
};
const MAX_CAREFUL = 200;
/** More steps than this are set in columns, without elk: it would take minutes for 10,000. */
const MAX_ELK = 1500;

/** Return the edges between these steps; an input that is not among them has none. */
export const edgesOf = (steps: ReadonlyArray<Step>): Array<Edge> => {
  const known = new Set(steps.map((step) => step.task_id));
  return steps.flatMap(({ inputs, task_id: target }) =>
    (inputs ?? []).filter((source) => known.has(source)).map((source) => ({ id: `${source}>${target}`, source, target })),
  );
};

/** Return places in columns: each step to the right of all that it reads, near the height of the first of them. */
export const inColumns = (steps: ReadonlyArray<Step>): Map<string, Point> => {
  const column = new Map<string, number>();
  const filled: Array<number> = [];
  const positions = new Map<string, Point>();
  // A plan lists every step after those that it reads.
  for (const { inputs, task_id: id } of steps) {
    const known = (inputs ?? []).filter((input) => column.has(input));
    const mine = Math.max(-1, ...known.map((input) => column.get(input) ?? 0)) + 1;
    const y = Math.max(filled[mine] ?? 0, positions.get(known[0] ?? "")?.y ?? 0);
    column.set(id, mine);
    filled[mine] = y + NODE.height + 24;
    positions.set(id, { x: mine * (NODE.width + 70), y });
  }
  return positions;
};

let engine: Engine | undefined;

const startedEngine = (): Engine => {
  engine ??= new ELK({
    workerFactory: () => new Worker(new URL("layout.worker.ts", import.meta.url), { type: "module" }),
  });
  return engine;
};

/** Start the worker, and compile its code, before there is something to lay out: while the plan is requested. */
export const warmUp = (): void => {
  if (engine === undefined) {
    const children = Array.from({ length: 40 }, (_, index) => ({ ...NODE, id: `${index}` }));
    const edges = children.slice(1).map(({ id }, index) => ({ id: `e${id}`, sources: [`${index >> 1}`], targets: [id] }));
    startedEngine()
      .layout({ children, edges, id: "root", layoutOptions: QUICK_OPTIONS })
      .catch(() => undefined);
  }
};

const layOut = async (steps: ReadonlyArray<Step>): Promise<Layout> => {
  if (steps.length > MAX_ELK) {
    return { positions: inColumns(steps), steps };
  }
  const start = performance.now();
  const graph: ElkNode = {
    children: steps.map((step) => ({ ...NODE, id: step.task_id })),
    edges: edgesOf(steps).map(({ id, source, target }) => ({ id, sources: [source], targets: [target] })),
    id: "root",
    layoutOptions: steps.length > MAX_CAREFUL ? QUICK_OPTIONS : OPTIONS,
  };
  const placed = await startedEngine().layout(graph);
  performance.measure("tradewind-layout", { detail: { steps: steps.length }, start });
  return { positions: new Map((placed.children ?? []).map(({ id, x = 0, y = 0 }) => [id, { x, y }])), steps };
};

/** The newest layout: while the next one is made, that of the former steps; undefined before the first. */
export const useLayout = (steps: ReadonlyArray<Step>): { readonly error?: Error; readonly layout?: Layout } => {
  const [state, setState] = useState<{ readonly error?: Error; readonly layout?: Layout }>({});

  useEffect(() => {
    let isCurrent = true;
    layOut(steps).then(
      (layout) => {
        if (isCurrent) {
          setState({ layout });
        }
      },
      (error: unknown) => {
        if (isCurrent) {
          setState({ error: error instanceof Error ? error : new Error(String(error)) });
        }
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [steps]);

  return state;
};
