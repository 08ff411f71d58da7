"""The options of every command, as plain data: ``tradewind`` and ``airflow tradewind`` are built from the same.

Only the standard library is imported here, because Airflow reads this at each of its own commands.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Option:
    """One argument of a command: what ``argparse`` calls its flags, and the rest of ``add_argument``."""

    flags: tuple[str, ...]
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command: its name, what it does in one line, its options, and what to know besides."""

    name: str
    summary: str
    options: Sequence[Option]
    more: str = ""


def option(*flags: str, **rest: Any) -> Option:
    """An option as ``add_argument`` would take it."""
    return Option(flags, rest)


def pair(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` as two texts. The error does not show the text, which may hold a secret."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value


def seconds(text: str) -> float:
    """A time that is to pass."""
    return float(_number(text, float, "a number of seconds above zero", least=1e-9))


def count(text: str) -> int:
    """A number of lines."""
    return int(_number(text, int, "a whole number that is not below zero"))


def amount(text: str) -> float:
    """A number of CPUs or GPUs."""
    return float(_number(text, float, "a number that is not below zero"))


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _number(text: str, kind: type, what: str, least: float = 0.0) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not least <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number


_WHERE: Final = (
    option("--address", metavar="URL", help="the cluster's dashboard, such as http://10.0.0.2:8265"),
    option("--cluster", metavar="CONN_ID", help="the cluster of this Airflow connection, instead of --address"),
    option("--ca", metavar="FILE", help="certificates to check the cluster's with, if its address is https://"),
)
_JOB: Final = option("job", metavar="ID", help="the job's submission id")
_METADATA: Final = option(
    "--metadata", metavar="K=V", type=pair, action="append", default=[], help="only jobs with this metadata; repeatable"
)
_TAIL: Final = ("-n", "--tail")
_GREP: Final = option("-g", "--grep", metavar="PATTERN", type=pattern, help="only lines that hold this pattern")

SUBMIT: Final = Command(
    "submit",
    "submit a command as a job, and follow it to its end",
    (
        *_WHERE,
        option("--no-wait", "--no_wait", action="store_true", help="only submit; prints the job's id"),
        option(
            "-e", "--env", "--env_vars", "--env-vars", nargs="+", action="append", default=[],
            metavar=("NAME=VALUE", ""),
            help="a variable for the job, also as NAME VALUE; NAME alone sets it to nothing; repeatable",
        ),
        option(
            "--secret", metavar="NAME=REFERENCE", type=pair, action="append", default=[],
            help="a variable that the cluster fetches: projects/PROJECT/secrets/SECRET or env:VARIABLE; repeatable",
        ),
        option("--extra", metavar="A,B", action="append", default=[], help="extras or groups of the project"),
        option("--num-cpus", "--entrypoint-num-cpus", metavar="N", type=amount, help="CPUs for the command"),
        option("--num-gpus", "--entrypoint-num-gpus", metavar="N", type=amount, help="GPUs for the command"),
        option("--memory", "--entrypoint-memory", metavar="BYTES", type=count, help="memory for the command"),
        option("--resources", "--entrypoint-resources", metavar="JSON", help="further Ray resources for the command"),
        option("--tpu", metavar="TYPE", help="a TPU slice of one host for the command, such as v4-8"),
        option("--working-dir", metavar="DIR", default=".", help="the folder that travels; default: this one"),
        option(
            "--exclude", metavar="PATTERN", action="append", default=[],
            help="what of it stays here, as in .gitignore; repeatable",
        ),
        option("--submission-id", metavar="ID", help="the job's id; one that exists is followed, not run again"),
        option("--auto-stop", action="store_true", help="when this command ends, however it does, the job is stopped"),
        option("--metadata", metavar="K=V", type=pair, action="append", default=[], help="kept with the job"),
        option("--timeout", metavar="SECONDS", type=seconds, help="stop the job if it has not ended by then"),
        option("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run on the cluster"),
    ),
    "Ends with 0 if the job succeeded and 1 if not; 130 or 143 if interrupted, and then the job goes on.",
)  # fmt: skip

LIST: Final = Command(
    "list",
    "list the jobs that have not ended",
    (
        *_WHERE,
        option("--all", action="store_true", help="also those that have ended"),
        option("--json", action="store_true", help="as JSON"),
        _METADATA,
    ),
)
LOGS: Final = Command(
    "logs",
    "print the log of a job",
    (
        *_WHERE,
        _JOB,
        option("-f", "--follow", action="store_true", help="go on until the job has ended"),
        option(*_TAIL, metavar="N", type=count, help="only the last N lines, of those that --grep leaves"),
        _GREP,
    ),
)
STOP: Final = Command(
    "stop",
    "stop jobs, and wait until they have ended",
    (*_WHERE, option("jobs", metavar="ID", nargs="*", help="submission ids"), _METADATA),
)
WAIT: Final = Command(
    "wait",
    "wait until a job has ended",
    (
        *_WHERE,
        option("job", metavar="ID", nargs="?", help="the job's submission id"),
        option("--match", metavar="TEXT", help="the newest job whose id holds this text, instead of an id"),
        option("--poll", metavar="SECONDS", type=seconds, default=5.0, help="how often to ask; default 5"),
        option("--timeout", metavar="SECONDS", type=seconds, help="wait no longer; the job goes on"),
        option("--show-logs", action="store_true", help="print the end of its log afterwards"),
        option(*_TAIL, metavar="N", type=count, default=200, help="so many lines of it; default 200"),
        _GREP,
    ),
    "Ends with 0 if the job succeeded, 1 if not or if there is none, 2 when the time is over.",
)
JOBS: Final = (SUBMIT, LIST, LOGS, STOP, WAIT)

RECONCILE: Final = Command(
    "reconcile",
    "stop the jobs whose Airflow task has ended",
    (
        option(
            "--cluster", metavar="CONN_ID", dest="clusters", action="append", default=[],
            help="the cluster of this Airflow connection; repeatable; default: ray_default",
        ),
        option("--dry-run", action="store_true", help="only say which"),
    ),
)  # fmt: skip

JOBS_SUMMARY: Final = "Ray jobs"
SUMMARY: Final = "Ray jobs and Tradewind's upkeep, from the command line"
EXIT_CODES: Final = (
    "Exit codes: 0 done, and the job succeeded; 1 it failed, is unknown, or the cluster refuses or does not answer; "
    "2 bad usage, or 'wait' ran out of time; 130 and 143 interrupted."
)
