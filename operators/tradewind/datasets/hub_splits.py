"""Files of each split of a hub's data set, by the conventions of its ``datasets`` library.

The head of ``README.md`` may list configs, each with the globs of its splits
(https://huggingface.co/docs/hub/datasets-manual-configuration). Otherwise the names of files and folders decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from glob import has_magic
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Final

import re2  # globs and names of a hostile repository take linear time
import yaml  # type: ignore[import-untyped]  # of Ray's own requirements

from tradewind.datasets.files import hidden_parts
from tradewind.datasets.token_inputs import ENDINGS
from tradewind.text import did_you_mean, quote_first_names, single_line, truncated_repr

README: Final = "README.md"
MAX_HEAD_BYTES: Final = 1 << 22
_MAX_EVENTS: Final = 200_000
_MAX_DEPTH: Final = 20
_MAX_NAMES: Final = 20
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_COMPARISONS: Final = 50_000_000
_HEAD: Final = re.compile(r"\s*---[ \t]*\r?\n(.*?)(^---[ \t]*\r?$|\Z)", re.DOTALL | re.MULTILINE)
_SHARDED: Final = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATOR: Final = re.compile("[-._ 0-9]")
"""Separates the words of a name."""
_IGNORED: Final = frozenset({README, "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"})
_KINDS: Final = {"json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet"}
_OTHER_KINDS: Final = frozenset({"csv", "tsv", "arrow", "txt", "tar", "xml", "hdf5", "h5", "zip", "lance", "eval"})
_FAVOURITES: Final = ("parquet", "jsonl", "json", "csv")


class HubLayoutError(ValueError):
    """A data set has no files that can be tokenized, or its layout is not supported."""


def split_files(names: Iterable[str], readme: str, part: str | None, what: str) -> dict[str, list[str]]:
    """Map each split of a data set to its files, in the order of the texts.

    Args:
        names: Files of the repository.
        readme: Beginning of its ``README.md``; empty without one.
        part: Name of a config; None for the default.
        what: Name of the data set in errors.

    Raises:
        HubLayoutError: There is no such part, or its files are not of a kind that can be tokenized.
    """
    names = sorted(names)
    configs = _configs(readme, what)
    config = _chosen(configs, part, what)
    folder = str(config.get("data_dir", "")).strip("/")
    inside = {name.removeprefix(f"{folder}/"): name for name in names if not folder or name.startswith(f"{folder}/")}
    if "data_files" in config:
        found = _by_globs(list(inside), config["data_files"], what)
    else:
        if not configs and (scripts := [name for name in names if name == f"{what.rpartition('/')[2]}.py"]):
            raise HubLayoutError(f"{what} is made by its script {scripts[0]}, which is not run: download its data.")
        found = _by_names([name for name in inside if not _is_hidden(name)])
    found = {split: of_split for split, of_split in found.items() if of_split}
    if not found:
        raise HubLayoutError(f"{what} has no data files{f' in {folder}' if folder else ''}.")
    return {split: [inside[name] for name in of_split] for split, of_split in _of_one_kind(found, what).items()}


def _is_hidden(name: str, glob: str = "") -> bool:
    """Whether a file is no data, hidden or in a special folder (``__MACOSX``), and the glob does not name it itself."""
    path, given = PurePosixPath(name), PurePosixPath(glob)
    special, named = (sum(part.startswith("__") for part in each.parent.parts) for each in (path, given))
    is_unnamed = special != named or hidden_parts(name) != hidden_parts(glob)
    return is_unnamed or (path.name in _IGNORED and path.name != given.name)


def _by_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Find the splits by the first convention that any file follows."""
    sharded: dict[str, list[str]] = {}
    for name in names:
        if (found := _SHARDED.fullmatch(name)) is not None:
            sharded.setdefault(found[1], []).append(name)
    if sharded:
        return sharded
    for is_of_folders in (True, False):
        splits = {split: _named(names, words, is_of_folders) for split, words in _KEYWORDS.items()}
        if any(splits.values()):
            return splits
    return {"train": list(names)}


def _named(names: Iterable[str], words: tuple[str, ...], is_of_folders: bool) -> list[str]:
    """Return the names with one of the words in a folder's name, or in the file's, ordered by word and place."""
    ranks = ((_rank(name.rpartition("/")[0 if is_of_folders else 2], words, is_of_folders), name) for name in names)
    return [name for _, name in sorted((rank, name) for rank, name in ranks if rank is not None)]


@lru_cache(maxsize=1024)
def _rank(path: str, words: tuple[str, ...], is_of_folders: bool) -> int | None:
    """Return the number of the library's first pattern that fits: per word alone, first, last, in between."""
    ranks = []
    for part in path.split("/"):
        found = _SEPARATOR.split(part)
        for at, word in enumerate(found):
            is_first, is_last = at == 0, at == len(found) - 1
            if word in words and (is_of_folders or not is_last):
                ranks.append(4 * words.index(word) + (0 if is_first and is_last else 1 if is_first else 3 - is_last))
    return min(ranks, default=None)


def _by_globs(names: Sequence[str], data_files: Any, what: str) -> dict[str, list[str]]:
    from fsspec.utils import glob_translate

    known, found = dict.fromkeys(names), {}
    globs = _globs(data_files, what)
    if sum(map(has_magic, chain.from_iterable(globs.values()))) * len(names) > _MAX_COMPARISONS:
        raise HubLayoutError(f"{what}: {README} has too many globs for {len(names):,} files: download the data set.")
    for split, of_split in globs.items():
        files: dict[str, None] = {}
        for glob in (each.removeprefix("./") for each in of_split):
            if has_magic(glob):
                pattern = re2.compile(glob_translate(glob).replace(r"\Z", r"\z"))  # as RE2 has it
                files |= dict.fromkeys(name for name in names if pattern.match(name) and not _is_hidden(name, glob))
            elif glob in known:
                files[glob] = None
        if not files:
            shown = f"{truncated_repr(split)} as {truncated_repr(of_split)}"
            raise HubLayoutError(f"{what}: {README} gives the split {shown}, which no file matches.")
        found[split] = list(files)
    return found


def _globs(data_files: Any, what: str) -> dict[str, list[str]]:
    """Return the globs of each split, of any form that ``data_files`` may have."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    if all(isinstance(entry, str) for entry in entries):
        return {"train": entries}
    globs: dict[str, list[str]] = {}
    for entry in entries:
        split, path = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        paths: list[Any] = path if isinstance(path, list) else [path]
        if not isinstance(split, str) or split in globs or not all(isinstance(each, str) for each in paths):
            raise HubLayoutError(f"{what}: {README} has data_files with {truncated_repr(entry)}, which is no split.")
        globs[split] = paths
    return globs


def _of_one_kind(splits: Mapping[str, Sequence[str]], what: str) -> dict[str, list[str]]:
    """Keep the files of the most frequent kind, as a data set may have others beside its data."""
    kinds = {split: _kind(names) for split, names in splits.items()}
    if odd := [split for split, kind in kinds.items() if kind not in _KINDS.values()]:
        raise HubLayoutError(
            f"{what}: its split {truncated_repr(odd[0])} has files such as {truncated_repr(splits[odd[0]][0])}. Only "
            f"{', '.join(ENDINGS)} can be tokenized: download the others, and convert them in a step."
        )
    if len(set(kinds.values())) > 1:
        raise HubLayoutError(f"{what} has splits of different kinds of files: {truncated_repr(kinds)}.")
    kind = next(iter(kinds.values()))
    kept = {
        split: [name for name in names if any(_KINDS.get(ending.lower()) == kind for ending in _endings(name))]
        for split, names in splits.items()
    }
    for names in kept.values():
        if odd := [name for name in names if not name.endswith(ENDINGS)]:
            raise HubLayoutError(f"{what}: {odd[0]!r} has an unknown ending: there are {', '.join(ENDINGS)}.")
    return kept


def _kind(names: Iterable[str]) -> str:
    counts = Counter(ending.lower() for name in names for ending in _endings(name))
    known = [ending for ending in counts if ending in _KINDS or ending in _OTHER_KINDS]
    if not known:
        return ""
    first = max(known, key=lambda each: (counts[each], *(each == favourite for favourite in _FAVOURITES), each))
    return _KINDS.get(first, first)


def _endings(name: str) -> list[str]:
    return PurePosixPath(name).name.split(".")[1:]


def _chosen(configs: Sequence[Mapping[str, Any]], part: str | None, what: str) -> Mapping[str, Any]:
    """Return the config of this name, or else the default; an empty one if the data set has none."""
    names = [config["config_name"] for config in configs]
    if part is not None:
        if part in names:
            return configs[names.index(part)]
        if configs or part != "default":
            known = [single_line(name, 60) for name in names[:_MAX_NAMES]] or ["default"]
            raise HubLayoutError(f"{what} has no part {truncated_repr(part)}; {did_you_mean(part, known)}")
    if len(configs) < 2:
        return configs[0] if configs else {}
    default = [config for config in configs if config["config_name"] == "default" or config.get("default") == "true"]
    if len(default) != 1:
        raise HubLayoutError(f"{what} has several parts: give one as its name; there are {quote_first_names(names)}.")
    return default[0]


def _configs(readme: str, what: str) -> list[dict[str, Any]]:
    """Return the configs in the head of ``README.md``; its other fields are not read."""
    head = _HEAD.match(readme)
    if head is None or (not head[2] and len(readme) < MAX_HEAD_BYTES - 3):  # a cut character may be missing
        return []
    try:
        configs = _Fields(head[1]).read("configs")
    except (yaml.YAMLError, ValueError) as error:
        raise HubLayoutError(f"{what}: the head of {README} cannot be read: {single_line(error)}") from error
    if configs is None and not head[2]:
        raise HubLayoutError(f"{what}: the head of {README} has more than {MAX_HEAD_BYTES:,} bytes, and no configs.")
    entries = [] if configs is None else configs
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("config_name"), str) for entry in entries
    ):
        raise HubLayoutError(f"{what}: the configs in {README} are no list of parts, each with a config_name.")
    return entries


class _Fields:
    """Reads one field of a YAML mapping, in bounded time and memory; all its values are texts.

    Args:
        text: The YAML.
    """

    def __init__(self, text: str) -> None:
        self._events = iter(yaml.parse(text, _LOADER))
        self._count = 0

    def read(self, field: str) -> Any:
        """Return the value of the field; None without it."""
        self._next(), self._next()  # stream and document begin
        if not isinstance(self._next(), yaml.MappingStartEvent):
            return None
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            name = self._value(key, 1, is_kept=True)
            value = self._value(self._next(), 1, is_kept=name == field)
            if name == field:
                return value
        return None

    def _next(self) -> Any:
        self._count += 1
        if self._count > _MAX_EVENTS:
            raise ValueError(f"it has more than {_MAX_EVENTS:,} values")
        return next(self._events, None)  # a head may be empty

    def _value(self, event: Any, depth: int, *, is_kept: bool) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        if isinstance(event, yaml.ScalarEvent):
            return event.value
        if isinstance(event, yaml.AliasEvent):
            if is_kept:
                raise ValueError(f"the alias *{event.anchor} is not supported in 'configs'")
            return None
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(item, depth + 1, is_kept=is_kept))
            return items if is_kept else None
        entries = {}
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            name = self._value(key, depth + 1, is_kept=is_kept)
            value = self._value(self._next(), depth + 1, is_kept=is_kept)
            if is_kept:
                entries[str(name)] = value
        return entries if is_kept else None
