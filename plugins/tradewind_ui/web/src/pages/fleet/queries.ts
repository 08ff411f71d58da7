import { useQuery } from "@tanstack/react-query";

import { ApiError, answered, api } from "../../api/client";
import type { Schemas } from "../../api/client";

export type Cluster = Schemas["ClusterOverview"];
export type Health = Schemas["ClusterHealth"];
export type History = Schemas["FleetHistory"];
export type Job = Schemas["JobLine"];
export type Orphan = Schemas["OrphanCluster"];
export type Pool = Schemas["SlicePoolState"];
export type Resource = Schemas["ResourceLine"];
export type Stalled = Schemas["StalledStep"];
export type Upkeep = Schemas["UpkeepView"];
export type Wait = Schemas["WaitLine"];

/** Viewers share the server's polls of 15 s. React Query asks only while the browser's tab is visible. */
const POLL_MS = 15_000;
const HEALTH_MS = 30_000;
const HISTORY_MS = 300_000;

export const isRefusal = (error: Error | null): boolean => error instanceof ApiError && error.status === 403;

export const useFleet = () =>
  useQuery({
    queryFn: () => answered(api.GET("/api/fleet")),
    queryKey: ["fleet"],
    // A refusal stays one: asking again would only fill the server's log.
    refetchInterval: ({ state }) => (isRefusal(state.error) ? false : POLL_MS),
  });

export const useHealth = () =>
  useQuery({
    queryFn: () => answered(api.GET("/api/fleet/health")),
    queryKey: ["fleet", "health"],
    refetchInterval: ({ state }) => (state.data?.is_visible === false ? false : HEALTH_MS),
  });

export const useHistory = () =>
  useQuery({
    queryFn: () => answered(api.GET("/api/fleet/history")),
    queryKey: ["fleet", "history"],
    refetchInterval: HISTORY_MS,
  });
