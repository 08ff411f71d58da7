"""The token of clusters is changed: their secret gets a new version, and every cluster that shares it is restarted.

A cluster knows the token that it was started with, and no other. So the old version is switched off only when all of
them answer with the new one. What was interrupted is gone on with from the clusters' markers: the number of the newest
version of before is written there before another one is added, so whatever is newer is the one that was added.

Hosts fetch the newest version, whichever that is. One whose answer was lost may come late: it is waited for before
another one is added, and one that comes later still is switched off, with the token put on top once more.
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
_ANSWER_S: Final = 600.0
_LATE_S: Final = 120.0
"""Twice what Google gives a request to be done in."""
_LOOK_S: Final = 3.0
_ENABLED: Final = "ENABLED"


class RotationPhase(StrEnum):
    """How far a rotation has come; each is written down before it is begun, and may be done again."""

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
    """What the markers hold of a rotation.

    Attributes:
        secret: The secret's name.
        before: The newest version before; 0 if there was none.
        version: The one that was added.
        restarted: The clusters that were started with it.
        is_asked: Whether one may have been asked for, of which nothing was heard.
    """

    secret: str
    before: int
    version: int | None = None
    restarted: tuple[str, ...] = ()
    is_asked: bool = False

    @staticmethod
    def of(details: Mapping[str, Any], secret: str) -> RotationNotes | None:
        """Those in a marker; None if it has none about ``secret``."""
        before, version = details.get("before"), details.get("version")
        restarted = details.get("restarted")
        if details.get("secret") != secret or not isinstance(before, int):
            return None
        names = tuple(map(str, restarted)) if isinstance(restarted, list) else ()
        number = version if isinstance(version, int) else None
        return RotationNotes(secret, before, number, names, details.get("is_asked") is True)

    @property
    def progress(self) -> tuple[bool, int, bool]:
        """Grows with what was done."""
        return self.version is not None, len(self.restarted), self.is_asked


class TokenRotation:
    """Gives all clusters that share a secret a new token.

    Args:
        acts: What can be done to each of them, by name.
        markers: Their markers, by name.
        jobs: Those of people on each of them, by name.
        hand_out: Given the number of the new version: it renews what keeps tokens here, and connections.
        tell: Given a sentence for each thing that is done.
        reach: Opens the way to a cluster, with the token that is kept here.
        heartbeat_s: How often the markers are renewed.
        clock: Seconds that only grow.
        sleep: Waits.
    """

    def __init__(
        self,
        clusters: Sequence[FleetCluster],
        secret: TokenSecret,
        *,
        acts: Mapping[str, ClusterManager],
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
        self._acts = acts
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
        """Rotate, or go on with a rotation that was interrupted; what became of the jobs of people.

        Raises:
            WrongStateError: A cluster has more than one head. Nothing was done.
            ClusterBusyError: Somebody else is changing one of the clusters. Nothing was done.
            InterruptedOperationError: Another operation on one of them ended before it was done. Nothing was done.
            JobBackupError: The jobs of one could not be kept. Nothing was done.
            FleetError: One does not answer with the new token. The old version is still enabled.
            JobRestoreError, AbandonedJobsError: The token is changed, and some jobs of people are not back.
            FleetError: See ``ClusterManager``. Run again, it goes on from there.
        """
        self._check_heads()
        with ExitStack() as stack:
            self._take(stack)
            notes = self._begun()
            self._keep(notes)
            notes = self._added(notes)
            notes = self._restarted(notes)
            assert notes.version is not None
            self._advance(RotationPhase.RENEW, notes)
            self._hand_out(notes.version)
            self._advance(RotationPhase.ANSWER, notes)
            for cluster in self._running():
                self._wait_for_answer(cluster)
            self._advance(RotationPhase.DISABLE, notes)
            notes = self._on_top(notes)
            assert notes.version is not None
            self._disable_older(notes.version)
            self._advance(RotationPhase.RETURN, notes)
            found = self._brought_back()
            self._finish()
        return found

    def _check_heads(self) -> None:
        for cluster in self._clusters:
            if self._acts[cluster.name].inventory().state is ClusterState.DOUBLE:
                raise WrongStateError(
                    f"Cluster {cluster.name} has more than one head: stop it, and start it again. Nothing was changed."
                )

    def _take(self, stack: ExitStack) -> None:
        """Hold all markers, in the order of names; or none, and leave none half-done for that."""
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

    def _begun(self) -> RotationNotes:
        """The notes of what was interrupted, those that tell of most; else new ones."""
        found = [RotationNotes.of(held.marker.details, self._secret.name) for held in self._held.values()]
        if known := [notes for notes in found if notes is not None and self._is_open(notes)]:
            return max(known, key=lambda notes: notes.progress)
        newest = max((version.number for version in self._secret.versions()), default=0)
        return RotationNotes(self._secret.name, newest)

    def _is_open(self, notes: RotationNotes) -> bool:
        """Whether the version that they name, if they do, is still the token that is to be handed out."""
        return notes.version is None or any(one.number == notes.version for one in self._enabled())

    def _keep(self, notes: RotationNotes) -> None:
        """Keep the jobs of those that are to be restarted: one whose jobs cannot be kept is known before all else."""
        if notes.version is not None:
            return
        self._advance(RotationPhase.KEEP, notes)
        try:
            for cluster in self._running():
                self._keep_jobs_of(cluster)
        except JobBackupError:
            self._call_off(notes)
            raise

    def _keep_jobs_of(self, cluster: FleetCluster) -> None:
        held = self._held[cluster.name]
        held.advance(held.marker.phase, **self._jobs[cluster.name].back_up(held))

    def _call_off(self, notes: RotationNotes) -> None:
        """End it if nothing has changed, now or before it was interrupted: then nothing is half-done."""
        with suppress(CloudError):
            if not any(held.is_resumed for held in self._held.values()) and self._newer(notes) is None:
                for name, held in self._held.items():
                    self._jobs[name].forget(held)
                self._finish()

    def _added(self, notes: RotationNotes) -> RotationNotes:
        """With the version that was added, now or before it was interrupted."""
        if notes.version is not None:
            return notes
        version = self._awaited(notes) if notes.is_asked else self._newer(notes)
        notes = replace(notes, is_asked=True)
        self._advance(RotationPhase.ADD, notes)
        if version is None:
            try:
                self._check()
                version = self._secret.add(new_token())
            except CloudUnreachableError:
                raise  # it may be done all the same
            except CloudError:
                self._call_off(notes)
                raise
            self._tell(f"Added {version.name}.")
        return replace(notes, version=version.number)

    def _awaited(self, notes: RotationNotes) -> SecretVersion | None:
        """The version that was asked for; None if it does not come any more."""
        self._tell(f"A version was asked for, and nothing was heard of it: it is waited for, {_LATE_S:.0f} s at most.")
        deadline = self._clock() + _LATE_S
        while (version := self._newer(notes)) is None and self._clock() < deadline:
            self._check()
            self._sleep(_LOOK_S)
        return version

    def _on_top(self, notes: RotationNotes) -> RotationNotes:
        """With the token as the newest version again, if another one came late."""
        newest = max(version.number for version in self._secret.versions())
        if newest == notes.version:
            return notes
        token = read_token(self._clusters[0], str(notes.version))
        self._check()
        again = self._secret.add(token)
        self._tell(f"Version {newest} came late, and nobody uses it. Added {again.name} with the token of all.")
        notes = replace(notes, version=again.number)
        self._advance(RotationPhase.DISABLE, notes)
        return notes

    def _restarted(self, notes: RotationNotes) -> RotationNotes:
        self._advance(RotationPhase.RESTART, notes)
        for cluster in self._clusters:
            if cluster.name in notes.restarted:
                continue
            acts, held = self._acts[cluster.name], self._held[cluster.name]
            self._check()
            if acts.inventory().heads:
                self._keep_jobs_of(cluster)
                acts.relaunch(held)
                self._tell(f"Ray was started again on the head of {cluster.name}.")
            else:
                self._tell(f"Cluster {cluster.name} has no head: it gets the new token when it is started.")
            self._check()
            acts.restart_slice_setup(held)
            notes = replace(notes, restarted=(*notes.restarted, cluster.name))
            self._advance(RotationPhase.RESTART, notes)
        return notes

    def _running(self) -> list[FleetCluster]:
        return [cluster for cluster in self._clusters if self._acts[cluster.name].inventory().heads]

    def _wait_for_answer(self, cluster: FleetCluster) -> None:
        """That it is silent or refuses the token meanwhile says nothing."""
        deadline = self._clock() + _ANSWER_S
        while True:
            self._check()
            try:
                with self._reach(cluster):
                    self._tell(f"Cluster {cluster.name} answers with the new token.")
                    return
            except (FleetError, RayJobsError) as error:
                if self._clock() >= deadline:
                    raise FleetError(
                        f"Cluster {cluster.name} does not answer with the new token after {_ANSWER_S:.0f} s: {error} "
                        "The old version stays enabled: run 'rotate-token' again once it is mended."
                    ) from None
            self._sleep(_LOOK_S)

    def _disable_older(self, version: int) -> None:
        for one in self._enabled():
            if one.number < version:
                self._check()
                self._secret.change(one, "disable")
                self._tell(f"Disabled {one.name}.")

    def _brought_back(self) -> list[RestoreResult]:
        """What became of the jobs of all; one whose jobs do not come back does not keep those of others away."""
        found, problems = list[RestoreResult](), list[FleetError]()
        for cluster in self._clusters:
            acts, jobs, held = self._acts[cluster.name], self._jobs[cluster.name], self._held[cluster.name]
            if jobs.are_awaited(held) and not acts.inventory().heads:  # lost meanwhile; nobody else may start it
                self._check()
                acts.relaunch(held)
                self._tell(f"Cluster {cluster.name} had lost its head, for which jobs wait: it was made again.")
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
