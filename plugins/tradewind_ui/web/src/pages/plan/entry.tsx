import { usePrefetchQuery } from "@tanstack/react-query";
import type { QueryClient } from "@tanstack/react-query";
import { lazy } from "react";

import type { PageProps } from "../../main";
import { plansQuery } from "./query";

const load = () => import(".");
const Page = lazy(load);

const ADDRESS = /\/dags\/([^/]+)\/runs\/([^/]+)\/plugin\/tradewind_plan\/?$/u;

/** The page Plan, whose plans are requested while its code loads: on a busy server each request waits its turn. */
export const Plan = ({ dagId = "", runId = "" }: PageProps) => {
  usePrefetchQuery(plansQuery(dagId, runId));

  return <Page dagId={dagId} runId={runId} />;
};

/** Begins with what the page needs, if the browser was opened at its address: Airflow draws its grid before the tab. */
export const beginPlan = (client: QueryClient, path: string) => {
  const [, dagId, runId] = ADDRESS.exec(path) ?? [];
  if (dagId !== undefined && runId !== undefined) {
    void load();
    void client.prefetchQuery(plansQuery(decodeURIComponent(dagId), decodeURIComponent(runId)));
  }
};
