import { useCallback, useMemo } from "react";
import { useSearchParams } from "react-router-dom";

import { isDecision } from "../../components/decisions";
import type { Decision } from "../../components/decisions";

export type View = {
  readonly decisions: ReadonlyArray<Decision>;
  readonly input: string;
  readonly name: string;
  readonly sort: string;
  readonly step: string;
  readonly view: "graph" | "table";
};

/** What the address says of the page's view, so that a link shows another user the same. */
export const parseView = (params: URLSearchParams): View => ({
  decisions: (params.get("decision") ?? "").split(",").filter(isDecision),
  input: params.get("changed") ?? "",
  name: params.get("name") ?? "",
  sort: params.get("sort") ?? "",
  step: params.get("step") ?? "",
  view: params.get("view") === "table" ? "table" : "graph",
});

const NAMES: Record<keyof View, string> = {
  decisions: "decision",
  input: "changed",
  name: "name",
  sort: "sort",
  step: "step",
  view: "view",
};

/** Return the address with some of the view changed; defaults are left out of it. */
export const withView = (params: URLSearchParams, change: Partial<View>): URLSearchParams => {
  const next = new URLSearchParams(params);
  for (const [key, value] of Object.entries(change) as Array<[keyof View, string | ReadonlyArray<string>]>) {
    const text = typeof value === "string" ? value : value.join(",");
    if (text === "" || text === "graph") {
      next.delete(NAMES[key]);
    } else {
      next.set(NAMES[key], text);
    }
  }
  return next;
};

const isMinor = ({ name }: View, change: Partial<View>): boolean =>
  Object.keys(change).every((key) => key === "sort" || (key === "name" && name !== "" && change.name !== ""));

/** The view in the address, and how to change it. Back undoes a change; what is typed on, and an order, make no entry. */
export const useView = (): readonly [View, (change: Partial<View>) => void] => {
  const [params, setParams] = useSearchParams();
  const view = useMemo(() => parseView(params), [params]);
  const change = useCallback(
    (changed: Partial<View>) =>
      setParams((current) => withView(current, changed), { replace: isMinor(view, changed) }),
    [setParams, view],
  );

  return [view, change];
};
