"""Summarize an attempt's pod in one line for the task's log; nothing if it never restarted."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence

from tradewind.cloud_tpu.goodput import METRICS_FILE, CountedSteps, first_start, goodput, metrics_rows
from tradewind.records.attempts import attempt_folder
from tradewind.runtime.pods.timeline import TIMELINE_FILE, Summary, TimelineEvent, read_timeline, summary
from tradewind.steps import Hosts, Resources, TpuSlice
from tradewind.storage.files import read_text
from tradewind.text import format_duration, pluralize

logger = logging.getLogger(__name__)


def pod_summary(output_path: str, attempt: int, resources: Resources | None) -> str | None:
    """Return an attempt's pod summary; None without a pod, without incidents, or if it is unknown."""
    if not isinstance(resources, (TpuSlice, Hosts)):
        return None
    try:
        return format_summary(
            read_timeline(posixpath.join(attempt_folder(output_path, attempt), TIMELINE_FILE)), output_path
        )
    except Exception as error:  # the step's end matters more than its summary
        logger.warning("Attempt %d at %s: its pod's timeline cannot be summarized: %s", attempt, output_path, error)
        return None


def format_summary(events: Sequence[TimelineEvent], output_path: str) -> str | None:
    """Format ``2 preemptions, 1 failure, 73 steps lost, waited 4 min, goodput 0.91``; None without a restart.

    Goodput is included for a training that left its metrics in the output.
    """
    pod = summary(events)
    if not pod.restarts and not pod.preemptions and not pod.failures:
        return None
    parts = [pluralize(pod.preemptions, "preemption"), pluralize(pod.failures, "failure")]
    parts.append(f"{pluralize(pod.lost_steps, 'step')} lost")
    if pod.waiting_s >= 1:
        parts.append(f"waited {format_duration(pod.waiting_s)}")
    share = _goodput(pod, read_text(posixpath.join(output_path, METRICS_FILE)))
    return ", ".join([*parts, f"goodput {share:.2f}"] if share is not None else parts)


def _goodput(pod: Summary, metrics: str | None) -> float | None:
    rows = metrics_rows(metrics or "")
    if pod.started_at is None or not (productive_s := CountedSteps(rows).seconds):
        return None
    return goodput(productive_s, pod.started_at + pod.wall_s - first_start(rows, pod.started_at))
