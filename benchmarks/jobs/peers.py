"""Whose operators are compared, and where each lives: an environment of its own, made by a script, or a reason why not.

A peer that is not there is left out and named with its reason; the others are measured all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT

ENVIRONMENTS = ROOT / ".bench"


@dataclass(frozen=True)
class Way:
    """One way to have a Ray job followed: a DAG of one of the providers."""

    name: str
    dag_id: str = "one_job"
    is_slow: bool = False
    """Slow by its own defaults: measured once, with the shortest job, and not at all when it must be quick."""


@dataclass(frozen=True)
class Provider:
    """One package with a Ray operator."""

    name: str
    module: str
    """What its DAG file imports."""
    ways: tuple[Way, ...]
    defers: bool = True
    """Its followers wait in the triggerer; else each keeps a worker process."""

    @property
    def python(self) -> Path:
        """The interpreter that has the provider and Airflow."""
        return Path(sys.executable) if self.name == "ours" else ENVIRONMENTS / self.name / "bin" / "python"

    def connections(self, address: str) -> dict[str, str]:
        """Its Airflow connections to the cluster at ``address``."""
        if self.name == "google":  # asked for even when, as here, nothing of Google's is used
            return {"google_cloud_default": json.dumps({"conn_type": "google_cloud_platform"})}
        if self.name == "astro":
            return {"ray_default": json.dumps({"conn_type": "ray", "extra": {"address": address}})}
        return {"ray_default": json.dumps({"conn_type": "ray", "host": address})}

    def why_not(self) -> str | None:
        """Why it cannot be measured, in one line; None if it can."""
        if not self.python.exists():
            note = ENVIRONMENTS / f"{self.name}.failed"
            return note.read_text().strip() if note.exists() else f"{self.python} is not there: run `make bench-jobs`."
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        environ |= {"AIRFLOW_HOME": str(ENVIRONMENTS / "home"), "PYTHONPATH": str(ROOT)}
        command = [str(self.python), "-c", f"import {self.module}"]
        result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        return None if result.returncode == 0 else f"import {self.module}: {result.stderr.strip().splitlines()[-1]}"

    def versions(self) -> str:
        """The versions that are compared."""
        names = {"google": "apache-airflow-providers-google", "astro": "astro-provider-ray"}
        wanted = [names.get(self.name, "airflow-provider-tradewind"), "apache-airflow", "ray"]
        code = f"from importlib.metadata import version; print(*(f'{{n}} {{version(n)}}' for n in {wanted}), sep=', ')"
        command = [str(self.python), "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


OURS = Provider("ours", "tradewind.triggers.ray_job", (Way("ours"),))
GOOGLE = Provider("google", "airflow.providers.google.cloud.operators.ray", (Way("google"),), defers=False)
ASTRO = Provider(
    "astro", "ray_provider.operators", (Way("astro, poll 1 s", "one_job_poll_1s"), Way("astro, default", is_slow=True))
)
# Ours comes last, so that nothing that it might do to waiting jobs can change a peer's figures.
PROVIDERS = (GOOGLE, ASTRO, OURS)


def available(names: Sequence[str]) -> tuple[list[Provider], list[str]]:
    """Those of ``names`` that can be measured, and a line about each that cannot."""
    reasons = {one: one.why_not() for one in PROVIDERS if one.name in names}
    missing = [f"{one.name} is left out: {reason}" for one, reason in reasons.items() if reason]
    return [one for one, reason in reasons.items() if reason is None], missing
