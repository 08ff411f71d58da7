"""A pure function for each file, with a sentinel beside each output: what is there is not made again.

report = run_over_files(extract, "gs://bucket/html/**/*.html", "gs://bucket/text")
print(report)  # 40 files: 12 made, 27 there already, 1 failed
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.datasets.backends import flow_backend
from tradewind.datasets.dataset import Dataset, FilesSource
from tradewind.datasets.execution import list_source
from tradewind.datasets.files import exists, is_remote, join, write_text
from tradewind.datasets.stages import PipelineError
from tradewind.storage import file_system_at
from tradewind.text import single_line, truncated_repr

SENTINEL: Final = ".COMPLETE"
_MAX_SHOWN: Final = 10


@contextmanager
def sentinel(path: str) -> Iterator[bool]:
    """Yield whether ``path`` is still to be made; after the block, write ``{path}.COMPLETE``.

    An error in the block leaves no sentinel. The sentinel says that ``path`` was whole once, not that it is now.

        with sentinel(path) as is_missing:
            if is_missing:
                make(path)
    """
    file = f"{path.rstrip('/')}{SENTINEL}"
    is_missing = not exists(file)
    yield is_missing
    if is_missing:
        write_text(file, "")


@dataclass(frozen=True)
class FilesReport:
    """What ``run_over_files`` did.

    Attributes:
        made: Outputs that it made.
        existing: Outputs that were there already.
        failed: Input → its error, in one line.
    """

    made: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        count = len(self.made) + len(self.existing) + len(self.failed)
        head = f"{count:,} files: {len(self.made):,} made, {len(self.existing):,} there already, "
        lines = [f"\n  {path}: {error}" for path, error in list(self.failed.items())[:_MAX_SHOWN]]
        return f"{head}{len(self.failed):,} failed{''.join(lines)}"


def run_over_files(
    fn: Callable[[str, str], Any], inputs: str, outputs: str | Callable[[str], str], *, empty_glob_ok: bool = False
) -> FilesReport:
    """Call ``fn(input, output)`` for each file that matches ``inputs`` and whose output has no sentinel.

    Args:
        fn: Reads the file at its first argument and writes the one at its second. It may run again after a loss.
        inputs: A glob, as of ``Dataset.from_files``.
        outputs: A folder, in which outputs have the paths of the inputs below the glob's fixed part; or a function of
            an input's path.
        empty_glob_ok: No file at all is no error.

    Raises:
        FileNotFoundError: No file matches.
        PipelineError: Two inputs have one output.
    """
    paths = [file.path for file in list_source(FilesSource(inputs, empty_glob_ok))]
    fixed = (inputs if is_remote(inputs) else file_system_at(inputs)[1]).split("*")[0].split("{")[0]
    name_of = outputs if callable(outputs) else _Below(posixpath.dirname(fixed), outputs)
    pairs = [(path, name_of(path)) for path in paths]
    targets: dict[str, str] = {}
    for path, target in pairs:
        if not isinstance(target, str) or target == path:
            raise PipelineError(f"run_over_files: the output of {path} is {truncated_repr(target)}.")
        if other := targets.get(target):
            raise PipelineError(f"run_over_files: {other} and {path} have one output, {target}.")
        targets[target] = path
    report = FilesReport()
    for path, target, outcome in flow_backend().execute(Dataset.from_list(pairs).map(_Call(fn))):
        if outcome in (_MADE, _EXISTING):
            (report.made if outcome == _MADE else report.existing).append(target)
        else:
            report.failed[path] = outcome
    return report


_MADE: Final = "made"
_EXISTING: Final = "existing"


@dataclass(frozen=True)
class _Call:
    fn: Callable[[str, str], Any]
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    """No earlier run's outcomes count: the sentinels say what is done."""

    def __call__(self, pair: tuple[str, str]) -> tuple[str, str, str]:
        path, target = pair
        try:
            with sentinel(target) as is_missing:
                if is_missing:
                    self.fn(path, target)
            return path, target, _MADE if is_missing else _EXISTING
        except Exception as error:
            return path, target, f"{type(error).__name__}: {single_line(error)}"


@dataclass(frozen=True)
class _Below:
    folder: str
    outputs: str

    def __call__(self, path: str) -> str:
        name = path.removeprefix(self.folder).lstrip("/") if path.startswith(self.folder) else posixpath.basename(path)
        return join(self.outputs, name)
