"""Removing garbage: withdrawn by its lease first, so that nobody reuses what is half gone; its lease goes last."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from tradewind.plans.garbage.collection import GUARD_FILE, Garbage
from tradewind.plans.garbage.withdrawal import withdraw
from tradewind.records.attempts import ATTEMPTS_FOLDER
from tradewind.records.leases.holding import Keep, OutputBusyError, check_goes_on, is_taken
from tradewind.records.leases.lease import LEASE_FILE, Lease, Phase, lease_path, new_owner
from tradewind.records.leases.store import Held, LeaseClaim, LeaseStore
from tradewind.records.outputs.finding import own_files
from tradewind.records.outputs.found_files import found_by_record
from tradewind.records.outputs.manifests import is_record
from tradewind.records.outputs.pins import is_pinned
from tradewind.records.outputs.removal import remove_listed
from tradewind.records.record import RecordState
from tradewind.records.status import STATUS_FILE
from tradewind.storage import file_system_at
from tradewind.storage.swap import remove_if
from tradewind.storage.trees import StoredFile


def withdraw_results(
    garbage: Sequence[Garbage], by: Mapping[str, Any], also_below: Collection[str] = ()
) -> list[Garbage]:
    """Withdraw those that are results, not pinned, and read by no attempt at work; all of them as they are then.

    One look at what is at work serves all of them, so they should be many, but not more than can be marked, looked for
    and withdrawn within half a minute or so.

    Args:
        also_below: Where attempts may be at work, besides the prefixes at which they were found.

    Raises:
        UnreadableRecordError: It cannot be known what is read.
        StoreUnavailableError: The store does not answer.
    """
    results = {each.path: each.lease for each in garbage if each.state is RecordState.FINISHED}
    ends = withdraw(results, {*also_below, *(each.prefix for each in garbage)}, by)
    return [_after(each, ends.get(each.path)) for each in garbage]


def remove_garbage(garbage: Garbage, by: Mapping[str, Any], keep: Keep) -> None:
    """Remove an output: withdraw it, so that nobody reuses what is half gone, then its files, and its lease last.

    Raises:
        OutputBusyError: It is needed now: somebody has pinned it, made it again, or is at work on it.
        LeaseLostError: Somebody took the turn while files were removed; what is left is theirs.
    """
    if is_pinned(garbage.path):
        raise OutputBusyError(f"{garbage.path} was pinned meanwhile.")
    if garbage.problem is None and garbage.state is RecordState.FINISHED:
        [garbage] = withdraw_results([garbage], by)
    if garbage.problem is not None:
        raise garbage.problem
    store = LeaseStore(garbage.path)
    held = _withdrawn(store, garbage, by)
    with keep(store, held) as turn:
        check_goes_on(turn)
        if is_pinned(garbage.path):  # who pins it from now on sees this turn, and is refused
            turn.finish(phase=Phase.STOPPED)
            raise OutputBusyError(f"{garbage.path} was pinned meanwhile: its files stay.")
        files = _own_and_not_found(garbage)
        files.sort(key=lambda file: file.path != STATUS_FILE)  # first, since it is what Marin's executor believes
        is_attempt = [file.path.startswith(f"{ATTEMPTS_FOLDER}/") for file in files]  # they say what to leave alone
        for attempts in (False, True):
            these = [file for file, is_of_attempt in zip(files, is_attempt, strict=True) if is_of_attempt is attempts]
            remove_listed(garbage.path, these, lambda: check_goes_on(turn))
        _remove_empty_folders(garbage.path)
        last = turn.finish()  # right before the last file goes, so that it is surely ours
        remove_if(lease_path(garbage.path), last.tag)


def _own_and_not_found(garbage: Garbage) -> list[StoredFile]:
    """What to remove: the records, and all that was not there before the first attempt."""
    files = [file for file in own_files(garbage.path) if file.path not in (LEASE_FILE, GUARD_FILE)]
    found = found_by_record(garbage.path, garbage.lease)
    if found is None:  # nobody can say what was there before, so what is no record stays
        return [file for file in files if is_record(file.path)]
    return [file for file in files if file.path not in found or is_record(file.path)]


def _after(garbage: Garbage, end: Lease | OutputBusyError | None) -> Garbage:
    if isinstance(end, OutputBusyError):
        return replace(garbage, problem=end)
    return replace(garbage, state=RecordState.STOPPED, lease=end) if end is not None else garbage


def _withdrawn(store: LeaseStore, garbage: Garbage, by: Mapping[str, Any]) -> Held:
    seen = store.read()
    if is_taken(seen) or (seen.lease if seen else None) != garbage.lease:
        raise OutputBusyError(f"{garbage.path} was changed meanwhile.")
    lease = garbage.lease
    claim = LeaseClaim(1 + (lease.attempt if lease else 0), "", "", by, lease.version if lease else "")
    held = store.claim(seen, claim)
    if held is None:
        raise OutputBusyError(f"{garbage.path} was changed meanwhile.")
    return store.change(held, phase=Phase.RUNNING, incarnation=new_owner())


def _remove_empty_folders(output_path: str) -> None:
    """On a local disk, leave no folder within the output that has become empty."""
    fs, name = file_system_at(output_path)
    if isinstance(fs, LocalFileSystem):
        for folder, _, _ in os.walk(name, topdown=False):
            with suppress(OSError):  # it holds what stays
                os.rmdir(folder)
