"""The fields of one config as they were written down, each read when it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Final

from tradewind.calls.errors import SpecError, TranslationError
from tradewind.calls.references import CodeFolder
from tradewind.calls.spec import Encoder, decode
from tradewind.marin.era.building import builder
from tradewind.marin.era.table import versions

NO_CODE: Final = CodeFolder(Path("/nonexistent"))
_LONGEST_SHOWN: Final = 80


class Given:
    """What a config was given.

    Attributes:
        of: The era's class, with dots.
        at: Where in the step's config it stands.
    """

    def __init__(self, of: str, at: str, fields: Mapping[str, Any]) -> None:
        self.of = of
        self.at = at
        self._fields = dict(fields)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._fields))

    def read(self, name: str) -> Any:
        """The value of a field, which stays."""
        return decode(self._fields[name])

    def take(self, name: str) -> Any:
        """The value of a field, which is dealt with."""
        return decode(self._fields.pop(name))

    def drop(self, name: str) -> None:
        """A field is dealt with, and its value is never read: its class may be gone."""
        del self._fields[name]

    def is_default(self, name: str) -> bool:
        """Whether a field has the value that it had when nobody gave one."""
        spec = next((spec for spec in dataclasses.fields(builder().find(self.of)) if spec.name == name), None)
        if spec is None or (spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING):
            return False
        default = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
        try:
            return bool(Encoder(NO_CODE).encode(default, f"{self.at}.{name}") == self._fields[name])
        except SpecError:  # the path of another step's output, or such
            return False

    def is_all_default(self) -> bool:
        """Whether every field has the value that it had when nobody gave one."""
        return all(map(self.is_default, self))

    def refusal(self, name: str, why: str = "it has no counterpart there") -> TranslationError:
        """The error that the value of a field is."""
        value = self._fields[name]
        shown = value.get("of", value) if isinstance(value, dict) else value
        return TranslationError(
            f"{self.at}.{name} is {str(shown)[:_LONGEST_SHOWN]!s}, which {self.of} of {era(self.of)} took, and "
            f"{installed(self.of)} on the cluster cannot be given: {why}."
        )

    def class_refusal(self, why: str = "it has no such class") -> TranslationError:
        """The error that the config as a whole is."""
        return TranslationError(
            f"{self.at} is a {self.of} of {era(self.of)}, and {installed(self.of)} on the cluster cannot be given it: "
            f"{why}."
        )


def era(name: str) -> str:
    """The library of a dotted name and the version that configs were written for."""
    library = name.partition(".")[0]
    return f"{library} {versions().get(library, 'of an unknown version')}"


def installed(name: str) -> str:
    """The library of a dotted name and the version that is installed here."""
    return _installed(name.partition(".")[0])


@cache
def _installed(library: str) -> str:
    for distribution in packages_distributions().get(library, ()):
        try:
            return f"{library} {version(distribution)}"
        except PackageNotFoundError:
            continue
    return f"{library}, which is not installed,"
