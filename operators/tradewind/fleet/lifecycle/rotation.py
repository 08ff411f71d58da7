"""Token rotation: add a version to the clusters' secret, and restart every cluster that shares it.

A cluster accepts only the token that it was started with, so the old version is disabled only when all clusters answer
with the new one. An interrupted rotation is resumed from the clusters' locks. They have the number of the newest
version before the rotation, so any newer version is the added one.

Hosts fetch the newest version. An added version whose response was lost may appear late: a resumed rotation waits for
it before it adds another. A version that appears even later is disabled, and the token is added again as the newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tradewind.fleet.access.connect import connected, read_token
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError
from tradewind.fleet.cloud.token_secret import SecretVersion, TokenSecret, new_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.cluster_manager import ClusterManager, WrongStateError
from tradewind.fleet.lifecycle.inventory import ClusterState
from tradewind.fleet.lifecycle.job_preservation import (
    AbandonedJobsError,
    JobBackupError,
    JobPreservation,
    JobRestoreError,
)
from tradewind.fleet.lock import ClusterLock, HeldClusterLock
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.job_restore import RestoreResult
from tradewind.records.lease import HEARTBEAT_S

OPERATION: Final = "rotate-token"
_ANSWER_TIMEOUT_S: Final = 600.0
_LATE_TIMEOUT_S: Final = 120.0
"""Twice Google's own limit for a request."""
_POLL_S: Final = 3.0
_ENABLED: Final = "ENABLED"


class RotationPhase(StrEnum):
    """Progress of a rotation; each phase is recorded before it begins, and is repeatable."""

    BEGIN = "looking at the secret"
    KEEP = "keeping jobs"
    ADD = "adding a version"
    RESTART = "restarting Ray"
    RENEW = "handing the token out"
    ANSWER = "waiting for all to answer"
    DISABLE = "disabling the old version"
    RETURN = "bringing jobs back"


@dataclass(frozen=True)
class RotationNotes:
    """Progress of a rotation in the clusters' locks.

    Attributes:
        secret: The secret's name.
        before: The newest version before the rotation; 0 if there was none.
        version: The added version.
        restarted: The clusters that were started with it.
        is_asked: Whether a version may have been requested without a response.
    """

    secret: str
    before: int
    version: int | None = None
    restarted: tuple[str, ...] = ()
    is_asked: bool = False

    @staticmethod
    def of(details: Mapping[str, Any], secret: str) -> RotationNotes | None:
        """Parse the notes in a lock; None if it has none about ``secret``."""
        before, version = details.get("before"), details.get("version")
        restarted = details.get("restarted")
        if details.get("secret") != secret or not isinstance(before, int):
            return None
        names = tuple(map(str, restarted)) if isinstance(restarted, list) else ()
        number = version if isinstance(version, int) else None
        return RotationNotes(secret, before, number, names, details.get("is_asked") is True)

    @property
    def progress(self) -> tuple[bool, int, bool]:
        """Sort key, which grows with the progress."""
        return self.version is not None, len(self.restarted), self.is_asked


class TokenRotation:
    """Rotates the token of all clusters that share a secret.

    Args:
        managers: Cluster → its manager.
        markers: Cluster → its lock.
        jobs: Cluster → the preservation of its unmanaged jobs.
        hand_out: Called with the number of the new version: renews cached tokens and connections here.
        tell: Called with a sentence for each action.
        reach: Connects to a cluster, with the token that is cached here.
        heartbeat_s: Time between renewals of the locks.
        clock: A monotonic clock, in seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        clusters: Sequence[FleetCluster],
        secret: TokenSecret,
        *,
        managers: Mapping[str, ClusterManager],
        markers: Mapping[str, ClusterLock],
        jobs: Mapping[str, JobPreservation],
        hand_out: Callable[[int], None],
        tell: Callable[[str], None],
        reach: Callable[[FleetCluster], AbstractContextManager[RayCluster]] = connected,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clusters = sorted(clusters, key=lambda cluster: cluster.name)
        self._secret = secret
        self._managers = managers
        self._markers = markers
        self._jobs = jobs
        self._hand_out = hand_out
        self._tell = tell
        self._reach = reach
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._sleep = sleep
        self._held: dict[str, HeldClusterLock] = {}

    def run(self) -> list[RestoreResult]:
        """Rotate the token, or resume an interrupted rotation; return the results of unmanaged jobs.

        Raises:
            WrongStateError: A cluster has more than one head. Nothing was done.
            ClusterBusyError: Another command is changing one of the clusters. Nothing was done.
            InterruptedOperationError: Another operation on one of them ended early. Nothing was done.
            JobBackupError: The jobs of one could not be backed up. Nothing was done.
            FleetError: One does not answer with the new token. The old version is still enabled.
            JobRestoreError, AbandonedJobsError: The token is changed, and some unmanaged jobs are not restored.
            FleetError: See ``ClusterManager``. The next run resumes the rotation.
        """
        self._check_heads()
        with ExitStack() as stack:
            self._take(stack)
            notes = self._load_notes()
            self._back_up(notes)
            notes = self._add_version(notes)
            notes = self._restart_all(notes)
            assert notes.version is not None
            self._advance(RotationPhase.RENEW, notes)
            self._hand_out(notes.version)
            self._advance(RotationPhase.ANSWER, notes)
            for cluster in self._running():
                self._wait_for_answer(cluster)
            self._advance(RotationPhase.DISABLE, notes)
            notes = self._ensure_newest(notes)
            assert notes.version is not None
            self._disable_older(notes.version)
            self._advance(RotationPhase.RETURN, notes)
            found = self._restore_all()
            self._finish()
        return found

    def _check_heads(self) -> None:
        for cluster in self._clusters:
            if self._managers[cluster.name].inventory().state is ClusterState.DOUBLE:
                raise WrongStateError(
                    f"Cluster {cluster.name} has more than one head: stop it, and start it again. Nothing was changed."
                )

    def _take(self, stack: ExitStack) -> None:
        """Take all locks, in the order of names; if one fails, finish those that were taken."""
        self._held = {}
        try:
            for cluster in self._clusters:
                marker = self._markers[cluster.name]
                self._jobs[cluster.name].prune(marker.read())
                held = marker.take(OPERATION, RotationPhase.BEGIN, heartbeat_s=self._heartbeat_s)
                self._held[cluster.name] = stack.enter_context(held)
        except BaseException:
            for held in self._held.values():
                if not held.is_resumed:
                    held.finish()
            raise

    def _load_notes(self) -> RotationNotes:
        """Return the most advanced notes of an interrupted rotation, else new ones."""
        found = [RotationNotes.of(held.marker.details, self._secret.name) for held in self._held.values()]
        if known := [notes for notes in found if notes is not None and self._is_open(notes)]:
            return max(known, key=lambda notes: notes.progress)
        newest = max((version.number for version in self._secret.versions()), default=0)
        return RotationNotes(self._secret.name, newest)

    def _is_open(self, notes: RotationNotes) -> bool:
        """Whether the notes name no version, or one that is still enabled."""
        return notes.version is None or any(one.number == notes.version for one in self._enabled())

    def _back_up(self, notes: RotationNotes) -> None:
        """Back up the jobs of all running clusters before anything changes, since one may fail."""
        if notes.version is not None:
            return
        self._advance(RotationPhase.KEEP, notes)
        try:
            for cluster in self._running():
                self._back_up_jobs_of(cluster)
        except JobBackupError:
            self._call_off(notes)
            raise

    def _back_up_jobs_of(self, cluster: FleetCluster) -> None:
        held = self._held[cluster.name]
        held.advance(held.marker.phase, **self._jobs[cluster.name].back_up(held))

    def _call_off(self, notes: RotationNotes) -> None:
        """Finish the operation if nothing has changed, now or before an interruption."""
        with suppress(CloudError):
            if not any(held.is_resumed for held in self._held.values()) and self._newer(notes) is None:
                for name, held in self._held.items():
                    self._jobs[name].forget(held)
                self._finish()

    def _add_version(self, notes: RotationNotes) -> RotationNotes:
        """Add a version, unless an interrupted rotation did; return the notes with it."""
        if notes.version is not None:
            return notes
        version = self._await_version(notes) if notes.is_asked else self._newer(notes)
        notes = replace(notes, is_asked=True)
        self._advance(RotationPhase.ADD, notes)
        if version is None:
            try:
                self._check()
                version = self._secret.add(new_token())
            except CloudUnreachableError:
                raise  # the version may have been added
            except CloudError:
                self._call_off(notes)
                raise
            self._tell(f"Added {version.name}.")
        return replace(notes, version=version.number)

    def _await_version(self, notes: RotationNotes) -> SecretVersion | None:
        """Wait for a requested version; None if it does not appear."""
        self._tell(f"A version was requested without a response. Waiting for it, {_LATE_TIMEOUT_S:.0f} s at most.")
        deadline = self._clock() + _LATE_TIMEOUT_S
        while (version := self._newer(notes)) is None and self._clock() < deadline:
            self._check()
            self._sleep(_POLL_S)
        return version

    def _ensure_newest(self, notes: RotationNotes) -> RotationNotes:
        """Add the token again if another version appeared late; return the notes with its newest version."""
        newest = max(version.number for version in self._secret.versions())
        if newest == notes.version:
            return notes
        token = read_token(self._clusters[0], str(notes.version))
        self._check()
        again = self._secret.add(token)
        self._tell(f"Version {newest} appeared late and is unused. Added {again.name} with the clusters' token.")
        notes = replace(notes, version=again.number)
        self._advance(RotationPhase.DISABLE, notes)
        return notes

    def _restart_all(self, notes: RotationNotes) -> RotationNotes:
        self._advance(RotationPhase.RESTART, notes)
        for cluster in self._clusters:
            if cluster.name in notes.restarted:
                continue
            manager, held = self._managers[cluster.name], self._held[cluster.name]
            self._check()
            if manager.inventory().heads:
                self._back_up_jobs_of(cluster)
                manager.relaunch(held)
                self._tell(f"Ray was started again on the head of {cluster.name}.")
            else:
                self._tell(f"Cluster {cluster.name} has no head: it gets the new token when it is started.")
            self._check()
            manager.restart_slice_setup(held)
            notes = replace(notes, restarted=(*notes.restarted, cluster.name))
            self._advance(RotationPhase.RESTART, notes)
        return notes

    def _running(self) -> list[FleetCluster]:
        return [cluster for cluster in self._clusters if self._managers[cluster.name].inventory().heads]

    def _wait_for_answer(self, cluster: FleetCluster) -> None:
        """Wait until a cluster answers; it may not answer or refuse the token meanwhile."""
        deadline = self._clock() + _ANSWER_TIMEOUT_S
        while True:
            self._check()
            try:
                with self._reach(cluster):
                    self._tell(f"Cluster {cluster.name} answers with the new token.")
                    return
            except (FleetError, RayJobsError) as error:
                if self._clock() >= deadline:
                    raise FleetError(
                        f"Cluster {cluster.name} does not answer with the new token after {_ANSWER_TIMEOUT_S:.0f} s: "
                        f"{error} The old version stays enabled. Run 'rotate-token' again once the cluster is repaired."
                    ) from None
            self._sleep(_POLL_S)

    def _disable_older(self, version: int) -> None:
        for one in self._enabled():
            if one.number < version:
                self._check()
                self._secret.change(one, "disable")
                self._tell(f"Disabled {one.name}.")

    def _restore_all(self) -> list[RestoreResult]:
        """Restore the jobs of all clusters, even if those of one fail; return the results."""
        found, problems = list[RestoreResult](), list[FleetError]()
        for cluster in self._clusters:
            manager, jobs, held = self._managers[cluster.name], self._jobs[cluster.name], self._held[cluster.name]
            if jobs.are_awaited(held) and not manager.inventory().heads:  # lost meanwhile; only the holder may start it
                self._check()
                manager.relaunch(held)
                self._tell(f"Cluster {cluster.name} had lost its head, and jobs wait for it: it was created again.")
            try:
                found += jobs.restore(held)
            except (JobRestoreError, AbandonedJobsError) as error:
                problems.append(error)
        if problems:
            raise type(problems[0])(" ".join(map(str, problems)))
        return found

    def _newer(self, notes: RotationNotes) -> SecretVersion | None:
        return next((one for one in self._enabled() if one.number > notes.before), None)

    def _enabled(self) -> list[SecretVersion]:
        return [version for version in self._secret.versions() if version.state == _ENABLED]

    def _check(self) -> None:
        for held in self._held.values():
            held.check()

    def _advance(self, phase: RotationPhase, notes: RotationNotes) -> None:
        for held in self._held.values():
            held.advance(phase, **asdict(notes))

    def _finish(self) -> None:
        for held in self._held.values():
            held.finish()
