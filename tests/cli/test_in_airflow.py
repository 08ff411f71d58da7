"""``airflow tradewind`` parses what ``tradewind`` parses, and Airflow's log lines stay out of the output."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

from tradewind.cli.jobs.submit import command_words
from tradewind.cli.main import parser

LINES = """
    jobs submit --no-wait -e A 1 -e B=2 --tpu v4-8 -- python a.py --no-wait
    jobs list --all --metadata a=b --cluster mine
    jobs logs a -f -n 3 -g x
    jobs stop a b
    jobs wait --match a --timeout 3
    reconcile --cluster a --cluster b --dry-run
    cluster push-env here --host one:1 --dry-run --json
    cluster list a --json --fleet b
    cluster list --cluster a/b.yaml --config c
    cluster update-configs --check
    cluster add-worker v4-8 --capacity reserved --name one --config c
    cluster repair --dry-run --cluster a
    cluster submit-job --no-wait --config c -- python a.py --no-wait
    cluster validate a b
    cluster connections a --apply
    cluster start a --no-wait
    cluster stop-cluster a -y
    cluster status a --json
    dev-tpu allocate v4-8 --wait 60 --name mine
    dev-tpu watch --debounce 2 -e A 1 --host 1 -- python a.py --name x
    plan d --param a=1 --param b=2 --partition k --night 2026-03-01 --prefix /p
    plan d --run-only a b --force c --force-downstream --no-force-run-failed --json
    plan d --date 2026-03-01
    why train --dag d
    diff abc123 def456 --json
    adopt /p/x --as train --dag d --copy
    pin abc123 --note 'for the paper'
    pin --list
    gc a b --older-than 8w --delete
    gc
    status --prefix /p
    port a.py b/ --checkout c --prefix /p --param a=1 --time-limit 5 --json
"""
SCRIPT = """
import logging
from tradewind.cli.in_airflow import enter_airflow
enter_airflow()
from tradewind.deployment.ray_connection import RayHook
assert RayHook("mine").stored_cluster().token == "hunter2"
logging.getLogger("another").warning("the disk is full")
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES.strip().splitlines(), ids=str.strip)
def test_airflow_parses_command_line_as_tradewind_does(line: str) -> None:
    words = shlex.split(line)
    in_airflow = vars(get_parser().parse_args(["tradewind", *words]))
    here = vars(parser().parse_args(words))
    assert callable(in_airflow.pop("func")) and in_airflow.pop("subcommand") in words
    assert " ".join(words).startswith(here.pop("run"))
    assert in_airflow == here
    if "submit" in words:
        assert command_words(in_airflow["command"]) == ["python", "a.py", "--no-wait"]


@pytest.mark.slow
def test_airflow_logs_go_to_stderr_without_fernet_warning(tmp_path: Path) -> None:
    env = {
        **os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW_CONN_MINE": '{"conn_type": "ray", "host": "http://127.0.0.1:1", "password": "hunter2"}',
    }  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert "the disk is full" in ran.stderr and "cryptography" not in ran.stderr
