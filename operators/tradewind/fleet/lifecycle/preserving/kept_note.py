"""What the marker of a cluster says of the jobs that were kept: which, by whom, and where they lie.

It is for people, and to see what would be lost. Nothing is ever read from the place that it names: whoever can write
the bucket could name any.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tradewind.fleet.errors import FleetError, on_one_line
from tradewind.fleet.marker_value import FoundMarker
from tradewind.ray_jobs.keeping.kept_job import LONGEST_ID

_HOST: Final = "kept_on"
_FOLDER: Final = "kept_in"
_BY: Final = "kept_by"
_JOBS: Final = "kept_jobs"
_LEFT: Final = "left_behind"
_KEYS: Final = frozenset({_HOST, _FOLDER, _BY, _JOBS})
_MOST_NAMED: Final = 5
_LONGEST_WORDS: Final = 4096
_LONGEST_SHOWN: Final = 100
_MOST_JOBS: Final = 5000
_MOST_BYTES: Final = 512 * 1024
"""Of their ids in the marker, which could not be read any more if it had more than 1 MiB."""


class BadNoteError(FleetError):
    """The marker does not say which jobs were kept, so nobody knows what would be lost."""


class TooManyJobsError(FleetError):
    """More jobs were kept than a marker can name."""


@dataclass(frozen=True)
class KeptNote:
    """Jobs that were kept and are not back.

    Attributes:
        by: Who kept them.
        host: On which machine they lie.
        folder: In which folder there.
        jobs: Their ids.
        left: The ids of others, which were kept elsewhere, and which somebody went on without.
    """

    by: str
    host: str
    folder: str
    jobs: tuple[str, ...]
    left: tuple[str, ...] = ()

    @staticmethod
    def of(details: Mapping[str, Any], cluster: str) -> KeptNote | None:
        """That in the marker of ``cluster``; None if nothing was kept.

        Raises:
            BadNoteError: It cannot be read.
        """
        if not _KEYS & details.keys():
            return None
        words, lists = [details.get(key) for key in (_BY, _HOST, _FOLDER)], [details.get(_JOBS), details.get(_LEFT, [])]
        is_note = all(_is_within(word, _LONGEST_WORDS) for word in words) and all(
            isinstance(jobs, list) and all(_is_within(job, LONGEST_ID) for job in jobs) for jobs in lists
        )
        if not is_note or sum(len(jobs or ()) for jobs in lists) > _MOST_JOBS:
            raise BadNoteError(
                f"Cluster {cluster}: its marker does not say which jobs of people were kept, {_MOST_JOBS:,} at most: "
                "ask who began, and have what was begun ended with 'tradewind cluster stop', or put the marker right."
            )
        by, host, folder = map(str, words)
        jobs, left = (tuple(map(str, found or ())) for found in lists)
        return KeptNote(by, host, folder, jobs, left)

    def to_details(self) -> dict[str, Any]:
        """The same for the marker."""
        left = {_LEFT: list(self.left)} if self.left else {}
        return {_BY: self.by, _HOST: self.host, _FOLDER: self.folder, _JOBS: list(self.jobs), **left}

    def check(self, cluster: str) -> KeptNote:
        """The same, if the marker of ``cluster`` can hold it.

        Raises:
            TooManyJobsError: It cannot: nobody could read it then.
        """
        size, count = len(json.dumps(self.to_details())), len(self.jobs) + len(self.left)
        if count > _MOST_JOBS or size > _MOST_BYTES:
            raise TooManyJobsError(
                f"Cluster {cluster}: {count:,} jobs of people with {size:,} bytes of ids are more than its "
                f"marker can name, which is {_MOST_JOBS:,} with {_MOST_BYTES:,}: have some of them end first. Ray was "
                "not touched."
            )
        return self

    def lies_in(self, host: str, folder: str) -> bool:
        """Whether it is about what lies there."""
        return (self.host, self.folder) == (host, folder)

    def with_left(self, *jobs: str) -> KeptNote:
        """The same, which says that those of ``jobs`` were left behind that are not among its own."""
        return replace(self, left=tuple(dict.fromkeys(job for job in jobs if job not in self.jobs)))

    def missing(self, found: Collection[str]) -> list[str]:
        """Which of the jobs are not among those that were ``found``."""
        return [job for job in self.jobs if job not in found]

    def sentence(self, jobs: Collection[str]) -> str:
        """Whose ``jobs`` of it are and where, as the end of a sentence."""
        count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        by, host, folder = map(on_one_line, (self.by, self.host, self.folder))
        return f"{count} of people that {by} kept on {host} in {folder} ({_named(list(jobs))})"


def interruption(found: FoundMarker | None, cluster: str, now: float) -> str:
    """Who left ``cluster`` half-changed, and whose jobs are kept since then, in sentences; empty if nobody did."""
    if found is None or not found.is_interrupted:
        return ""
    sentence, note = found.sentence(cluster, now), KeptNote.of(found.marker.details, cluster)
    return f"{sentence} Not back yet: {note.sentence(note.jobs)}." if note is not None and note.jobs else sentence


def _named(jobs: list[str]) -> str:
    more = len(jobs) - _MOST_NAMED
    shown = [on_one_line(job[:_LONGEST_SHOWN]) for job in jobs[:_MOST_NAMED]]
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _is_within(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest
