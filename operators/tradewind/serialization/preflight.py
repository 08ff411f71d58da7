"""Check the Python of a job before Tradewind starts in it.

A job brings this file in the package or as a variable. It needs only the standard library of Python 3.8.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

_EXIT_UNUSABLE = 69  # that of ``worker_python``, which may be missing here
_SHIPPED = os.path.join("runtime_resources", "py_modules_files") + os.sep


def _refuse(sentence: str) -> NoReturn:
    print(sentence, flush=True)
    sys.exit(_EXIT_UNUSABLE)


def _installed_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("airflow-provider-tradewind")
    except PackageNotFoundError:
        return None


def _drop_shipped() -> None:
    """Leave the package that came with the job, so that the installed one of the same version is imported."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    shipped = [each for each in given if _SHIPPED in each and os.path.isdir(os.path.join(each, "tradewind"))]
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in given if each not in shipped)
    sys.path[:] = [each for each in sys.path if each not in shipped]


def _check(ship: str, version: str, needs: dict[str, str], where: str, module: str) -> None:
    from importlib.util import find_spec

    python, found = sys.executable, _installed_version()
    package = f"airflow-provider-tradewind=={version}"
    install = f"run {python} -m pip install {package} {where}. Name the folder of its wheel by --find-links."
    differ = f"has Tradewind {found}, and Airflow has {version}"
    if ship == "never" and found is None and find_spec("tradewind") is None:
        _refuse(f"The cluster's Python {python} has no Tradewind, and none travels with this job: {install}")
    if ship == "never" and found is not None and found.split(".")[:2] != version.split(".")[:2]:
        _refuse(f"The cluster's Python {python} {differ}, whose records and entry points may differ: {install}")
    if found not in (None, version):
        used = "the cluster's" if ship == "never" else "Airflow's, which came with it"
        print(f"The cluster {differ}. This job uses {used}.", flush=True)
    if ship == "auto" and found == version:
        _drop_shipped()
    _check_needs(needs)
    try:
        has_module = find_spec(module) is not None
    except ImportError:
        has_module = False
    if not has_module:
        _refuse(f"The cluster {differ}: the cluster's has no {module}. So {install}")


def _check_needs(needs: dict[str, str]) -> None:
    """Refuse a Python without one of the modules in ``needs``, which names the package that installs each."""
    from importlib.util import find_spec
    from shlex import quote

    if missing := [module for module in needs if find_spec(module) is None]:
        packages = " ".join(sorted({quote(needs[module]) for module in missing}))
        _refuse(
            f"The cluster's Python {sys.executable} has no {' and no '.join(missing)}, which the step needs: run "
            f"{sys.executable} -m pip install {packages} on each node, and clear the task."
        )


def main() -> NoReturn:
    """Check, then start the command in the arguments."""
    given = json.loads(os.environ.pop("TRADEWIND_START_OPTIONS", "null"))
    if given is not None:
        if sys.version_info < (3, 11):  # noqa: UP036 - the cluster's, not Airflow's
            _refuse(
                f"The cluster's Python {sys.executable} is {sys.version.split()[0]}, and Tradewind needs 3.11: "
                "start Ray with that or newer, or name one as 'python' of the connection."
            )
        _check(**given, module=sys.argv[3])
    os.environ["TRADEWIND_PYTHON"] = sys.executable
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
