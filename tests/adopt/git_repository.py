"""A Git repository of DAGs with a package beside them, as a team has it; each commit changes the code and a setting."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

DAGS = '''"""Two Airflow DAGs that use a package beside them: an experiment, and a function."""

from shop.prices import add_up, price_list
from tradewind import ExecutorStep, experiment_dag, output_path_of, this_output_path, versioned

PRICE = {price}

prices = ExecutorStep("prices", price_list, {{"price": versioned(PRICE), "out": this_output_path()}})
total = ExecutorStep("total", add_up, {{"prices": output_path_of(prices)}})
experiment_dag("shop", steps=[total])
'''
FUNCTION = '''"""An Airflow DAG whose function uses the package beside it."""

from airflow.sdk import DAG, task
from shop import prices

with DAG("shop_function"):

    @task.ray
    def commit() -> int:
        return prices.COMMIT

    commit()
'''
PACKAGE = '''"""Prices, by the commit that has this file."""

import json
import time
from pathlib import Path

COMMIT = {commit}


def price_list(config):
    print("price_list of commit", COMMIT)
    while not Path({gate!r}).exists():
        time.sleep(0.2)
    Path(config["out"], "prices.json").write_text(json.dumps([config["price"], COMMIT]))


def add_up(config):
    print("add_up of commit", COMMIT)
    if {is_broken}:
        raise ValueError("add_up is broken")
    return json.loads(Path(config["prices"], "prices.json").read_text())
'''


class Repository:
    """A local repository; its steps wait until ``gate`` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gate = folder, folder.with_name("gate")
        (folder / "shop").mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, number: int, *, price: int, is_broken: bool = False) -> str:
        """Commit the files, and return the commit's hash, which is the bundle's version."""
        files = {"shop_dags.py": DAGS.format(price=price), "shop_function.py": FUNCTION, "shop/__init__.py": ""}
        files["shop/prices.py"] = PACKAGE.format(commit=number, gate=str(self.gate), is_broken=is_broken)
        for name, text in files.items():
            (self.folder / name).write_text(text)
        self._git("add", ".")
        self._git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", f"--message={number}")
        return self._git("rev-parse", "HEAD").strip()

    def setting(self, dags: Path) -> dict[str, str]:
        """Return the setting for a bundle of this repository beside the folder ``dags``."""
        local = {"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle"}
        git = {"name": "shop", "classpath": "airflow.providers.git.bundles.git.GitDagBundle"}
        kwargs = {"repo_url": str(self.folder), "tracking_ref": "main", "refresh_interval": 5}
        value = json.dumps([local | {"kwargs": {"path": str(dags)}}, git | {"kwargs": kwargs}])
        return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": value}

    def _git(self, *words: str) -> str:
        home = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent)}
        done = subprocess.run(["git", *words], cwd=self.folder, env=home, capture_output=True, text=True, check=True)
        return done.stdout
