"""What a file of pinned requirements gives to some requirements: versions, and what else they need.

A ``requirements.lock`` or ``requirements.txt`` holds versions; who needs what is known only as far as its ``# via``
notes tell it, as pip-tools, ``uv pip compile`` and ``uv export`` write them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tradewind.ray_jobs.errors import BadDependencyGroupError

NOT_INSTALLED: Final = frozenset({"ray"})
"""What the cluster runs on; Ray refuses an environment that brings another version of it."""


def normal(name: str) -> str:
    """A package's, extra's or group's name as it is compared: ``Foo_Bar`` is ``foo-bar``."""
    return str(canonicalize_name(name))


class PinnedRequirements:
    """A file of pinned requirements."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.pins: dict[str, list[Requirement]] = defaultdict(list)
        self._needs: dict[str, set[str]] = defaultdict(set)
        current = None
        in_via = False
        for line in text.replace("\\\n", " ").splitlines():
            code, _, note = line.partition("#") if not line.startswith(" ") else ("", "", line.strip().lstrip("#"))
            requirement = _requirement(code)
            if requirement is not None:
                current, in_via = normal(requirement.name), False
                if _is_pin(requirement):
                    self.pins[current].append(requirement)
            note = note.strip()
            in_via = bool(re.match(r"via\b", note)) or (in_via and requirement is None and bool(note))
            if in_via and current is not None:
                for name in re.split(r"[,\s]+", note.removeprefix("via")):
                    self._needs[normal(name)].add(current)

    def pinned(self, requirements: Sequence[Requirement]) -> list[str]:
        """The requirements with the file's versions, and what they need as far as the file tells it.

        Raises:
            BadDependencyGroupError: A pinned version is not one that is asked for.
        """
        lines = {self._line(requirement) for requirement in requirements}
        waiting = [normal(requirement.name) for requirement in requirements]
        direct, seen = set(waiting), set(waiting)
        while waiting:
            new = self._needs.get(waiting.pop(), set()) - seen
            seen |= new
            waiting.extend(new)
        lines |= {str(pin) for name in seen - direct for pin in self.pins.get(name, ())}
        return sorted(line for line in lines if normal(Requirement(line).name) not in NOT_INSTALLED)

    def _line(self, wanted: Requirement) -> str:
        pins = self.pins.get(normal(wanted.name), [])
        if len(pins) != 1 or wanted.url:
            return str(wanted)  # it is not pinned, or in several ways for several machines: the cluster decides
        version = next(iter(pins[0].specifier)).version
        if not wanted.specifier.contains(version, prereleases=True):
            raise BadDependencyGroupError(
                f"{self.file} pins {wanted.name}=={version}, and the project wants {wanted.name}{wanted.specifier}: "
                "write the lock anew."
            )
        pinned = Requirement(str(wanted))
        pinned.specifier = pins[0].specifier
        return str(pinned)


def _requirement(code: str) -> Requirement | None:
    text = re.split(r"\s--?[a-z]", " " + code, maxsplit=1)[0].strip()
    try:
        return Requirement(text) if text else None
    except InvalidRequirement:
        return None


def _is_pin(requirement: Requirement) -> bool:
    return len(requirement.specifier) == 1 and all(
        each.operator in ("==", "===") and not each.version.endswith("*") for each in requirement.specifier
    )
