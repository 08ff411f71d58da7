"""Carrying out what ``repair`` decides: delete, create again, look again, until every host is back.

It can be killed at any moment, and two may run at once. What creates a slice again is written down before the slice is
deleted, so the next pass goes on; what was judged is looked at once more just before it is deleted, so that nobody's
new slice is taken for the old one; and a name that is taken at creation means that somebody else has done it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.cloud_tpu.repair import HOUR_S, decide
from tradewind.cloud_tpu.repair_terms import Deed, Finding, RepairSettings, Scope, Sight, Verdict
from tradewind.cloud_tpu.slice_records import SliceRecord, SliceRecords
from tradewind.cloud_tpu.tpu_api import TpuApi
from tradewind.cloud_tpu.tpu_errors import QuotaError, StockOutError, TpuApiError, TpuConflictError

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""How many slices are deleted and created at the same time; each takes minutes of nothing but waiting."""

Hosts = Mapping[str, int]
"""Slice name → how many of its hosts are registered with Ray and alive."""


@dataclass(frozen=True)
class RepairReport:
    """What one pass found and did.

    Attributes:
        findings: Every slice of the cluster, as it was found.
        done: What was done about some of them, in words, by name.
        is_dry: Whether nothing was to be done.
    """

    findings: Sequence[Finding]
    done: Mapping[str, str] = field(default_factory=dict)
    is_dry: bool = False

    @property
    def is_well(self) -> bool:
        """Whether every slice worked when the pass began."""
        return all(one.verdict is Verdict.WORKS for one in self.findings)

    @property
    def for_a_person(self) -> list[Finding]:
        """What no pass will bring back."""
        return [one for one in self.findings if one.needs_person]

    @property
    def is_over(self) -> bool:
        """Whether further passes would not change anything."""
        return self.is_dry or all(one.verdict is Verdict.WORKS or one.needs_person for one in self.findings)

    def rows(self) -> list[dict[str, str]]:
        """The table as JSON: slice, type, hosts, verdict, reason, done."""
        return [
            {
                "slice": one.name,
                "type": one.slice_type,
                "hosts": one.hosts,
                "verdict": one.verdict.value,
                "reason": one.reason,
                "done": self.done.get(one.name, ""),
            }
            for one in self.findings
        ]

    def table(self) -> str:
        """The same to be read."""
        if not self.findings:
            return "There is no slice to look after."
        heads = ("slice", "type", "hosts", "verdict", "reason", "done")
        rows = [heads, *(tuple(row[head] for head in heads) for row in self.rows())]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
    return "  ".join([*cells, row[4] + (f" → {row[5]}" if row[5] else "")]).rstrip()


class SliceRepair:
    """Repairs the slices of one cluster.

    Args:
        api: Where the slices are.
        registered_hosts: Asks Ray: slice name → live hosts; None if it does not answer.
        scope: Which slices belong to the cluster.
        records: What must not be forgotten between two passes.
        settings: How patient and how bold to be.
        dry_run: Only say what would be done.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        api: TpuApi,
        registered_hosts: Callable[[], Hosts | None],
        scope: Scope,
        records: SliceRecords,
        settings: RepairSettings | None = None,
        *,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.api = api
        self.registered_hosts = registered_hosts
        self.scope = scope
        self.records = records
        self.settings = settings or RepairSettings()
        self.dry_run = dry_run
        self._clock = clock

    def run_once(self) -> RepairReport:
        """Look once, and do what is to be done now; blocks until that is done, but not until the slices are back.

        Raises:
            TpuApiError: The slices cannot be listed. What goes wrong with one slice is in the report.
            SliceRecordError: A record is damaged.
        """
        sight = self._look()
        findings = decide(sight, self.scope, self.settings)
        due = [one for one in findings if one.deed is not Deed.NOTHING]
        if self.dry_run:
            return RepairReport(findings, {one.name: f"would {one.deed.value}" for one in due}, is_dry=True)
        records = {one.name: self._note(one, sight) for one in findings}
        if not due:
            return RepairReport(findings)
        with ThreadPoolExecutor(min(_AT_ONCE, len(due)), thread_name_prefix="slice-repair") as pool:
            words = pool.map(lambda one: self._do(one, records[one.name]), due)
            done = dict(zip((one.name for one in due), words, strict=True))
        return RepairReport(findings, done)

    def _look(self) -> Sight:
        return Sight(
            nodes=self.api.nodes(),
            queues=self.api.queued_resources(),
            hosts=self.registered_hosts(),
            records=self.records.read(),
            now=self._clock(),
        )

    def _note(self, finding: Finding, sight: Sight) -> SliceRecord:
        """Write down what the slice waits for, since when; or that it is well again."""
        old = sight.records.get(finding.name) or SliceRecord(finding.name)
        new = old.in_trouble(finding.trouble, sight.now)
        if finding.verdict is Verdict.WORKS:
            new = new.created()
        if new.is_empty(sight.now, HOUR_S):
            if finding.name in sight.records:
                self.records.remove(finding.name)
        elif new != old:
            self.records.write(new)
        return new

    # ---- deeds

    def _do(self, finding: Finding, record: SliceRecord) -> str:
        """Do what is to be done about one slice; says what came of it."""
        try:
            if finding.deed is Deed.CREATE:
                return self._create(finding, record, "created")
            if self._has_revived(finding):
                return "left alone: its hosts are back"
            body = finding.body if finding.deed is Deed.REPLACE else None
            record = record.deleting(body, self._clock(), keep_s=HOUR_S)
            self.records.write(record)
            logger.info("Deleting slice %s: %s.", finding.name, finding.reason)
            self._delete(finding)
            return self._create(finding, record, "replaced") if finding.deed is Deed.REPLACE else "deleted"
        except TpuConflictError:
            return "left alone: somebody else has replaced it"
        except TpuApiError as error:
            logger.warning("Slice %s: %s", finding.name, error)
            return f"{type(error).__name__}: {error}".splitlines()[0]

    def _has_revived(self, finding: Finding) -> bool:
        """Whether more of its hosts are with Ray than when it was judged."""
        hosts = self.registered_hosts()
        if hosts is None:
            return finding.trouble == "HOSTS"
        return sum(hosts.get(name, 0) for name in finding.slices) > finding.hosts_alive

    def _delete(self, finding: Finding) -> None:
        if finding.is_queue:
            self.api.delete_queued_resource(finding.name, finding.identity)
        else:
            self.api.delete_node(finding.name, finding.identity)

    def _create(self, finding: Finding, record: SliceRecord, word: str) -> str:
        assert finding.body is not None
        try:
            self.api.create(finding.name, finding.body)
        except TpuConflictError:
            word = "there already"
        except (StockOutError, QuotaError) as error:
            return self._refused(finding, record, finding.body, error)
        self.records.write(record.begun())  # and still wanted: it may vanish again before it has been READY
        logger.info("Slice %s: %s.", finding.name, word)
        return word

    def _refused(self, finding: Finding, record: SliceRecord, body: Mapping[str, Any], error: TpuApiError) -> str:
        """No capacity: try again later, and later still each time. The slice stays wanted."""
        pause = self.settings.stock_out_pause_s * 2.0 ** min(record.refusals, 30)
        pause = min(pause, self.settings.max_stock_out_pause_s) * random.uniform(0.8, 1.0)
        refused = record.refused(str(error), self._clock() + pause)
        self.records.write(refused)
        logger.warning("Slice %s cannot be created now: %s Next try in %.0f s.", finding.name, error, pause)
        return f"no capacity or quota; next try in {pause:.0f} s"
