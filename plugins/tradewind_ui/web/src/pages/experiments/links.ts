import type { Schemas } from "../../api/client";

type Status = Schemas["OutputStatus"];

const part = encodeURIComponent;

export const dataLink = (path: string): string => `/plugin/tradewind_data?path=${part(path)}`;

/** The run that made the newest attempt; undefined outside Airflow. Airflow refuses those who may not read the DAG. */
export const runLink = ({ dag, run }: Status): string | undefined =>
  dag === "" || run === "" ? undefined : `/dags/${part(dag)}/runs/${part(run)}/plugin/tradewind_plan`;

/** The page Step of the task that made the newest attempt. */
export const stepLink = ({ dag, map_index: index, run, task }: Status): string | undefined =>
  dag === "" || run === "" || task === ""
    ? undefined
    : `/dags/${part(dag)}/runs/${part(run)}/tasks/${part(task)}${index >= 0 ? `/mapped/${index}` : ""}/plugin/tradewind_step`;
