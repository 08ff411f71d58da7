import { lazy } from "react";
import type { ComponentType } from "react";

import { Frame, client } from "./components/Frame";
import { CardSpace } from "./pages/fleet/CardSpace";
import { Plan, beginPlan } from "./pages/plan/entry";

/** What Airflow gives to each page; absent where the page is about no DAG, run or task. */
export type PageProps = {
  readonly dagId?: string;
  readonly mapIndex?: string;
  readonly runId?: string;
  readonly taskId?: string;
};

const CARD = "Fleet health";

/** By the name that the plugin declares for each page, under which Airflow looks for it. */
const PAGES: Record<string, ComponentType<PageProps>> = {
  Data: lazy(() => import("./pages/data")),
  Experiments: lazy(() => import("./pages/experiments")),
  Fleet: lazy(() => import("./pages/fleet")),
  [CARD]: lazy(() => import("./pages/fleet/Card")),
  Plan,
  Step: lazy(() => import("./pages/step")),
};

for (const [name, Page] of Object.entries(PAGES)) {
  const Framed = (props: PageProps) => (
    <Frame loading={name === CARD ? <CardSpace /> : undefined}>
      <Page {...props} />
    </Frame>
  );
  Reflect.set(globalThis, name, Framed);
}

beginPlan(client, globalThis.location.pathname);
