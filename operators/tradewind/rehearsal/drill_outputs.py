"""Whether a disturbed run made what an undisturbed one made, file by file, by the manifests of both.

Two things may differ and say nothing: when a metric was measured, and under which prefix an output lies. Left out are
checkpoints, whose files have random names (what is in them shows in the export and in every later loss), and logs.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.storage import file_system_at

_LEASE: Final = ".executor_status.lock"
_LEFT_OUT: Final = ("checkpoints/", "logs/", "tensorboard/", "wandb/")
_OF_THE_CLOCK: Final = frozenset({"time", "step_seconds"})
METRICS: Final = "metrics.jsonl"


@dataclass(frozen=True)
class OutputVerdict:
    """One step's output in both runs."""

    step: str
    """Name and version, which is where the output lies below the prefix."""
    files: int
    different: tuple[str, ...]
    """What is not the same in both: paths, with how many of their rows."""
    final_loss: float | None = None
    """The last ``train/loss`` of the disturbed run."""
    undisturbed_loss: float | None = None

    @property
    def is_equal(self) -> bool:
        return not self.different

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "equal": self.is_equal,
            "files": self.files,
            "different": list(self.different),
            "final_loss": self.final_loss,
            "undisturbed_final_loss": self.undisturbed_loss,
        }


def compare_outputs(undisturbed: str, disturbed: str) -> tuple[OutputVerdict, ...]:
    """A verdict for every output below the prefix ``undisturbed``, compared with the same below ``disturbed``."""
    first, second = _Tree(undisturbed), _Tree(disturbed)
    return tuple(_verdict(name, first, second) for name in first.outputs())


class _Tree:
    """What lies below one prefix, on any fsspec store."""

    def __init__(self, prefix: str) -> None:

        self.prefix = prefix.rstrip("/")
        self._fs, self._root = file_system_at(self.prefix)
        self._fs.invalidate_cache()

    def outputs(self) -> list[str]:
        """The outputs below the prefix, relative to it."""
        found = [str(path) for path in self._fs.find(self._root) if posixpath.basename(path) == _LEASE]
        return sorted(posixpath.relpath(posixpath.dirname(path), self._root) for path in found)

    def files(self, output: str) -> dict[str, str]:
        """Path → checksum, as the manifest of the committed attempt has them; nothing when there is none."""
        lease = json.loads(self.read(posixpath.join(output, _LEASE)) or "{}")
        text = self.read(posixpath.join(output, ".attempts", str(lease.get("attempt")), "manifest.json"))
        return {} if text is None else {one["path"]: one["checksum"] for one in json.loads(text)["files"]}

    def read(self, path: str) -> str | None:
        try:
            return str(self._fs.cat_file(posixpath.join(self._root, path)).decode())
        except FileNotFoundError:
            return None

    def rows(self, path: str) -> dict[int, dict[str, Any]]:
        """Step → what was measured there, of a file of metrics; a later line about a step counts."""
        steps: dict[int, dict[str, Any]] = {}
        for line in (self.read(path) or "").splitlines():
            try:
                values = json.loads(line)
                kept = {name: value for name, value in values.items() if name not in _OF_THE_CLOCK}
                steps.setdefault(int(values["step"]), {}).update(kept)
            except (ValueError, KeyError, TypeError):
                continue  # cut off by a kill
        return steps


def _verdict(output: str, first: _Tree, second: _Tree) -> OutputVerdict:
    files, others = first.files(output), second.files(output)
    if not others:
        return OutputVerdict(output, 0, ("the whole output is missing",))
    paths = [path for path in sorted(files.keys() | others.keys()) if not path.startswith(_LEFT_OUT)]
    different = [text for path in paths for text in _differences(output, path, files, others, first, second)]
    metrics = posixpath.join(output, METRICS)
    losses = [_last_loss(tree.rows(metrics)) if METRICS in files else None for tree in (second, first)]
    return OutputVerdict(output, len(paths), tuple(different), *losses)


def _differences(
    output: str, path: str, files: Mapping[str, str], others: Mapping[str, str], first: _Tree, second: _Tree
) -> Iterator[str]:
    if files.get(path) == others.get(path):
        return
    whole = posixpath.join(output, path)
    if path not in files or path not in others:
        yield f"{path} is only in the {'undisturbed' if path in files else 'disturbed'} run"
    elif posixpath.basename(path) == METRICS:
        expected, found = first.rows(whole), second.rows(whole)
        missing = len(expected.keys() - found.keys())
        wrong = sum(expected.get(step) != row for step, row in found.items())
        if missing or wrong:
            yield f"{path}: of {len(expected)} rows, {missing} are missing and {wrong} differ"
    elif not path.endswith(".json") or _moved(first, second, whole) != second.read(whole):
        yield path


def _moved(first: _Tree, second: _Tree, path: str) -> str:
    return (first.read(path) or "").replace(first.prefix, second.prefix)


def _last_loss(rows: Mapping[int, Mapping[str, Any]]) -> float | None:
    losses = [rows[step]["train/loss"] for step in sorted(rows) if "train/loss" in rows[step]]
    return losses[-1] if losses else None
