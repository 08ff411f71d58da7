const DOCS = "https://github.com/tradewind-ml/tradewind/blob/main/docs";

export const FLEET_DOCS = `${DOCS}/fleet.md`;

const part = encodeURIComponent;

/** The page Step of an Airflow task; undefined without one. Airflow refuses those who may not read the DAG. */
export const taskLink = (task: {
  readonly dag_id?: string | null;
  readonly run_id?: string | null;
  readonly task_id?: string | null;
}): string | undefined =>
  task.dag_id && task.run_id && task.task_id
    ? `/dags/${part(task.dag_id)}/runs/${part(task.run_id)}/tasks/${part(task.task_id)}`
    : undefined;

export const dataLink = (path: string): string => `/plugin/tradewind_data?path=${part(path)}`;
