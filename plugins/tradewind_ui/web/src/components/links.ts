/** Addresses of pages, below Airflow's own. */

/** The task that made something; empty texts and -1 outside Airflow. */
export type Maker = { readonly dag: string; readonly map_index: number; readonly run: string; readonly task: string };

const part = encodeURIComponent;

/** An id in a path, as Airflow's router writes it: in another form, Airflow marks no tab as the open one. */
export const idPart = (id: string) => part(id).replaceAll("%3A", ":").replaceAll("%2B", "+");

/** The page Data of a path, with only those rows that a filter keeps. */
export const dataLink = (path: string, filter = ""): string =>
  `/plugin/tradewind_data?path=${part(path)}${filter === "" ? "" : `&filter=${part(filter)}`}`;

/** The page Plan of the run; undefined outside Airflow. Airflow refuses those who may not read the DAG. */
export const runLink = ({ dag, run }: Pick<Maker, "dag" | "run">): string | undefined =>
  dag === "" || run === "" ? undefined : `/dags/${idPart(dag)}/runs/${idPart(run)}/plugin/tradewind_plan`;

/** The page Step of the task. */
export const stepLink = ({ dag, map_index: index, run, task }: Maker): string | undefined =>
  dag === "" || run === "" || task === ""
    ? undefined
    : `/dags/${idPart(dag)}/runs/${idPart(run)}/tasks/${idPart(task)}${index >= 0 ? `/mapped/${index}` : ""}/plugin/tradewind_step`;
