import { useQuery, useQueryClient } from "@tanstack/react-query";

import { answered, api } from "../../api/client";
import type { Schemas } from "../../api/client";
import type { PageProps } from "../../main";
import { merged } from "./curves";

export type About = Schemas["StepAbout"];

/** Ids of a task instance, as the API wants them. */
export type Ids = {
  readonly path: { readonly dag_id: string; readonly run_id: string; readonly task_id: string };
  readonly query: { readonly map_index: number };
};

const POLL_MS = 5000;
/** The state changes less often than a curve, and each look at it costs some requests to the store. */
const ABOUT_MS = 15_000;
/** An attempt may start again, by a retry or another run. */
const IDLE_MS = 60_000;
const MAX_KEPT_POINTS = 4000;

/** Return the ids of the task instance that Airflow shows; undefined elsewhere. */
export const idsOf = ({ dagId, mapIndex, runId, taskId }: PageProps): Ids | undefined => {
  if (dagId === undefined || runId === undefined || taskId === undefined) {
    return undefined;
  }
  const index = /^\d{1,9}$/u.test(mapIndex ?? "") ? Number(mapIndex) : -1;
  return { path: { dag_id: dagId, run_id: runId, task_id: taskId }, query: { map_index: index } };
};

/** React Query asks again only while the browser's tab is visible. */
const every = (ms: number, isActive: boolean) => (isActive ? ms : false);

export const useAbout = (ids: Ids) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/about/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "about", ids],
    refetchInterval: ({ state }) => (state.data?.is_active === true ? ABOUT_MS : IDLE_MS),
  });

export const useConfig = (ids: Ids, version: string) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/config/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "config", ids, version],
  });

export const useAttempts = (ids: Ids, isActive: boolean) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/attempts/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "attempts", ids],
    refetchInterval: every(POLL_MS, isActive),
  });

export const useProgress = (ids: Ids, isActive: boolean) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/progress/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "progress", ids],
    refetchInterval: every(POLL_MS, isActive),
  });

export const useEvaluation = (ids: Ids) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/evaluation/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "evaluation", ids],
  });

export const useResult = (ids: Ids, version: string) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/result/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "result", ids, version],
  });

export const useVersions = (ids: Ids) =>
  useQuery({
    queryFn: () => answered(api.GET("/api/steps/versions/{dag_id}/{task_id}/{run_id}", { params: ids })),
    queryKey: ["step", "versions", ids],
  });

export const useDifference = (ids: Ids, old: string, now: string) =>
  useQuery({
    queryFn: () =>
      answered(
        api.GET("/api/steps/difference/{dag_id}/{task_id}/{run_id}", {
          params: { path: ids.path, query: { ...ids.query, new: now, old } },
        }),
      ),
    queryKey: ["step", "difference", ids, old, now],
  });

/** The curves of these metrics (by default the losses), of this or another version; none of version null.
 * Each later look asks only for new rows. */
export const useCurves = (ids: Ids, names: readonly string[], isActive: boolean, version?: string | null) => {
  const client = useQueryClient();
  const queryKey = ["step", "metrics", ids, version, names];
  const read = (after: string) =>
    answered(
      api.GET("/api/steps/metrics/{dag_id}/{task_id}/{run_id}", {
        params: { path: ids.path, query: { ...ids.query, after, name: [...names], version: version ?? undefined } },
      }),
    );

  return useQuery({
    enabled: version !== null,
    queryFn: async () => {
      const known = client.getQueryData<Schemas["Curves"] | null>(queryKey);
      const found = merged(known, await read(known?.place ?? ""));
      const isLong = found?.curves.some((curve) => curve.steps.length > MAX_KEPT_POINTS) ?? false;
      return isLong ? read("") : found;
    },
    queryKey,
    refetchInterval: every(POLL_MS, isActive),
  });
};
