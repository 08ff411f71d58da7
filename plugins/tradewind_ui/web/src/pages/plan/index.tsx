import { Alert, Box, Flex, Heading, Link, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { Suspense, lazy, useCallback, useEffect, useMemo, useRef } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { Schemas } from "../../api/client";
import { Empty } from "../../components/Empty";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import { pluralize } from "../../components/format";
import { idPart } from "../../components/links";
import { Sentence } from "../../components/Sentence";
import type { PageProps } from "../../main";
import { useView } from "./address";
import type { View } from "./address";
import { warmUp } from "./layout";
import { countsOf, filterSteps } from "./model";
import type { GroupPlan, Step } from "./model";
import { plansQuery } from "./query";
import { StepPanel } from "./StepPanel";
import { StepTable } from "./StepTable";
import { Summary } from "./Summary";

const loadGraph = () => import("./Graph");
const Graph = lazy(loadGraph);

type RunPlans = Schemas["RunPlans"];

const HEIGHT = "max(420px, calc(100vh - 370px))";
const GROUP_HEIGHT = "max(320px, 45vh)";

const NoPlan = ({ dagId, runId, tasks }: { readonly dagId: string; readonly runId: string } & Pick<RunPlans, "tasks">) => {
  const [task] = tasks;
  if (task === undefined) {
    return (
      <Empty title="No plan in this run">
        No task of this run plans. A DAG made by experiment_dag has a task “plan”, and a group of steps has one too.
      </Empty>
    );
  }
  const link = (
    <Link asChild color="fg.info">
      <RouterLink to={`/dags/${idPart(dagId)}/runs/${idPart(runId)}/tasks/${idPart(task.task_id)}`}>{task.task_id}</RouterLink>
    </Link>
  );
  return task.is_final ? (
    <Empty title="This run has no plan">
      The task {link} is {task.state} and left none. Its log says why; clear it to plan again.
    </Empty>
  ) : (
    <Empty title="This run has not planned yet">
      The task {link} is {task.state ?? "not scheduled yet"}. The plan appears here when it is done.
    </Empty>
  );
};

type SectionProps = {
  readonly change: (change: Partial<View>) => void;
  readonly group: GroupPlan;
  readonly height: string;
  readonly select: (taskId: string) => void;
  readonly view: View;
};

const Section = ({ change, group, height, select, view }: SectionProps) => {
  const { inputs_left_out: hasNoInputs = false, left_out: leftOut = 0, plan, problem } = group;
  const { decisions, input, name } = view;
  const all = plan?.steps;
  const steps = useMemo(() => filterSteps(all ?? [], { decisions, input, name }), [all, decisions, input, name]);
  const label = group.group === "" ? "Steps of the plan" : `Steps of the plan of ${group.group}`;
  const shown = { height, label, select, selected: view.step, steps };

  return (
    <Stack as="section" gap={2}>
      {group.group === "" ? undefined : (
        <Heading as="h2" size="sm">
          {group.group}: {countsOf(steps.length, all?.length ?? 0)}
        </Heading>
      )}
      {typeof problem === "string" ? <Problem error={new Error(problem)} /> : undefined}
      {plan?.warnings?.map((warning) => (
        <Alert.Root key={warning} size="sm" status="warning">
          <Alert.Indicator />
          <Alert.Title overflowWrap="anywhere">
            <Sentence text={warning} />
          </Alert.Title>
        </Alert.Root>
      ))}
      {leftOut > 0 ? (
        <Alert.Root size="sm" status="warning">
          <Alert.Indicator />
          <Alert.Title>{pluralize(leftOut, "more step")} not shown; the log of the task “plan” has those that run.</Alert.Title>
        </Alert.Root>
      ) : undefined}
      {hasNoInputs ? (
        <Alert.Root size="sm" status="warning">
          <Alert.Indicator />
          <Alert.Title>The steps have too many inputs to draw, so the graph shows none; the page of a step lists its own.</Alert.Title>
        </Alert.Root>
      ) : undefined}
      {typeof plan?.estimate === "string" ? (
        <Text color="fg.muted" fontSize="sm">
          Estimate: {plan.estimate}
        </Text>
      ) : undefined}
      {plan === null ? undefined : view.view === "table" || steps.length === 0 ? (
        <StepTable {...shown} isFiltered={steps.length < (all?.length ?? 0)} onSort={(sort) => change({ sort })} sort={view.sort} />
      ) : (
        <Suspense fallback={<Loading />}>
          <Graph {...shown} />
        </Suspense>
      )}
    </Stack>
  );
};

const Plans = ({ dagId, plans, runId }: { readonly dagId: string; readonly plans: ReadonlyArray<GroupPlan>; readonly runId: string }) => {
  const [view, change] = useView();
  const steps = useMemo(() => plans.flatMap((group) => group.plan?.steps ?? []), [plans]);
  const shown = filterSteps(steps, view).length;
  const selected = steps.find((step) => step.task_id === view.step);
  const list = useRef<HTMLDivElement>(null);
  const opener = useRef<Element>(null);
  const select = useCallback(
    (taskId: string) => {
      opener.current = document.activeElement;
      change({ step: taskId });
    },
    [change],
  );
  const open = useCallback(
    (wanted: string) => {
      const bare = wanted.replace(/-[0-9a-f]{6}$/u, "");
      const found: Step | undefined =
        steps.find((step) => `${step.name}-${step.hash}` === wanted) ??
        steps.find((step) => step.name === wanted || step.name === bare);
      if (found !== undefined) {
        change({ step: found.task_id });
      }
    },
    [change, steps],
  );
  const close = () => {
    change({ step: "" });
    // The focus returns to where the step was opened, or to its node, so that the keyboard goes on from there.
    const nodes = list.current?.querySelectorAll<HTMLElement>("[data-task]") ?? [];
    const node = [...nodes].find(({ dataset }) => dataset["task"] === view.step);
    const back = [opener.current, node, list.current].find((element) => element !== document.body && element?.isConnected);
    if (back instanceof HTMLElement) {
      back.focus({ preventScroll: back === list.current });
    }
  };

  return (
    <Stack gap={3} p={2}>
      <Summary change={change} shown={shown} steps={steps} view={view} />
      <Flex align="start" direction={{ base: "column", lg: "row" }} gap={3}>
        <Stack flex={1} gap={4} minW={0} outline="none" ref={list} tabIndex={-1} w="full">
          {plans.map((group) => (
            <Section
              change={change}
              group={group}
              height={plans.length > 1 ? GROUP_HEIGHT : HEIGHT}
              key={group.group}
              select={select}
              view={view}
            />
          ))}
        </Stack>
        {selected === undefined ? undefined : (
          <Box display="flex" flexDirection="column" flexShrink={0} maxH={{ lg: HEIGHT }} w={{ base: "full", lg: "min(440px, 50%)" }}>
            <StepPanel close={close} dagId={dagId} open={open} runId={runId} step={selected} />
          </Box>
        )}
      </Flex>
    </Stack>
  );
};

/** The plan of a run: what runs, what is reused, and why. */
const Plan = ({ dagId = "", runId = "" }: PageProps) => {
  const { data, error } = useQuery(plansQuery(dagId, runId));
  useEffect(() => {
    // While the plan is requested.
    warmUp();
    loadGraph().catch(() => undefined);
  }, []);

  if (error !== null) {
    return <Problem error={error} />;
  }
  if (data === undefined) {
    return <Loading />;
  }
  return data.plans.length === 0 ? (
    <NoPlan dagId={dagId} runId={runId} tasks={data.tasks} />
  ) : (
    <Plans dagId={dagId} plans={data.plans} runId={runId} />
  );
};

export default Plan;
