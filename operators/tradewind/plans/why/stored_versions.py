"""Version records as the store holds them: read together in rounds, each once, within a number of requests.

A record names its deeper inputs only, so reading one leads to the next; each round reads all that the last one named.
What is broken, foreign or gone is left out, for nothing depends on it but an explanation.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tradewind.plans.why.version_graph import Version, deep_inputs, is_version, version_hash
from tradewind.records.step_info import INFO_FILE, BadInfoError, parse_info
from tradewind.steps import ResolvedStep
from tradewind.steps.paths import version_name
from tradewind.storage import Roots
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.bounded import Content
from tradewind.storage.files import list_names, read_contents

logger = logging.getLogger(__name__)

T = TypeVar("T")
MOST_AT_ONCE: Final = 32
_HASH: Final = re.compile("[0-9a-f]{6}")


@dataclass
class Budget:
    """How many requests may still be made."""

    left: int

    def take(self, wanted: Sequence[T]) -> Sequence[T]:
        """As many of ``wanted`` as may be asked for, which are counted."""
        taken = wanted[: self.left]
        self.left -= len(taken)
        return taken


class StoredVersions:
    """The records that were read, and those of the steps at hand, by name and hash.

    Args:
        roots: Below what is read where a record says so; what one names elsewhere counts as gone.
    """

    def __init__(self, budget: Budget, roots: Roots, steps: Iterable[ResolvedStep] = ()) -> None:
        self._budget = budget
        self._roots = roots
        self._steps = {step.version_name: step for step in steps}
        self._versions: dict[str, Version] = {}
        self._places: dict[str, str] = {}
        """``name-hash`` → the output path where its record should be, for all that a record has named."""
        self._asked: set[str] = set()

    def read(self, output_paths: Iterable[str]) -> dict[str, Version]:
        """The records beside those outputs that have one."""
        infos = read_infos(self._budget.take(list(output_paths)))
        for path, info in infos.items():
            self._keep(path, info)
        return {path: info["version"] for path, info in infos.items()}

    def read_deeper(self) -> None:
        """Read what the records name, and what those name, until nothing is left to read or no request."""
        while wanted := [text for text in self._places if text not in self._steps and text not in self._asked]:
            batch = self._budget.take(wanted)
            if not batch:
                return
            self._asked.update(batch)
            infos = read_infos([self._places[text] for text in batch])
            for text in batch:
                info = infos.get(self._places[text])
                if info is not None and _is_of(info["version"], text, self._places[text]):
                    self._keep(self._places[text], info, text)

    def lookup(self, name: str, hash_: str) -> Version | None:
        """The record of one version, if it is at hand."""
        text = version_name(name, hash_)
        step = self._steps.get(text)
        return step.version if step is not None else self._versions.get(text)

    def _keep(self, output_path: str, info: Mapping[str, Any], text: str | None = None) -> None:
        """Keep the record of ``text``, and note where the inputs that it only names should lie.

        That is below its own prefix, or where its info says.
        """
        version, paths = info["version"], info.get("dependencies")
        prefix = _prefix_of(output_path, version["name"])
        if text is None and prefix is not None:
            text = output_path.removeprefix(prefix)
        if text is not None:
            self._versions[text] = version
            self._asked.add(text)
        if prefix is not None:
            for text in deep_inputs(version):
                self._note(text, prefix + text)
        if isinstance(paths, list) and len(paths) == len(version["dependencies"]):
            for text, path in zip(version["dependencies"], paths, strict=True):
                if isinstance(text, str) and text not in self._asked:
                    self._note(text, path, instead=True)

    def _note(self, text: str, path: Any, *, instead: bool = False) -> None:
        """Note where the record of ``text`` should lie, if that may be looked at."""
        if (instead or text not in self._places) and self._roots.allow(path):
            self._places[text] = path


def read_infos(output_paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The step infos beside those outputs, by output path; only whole ones.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    found = read_contents([posixpath.join(path, INFO_FILE) for path in output_paths])
    infos = {posixpath.dirname(file): _parsed(file, content) for file, content in found.items()}
    return {path: info for path, info in infos.items() if info is not None}


def list_folders(folders: Sequence[str]) -> dict[str, list[str]]:
    """The names directly below each folder, asked for together.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return dict(zip(folders, pool.map(_names_below, folders), strict=True))


def _names_below(folder: str) -> list[str]:
    try:
        return list_names(folder)
    except (NotADirectoryError, StoreRefusedError) as error:
        logger.debug("Left out %s, which cannot be listed: %s", folder, error)
        return []


def _parsed(file: str, found: Content) -> dict[str, Any] | None:
    try:
        info = parse_info(file, found)
    except BadInfoError as error:
        logger.debug("%s", error)
        return None
    if is_version(info.get("version")):
        return info
    logger.debug("Left out %s, which has no version record.", file)
    return None


def _prefix_of(output_path: str, name: str) -> str | None:
    """What comes before ``name-hash`` in an output path; None if the path was given by the step."""
    head, _, digits = output_path.rpartition("-")
    return head.removesuffix(name) if head.endswith(name) and _HASH.fullmatch(digits) else None


def _is_of(version: Version, text: str, place: str) -> bool:
    """Whether the record at ``place`` is that of ``text``; a place that was given may hold any version by now."""
    name, _, hash_ = text.rpartition("-")
    return version["name"] == name and (place.endswith(text) or version_hash(version) == hash_)
