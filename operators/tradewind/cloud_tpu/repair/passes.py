"""Carry out the decisions of ``rules``, pass after pass, until every host is back.

A repair can be killed at any moment, and two may run at once. The body that recreates a slice is stored before the
slice is deleted, and removed only when its successor was seen READY, so the next pass continues. A slice is checked
again just before its deletion, so that another repair's new slice is not mistaken for the old one. If the name exists
at creation, another process has created the slice, or the response to an earlier try was lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.repair.actions import RepairActions
from tradewind.cloud_tpu.repair.records import RepairLock, SliceRecord, SliceRecords
from tradewind.cloud_tpu.repair.rules import decide, is_back
from tradewind.cloud_tpu.repair.terms import Action, Finding, RepairReport, RepairSettings, Scope, SliceHealth, Snapshot

Hosts = Mapping[str, int]
"""Slice name → number of its live hosts that are registered with Ray."""


class SliceRepair:
    """Repairs the slices of one cluster.

    Args:
        api: API of the slices' zone.
        registered_hosts: Queries Ray: slice name → live hosts; None if it does not answer.
        scope: Which slices belong to the cluster.
        records: Persistent records, between passes.
        settings: Waits and limits.
        dry_run: Only report the actions.
        clock: Seconds since the epoch.
        lock: Repair lock; None if no other repair has these records.
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
        lock: RepairLock | None = None,
    ) -> None:
        self.api = api
        self.registered_hosts = registered_hosts
        self.scope = scope
        self.records = records
        self.settings = settings or RepairSettings()
        self.dry_run = dry_run
        self.lock = lock
        self._clock = clock

    def run_once(self) -> RepairReport:
        """Carry out one pass; waits for deletions and creations, up to some minutes in all.

        Raises:
            TpuApiError: The slices cannot be listed. Errors of single slices are in the report.
            SliceRecordError: A record is damaged.
        """
        snapshot = self._observe(self.records.read)
        findings = decide(snapshot, self.scope, self.settings)
        due = [finding for finding in findings if finding.action is not Action.NOTHING]
        if self.dry_run:
            return RepairReport(
                findings, {finding.name: f"would {finding.action.value}" for finding in due}, is_dry=True
            )
        self.records.settle(lambda deletion: is_back(deletion, snapshot), snapshot.now)
        records = self._note(findings, snapshot)
        if not due:
            return RepairReport(findings)
        actions = RepairActions(
            self.api,
            lambda: self._observe(lambda: snapshot.records),
            self.scope,
            self.settings,
            self.records,
            self._clock,
            self.lock,
        )
        done = actions.carry_out(due, records)
        findings = [
            replace(finding, needs_person=True) if finding.name in actions.denied else finding for finding in findings
        ]
        return RepairReport(findings, done)

    def _observe(self, read: Callable[[], Mapping[str, SliceRecord]]) -> Snapshot:
        return Snapshot(
            nodes=self.api.nodes(),
            queues=self.api.queued_resources(),
            hosts=self.registered_hosts(),
            records=read(),
            now=self._clock(),
        )

    def _note(self, findings: list[Finding], snapshot: Snapshot) -> dict[str, SliceRecord]:
        """Record what each slice waits for and since when, or that it works again."""
        records, changed = {}, {}
        for finding in findings:
            old = snapshot.records.get(finding.name) or SliceRecord(finding.name)
            new = old.with_trouble(finding.trouble, snapshot.now)
            if finding.verdict is SliceHealth.WORKS:
                new = new.with_creation()
            if new.notes() != old.notes():
                changed[finding.name] = new
            records[finding.name] = new
        if changed:
            self.records.write_notes(changed)
        return records
