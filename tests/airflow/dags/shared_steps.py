"""An Airflow DAG of many dates."""

from shared_work import Config, write_call, write_call_and_wait

from tradewind import ExecutorStep, experiment_dag, night, output_path_of, this_output_path, versioned

shared = ExecutorStep("dates/shared", write_call_and_wait, Config(this_output_path(), versioned("one for all")))
dated = ExecutorStep("dates/dated", write_call, Config(this_output_path(), versioned(night()), output_path_of(shared)))
experiment_dag("dates", [dated], schedule="@daily", timezone="Europe/Berlin", catchup=False)
