"""The experiment's file: which steps belong together, in ``{prefix}/experiments/{name}-{hash}.json`` as E20 writes it.

The hash covers the steps and nothing else, so an experiment has one file however often it runs; the file says who ran
it first and when. Marin's data browser reads it.
"""

from __future__ import annotations

import datetime
import getpass
import hashlib
import os
import posixpath
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.records.step_info import info_json
from tradewind.storage.files import create_text

EXPERIMENTS_FOLDER: Final = "experiments"
_FILE_NAME: Final = re.compile(r".+-[0-9a-f]{6}\.json")


def write_experiment_info(
    prefix: str,
    name: str,
    infos: Sequence[Mapping[str, Any]],
    caller_path: str,
    git_commit: str | None,
    folder: str | None = None,
) -> str:
    """Put the experiment's file into its folder unless it is there; its path.

    Args:
        name: The name of the file that defines the experiment, without ``.py``.
        infos: What ``step_info`` says of each step.
        caller_path: The file that defines the experiment.
        git_commit: The commit of its code, where there is one.
        folder: The folder of experiments, if not the one below ``prefix``.
    """
    digest = hashlib.md5(info_json(infos, sort_keys=True).encode(), usedforsecurity=False).hexdigest()[:6]
    path = posixpath.join(folder or posixpath.join(prefix, EXPERIMENTS_FOLDER), f"{name}-{digest}.json")
    fields = {
        "worker_id": f"{socket.gethostname()}-{os.getpid()}",
        "git_commit": git_commit,
        "caller_path": caller_path,
        "created_date": datetime.datetime.now().isoformat(),
        "user": _user(),
        "prefix": prefix,
        "steps": infos,
    }
    create_text(path, info_json(fields, indent=2) + "\n")
    return path


def is_experiment_file(name: str) -> bool:
    """Whether a file of this name, in the folder of experiments, is one."""
    return _FILE_NAME.fullmatch(name) is not None


def _user() -> str:
    """Who runs this; a container may have no name for its user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
