"""What runs on a cluster: the step driver, its child, the pod runner. Never imports Airflow.

The names below are loaded at first use: a training process that checks for a preemption notice needs no Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tradewind.runtime.pods.budgets import PodGivenUpError
    from tradewind.runtime.pods.functions import (
        remove_tpu_lockfile_on_exit,
        run_on_pod,
        run_on_pod_multislice_resumable,
        run_on_pod_resumable,
    )
    from tradewind.runtime.pods.on_host.preemption_notice import Notice, preemption_notice

__all__ = [
    "Notice",
    "PodGivenUpError",
    "TpuPodConfig",
    "preemption_notice",
    "remove_tpu_lockfile_on_exit",
    "run_on_pod",
    "run_on_pod_multislice_resumable",
    "run_on_pod_resumable",
]

_MODULE_OF: Final = {
    **dict.fromkeys(__all__, "tradewind.runtime.pods.functions"),
    **dict.fromkeys(("Notice", "preemption_notice"), "tradewind.runtime.pods.on_host.preemption_notice"),
    "PodGivenUpError": "tradewind.runtime.pods.budgets",
    "TpuPodConfig": "tradewind.marin.names.resources",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
