"""The commands of ``tradewind cluster`` and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.fleet.access.options import ACCESS
from tradewind.cli.fleet.lifecycle.options import LIFECYCLE
from tradewind.cli.fleet.which_options import WHICH_CLUSTER, WHICH_FLEET
from tradewind.cli.fleet.workers.options import WORKERS
from tradewind.cli.options import Command, option

CLUSTER_SUMMARY: Final = "the Ray clusters of the fleet file"
CLUSTER_GROUP: Final = "cluster "
"""Before the names of its commands, some of which others have too."""


LIST: Final = Command(
    "list",
    "list the clusters",
    (
        option("name", metavar="CLUSTER", nargs="*", help="only these; default: all"),
        option("--json", action="store_true", help="as JSON"),
        *WHICH_CLUSTER,
    ),
)
UPDATE_CONFIGS: Final = Command(
    "update-configs",
    "write the file of each cluster, for Ray's launcher, beside the fleet file",
    (
        option("--check", action="store_true", help="write nothing; end with 1 if a file is not as it should be"),
        *WHICH_FLEET,
    ),
    "Files in clusters/ that this command did not write are left alone.",
)
VALIDATE: Final = Command(
    "validate",
    "check the fleet file, or cluster files of Ray's launcher, whoever wrote them",
    (option("files", metavar="FILE", nargs="+", help="such as infra/fleet.yaml or infra/clusters/us-central2.yaml"),),
)
CONNECTIONS: Final = Command(
    "connections",
    "compare the Airflow connections of the clusters with the fleet file",
    (
        option("name", metavar="CLUSTER", nargs="*", help="only these; default: all"),
        option("--apply", action="store_true", help="write those that are missing or differ"),
        option("--replace", action="store_true", help="with --apply: also those that somebody made by hand"),
        option("--json", action="store_true", help="as JSON"),
        *WHICH_CLUSTER,
    ),
    "Ends with 1 if a connection is not as the fleet file has it when this command ends.",
)
_ONE: Final = option("name", metavar="CLUSTER", nargs="?", help="the cluster; default: default_cluster of the file")
_ROTATE: Final = option("--rotate", action="store_true", help="add another one though there is one")
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
    "print the variables by which Ray's own commands find the token, which is kept in a file",
    (_ONE, *WHICH_CLUSTER),
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
REGISTRY_SUMMARY: Final = "the repositories of the clusters' images"
REGISTRY_GROUP: Final = "registry "
SET_CLEANUP_POLICY: Final = Command(
    "set-cleanup-policy",
    "have a repository remove images that are older than 30 days, but the newest 16",
    (
        option("repository", metavar="REPO", nargs="?", help="the repository; with --all only those of this name"),
        option("--region", metavar="R", action="append", default=[], help="its region; repeatable"),
        option("--project", metavar="P", help="its project; default: that of the fleet's default cluster"),
        option("--all", action="store_true", help="all repositories of the fleet, in all its regions"),
        option("--check", action="store_true", help="change nothing; end with 1 if one is not as it should be"),
        *WHICH_FLEET,
    ),
    "Other policies of a repository stay.",
)
REGISTRY: Final = (SET_CLEANUP_POLICY,)
DOCTOR: Final = Command(
    "doctor",
    "look at what clusters need before they start, and say how to mend what is missing",
    (
        option("name", metavar="CLUSTER", nargs="*", help="only these; default: all"),
        option("--json", action="store_true", help="as JSON"),
        *WHICH_CLUSTER,
    ),
    "Nothing is changed. Ends with 1 if something is wrong, or could not be looked at.",
)
CLUSTER: Final = (
    LIST,
    UPDATE_CONFIGS,
    VALIDATE,
    CONNECTIONS,
    AUTH,
    AUTH_ENV,
    INIT_TOKEN,
    SET_TOKEN,
    DOCTOR,
    *ACCESS,
    *LIFECYCLE,
    *WORKERS,
)
