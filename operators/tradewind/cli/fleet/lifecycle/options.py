"""The commands of a cluster's life and their options, as plain data."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Final

from tradewind.cli.fleet.which_options import WHICH_CLUSTER
from tradewind.cli.options import Command, option

_YES_WORDS: Final = ("1", "true", "yes")
_NO_WORDS: Final = ("0", "false", "no")


def is_yes(text: str) -> bool:
    """``1`` or ``0``, and the words for them."""
    for words, meant in ((_YES_WORDS, True), (_NO_WORDS, False)):
        if text.lower() in words:
            return meant
    raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0")


class YesByItself(argparse.Action):
    """An option that means yes without a value; Airflow's own arguments know no ``const``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, flag: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values is not False)


_ONE: Final = option("name", metavar="CLUSTER", nargs="?", help="the cluster; default: default_cluster of the file")
_YES: Final = option("--yes", "-y", action="store_true", help="do not ask")
_DRY: Final = option("--dry-run", action="store_true", help="only say what would be done")
_WAIT: Final = (
    option(
        "--wait", action=argparse.BooleanOptionalAction, default=True,
        help="return when the head answers and the minimum of slices is in Ray",
    ),
    option("--timeout", metavar="SECONDS", type=float, default=1800.0, help="wait for so long; default: 1800"),
)  # fmt: skip

_PRESERVE: Final = (
    option(
        "--preserve-jobs", metavar="0|1", nargs="?", type=is_yes, action=YesByItself, default=True,
        dest="preserve_jobs", help="bring the jobs of people back afterwards; the default",
    ),
    option("--no-preserve-jobs", action="store_false", dest="preserve_jobs", help="let them end"),
    option(
        "--abandon-kept-jobs", action="store_true",
        help="go on with what was interrupted without the jobs that somebody has kept elsewhere",
    ),
)  # fmt: skip

START: Final = Command(
    "start",
    "start a cluster with Ray's launcher",
    (_ONE, *_WAIT, _DRY, *WHICH_CLUSTER),
    "Run again after an interruption, it goes on where it was. A cluster that runs is left alone.",
)
STOP: Final = Command(
    "stop",
    "delete the head and the slices of a cluster",
    (
        _ONE,
        option("--project", metavar="P", help="with --zone: of a cluster that the file has no more, where it was"),
        option("--zone", metavar="Z", help="with --project"),
        option("--include-reserved", action="store_true", help="reserved slices and queued resources too"),
        option("--delete-state", action="store_true", help="the disk too, with what is known of jobs, and their logs"),
        _YES, _DRY, *WHICH_CLUSTER,
    ),
    "Lists what it deletes and whose jobs run, and asks. Run again after an interruption, it deletes the rest.",
)  # fmt: skip
RESTART: Final = Command(
    "restart",
    "end Ray on the head of a cluster, and start it again as the fleet file has it",
    (
        _ONE,
        *_PRESERVE,
        *(_YES, *_WAIT, _DRY, *WHICH_CLUSTER),
    ),
    "Lists whose jobs run, and asks. Those of Airflow's tasks and of steps go on by themselves. Run again after an "
    "interruption, it goes on where it was. Ends with 1 if a job could not be brought back.",
)
BACKUP_JOBS: Final = Command(
    "backup-jobs",
    "keep the jobs of people that run or wait on a cluster, so that restore-jobs can bring them back",
    (_ONE, *WHICH_CLUSTER),
    "They go on. The backup is a folder for you alone, since it holds their variables; its id is the output.",
)
RESTORE_JOBS: Final = Command(
    "restore-jobs",
    "bring kept jobs back that do not run on the cluster any more, and delete the backup",
    (_ONE, option("--backup", metavar="ID", help="which backup, if there are several"), *WHICH_CLUSTER),
    "Each comes back once, however often this is run. Ends with 1 if a job could not be brought back.",
)
APPLY: Final = Command(
    "apply",
    "have a cluster follow its changed file, while everything goes on that runs there",
    (_ONE, _DRY, option("--json", action="store_true", help="with --dry-run: as JSON"), *WHICH_CLUSTER),
    "Refused if Ray would make the head or a slice anew.",
)
STATUS: Final = Command(
    "status",
    "show how clusters are: nodes, slices, what is in use, and what belongs to no cluster",
    (
        option("name", metavar="CLUSTER", nargs="*", help="only these; default: all"),
        option("--json", action="store_true", help="as JSON"),
        *WHICH_CLUSTER,
    ),
)
ROTATE_TOKEN: Final = Command(
    "rotate-token",
    "give clusters a new token, which restarts all that share it",
    (
        option("name", metavar="CLUSTER", nargs="*", help="the clusters; default: default_cluster of the file"),
        *_PRESERVE,
        *(_YES, *_WAIT, _DRY, *WHICH_CLUSTER),
    ),
    "Lists whose jobs run, and asks. The old version is disabled when all clusters answer with the new one. Run again "
    "after an interruption, it goes on where it was. Ends with 1 if a job could not be brought back.",
)
ALIASES: Final = {f"{command.name}-cluster": command.name for command in (START, STOP, RESTART)}
"""What people have in their fingers → the command."""
LIFECYCLE: Final = (
    *(START, STOP, RESTART, APPLY, STATUS, BACKUP_JOBS, RESTORE_JOBS, ROTATE_TOKEN),
    *(replace(command, name=f"{command.name}-cluster") for command in (START, STOP, RESTART)),
)
