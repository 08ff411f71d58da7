"""``python -m benchmarks.repair_cloud COUNT LATENCY_S STATE``: the Cloud TPU of the rehearsal with so many nodes.

It prints its URL, counts calls at ``/calls``, and ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import time

from google.cloud.tpu_v2 import types

from benchmarks.repair_passes import LABELS
from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.rehearsal.loopback import Answer, Call
from tradewind.rehearsal.tpu_cloud import LocalTpuCloud
from tradewind.rehearsal.tpu_state import NodeState


class CountingCloud(LocalTpuCloud):
    """It also tells how many calls of each name it has answered, and how many CPU seconds it has used."""

    def answer(self, call: Call) -> Answer:
        if call.path == "/calls":
            return Answer("calls", body=json.dumps(self.requests).encode())
        if call.path == "/cpu":
            return Answer("calls", body=json.dumps(time.process_time()).encode())
        return super().answer(call)


def main() -> None:
    """Serve until nobody holds the standard input any more."""
    count, latency_s, state = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    cloud = CountingCloud()
    kept = cloud.service.state
    asked = types.Node(
        accelerator_type="v4-8",
        runtime_version="tpu-ubuntu2204-base",
        labels=LABELS,
        metadata={"startup-script": "start ray " * 100},
        scheduling_config=types.SchedulingConfig(spot=True),
    )
    for number in range(count):
        held = kept.add_node(f"{kept.place.path}/nodes/slice-{number:04}", asked, slice_type("v4-8"))
        held.node.state = NodeState[state]
    cloud.latency_s = latency_s
    cloud.start()
    print(cloud.url, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
