"""Run HELM, and say which of its metrics are better when higher: ``run_helm.py METRICS_FILE ARGUMENTS_OF_HELM...``."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from importlib import resources
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def metrics() -> dict[str, bool | None]:
    """Return metric → whether higher is better, as HELM's tables say; None if it is no quality of answers.

    A metric about which two tables disagree is left out.
    """
    import yaml  # type: ignore[import-untyped]

    said: dict[str, set[bool]] = {}
    for file in resources.files("helm.benchmark.static").iterdir():
        if file.name.startswith("schema_") and file.name.endswith(".yaml"):
            for metric in yaml.safe_load(file.read_text()).get("metrics", []):
                lower = metric.get("lower_is_better")
                said.setdefault(metric["name"], set()).update([] if lower is None else [not lower])
    return {name: next(iter(all_said), None) for name, all_said in said.items() if len(all_said) < 2}


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # an evaluation that was killed sends no more requests
    from helm.benchmark import run  # type: ignore[import-not-found]

    file, *sys.argv[1:] = sys.argv[1:]
    Path(file).write_text(json.dumps(metrics()))
    run.main()


if __name__ == "__main__":
    main()
