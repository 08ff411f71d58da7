"""Commands that load Airflow: Airflow's log lines stay out of the command's output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging
from tradewind.cli.in_airflow import enter_airflow
enter_airflow()
from tradewind.deployment.ray_connection import RayHook
assert RayHook("mine").stored_cluster().token == "hunter2"
logging.getLogger("somebody").warning("the disk is full")
"""


@pytest.mark.slow
def test_airflow_logs_go_to_stderr_without_fernet_warning(tmp_path: Path) -> None:
    env = {
        **os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW_CONN_MINE": '{"conn_type": "ray", "host": "http://127.0.0.1:1", "password": "hunter2"}',
    }  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert "the disk is full" in ran.stderr and "cryptography" not in ran.stderr
