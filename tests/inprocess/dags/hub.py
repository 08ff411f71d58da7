"""An Airflow DAG that tokenizes a data set of a hub, whose address and token are in the file ``hub``."""

import dataclasses
import json
import os
from pathlib import Path

from tradewind import experiment_dag, on_airflow_worker
from tradewind.marin.defaults import default_tokenize

address = Path(os.environ["AIRFLOW_HOME"], "hub")
os.environ.update(json.loads(address.read_text()) if address.exists() else {})

letters = default_tokenize("letters", "people/letters", "people/words", secrets={"HF_TOKEN": "env:TOKEN_OF_HUB"})
experiment_dag("hub", [dataclasses.replace(letters, resources=on_airflow_worker())])
