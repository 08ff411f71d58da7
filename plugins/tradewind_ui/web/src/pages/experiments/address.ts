import { useCallback, useMemo } from "react";
import { useSearchParams } from "react-router-dom";

import { STATES } from "../../components/states";
import type { State } from "../../components/states";

export const TABS = ["outputs", "files", "leaderboards"] as const;
export type Tab = (typeof TABS)[number];
const ORDERS = ["step", "-step", "state", "-state", "since", "-since", "size", "-size"] as const;
/** Column by which the server sorts all outputs, with "-" the largest first; undefined: by experiment. */
export type Order = (typeof ORDERS)[number];
export const orderOf = (text: string | null): Order | undefined => ORDERS.find((order) => order === text);

/** What the page shows. All of it is in the address, so that a view can be sent. */
export type View = {
  /** undefined: all; "": outputs of which no experiment is known. */
  readonly experiment: string | undefined;
  /** Path of an experiment's file whose outputs are shown. */
  readonly file: string;
  readonly isPinned: boolean;
  /** Empty for the first root of the deployment. */
  readonly prefix: string;
  readonly producer: string;
  readonly sort: Order | undefined;
  readonly states: readonly State[];
  readonly tab: Tab;
  /** Part of a task's name on the leaderboards. */
  readonly task: string;
  /** Part of an output path. */
  readonly text: string;
};

export const parseView = (params: URLSearchParams): View => ({
  experiment: params.get("experiment") ?? undefined,
  file: params.get("file") ?? "",
  isPinned: params.get("pinned") === "true",
  prefix: params.get("prefix") ?? "",
  producer: params.get("producer") ?? "",
  sort: orderOf(params.get("sort")),
  states: STATES.filter((state) => params.getAll("state").includes(state)),
  tab: TABS.find((tab) => tab === params.get("tab")) ?? "outputs",
  task: params.get("task") ?? "",
  text: params.get("text") ?? "",
});

export const formatView = (view: View): URLSearchParams => {
  const texts = { file: view.file, prefix: view.prefix, producer: view.producer, task: view.task, text: view.text };
  const pairs = Object.entries(texts).filter(([, value]) => value !== "");
  if (view.experiment !== undefined) {
    pairs.push(["experiment", view.experiment]);
  }
  if (view.isPinned) {
    pairs.push(["pinned", "true"]);
  }
  if (view.sort !== undefined) {
    pairs.push(["sort", view.sort]);
  }
  if (view.tab !== "outputs") {
    pairs.push(["tab", view.tab]);
  }
  pairs.push(...view.states.map((state): [string, string] => ["state", state]));
  return new URLSearchParams(pairs);
};

export const hasFilter = (view: View): boolean =>
  view.experiment !== undefined ||
  view.isPinned ||
  [view.file, view.producer, view.text].some((value) => value !== "") ||
  view.states.length > 0;

export const NO_FILTER: Partial<View> = {
  experiment: undefined,
  file: "",
  isPinned: false,
  producer: "",
  states: [],
  text: "",
};

export type ChangeView = (changes: Partial<View>) => void;

/** The view in the address, and how to change it. A change of a text replaces the entry of the browser's history. */
export const useView = (): readonly [View, ChangeView] => {
  const [params, setParams] = useSearchParams();
  const view = useMemo(() => parseView(params), [params]);
  const change = useCallback<ChangeView>(
    (changes) =>
      setParams((now) => formatView({ ...parseView(now), ...changes }), {
        replace: Object.keys(changes).every((key) => ["producer", "task", "text"].includes(key)),
      }),
    [setParams],
  );

  return [view, change];
};
