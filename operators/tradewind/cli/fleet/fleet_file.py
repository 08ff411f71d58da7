"""Which fleet file is meant."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from tradewind.cli.errors import UsageError
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.file.load import FLEET_VARIABLE, USUAL_FILE, load_fleet


def load_chosen_fleet(given: str | None) -> Fleet:
    """The fleet in that file.

    Raises:
        UsageError: It is not there.
        BadFileError: It cannot be used.
    """
    return load_fleet(chosen_fleet_file(given))


def chosen_fleet_file(given: str | None) -> Path:
    """The fleet file of the option, else of the environment, of Airflow's configuration, of this folder.

    Raises:
        UsageError: It is not there.
    """
    file = Path(given or os.environ.get(FLEET_VARIABLE) or _configured() or USUAL_FILE).expanduser()
    if not file.exists():
        raise UsageError(f"There is no fleet file {file}: name it with --fleet, or set {FLEET_VARIABLE}.")
    return file


def _configured() -> str | None:
    if find_spec("airflow") is None:
        return None
    from tradewind.deployment.fleet import configured_fleet_file

    return configured_fleet_file()
