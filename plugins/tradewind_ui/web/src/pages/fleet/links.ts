import { idPart } from "../../components/links";

/** An Airflow task, its tab Step if it has a step; undefined without one. Airflow refuses those who may not read the DAG. */
export const taskLink = (task: {
  readonly dag_id?: string | null;
  readonly run_id?: string | null;
  readonly step?: string;
  readonly task_id?: string | null;
}): string | undefined =>
  task.dag_id && task.run_id && task.task_id
    ? `/dags/${idPart(task.dag_id)}/runs/${idPart(task.run_id)}/tasks/${idPart(task.task_id)}${task.step ? "/plugin/tradewind_step" : ""}`
    : undefined;
