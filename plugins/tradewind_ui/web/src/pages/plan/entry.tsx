import { usePrefetchQuery } from "@tanstack/react-query";
import { lazy } from "react";

import type { PageProps } from "../../main";
import { plansQuery } from "./query";

const Page = lazy(() => import("."));

/** The page Plan, whose plans are requested while its code loads: on a busy server each request waits its turn. */
export const Plan = ({ dagId = "", runId = "" }: PageProps) => {
  usePrefetchQuery(plansQuery(dagId, runId));

  return <Page dagId={dagId} runId={runId} />;
};
