"""Load every experiment of a checkout of Marin, and compare its steps with what Marin's own executor made of them.

    python -m scripts.marin.oracle --checkout marin --oracle oracle.json.gz [--without-helpers] [--json]

The oracle has, for each experiment file, the steps that its ``executor_main`` calls reach, with version text and output
path. Each loaded file of the oracle must have the same ones, and no other; else the exit code is 1. Files that are
refused are listed with line and reason. Nothing of the checkout's code is printed. A checkout of another day than the
oracle's differs where files were edited in between. Without its helpers, the files find ours in their place.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tradewind.marin.loading import TIME_LIMIT_S, runnable_files
from tradewind.marin.sandbox.evaluation import Evaluated, evaluate
from tradewind.steps import ExperimentError, resolve

HELPERS = ("defaults.py", "simple_train_config.py", "simple_sft_config.py", "anneal_config.py")
"""Files of Marin whose functions for experiments Tradewind has too (``tradewind.marin.defaults``)."""


class OracleError(ValueError):
    """The folder is no checkout, or the file no oracle."""


class Oracle:
    """Steps that Marin's executor made of each file.

    Attributes:
        prefix: Prefix of the outputs.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.prefix: str = content["meta"]["prefix"]
        self._versions: Mapping[str, Any] = content["versions"]
        self._files: Mapping[str, Any] = content["files"]
        self._expanded: dict[str, dict[str, Any]] = {}

    def steps(self, file: str) -> dict[str, str] | None:
        """Return output path -> version text of each step of ``file``, None if the oracle has none.

        A step with the version of an earlier one is the same step, also under another path.
        """
        steps = self._files.get(file, {}).get("steps")
        if steps is None:
            return None
        return {each["output_path"]: self._text(each["version"]) for each in steps if not each.get("dup")}

    def _text(self, key: str) -> str:
        return json.dumps(self._expand(key), sort_keys=True)

    def _expand(self, key: str) -> dict[str, Any]:
        if key not in self._expanded:
            row = self._versions[key]
            others = ("dependencies", "pseudo_dependencies")
            expanded = {name: [self._expand(other) for other in row[name]] for name in others if name in row}
            self._expanded[key] = {"name": row["name"], "config": row["config"], **expanded}
        return self._expanded[key]


@dataclass(frozen=True)
class Difference:
    """A file whose steps are not the oracle's; both lists hold output paths."""

    file: str
    same: int
    missing: list[str]
    others: list[str]


@dataclass
class Comparison:
    """Results of all files."""

    loaded: int = 0
    seconds: float = 0.0
    without_oracle: int = 0
    files_that_agree: int = 0
    steps_that_agree: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    different: list[Difference] = field(default_factory=list)


def read_oracle(path: Path) -> Oracle:
    """Read the oracle from a file of gzipped JSON.

    Raises:
        OracleError: The file is no oracle.
    """
    try:
        return Oracle(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise OracleError(f"{path} is no oracle: {error}.") from error


def compare(checkout: Path, oracle: Oracle, limit_s: float = TIME_LIMIT_S) -> Comparison:
    """Load all files below ``experiments`` and compare their steps.

    Raises:
        OracleError: There are none.
    """
    files = runnable_files(checkout / "experiments")
    if not files:
        raise OracleError(f"{checkout} is no checkout of Marin: no file below experiments/ calls executor_main.")
    start = time.monotonic()
    outcomes = evaluate(checkout, files, limit_s)
    found = Comparison(seconds=time.monotonic() - start)
    for file, outcome in outcomes.items():
        shown = file.relative_to(checkout).as_posix()
        if not isinstance(outcome, Evaluated):
            found.refused[shown] = str(outcome)
            continue
        try:
            made = _steps(outcome, oracle.prefix)
        except ExperimentError as error:
            found.refused[shown] = f"{shown} cannot become a DAG: {error}"
            continue
        found.loaded += 1
        _count(found, shown, made, oracle.steps(shown))
    return found


def _count(found: Comparison, file: str, made: Mapping[str, str], wanted: Mapping[str, str] | None) -> None:
    if wanted is None:
        found.without_oracle += 1
        return
    missing = sorted(path for path, text in wanted.items() if made.get(path) != text)
    others = sorted(path for path, text in made.items() if wanted.get(path) != text)
    found.steps_that_agree += len(wanted) - len(missing)
    if missing or others:
        found.different.append(Difference(file, len(wanted) - len(missing), missing, others))
    else:
        found.files_that_agree += 1


def _steps(outcome: Evaluated, prefix: str) -> dict[str, str]:
    resolved = (resolve(list(call.steps), prefix).steps for call in outcome.run.calls)
    return {step.output_path: step.version_json for steps in resolved for step in steps}


def format_comparison(found: Comparison) -> str:
    """Format the comparison for users."""
    lines = [f"refused  {reason}" for reason in found.refused.values()]
    for each in found.different:
        lines.append(f"differs  {each.file}: {len(each.missing)} of {each.same + len(each.missing)} steps")
        lines += [f"           the oracle has    {path}" for path in each.missing[:3]]
        lines += [f"           the checkout has  {path}" for path in each.others[:3]]
    steps_that_differ = sum(len(each.missing) for each in found.different)
    lines.append(
        f"{found.loaded} files loaded in {found.seconds:.1f} s, {len(found.refused)} refused. Of those loaded, "
        f"{found.without_oracle} are not in the oracle; {found.files_that_agree} have all of its steps and no other, "
        f"{len(found.different)} differ. {found.steps_that_agree} steps agree, {steps_that_differ} differ."
    )
    return "\n".join(lines)


@contextlib.contextmanager
def _without_helpers(checkout: Path) -> Iterator[Path]:
    """Yield a copy of the checkout without the files that Tradewind replaces."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / checkout.name
        shutil.copytree(checkout, copy, symlinks=True)
        for name in HELPERS:
            (copy / "experiments" / name).unlink(missing_ok=True)
        yield copy


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress output, warnings and logs of the files."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _marin_prefix(prefix: str) -> Iterator[None]:
    """Set the oracle's prefix for the files, as when the oracle was made."""
    before = os.environ.get("MARIN_PREFIX")
    os.environ["MARIN_PREFIX"] = prefix
    try:
        yield
    finally:
        del os.environ["MARIN_PREFIX"]
        if before is not None:
            os.environ["MARIN_PREFIX"] = before


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="the folder that holds experiments and src/marin")
    parser.add_argument("--oracle", type=Path, required=True, help="oracle.json.gz")
    parser.add_argument("--without-helpers", action="store_true", help=f"with ours instead of its {', '.join(HELPERS)}")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    given = parser.parse_args(arguments)
    try:
        oracle = read_oracle(given.oracle)
        checkout = _without_helpers(given.checkout) if given.without_helpers else contextlib.nullcontext(given.checkout)
        with checkout as folder, _silent(), _marin_prefix(oracle.prefix):
            found = compare(folder.resolve(), oracle)
    except OracleError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(asdict(found), indent=1) if given.json else format_comparison(found))
    return 1 if found.different else 0


if __name__ == "__main__":
    sys.exit(main())
