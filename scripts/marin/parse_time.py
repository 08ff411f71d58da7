"""Measure how long the DAGs of a checkout of Marin take to parse, as one DAG file and as one per experiment.

    python -m scripts.marin.parse_time --checkout marin [--every 12] [--rounds 3]

Each measurement is in CPU seconds of a new process that starts with Airflow and Tradewind imported, like a child of the
DAG processor. The lower bound is the time of plain DAG files with the same steps: run each file once and make its DAGs,
without comparing, restoring or refusing anything. Tradewind evaluates each file twice.

Other work on the machine slows down measurements, so the two alternate, and the minimum of each counts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from airflow.sdk import DAG

from tradewind.marin.loading import (
    MAX_STEPS,
    TIME_LIMIT_S,
    RefusedFileError,
    dags_of,
    marin_experiment,
    marin_experiments,
    runnable_files,
)
from tradewind.marin.sandbox.evaluation import Evaluated
from tradewind.marin.sandbox.import_map import ModuleSandbox
from tradewind.marin.sandbox.running import run_file

PREFIX = "gs://bucket"
Parsed = tuple[float, list[int]]
"""CPU seconds, and the number of tasks of each DAG."""


def as_folder(checkout: Path) -> Sequence[DAG]:
    """Make one DAG file for all experiments."""
    return marin_experiments(checkout / "experiments", prefix=PREFIX)


def plainly(checkout: Path) -> Sequence[DAG]:
    """Run each runnable file once, and make its DAGs."""
    world, made = ModuleSandbox(checkout), list[DAG]()
    os.chdir(checkout)
    for number, file in enumerate(runnable_files(checkout / "experiments")):
        try:
            run = run_file(world, file, TIME_LIMIT_S, _as_it_is)
            outcome = Evaluated(run, (0,) * len(run.calls))
            made += dags_of(outcome, checkout, f"plain{number}", MAX_STEPS, {"prefix": PREFIX})
        except RefusedFileError:
            continue
    return made


@contextlib.contextmanager
def _as_it_is(world: ModuleSandbox, argv: list[str]) -> Iterator[None]:
    """Restore nothing of the process after a file."""
    sys.argv = list(argv)
    yield


def alone(file: Path, checkout: Path) -> Sequence[DAG]:
    """Make one DAG file for one experiment; none if it is refused."""
    try:
        return marin_experiment(file, checkout=checkout, prefix=PREFIX)
    except RefusedFileError:
        return []


def measured(parse: Callable[[], Sequence[DAG]]) -> Parsed:
    """Measure ``parse`` in a child of this process."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_parse, args=(parse, writer))
    child.start()
    writer.close()
    found: Parsed = reader.recv()
    child.join()
    return found


def _parse(parse: Callable[[], Sequence[DAG]], writer: multiprocessing.connection.Connection) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        tasks = [len(dag.tasks) for dag in parse()]
    writer.send((time.process_time() - start, tasks))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="the folder that holds experiments and src/marin")
    parser.add_argument("--every", type=int, default=12, help="of the files by themselves, measure each of so many")
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure the two that are compared")
    given = parser.parse_args(arguments)
    checkout = given.checkout.resolve()
    files = runnable_files(checkout / "experiments")
    if not files:
        print(f"{checkout} is no checkout of Marin: no file calls executor_main.", file=sys.stderr)
        return 2
    os.environ.pop("MARIN_PREFIX", None)
    rounds = [(measured(lambda: as_folder(checkout)), measured(lambda: plainly(checkout))) for _ in range(given.rounds)]
    tasks = rounds[0][0][1]
    folder_s, plain_s = (min(seconds for seconds, _ in parsed) for parsed in zip(*rounds, strict=True))
    one_by_one = [measured(lambda file=file: alone(file, checkout)) for file in files[:: given.every]]  # type: ignore[misc]
    alone_s = sum(seconds for seconds, _ in one_by_one) / len(one_by_one)
    print(f"{len(files)} files: {len(tasks)} DAGs with {sum(tasks):,} tasks, the largest {max(tasks, default=0):,}.")
    print(f"One DAG file for all:  {folder_s:6.1f} s of CPU, {1000 * folder_s / len(files):.0f} ms a file")
    print(f"Plainly:               {plain_s:6.1f} s; the one for all takes {folder_s / plain_s:.2f} times that")
    print(f"One for each:          {1000 * alone_s:6.0f} ms a file, the mean of {len(one_by_one)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
