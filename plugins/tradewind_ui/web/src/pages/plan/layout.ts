import ELK from "elkjs/lib/elk-api.js";
import type { ELK as Engine, ElkNode } from "elkjs/lib/elk-api.js";
import { useEffect, useState } from "react";

import { bundlesOf, columnsOf, singlesOf } from "./bundles";
import type { Bundle } from "./bundles";
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
/** For large plans, where the default strategies take seconds. */
const QUICK_OPTIONS = {
  ...OPTIONS,
  "elk.layered.crossingMinimization.greedySwitch.type": "OFF",
  "elk.layered.layering.strategy": "LONGEST_PATH_SOURCE",
  "elk.layered.nodePlacement.strategy": "SIMPLE",
  "elk.layered.thoroughness": "1",
  "elk.spacing.nodeNode": "72",
};
/** More steps than this are laid out in blocks of those that have the same inputs and readers. */
const MAX_CAREFUL = 150;
/** More blocks than this are set in columns, without elk, which would take minutes. */
const MAX_ELK = 1000;
const CELL = { height: NODE.height + 24, width: NODE.width + 24 };

/** Return the edges between these steps; an input that is not among them has none. */
export const edgesOf = (steps: ReadonlyArray<Step>): Array<Edge> => {
  const known = new Set(steps.map((step) => step.task_id));
  return steps.flatMap(({ inputs, task_id: target }) =>
    (inputs ?? []).filter((source) => known.has(source)).map((source) => ({ id: `${source}>${target}`, source, target })),
  );
};

/** Return places of blocks in columns: each to the right of all that it reads, near the height of the first of them. */
export const inColumns = (blocks: ReadonlyArray<Bundle>): Map<string, Point> => {
  const ends = new Map<string, number>();
  const filled = new Map<number, number>();
  const positions = new Map<string, Point>();
  for (const { id, inputs, members } of blocks) {
    const x = Math.max(0, ...inputs.map((input) => ends.get(input) ?? 0));
    const y = Math.max(filled.get(x) ?? 0, positions.get(inputs[0] ?? "")?.y ?? 0);
    const { height, width } = sizeOf(members.length);
    ends.set(id, x + width + 70);
    filled.set(x, y + height + 24);
    positions.set(id, { x, y });
  }
  return positions;
};

const sizeOf = (members: number) => {
  const columns = columnsOf(members);
  return { height: Math.ceil(members / columns) * CELL.height - 24, width: columns * CELL.width - 24 };
};

/** Return the places of steps from those of their blocks, line by line. */
export const placed = (blocks: ReadonlyArray<Bundle>, places: ReadonlyMap<string, Point>): Map<string, Point> =>
  new Map(
    blocks.flatMap(({ id, members }) => {
      const { x, y } = places.get(id) ?? { x: 0, y: 0 };
      const columns = columnsOf(members.length);
      return members.map((member, index): [string, Point] => [
        member,
        { x: x + (index % columns) * CELL.width, y: y + Math.floor(index / columns) * CELL.height },
      ]);
    }),
  );

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

const askElk = async (blocks: ReadonlyArray<Bundle>, isLarge: boolean): Promise<Map<string, Point>> => {
  const graph: ElkNode = {
    children: blocks.map(({ id, members }) => ({ id, ...sizeOf(members.length) })),
    edges: blocks.flatMap(({ id, inputs }) =>
      inputs.map((input) => ({ id: `${input}>${id}`, sources: [input], targets: [id] })),
    ),
    id: "root",
    layoutOptions: isLarge ? QUICK_OPTIONS : OPTIONS,
  };
  const { children = [] } = await startedEngine().layout(graph);
  return new Map(children.map(({ id, x = 0, y = 0 }) => [id, { x, y }]));
};

const layOut = async (steps: ReadonlyArray<Step>): Promise<Layout> => {
  const start = performance.now();
  const isLarge = steps.length > MAX_CAREFUL;
  const blocks = isLarge ? bundlesOf(steps) : singlesOf(steps);
  const places = blocks.length > MAX_ELK ? inColumns(blocks) : await askElk(blocks, isLarge);
  const positions = placed(blocks, places);
  performance.measure("tradewind-layout", { detail: { blocks: blocks.length, steps: steps.length }, start });
  return { positions, steps };
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
