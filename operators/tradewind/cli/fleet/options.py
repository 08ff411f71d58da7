"""Options of commands about fleets, clusters, registries and development sessions, as plain data."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Final

from tradewind.cli.options import JOB_ALIASES, Command, CommandGroup, Option, count, name_or_path, option, port, seconds

FLEET: Final = option(
    "--fleet", metavar="PATH", type=name_or_path,
    help="the fleet file; default: TRADEWIND_FLEET, else [tradewind] fleet_file, else infra/fleet.yaml",
)  # fmt: skip
CONFIG: Final = option(
    "--config", metavar="FILE", type=name_or_path, default=argparse.SUPPRESS,
    help="the fleet file, or the generated file of a cluster, such as infra/clusters/us-central2.yaml",
)  # fmt: skip
CLUSTER: Final = option(
    "--cluster", metavar="NAME|PATH", type=name_or_path, action="append", default=argparse.SUPPRESS,
    help="the cluster, in the place of CLUSTER: its name, or the path of its generated file",
)  # fmt: skip
WHICH_FLEET: Final = (CONFIG, FLEET)
"""Options of commands about the whole file, or whose first word is always a cluster."""
WHICH_CLUSTER: Final = (CLUSTER, CONFIG, FLEET)
"""Options of commands about clusters, also allowed before the command: ``cluster --config FILE start``."""


def is_yes(text: str) -> bool:
    """Parse ``1`` or ``0``, or a word for them."""
    for value, words in ((True, ("1", "true", "yes")), (False, ("0", "false", "no"))):
        if text.lower() in words:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0")


def _with_dashes(text: str) -> str:
    return text.replace("_", "-")


class YesByItself(argparse.Action):
    """Option that means yes without a value; Airflow's own arguments know no ``const``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, flag: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values is not False)


_ONE: Final = option(
    "name", metavar="CLUSTER", type=name_or_path, nargs="?", help="the cluster; default: default_cluster of the file"
)
_ANY: Final = option("name", metavar="CLUSTER", type=name_or_path, nargs="*", help="only these; default: all")
_JSON: Final = option("--json", action="store_true", help="as JSON")
_YES: Final = option("--yes", "-y", action="store_true", help="do not ask")
_DRY: Final = option("--dry-run", action="store_true", help="only print what would be done")
_WAIT_FOR_CLUSTER: Final = (
    option(
        "--wait", action=argparse.BooleanOptionalAction, default=True,
        help="return when the head answers and the minimum of slices is in Ray",
    ),
    option("--timeout", metavar="SECONDS", type=float, default=1800.0, help="how long to wait; default: 1800"),
)  # fmt: skip

_PRESERVE: Final = (
    option(
        "--preserve-jobs", metavar="0|1", nargs="?", type=is_yes, action=YesByItself, default=True,
        dest="preserve_jobs", help="restore unmanaged jobs afterwards; the default",
    ),
    option("--no-preserve-jobs", action="store_false", dest="preserve_jobs", help="do not restore them"),
    option(
        "--abandon-kept-jobs", action="store_true",
        help="continue an interrupted operation without the jobs that another machine has saved",
    ),
)  # fmt: skip

START: Final = Command(
    "start",
    "start a cluster with Ray's launcher",
    (_ONE, *_WAIT_FOR_CLUSTER, _DRY, *WHICH_CLUSTER),
    "After an interruption, run it again to continue. A running cluster is left alone.",
)
STOP: Final = Command(
    "stop",
    "delete the head and the slices of a cluster",
    (
        _ONE,
        option("--project", metavar="P", help="with --zone: the project of a cluster that is no longer in the file"),
        option("--zone", metavar="Z", help="with --project"),
        option("--include-reserved", action="store_true", help="reserved slices and queued resources too"),
        option("--delete-state", action="store_true", help="the disk too, with the state and the logs of jobs"),
        _YES, _DRY, *WHICH_CLUSTER,
    ),
    "Lists what it deletes and whose jobs run, and asks. After an interruption, run it again to delete the rest.",
    is_destructive=True,
)  # fmt: skip
RESTART: Final = Command(
    "restart",
    "end Ray on the head of a cluster, and start it again as in the fleet file",
    (_ONE, *_PRESERVE, _YES, *_WAIT_FOR_CLUSTER, _DRY, *WHICH_CLUSTER),
    "Lists whose jobs run, and asks. Jobs of Airflow's tasks and of steps continue by themselves. After an "
    "interruption, run it again to continue. Ends with 1 if a job could not be restored.",
    is_destructive=True,
)
BACKUP_JOBS: Final = Command(
    "backup-jobs",
    "save the unmanaged jobs that run or wait on a cluster, so that restore-jobs can restore them",
    (_ONE, *WHICH_CLUSTER),
    "The jobs continue. Only you can read the backup, because it holds their variables. Prints its id.",
)
RESTORE_JOBS: Final = Command(
    "restore-jobs",
    "restore saved jobs that no longer run on the cluster, and delete the backup",
    (_ONE, option("--backup", metavar="ID", help="which backup, if there are several"), *WHICH_CLUSTER),
    "Each job is restored once, however often this is run. Ends with 1 if a job could not be restored.",
)
APPLY: Final = Command(
    "apply",
    "make a cluster match its changed file, while its jobs continue",
    (_ONE, _DRY, option("--json", action="store_true", help="with --dry-run: as JSON"), *WHICH_CLUSTER),
    "Refused if Ray would relaunch the head or a slice.",
)
STATUS: Final = Command(
    "status",
    "show the state of clusters: nodes, slices, use, and resources that belong to no cluster",
    (_ANY, _JSON, *WHICH_CLUSTER),
)
ROTATE_TOKEN: Final = Command(
    "rotate-token",
    "give clusters a new token, which restarts all that share it",
    (
        option(
            "name",
            metavar="CLUSTER",
            type=name_or_path,
            nargs="*",
            help="the clusters; default: default_cluster of the file",
        ),
        *(*_PRESERVE, _YES, *_WAIT_FOR_CLUSTER, _DRY, *WHICH_CLUSTER),
    ),
    "Lists whose jobs run, and asks. The old version is disabled when all clusters answer with the new one. After an "
    "interruption, run it again to continue. Ends with 1 if a job could not be restored.",
    is_destructive=True,
)
REPAIR: Final = Command(
    "repair",
    "delete the dead slices of a cluster and create them again, in one pass",
    (_ONE, _DRY, *WHICH_CLUSTER),
    "The upkeep DAG does the same every ten minutes. Ends with 1 if a slice needs a user.",
    is_destructive=True,
)
ALIASES: Final = {f"{command.name}-cluster": command.name for command in (START, STOP, RESTART)}
"""Alternative name → command."""
LIFECYCLE: Final = (
    *(START, STOP, RESTART, APPLY, STATUS, REPAIR, BACKUP_JOBS, RESTORE_JOBS, ROTATE_TOKEN),
    *(replace(command, name=f"{command.name}-cluster") for command in (START, STOP, RESTART)),
)

# tradewind dev-tpu

_WHOSE: Final = (
    option(
        "--cluster", metavar="NAME|PATH", type=name_or_path,
        help="the cluster, or the path of its generated file; default: default_cluster of the fleet file",
    ),
    option("--name", metavar="NAME", help="the name of the slice, if you hold several; default: your user name"),
    FLEET,
)  # fmt: skip
_JOB: Final = option(
    "--job", metavar="ID",
    help="the job that holds the slice, if you allocated it from another machine; its user is not checked",
)  # fmt: skip
_HOST: Final = option(
    "--host", metavar="N", type=count, action="append", default=[],
    help="only on the host of this number in the slice; repeatable; default: all",
)  # fmt: skip
_RUN: Final = (
    _JOB,
    _HOST,
    option(
        "--working-dir", metavar="DIR", type=name_or_path, default=".",
        help="the folder that is sent; default: this one",
    ),
    option(
        "--exclude", metavar="PATTERN", action="append", default=[],
        help="files that are not sent, as in .gitignore; repeatable",
    ),
    option(
        "-e", "--env", nargs="+", action="append", default=[], metavar=("NAME=VALUE", ""),
        help="a variable for the command, also as NAME VALUE; repeatable",
    ),
)  # fmt: skip
_COMMAND: Final = option("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run there")

ALLOCATE: Final = Command(
    "allocate",
    "reserve a slice of a cluster, and hold it until this command ends",
    (
        option("type", metavar="TYPE", help="the slice type, such as v4-8"),
        *_WHOSE,
        option(
            "--wait", metavar="SECONDS", type=seconds,
            help="how long to wait for a free one; default: end at once if none is free",
        ),
        option(
            "--heartbeat-timeout", metavar="SECONDS", type=seconds, default=90.0,
            help="give the slice back after so long without a heartbeat of this command; default 90",
        ),
    ),
    "Ctrl-C gives the slice back, and ends all processes started on it.",
)  # fmt: skip
CONNECT: Final = Command(
    "connect",
    "a shell on a slice that you hold",
    (
        *_WHOSE,
        _JOB,
        option("--host", metavar="N", type=count, default=0, help="on the host of this number; default 0"),
    ),
    "Ends with the exit code of the shell.",
)
EXECUTE: Final = Command(
    "execute",
    "send this folder to a slice that you hold, and run a command in it, on all hosts at once",
    (*_WHOSE, option("--no-sync", action="store_true", help="send nothing"), *_RUN, _COMMAND),
    "Sends the files that a job would get. Ends with the exit code of the command; on several hosts with 1 if any is "
    "not 0. The command ends when this one does.",
)
WATCH: Final = Command(
    "watch",
    "the same, again after each change in the folder, until Ctrl-C",
    (
        *_WHOSE,
        option(
            "--debounce", metavar="SECONDS", type=seconds, default=1.0,
            help="start after so long without a change; default 1",
        ),
        *_RUN,
        _COMMAND,
    ),
)  # fmt: skip
DEV: Final = CommandGroup("dev-tpu ", "a TPU slice to develop on", (ALLOCATE, CONNECT, EXECUTE, WATCH))

# Commands about machines and logs

HEAD_WORD: Final = "head"
"""Name of the head in ``--host``."""

DASHBOARD: Final = Command(
    "dashboard",
    "open the dashboard of a cluster, or those of several on one page, until Ctrl-C",
    (
        option("names", metavar="CLUSTER", nargs="*", help="the clusters; default: default_cluster of the file"),
        option("--all", action="store_true", help="every cluster of the file"),
        option("--open", action=argparse.BooleanOptionalAction, default=True, help="in a browser"),
        option("--port", metavar="N", type=port, default=0, help="of the page; default: a free one"),
        *WHICH_CLUSTER,
    ),
    "Ray asks for the token: 'tradewind cluster auth' copies it.",
)
ANNOUNCE: Final = Command(
    "announce",
    "announce a message about a cluster, through the notifiers of Airflow's configuration",
    (
        option("name", metavar="CLUSTER", type=name_or_path, nargs="?", help="the cluster that it is about"),
        option("message", metavar="MESSAGE", help="the text"),
        option("--all", action="store_true", help="it is about every cluster of the file"),
        option("--dry-run", action="store_true", help="only print the notifiers"),
        *WHICH_CLUSTER,
    ),
)


def _run_env(default: str) -> Option:
    where = "in Ray's container (docker) or on the machine (host); auto: in the container if it runs"
    return option("--run-env", choices=("auto", "docker", "host"), default=default, help=f"{where}; default: {default}")


def _words(what: str) -> Option:
    return option("words", nargs=argparse.REMAINDER, metavar=what, help="what to run there, after --")


_HOSTS: Final = (
    option(
        "--host", metavar="SLICE[:N]", action="append", default=[],
        help=f"all hosts of this slice, one of them, the one with this address, or '{HEAD_WORD}'; repeatable; "
        "default: the head",
    ),
    option("--all-hosts", action="store_true", help="every host of every slice that is READY"),
)  # fmt: skip
SSH_HEAD: Final = Command(
    "ssh-head",
    "a shell on the head of a cluster",
    (_run_env("auto"), *WHICH_CLUSTER, _words("[CLUSTER] [-- COMMAND ...]")),
    "Ends with the exit code of the shell or the command.",
)
SSH_TPU: Final = Command(
    "ssh-tpu",
    "a shell on a host of a slice",
    (_run_env("host"), *WHICH_CLUSTER, _words("[CLUSTER] SLICE[:N] [-- COMMAND ...]")),
    "The host may also be given by its address. Ends with the exit code of the shell or the command.",
)
EXEC: Final = Command(
    "exec",
    "run a command on the head of a cluster, or on hosts of its slices",
    (*_HOSTS, _run_env("auto"), *WHICH_CLUSTER, _words("[CLUSTER] -- COMMAND ...")),
    "One word after -- is a line for the shell there; several are a command and its arguments, unchanged. Ends with "
    "the exit code of the command; on several machines with 1 if any is not 0.",
)
SHOW_LOGS: Final = Command(
    "show-logs",
    "print the end of Ray's logs on the head of a cluster, or on hosts of its slices",
    (
        _ONE,
        *_HOSTS,
        option("-n", "--lines", "--tail", metavar="N", type=count, default=100, help="of each log; default 100"),
        option("-f", "--follow", action="store_true", help="continue until Ctrl-C"),
        option(
            "--file", metavar="PATTERN", action="append", default=[],
            help="only logs of this name, such as raylet.out or 'worker-*'; repeatable",
        ),
        *WHICH_CLUSTER,
    ),
)  # fmt: skip
MONITOR: Final = Command(
    "monitor",
    "follow the autoscaler's log of a cluster until Ctrl-C",
    (
        _ONE,
        option("-n", "--lines", metavar="N", type=count, default=100, help="from so many lines before; default 100"),
        *WHICH_CLUSTER,
    ),
)
PUSH_ENV: Final = Command(
    "push-env",
    "write the environment of the fleet file to the hosts of a running cluster",
    (
        _ONE,
        option(
            "--host", metavar="SLICE[:N]", action="append", default=[],
            help=f"only all hosts of this slice, one of them, the one with this address, or '{HEAD_WORD}'; "
            "repeatable; default: the head and every host",
        ),
        option("--dry-run", action="store_true", help="write nothing; print the differences"),
        _JSON,
        *WHICH_CLUSTER,
    ),
    "Each host fetches the newest versions from Secret Manager itself. Ray is not restarted, so its processes keep the "
    "variables that they have; the command prints which. The token does not change: see rotate-token. Ends with 1 if a "
    "host was not reached or not updated.",
)  # fmt: skip
ACCESS: Final = (DASHBOARD, SSH_HEAD, SSH_TPU, EXEC, SHOW_LOGS, MONITOR, PUSH_ENV, ANNOUNCE)

# Commands about manual slices

_NAME: Final = option("name", metavar="CLUSTER", type=name_or_path, help="the cluster")
_SLICE: Final = option("slice", metavar="SLICE", help="the slice, by its name")
_WAIT_FOR_SLICE: Final = (
    option("--wait", action=argparse.BooleanOptionalAction, default=True, help="return when the slice is READY"),
    option("--timeout", metavar="SECONDS", type=float, default=1800.0, help="how long to wait; default: 1800"),
)

ADD_WORKER: Final = Command(
    "add-worker",
    "add a slice to a cluster that its autoscaler neither makes nor deletes",
    (
        option(
            "words", metavar="[CLUSTER] TYPE", nargs="+",
            help="its type, such as v4-128, after the cluster; default: default_cluster of the file",
        ),
        option(
            "--capacity", choices=("preemptible", "reserved", "best-effort"), type=_with_dashes,
            help="its kind of capacity; default: the cluster's",
        ),
        option("--slice", "--name", metavar="SLICE", help="its name; default: a new one"),
        *_WAIT_FOR_SLICE, *WHICH_CLUSTER,
    ),
    "Its hosts join Ray by themselves, and rejoin a restarted head. After an interruption, it can be run again with "
    "--slice.",
)  # fmt: skip
REMOVE_WORKER: Final = Command(
    "remove-worker",
    "delete a manual slice that is not in use",
    (_NAME, _SLICE, _YES, *WHICH_FLEET),
    is_destructive=True,
)
RESIZE: Final = Command(
    "resize",
    "replace a manual slice that is not in use by smaller ones",
    (
        _NAME,
        _SLICE,
        option("type", metavar="TYPE", nargs="+", help="the types of the new ones, such as v4-64 v4-64"),
        *(_YES, *_WAIT_FOR_SLICE, *WHICH_FLEET),
    ),
    "After an interruption, run it again to continue.",
    is_destructive=True,
)
WORKERS: Final = (ADD_WORKER, REMOVE_WORKER, RESIZE)

# All commands of tradewind cluster

LIST: Final = Command(
    "list",
    "list the clusters",
    (_ANY, _JSON, *WHICH_CLUSTER),
)
UPDATE_CONFIGS: Final = Command(
    "update-configs",
    "write the file of each cluster, for Ray's launcher, beside the fleet file",
    (
        option("--check", action="store_true", help="write nothing; end with 1 if a file is outdated"),
        *WHICH_FLEET,
    ),
    "Files in clusters/ that this command did not write are left alone.",
)
VALIDATE: Final = Command(
    "validate",
    "check the fleet file, or any cluster files of Ray's launcher",
    (
        option(
            "files", metavar="FILE", nargs="+", help="for example infra/fleet.yaml or infra/clusters/us-central2.yaml"
        ),
    ),
)
CONNECTIONS: Final = Command(
    "connections",
    "compare the Airflow connections of the clusters with the fleet file",
    (
        _ANY,
        option("--apply", action="store_true", help="write those that are missing or differ"),
        option("--replace", action="store_true", help="with --apply: also those made by hand"),
        _JSON,
        *WHICH_CLUSTER,
    ),
    "Ends with 1 if a connection still differs from the fleet file.",
)
_ROTATE: Final = option("--rotate", action="store_true", help="add another one if there is one already")
AUTH: Final = Command(
    "auth",
    "copy the token of a cluster and open its dashboard",
    (
        _ONE,
        option("--secret", metavar="NAME", help="another secret than the cluster's"),
        option("--copy", action=argparse.BooleanOptionalAction, default=True, help="put the token into the clipboard"),
        option("--open", action=argparse.BooleanOptionalAction, default=True, help="open the dashboard, until Ctrl-C"),
        *WHICH_CLUSTER,
    ),
    "Without a clipboard the token is printed, if standard output is a terminal.",
)
AUTH_ENV: Final = Command(
    "auth-env",
    "store the token in a file, and print the variables by which Ray's own commands find it",
    (
        _ONE,
        option("--home", action="store_true", help="in ~/.ray/auth_token, where Ray itself looks"),
        *WHICH_CLUSTER,
    ),
    'For a shell: eval "$(tradewind cluster auth-env)"',
)
INIT_TOKEN: Final = Command(
    "init-token",
    "make the secret of a cluster, with a new token",
    (_ONE, _ROTATE, *WHICH_CLUSTER),
    "Refused while a cluster that has this token runs, and if there is a token already.",
)
SET_TOKEN: Final = Command(
    "set-token",
    "the same with a token that you have, from standard input",
    (_ONE, option("--file", metavar="FILE", help="from this file instead"), _ROTATE, *WHICH_CLUSTER),
    "Refused while a cluster that has this token runs, and if there is a token already.",
)
SET_CLEANUP_POLICY: Final = Command(
    "set-cleanup-policy",
    "have a repository remove images that are older than 30 days, but the newest 16",
    (
        option("repository", metavar="REPO", nargs="?", help="the repository; with --all only those of this name"),
        option("--region", metavar="R", action="append", default=[], help="its region; repeatable"),
        option("--project", metavar="P", help="its project; default: that of the fleet's default cluster"),
        option("--all", action="store_true", help="all repositories of the fleet, in all its regions"),
        option("--check", action="store_true", help="change nothing; end with 1 if a policy differs"),
        *WHICH_FLEET,
    ),
    "Other policies of a repository are unchanged.",
    is_destructive=True,
)
REGISTRY: Final = CommandGroup("registry ", "the repositories of the clusters' images", (SET_CLEANUP_POLICY,))
DOCTOR: Final = Command(
    "doctor",
    "check what clusters need before they start, and print how to fix what is missing",
    (_ANY, _JSON, *WHICH_CLUSTER),
    "Changes nothing. Ends with 1 if a check failed or could not be made.",
)
_FILES: Final = (LIST, UPDATE_CONFIGS, VALIDATE, CONNECTIONS, AUTH, AUTH_ENV, INIT_TOKEN, SET_TOKEN, DOCTOR)
_JOBS: Final = tuple(replace(command, name=name) for name, command in JOB_ALIASES.items())
CLUSTERS: Final = CommandGroup(
    "cluster ", "the Ray clusters of the fleet file", (*_FILES, *ACCESS, *LIFECYCLE, *WORKERS, *_JOBS)
)
