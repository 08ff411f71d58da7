"""A Ray driver that trains with our runner: ``python -m benchmarks.pods_ours FOLDER SECONDS SLICE_TYPE``."""

from __future__ import annotations

import os
import sys

from tradewind.runtime.pods.groups import HostGroup
from tradewind.runtime.pods.runner import run_pod
from tradewind.runtime.pods.timeline import TIMELINE_FILE, Timeline
from tradewind.steps import TpuSlice


def main(folder: str, seconds: str, slice_type: str) -> None:
    timeline = Timeline(f"{folder}/{TIMELINE_FILE}")
    command = [sys.executable, "-m", "benchmarks.pods_function", folder, seconds]
    env = {"PYTHONPATH": os.getcwd()}
    run_pod(command, HostGroup.of(TpuSlice(slice_type)), env=env, log_dir=folder, timeline=timeline)
    timeline.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
