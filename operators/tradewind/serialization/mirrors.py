"""Locations of mirrored paths: the path in the run's own prefix, and the sources to copy from.

Only a path below a prefix has a counterpart in another region. A path that could leave its prefix is refused before any
claim.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tradewind.records.parsing import FLAG, NUMBER, TEXT, RecordFormatError, is_relative, list_of, parse_fields
from tradewind.serialization.errors import SpecError
from tradewind.steps.paths import OWN_FOLDERS, is_absolute
from tradewind.steps.placeholders import Mirror
from tradewind.storage import Location, StorageError, named_path, resolve_location

_KINDS: Final = {
    "field": TEXT,
    "text": TEXT,
    "prefix": TEXT,
    "name": TEXT,
    "path": TEXT,
    "sources": list_of(TEXT),
    "budget_gb": NUMBER.or_null(),
    "is_output": FLAG,
}


@dataclass(frozen=True)
class MirroredPath:
    """A mirrored path and its possible sources.

    Attributes:
        field: The first field that holds it.
        text: The text in the config.
        prefix: The run's prefix.
        name: Relative to each prefix.
        path: The path that the step receives.
        sources: The prefixes to copy from, in this order; empty for an output that the run makes in place.
        budget_gb: Maximum gigabytes to copy; None for no limit.
        is_output: A step of the run makes it.
    """

    field: str
    text: str
    prefix: str
    name: str
    path: str
    sources: tuple[str, ...]
    budget_gb: float | None
    is_output: bool = False

    @property
    def is_made_here(self) -> bool:
        """Whether the run's earlier steps make it in its place."""
        return self.is_output and not self.sources

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sources": list(self.sources)}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> MirroredPath:
        """Parse the mirrored path in a spec.

        Raises:
            SpecError: It is not a mirrored path.
        """
        try:
            known = parse_fields(fields, _KINDS, _KINDS, "a mirrored path's")
        except RecordFormatError as error:
            raise SpecError(f"The mirrored paths in an attempt's file cannot be read, because {error}.") from None
        return MirroredPath(**{**known, "sources": tuple(known["sources"])})


def locate_mirrors(mirrors: Iterable[Mirror], prefixes: Sequence[str]) -> tuple[MirroredPath, ...]:
    """Locate each path once, with the largest of its budgets; ``prefixes`` are those of the deployment's regions.

    Raises:
        SpecError: A path is not below a prefix, or could leave it.
    """
    placed: dict[str, MirroredPath] = {}
    for mirror in mirrors:
        new = _locate(mirror, prefixes)
        first = placed.get(new.text, new)
        budgets = [each.budget_gb for each in (first, new) if each.budget_gb is not None]
        placed[new.text] = replace(first, budget_gb=max(budgets) if len(budgets) == 2 else None)
    return tuple(placed.values())


def with_local_paths(config: Any, paths: Mapping[str, str]) -> Any:
    """Replace the texts of mirrors in an encoded config by the paths (text → path)."""
    if isinstance(config, str):
        return paths.get(config, config)
    if isinstance(config, list):
        return [with_local_paths(item, paths) for item in config]
    if isinstance(config, dict):
        return {key: with_local_paths(item, paths) for key, item in config.items()}
    return config


def _locate(mirror: Mirror, prefixes: Sequence[str]) -> MirroredPath:
    from tradewind.records.manifests import is_record  # it loads fsspec, which a plain job may lack

    path = mirror.path.rstrip("/")
    parts = path.partition("://")[2].split("/") if "://" in path else path.removeprefix("/").split("/")
    if not path or not is_relative("/".join(parts)):
        raise _refusal(mirror, "has '.', '..' or an empty name as a part, or is empty")
    if own := next((part for part in parts if part in OWN_FOLDERS or is_record(part)), None):
        raise _refusal(mirror, f"has {own!r} as a part, where Tradewind keeps its own records")
    home = resolve_location(mirror.prefix)
    others = [prefix for prefix in dict.fromkeys(prefixes) if resolve_location(prefix) != home]
    if not is_absolute(path):
        return _at(mirror, path, [] if mirror.is_output else others)
    if (name := _name_below(mirror, mirror.prefix)) is not None:
        return _at(mirror, name, [] if mirror.is_output else others)
    for source in others:
        if (name := _name_below(mirror, source)) is not None:
            return _at(mirror, name, [source, *(other for other in others if other != source)])
    known = ", ".join([mirror.prefix, *others])
    raise _refusal(
        mirror,
        f"is below none of the known prefixes ({known})",
        "give a path below a prefix, or have an administrator add its prefix to mirror_prefixes in the [tradewind] "
        "section of airflow.cfg",
    )


def _at(mirror: Mirror, name: str, sources: Sequence[str]) -> MirroredPath:
    path = posixpath.join(mirror.prefix, name)
    try:
        Location.of(path, mirror.field)
    except StorageError as error:
        raise SpecError(str(error)) from error
    return MirroredPath(
        mirror.field, mirror.text, mirror.prefix, name, path, tuple(sources), mirror.budget_gb, mirror.is_output
    )


def _name_below(mirror: Mirror, prefix: str) -> str | None:
    """Return the path relative to ``prefix``, if it is below."""
    try:
        place, top = (resolve_location(path, follows_links=False) for path in (mirror.path, prefix))
    except StorageError as error:
        raise _refusal(mirror, f"cannot be opened ({error})") from error
    return place.name.removeprefix(top.name).lstrip("/") if place.is_below(top) else None


def _refusal(
    mirror: Mirror, problem: str, advice: str = "give a path below the prefix, such as 'data/raw'"
) -> SpecError:
    return SpecError(f"{named_path(mirror.path, f'{mirror.field}: mirrored()')} {problem}: {advice}.")
