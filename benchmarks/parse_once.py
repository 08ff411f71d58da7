"""One measurement of ``parse``, in a process of its own: import, build and serialise one DAG; prints JSON.

It reads the CPU time of this process, because others may be at work on the machine. What the imports left behind is
frozen for the garbage collector before the DAG is built: a pass over the heap of Airflow's modules takes as long as
hundreds of tasks, and into which phase it falls is chance.
"""

from __future__ import annotations

import gc
import json
import sys
import time


def main(kind: str, shape: str, count: int) -> None:
    started = time.process_time()
    from airflow.sdk import DAG  # noqa: F401
    from airflow.serialization.serialized_objects import DagSerialization

    airflow_imported = time.process_time()
    from benchmarks.dags import make_dag

    if kind == "experiment":
        import tradewind.operators.experiment  # noqa: F401
    imported = time.process_time()
    gc.collect()
    gc.freeze()
    ready = time.process_time()
    dag = make_dag(kind, shape, count)
    built = time.process_time()
    text = json.dumps(DagSerialization.to_dict(dag))
    serialised = time.process_time()
    figures = {
        "import_airflow": airflow_imported - started,
        "import": imported - airflow_imported,
        "build": built - ready,
        "serialise": serialised - built,
        "bytes": len(text.encode()),
        "edges": sum(len(task.downstream_task_ids) for task in dag.tasks),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
