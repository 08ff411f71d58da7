import { Code, Stack } from "@chakra-ui/react";
import { useQueryClient } from "@tanstack/react-query";
import { Fragment, useEffect, useRef } from "react";

import { Empty } from "../../components/Empty";
import { Loading } from "../../components/Frame";
import { Problem } from "../../components/Problem";
import type { PageProps } from "../../main";
import { Attempts } from "./Attempts";
import { Config } from "./Config";
import { Evaluation } from "./Evaluation";
import { Header } from "./Header";
import { Metrics } from "./Metrics";
import { Progress } from "./Progress";
import { idsOf, useAbout } from "./queries";
import type { Ids } from "./queries";
import { Result } from "./Result";
import { Versions } from "./Versions";

const NotOurs = ({ why }: { readonly why: string }) => (
  <Empty title="No step here">
    {why} This tab shows the version, attempts and curves of steps that Tradewind runs: tasks of <Code>experiment_dag</Code>
    , of <Code>experiment_group</Code>, or a <Code>StepOperator</Code>. What this task did is in its log.
  </Empty>
);

/** While it runs, or if the task of this run failed, its attempts come first; when it is done, its results. */
const View = ({ ids }: { readonly ids: Ids }) => {
  const { data: about, error } = useAbout(ids);
  const client = useQueryClient();
  const known = useRef<string>(undefined);
  const now = about === undefined ? undefined : `${about.state}/${about.attempt}/${about.is_active}`;
  useEffect(() => {
    // The sections may have asked last before the change, and ask no more after an end: each looks once more.
    if (known.current !== undefined && known.current !== now) {
      void client.invalidateQueries({ predicate: ({ queryKey }) => queryKey[0] === "step" && queryKey[1] !== "about" });
    }
    known.current = now;
  }, [client, now]);
  if (about === undefined) {
    return error === null ? <Loading /> : <Problem error={error} />;
  }
  if (about.why_empty) {
    return <NotOurs why={about.why_empty} />;
  }
  const { hash, is_active, shows, state, task_state } = about;
  const attempts = <Attempts ids={ids} isActive={is_active} />;
  const version = `${about.output_path}/${about.attempt}`;
  const results = [
    shows.includes("evaluation") ? <Evaluation ids={ids} /> : undefined,
    shows.includes("result") ? <Result ids={ids} version={version} /> : undefined,
    shows.includes("progress") ? <Progress ids={ids} isActive={is_active} /> : undefined,
    shows.includes("metrics") ? <Metrics hash={hash} ids={ids} isActive={is_active} /> : undefined,
  ];
  const sections = state === "finished" && task_state !== "failed" ? [...results, attempts] : [attempts, ...results];
  const canBeRead = state !== null && state !== undefined;

  return (
    <Stack gap={6} p={{ base: 2, md: 4 }}>
      <Header about={about} />
      {canBeRead ? (
        <>
          {sections.map((section, index) => (
            <Fragment key={index}>{section}</Fragment>
          ))}
          <Config ids={ids} version={version} />
          <Versions hash={hash} ids={ids} />
        </>
      ) : undefined}
    </Stack>
  );
};

const Step = (props: PageProps) => {
  const ids = idsOf(props);

  return ids === undefined ? <Empty title="No step here">This page stands on the tasks of a run.</Empty> : <View ids={ids} />;
};

export default Step;
