"""Another tag for some clusters in the text of a fleet file: nothing else in it changes, neither comments nor order.

So the file is not written anew from its values. The tag that a cluster has of its own is replaced where it stands; a
cluster that has the file's default gets one of its own, since others keep the default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml  # type: ignore[import-untyped]  # of Ray's own requirements

from tradewind.fleet.errors import BadFileError, FleetError
from tradewind.fleet.file.load import load_fleet
from tradewind.fleet.file.yaml_document import read_yaml
from tradewind.storage.files import write_text

_FIELD: Final = "tag"


@dataclass(frozen=True)
class _Edit:
    """Text that takes the place of what stands between two offsets."""

    start: int
    end: int
    text: str


def set_tags(file: Path, clusters: Collection[str], tag: str) -> bool:
    """Give these clusters this tag in ``file``; whether that changed anything.

    Raises:
        FleetError: The file cannot be used, before or after that, or the tag of one cannot change alone, since others
            stand for the same lines. The file is as it was then.
    """
    fleet = load_fleet(file)
    text = file.read_text()
    wanted = [name for name in clusters if fleet.cluster(name).tag != tag]
    changed = _edited(text, _edits(str(file), text, wanted, tag))
    if changed == text:
        return False
    expected = read_yaml(file).value
    for name in wanted:
        expected["clusters"][name] |= {_FIELD: tag}
    trial = file.with_name(f".{file.name}.new")
    try:
        write_text(str(trial), changed)
        if read_yaml(trial).value != expected:
            raise FleetError(f"The tag of {', '.join(wanted)} cannot be changed in {file}: write tag: {tag!r} there.")
        load_fleet(trial)
    except BadFileError as error:
        raise FleetError(str(error).replace(str(trial), str(file))) from None
    finally:
        trial.unlink(missing_ok=True)
    write_text(str(file), changed)
    return True


def _edited(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _edits(file: str, text: str, wanted: Collection[str], tag: str) -> list[_Edit]:
    nodes = dict(_clusters(yaml.compose(text, Loader=yaml.SafeLoader)))
    standing = [id(node) for node in nodes.values()]
    edits = []
    for name in wanted:
        if standing.count(id(nodes[name])) > 1:
            raise FleetError(
                f"{file}: cluster {name} shares its lines with another: write them out, then tag it alone."
            )
        edits.append(_edit(text, nodes[name], f'"{tag}"'))
    return edits


def _clusters(root: yaml.MappingNode) -> Iterator[tuple[str, yaml.MappingNode]]:
    for key, value in root.value:
        if key.value == "clusters":
            yield from ((name.value, node) for name, node in value.value)


def _edit(text: str, cluster: yaml.MappingNode, quoted: str) -> _Edit:
    """What gives the cluster its tag: the old one replaced, else a new entry after its last one of a single line."""
    entries = cluster.value
    for key, value in entries:
        if key.value == _FIELD:
            return _Edit(value.start_mark.index, value.end_mark.index, quoted)
    if cluster.flow_style:
        inside = cluster.start_mark.index + 1
        return _Edit(inside, inside, f"{_FIELD}: {quoted}{', ' if entries else ''}")
    column = " " * entries[0][0].start_mark.column
    short = [value for key, value in entries if isinstance(value, yaml.ScalarNode) and _on_one_line(key, value)]
    if not short:
        start = entries[0][0].start_mark.index
        return _Edit(start, start, f"{_FIELD}: {quoted}\n{column}")
    ending = text.find("\n", short[-1].end_mark.index)
    at = len(text) if ending < 0 else ending
    return _Edit(at, at, f"\n{column}{_FIELD}: {quoted}")


def _on_one_line(key: yaml.Node, value: yaml.Node) -> bool:
    return bool(key.start_mark.line == value.end_mark.line)
