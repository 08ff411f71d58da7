"""Compared providers; each has its own environment, made by a script, or a reason why it is not measured.

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
    """One way to follow a Ray job: a DAG of a provider."""

    name: str
    dag_id: str = "one_job"
    is_slow: bool = False
    """Whether its defaults are slow: it is measured once, with the shortest job, and never in a quick run."""


@dataclass(frozen=True)
class Provider:
    """A package with a Ray operator."""

    name: str
    module: str
    """Modules that its DAG file imports."""
    ways: tuple[Way, ...]
    defers: bool = True
    """Whether its followers wait in the triggerer; otherwise each occupies a worker process."""

    @property
    def python(self) -> Path:
        """Interpreter of the environment with the provider and Airflow."""
        return Path(sys.executable) if self.name == "ours" else ENVIRONMENTS / self.name / "bin" / "python"

    def connections(self, address: str) -> dict[str, str]:
        """Return its Airflow connections to the cluster at ``address``."""
        if self.name == "google":  # asked for even when, as here, nothing of Google's is used
            return {"google_cloud_default": json.dumps({"conn_type": "google_cloud_platform"})}
        if self.name == "astro":
            return {"ray_default": json.dumps({"conn_type": "ray", "extra": {"address": address}})}
        return {"ray_default": json.dumps({"conn_type": "ray", "host": address})}

    def why_not(self) -> str | None:
        """Return why it cannot be measured, in one line; None if it can."""
        if not self.python.exists():
            note = ENVIRONMENTS / f"{self.name}.failed"
            return note.read_text().strip() if note.exists() else f"{self.python} is not there: run `make bench-jobs`."
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        environ |= {"AIRFLOW_HOME": str(ENVIRONMENTS / "home"), "PYTHONPATH": str(ROOT)}
        command = [str(self.python), "-c", f"import {self.module}"]
        result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        return None if result.returncode == 0 else f"import {self.module}: {result.stderr.strip().splitlines()[-1]}"

    def versions(self) -> str:
        """Return the compared versions."""
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
    """Return the providers of ``names`` that can be measured, and a line for each other."""
    reasons = {one: one.why_not() for one in PROVIDERS if one.name in names}
    missing = [f"{one.name} is left out: {reason}" for one, reason in reasons.items() if reason]
    return [one for one, reason in reasons.items() if reason is None], missing
