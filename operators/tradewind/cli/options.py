"""Options of every command, as plain data, for both ``tradewind`` and ``airflow tradewind``.

This imports only the standard library, because each ``airflow`` command imports it.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.plans.selection import Regex, RegexError, linear_regex

_AGE_UNITS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True)
class Option:
    """One argument of a command: its flags, and the other arguments of ``add_argument``."""

    flags: tuple[str, ...]
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command: its name, a summary in one line, its options, and further notes.

    One that ``is_destructive`` ends or deletes something, so it is never suggested in the place of a mistyped one.
    """

    name: str
    summary: str
    options: Sequence[Option]
    more: str = ""
    is_destructive: bool = False


@dataclass(frozen=True)
class CommandGroup:
    """A command with subcommands: a summary in one line, and the subcommands.

    ``prefix`` is its name with a space. It precedes the names of the subcommands, some of which other groups have too.
    """

    prefix: str
    summary: str
    commands: Sequence[Command]


def option(*flags: str, **rest: Any) -> Option:
    """Make an option from the arguments of ``add_argument``."""
    return Option(flags, rest)


def pair(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``. The error does not show the text, which may hold a secret."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value


def name_or_path(text: str) -> str:
    """Return a local name or path. A URL with a password is refused here, because later errors show names and paths."""
    if "://" in text and "@" in text:
        raise argparse.ArgumentTypeError("a URL with a user or a password (not shown) is no name and no path here")
    return text


def seconds(text: str) -> float:
    """Parse a duration in seconds."""
    return float(_number(text, float, "a number of seconds above zero", least=1e-9))


def count(text: str) -> int:
    """Parse a number of lines."""
    return int(_number(text, int, "a whole number that is not below zero"))


def port(text: str) -> int:
    """Parse a port for a server, or 0 for a free one."""
    number = count(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return number


def amount(text: str) -> float:
    """Parse a number of CPUs or GPUs."""
    return float(_number(text, float, "a number that is not below zero"))


def pattern(text: str) -> Regex:
    """Parse a regular expression."""
    try:
        return linear_regex(text)
    except RegexError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def regex_text(text: str) -> str:
    """Check a regular expression, and return it as text."""
    return pattern(text).pattern


def date(text: str) -> datetime.date:
    """Parse a date, such as ``2026-03-01``."""
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2026-03-01") from None


def age(text: str) -> float:
    """Convert ``90m``, ``12h``, ``30d`` or ``8w`` to seconds."""
    unit = _AGE_UNITS.get(text[-1:])
    if unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age like 90m, 12h, 30d or 8w")
    return unit * float(_number(text[:-1], float, "a number that is not below zero, with a unit after it"))


def _number(text: str, kind: type, what: str, least: float = 0.0) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not least <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number


WHERE: Final = (
    option(
        "--address", metavar="URL", default=argparse.SUPPRESS,
        help="the cluster's dashboard, such as http://10.0.0.2:8265",
    ),
    option(
        "--cluster", metavar="NAME|PATH", type=name_or_path, default=argparse.SUPPRESS,
        help="the cluster of this name in the fleet file, or with its generated file at this path, or of this Airflow "
        "connection, instead of --address",
    ),
    option(
        "--config", metavar="FILE", type=name_or_path, default=argparse.SUPPRESS,
        help="the fleet file, or the generated file of a cluster, which names it",
    ),
    option(
        "--ca", metavar="FILE", type=name_or_path, default=argparse.SUPPRESS,
        help="certificates to check the cluster's with, if its address is https://",
    ),
)  # fmt: skip
"""Options of commands about jobs, also allowed before the command: ``jobs --config FILE list``."""
_JOB: Final = option("job", metavar="ID", help="the job's submission id")
_METADATA: Final = option(
    "--metadata", metavar="K=V", type=pair, action="append", default=[], help="only jobs with this metadata; repeatable"
)
_JSON: Final = option("--json", action="store_true", help="as JSON")
_TAIL: Final = ("-n", "--tail")
_GREP: Final = option("-g", "--grep", metavar="PATTERN", type=pattern, help="only lines that hold this pattern")

SUBMIT: Final = Command(
    "submit",
    "submit a command as a job, and follow it to its end",
    (
        *WHERE,
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
        option(
            "--working-dir", metavar="DIR", type=name_or_path, default=".",
            help="the folder that is sent; default: this one",
        ),
        option(
            "--exclude", metavar="PATTERN", action="append", default=[],
            help="files that are not sent, as in .gitignore; repeatable",
        ),
        option("--submission-id", metavar="ID", help="the job's id; one that exists is followed, not run again"),
        option("--auto-stop", action="store_true", help="stop the job when this command ends, also by an error"),
        option("--metadata", metavar="K=V", type=pair, action="append", default=[], help="stored with the job"),
        option("--timeout", metavar="SECONDS", type=seconds, help="stop the job if it has not ended after so long"),
        option("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run on the cluster"),
    ),
    "Ends with 0 if the job succeeded and 1 if not; 130 or 143 if interrupted, and then the job continues.",
)  # fmt: skip

LIST: Final = Command(
    "list",
    "list the jobs that have not ended",
    (
        *WHERE,
        option("--all", action="store_true", help="also those that have ended"),
        _JSON,
        _METADATA,
    ),
)
JOB_STATUS: Final = Command(
    "status",
    "show one job: its status, user, times, and Ray's message about it",
    (*WHERE, _JOB, _JSON),
)
LOGS: Final = Command(
    "logs",
    "print the log of a job",
    (
        *WHERE,
        _JOB,
        option("-f", "--follow", action="store_true", help="continue until the job has ended"),
        option(*_TAIL, metavar="N", type=count, help="only the last N lines, of those that --grep leaves"),
        _GREP,
    ),
)
STOP: Final = Command(
    "stop",
    "stop jobs, and wait until they have ended",
    (*WHERE, option("jobs", metavar="ID", nargs="*", help="submission ids"), _METADATA),
    is_destructive=True,
)
WAIT: Final = Command(
    "wait",
    "wait until a job has ended",
    (
        *WHERE,
        option("job", metavar="ID", nargs="?", help="the job's submission id"),
        option("--match", metavar="TEXT", help="the newest job whose id holds this text, instead of an id"),
        option("--poll", metavar="SECONDS", type=seconds, default=5.0, help="how often to ask; default 5"),
        option("--timeout", metavar="SECONDS", type=seconds, help="how long to wait; the job continues afterwards"),
        option("--show-logs", action="store_true", help="print the end of its log afterwards"),
        option(*_TAIL, metavar="N", type=count, default=200, help="how many lines of it; default 200"),
        _GREP,
    ),
    "Ends with 0 if the job succeeded, 1 if not or if there is none, 2 after the timeout.",
)
JOBS: Final = CommandGroup("jobs ", "Ray jobs", (SUBMIT, LIST, JOB_STATUS, LOGS, STOP, WAIT))
JOB_ALIASES: Final = {"submit-job": SUBMIT, "list-jobs": LIST, "job-logs": LOGS, "stop-job": STOP, "wait-job": WAIT}
"""The words of Marin's ``cluster.py`` for commands about jobs, which ``tradewind cluster`` accepts."""

RECONCILE: Final = Command(
    "reconcile",
    "stop the jobs whose Airflow task has ended",
    (
        option(
            "--cluster", metavar="NAME", type=name_or_path, dest="clusters", action="append", default=[],
            help="the cluster of this Airflow connection, or of this name in the fleet file; repeatable; default: "
            "ray_default",
        ),
        option("--dry-run", action="store_true", help="only print them"),
    ),
    is_destructive=True,
)  # fmt: skip

_DAG_ID: Final = option("dag_id", metavar="DAG_ID", help="the experiment's DAG")
_DAG: Final = option("--dag", metavar="DAG_ID", dest="dag_id", required=True, help="the experiment's DAG")
_STEP_WORDS: Final = "a step's name, task id or name-hash"
_PREFIX: Final = option("--prefix", metavar="PATH", help="the prefix of outputs, instead of the DAG's")
_PARAM: Final = option(
    "--param", metavar="K=V", dest="params", type=pair, action="append", default=[],
    help="a DAG param, instead of its default; repeatable",
)  # fmt: skip
_RUN: Final = (
    _PARAM,
    option("--partition", metavar="KEY", help="the run's partition key"),
    option(
        "--night", "--date", metavar="DATE", type=date,
        help="the night that the run is for, such as 2026-03-01; default: that of a run triggered now",
    ),
    _PREFIX,
)  # fmt: skip

PLAN: Final = Command(
    "plan",
    "print what a run would do, and why; writes nothing",
    (
        _DAG_ID,
        *_RUN,
        option(
            "--run-only", metavar="RE", nargs="+", action="extend", type=regex_text,
            help="only steps whose names match these regular expressions, and the steps that they need",
        ),
        option(
            "--force", metavar="RE", nargs="+", action="extend", type=regex_text,
            help="make these steps again, also if their outputs exist",
        ),
        option("--force-downstream", action="store_true", default=None, help="and the steps that read their outputs"),
        option(
            "--no-force-run-failed", dest="force_run_failed", action="store_false", default=None,
            help="do not run steps again that failed before",
        ),
        option(
            "--verify", action="store_true",
            help="compare every output that would be reused with its manifest, file by file",
        ),
        _JSON,
    ),
)  # fmt: skip
WHY: Final = Command(
    "why",
    "print why a step would run, or would not, to the root cause",
    (option("step", metavar="STEP", help=_STEP_WORDS), _DAG, *_RUN, _JSON),
)
DIFF: Final = Command(
    "diff",
    "print how two versions of a step differ",
    (
        option("first", metavar="HASH", help="a version: its hash, its name-hash, or its output path"),
        option("second", metavar="HASH", help="the other"),
        _PREFIX,
        _JSON,
    ),
)
ADOPT: Final = Command(
    "adopt",
    "make existing files the result of a step",
    (
        option("path", metavar="PATH", help="the folder; without --copy it must be the step's output path"),
        option("--as", metavar="STEP", dest="step", required=True, help=_STEP_WORDS),
        _DAG,
        *_RUN,
        option("--copy", action="store_true", help="copy the files to the step's output path"),
        _JSON,
    ),
)
PIN: Final = Command(
    "pin",
    "protect an output from gc",
    (
        option("output", metavar="HASH|PATH", nargs="?", help="the output: its hash, its name-hash, or its path"),
        option("--note", metavar="TEXT", default="", help="why it is kept"),
        option("--remove", action="store_true", help="remove the pin"),
        option("--list", action="store_true", help="print all pins"),
        option("--prefix", metavar="PATH", help="the prefix of the output, instead of the deployment's"),
        _JSON,
    ),
)
GC: Final = Command(
    "gc",
    "find old outputs that no DAG, run or pin requires; with --delete, remove them",
    (
        option(
            "dag_ids", metavar="DAG_ID", nargs="*",
            help="only outputs of the steps of these DAGs; default: all outputs below the DAGs' prefixes",
        ),
        option("--param", metavar="K=V", dest="params", type=pair, action="append", default=[],
               help="also keep what the named DAGs require with this param; repeatable"),
        option("--prefix", metavar="PATH", help="search below this prefix, instead of the DAGs' prefixes"),
        option("--older-than", metavar="AGE", type=age, default="30d",
               help="only outputs that have not changed for so long: 90m, 12h, 30d, 8w; default 30d"),
        option("--delete", action="store_true", help="remove the outputs; otherwise only list them"),
        _JSON,
    ),
    "Never removes outputs that a current DAG makes or reads with its default params, that are pinned or being made, "
    "or that were read to make any of these.",
)  # fmt: skip
STATUS: Final = Command(
    "status",
    "print the state of each output",
    (
        option("dag_id", metavar="DAG_ID", nargs="?", help="only a run of this DAG; default: all below the prefix"),
        *_RUN,
        _JSON,
    ),
)
EVALUATIONS: Final = Command(
    "evaluations",
    "print the scores of evaluations, the newest last",
    (
        option("--task", metavar="NAME", dest="tasks", action="append", default=[], help="only this task; repeatable"),
        option("--prefix", metavar="PATH", help="the prefix of outputs, instead of the default one"),
        _JSON,
    ),
)
PORT: Final = Command(
    "port",
    "print which of Marin's experiment files become DAGs unchanged, and how to edit the others",
    (
        option("paths", metavar="PATH", nargs="+", type=name_or_path, help="files, or folders of a Marin checkout"),
        option("--checkout", metavar="DIR", help="the folder that has experiments and src, if not found around PATH"),
        option("--prefix", metavar="PATH", help="print which of the steps are finished below this prefix"),
        _PARAM,
        option(
            "--time-limit", metavar="SECONDS", type=seconds, default=20.0, help="how long a file may take; default 20"
        ),
        option(
            "--most-steps", metavar="N", type=count, default=2000, help="how many steps a DAG may have; default 2000"
        ),
        _JSON,
    ),
    "Writes nothing. Ends with 0 if all files become DAGs unchanged, else 1.",
)  # fmt: skip
EXPERIMENTS: Final = (PLAN, WHY, DIFF, ADOPT, PIN, GC, STATUS, EVALUATIONS, PORT)

SUMMARY: Final = "Experiments, their outputs, Ray jobs and Tradewind's upkeep, from the command line"
EXIT_CODES: Final = (
    "Exit codes: 0 done, and the job succeeded; 1 it failed, is unknown, or the cluster or the store refuses or does "
    "not answer; 2 bad usage, or 'wait' ran out of time; 130 and 143 interrupted."
)

DATA: Final = CommandGroup(
    "data ",
    "Process data sets with scripts, and look into stored data.",
    (
        Command(
            "ls",
            "list a folder: sizes, formats, and the step, version and state of outputs",
            (
                option("path", metavar="PATH", help="a folder or bucket"),
                option("--prefix", default="", metavar="TEXT", help="only names that begin with this"),
                option("-n", "--limit", type=count, default=1000, metavar="N", help="entries at most (1000)"),
                _JSON,
            ),
        ),
        Command(
            "show",
            "show what a file or folder is, and its first rows or lines",
            (
                option("path", metavar="PATH", help="a file, an output, a token cache or a checkpoint"),
                option("-n", "--rows", type=count, default=10, metavar="N", help="rows at most (10)"),
                option("--at", type=float, default=0.0, metavar="FRACTION", help="begin there, from 0 to 1 (0)"),
                option("--filter", default="", metavar="TEXT", help="rows with this text, COLUMN:TEXT, COLUMN=VALUE"),
                option("--columns", metavar="A,B", default="", help="only these columns"),
                _JSON,
            ),
        ),
        Command(
            "run",
            "run a script whose pipelines flow_backend() processes",
            (
                option(
                    "--backend", choices=("ray", "threadpool", "sync"), default="threadpool",
                    help="where shards are processed (default: threads of this process)",
                ),
                option("--max-parallelism", type=count, default=100, metavar="N", help="shards at one time (100)"),
                option("--memory", metavar="SIZE", help="memory of a worker, such as 2GB (1 GiB)"),
                option("--num-cpus", type=amount, metavar="N", help="CPUs of a task of Ray (1)"),
                option(
                    "--on-error", choices=("raise", "skip", "quarantine"), default="raise",
                    help="what happens to a row that fails (raise)",
                ),
                option(
                    "--scratch", metavar="PATH",
                    help="folder of what is done so far: with it, a second run continues the first",
                ),
                option("--dry-run", action="store_true", help="print the stages, and process nothing"),
                option("script", metavar="SCRIPT", help="a Python file"),
                option("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="its arguments"),
            ),
        ),
    ),
)  # fmt: skip
