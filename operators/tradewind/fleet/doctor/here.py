"""What has to be on the machine from which clusters are started: programs, versions, keys."""

from __future__ import annotations

import json
import platform
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.doctor.diagnosis import Diagnosis, well, wrong
from tradewind.fleet.local_paths import BadPathError, expanded

_LONGEST_S: Final = 60.0
_SDK: Final = "Google Cloud SDK"


def machine_diagnoses(clusters: Iterable[FleetCluster]) -> Iterator[Diagnosis]:
    """How this machine is, for starting ``clusters``."""
    yield _gcloud()
    yield _ssh()
    yield _versions()
    for key in sorted({cluster.ssh_private_key for cluster in clusters}):
        yield _key(key)


def _gcloud() -> Diagnosis:
    if shutil.which("gcloud") is None:
        return wrong(
            "gcloud", "not installed", "Install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"
        )
    command = ["gcloud", "version", "--format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=True)
        return well("gcloud", str(json.loads(done.stdout)[_SDK]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        return wrong("gcloud", f"does not run ({type(error).__name__})", "Run 'gcloud version', and install it anew.")


def _ssh() -> Diagnosis:
    if shutil.which("ssh") is None:
        return wrong("ssh", "not installed", "Install OpenSSH's client: heads are reached with it.")
    return well("ssh", "installed")


def _versions() -> Diagnosis:
    python = f"Python {platform.python_version()}"
    try:
        return well("versions", f"{python}, Ray {version('ray')}, Tradewind {version('airflow-provider-tradewind')}")
    except PackageNotFoundError as error:
        mend = "Install airflow-provider-tradewind[fleet] with the Ray of requirements.lock."
        return wrong("versions", f"{python}, and {error.name} is not installed", mend)


def _key(named: str) -> Diagnosis:
    about = f"SSH key {named}"
    try:
        file = expanded(named, "ssh_private_key")
    except BadPathError as error:
        return wrong(about, str(error), "Name the key as ssh_private_key in the fleet file.")
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        mend = "Fetch the fleet's key to there, or name yours as ssh_private_key in the fleet file."
        return wrong(about, f"cannot be read ({error.strerror})", mend)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return wrong(about, f"can be used by others (mode {mode:04o}), so ssh refuses it", f"chmod 600 {file}")
    return well(about, "there, for its owner alone")
