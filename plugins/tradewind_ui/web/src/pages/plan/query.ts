import { queryOptions } from "@tanstack/react-query";

import { answered, api } from "../../api/client";
import type { Schemas } from "../../api/client";

type RunPlans = Schemas["RunPlans"];

/** While a plan is being made, in ms between requests. */
const POLL = 4000;

export const isPlanning = (plans: RunPlans | undefined): boolean => plans?.tasks.some((task) => !task.is_final) === true;

/** The plans of a run. */
export const plansQuery = (dagId: string, runId: string) =>
  queryOptions({
    queryFn: () => answered(api.GET("/api/plans/{dag_id}/{run_id}", { params: { path: { dag_id: dagId, run_id: runId } } })),
    queryKey: ["plans", dagId, runId],
    refetchInterval: (query) => (isPlanning(query.state.data) ? POLL : false),
    staleTime: 30_000,
  });
