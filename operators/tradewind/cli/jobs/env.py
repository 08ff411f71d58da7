"""Environment variables of a submitted job: only those given for it.

``-e`` wins over the ``env:`` of ``.marin.yaml``, and that over the discovered ``GIT_COMMIT`` and ``PYTHONPATH``. This
machine's own variables are not sent, ``HF_TOKEN`` and ``WANDB_API_KEY`` included: secrets go by ``--secret``. A secret
in ``.marin.yaml`` is left out, with a warning.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path
from typing import Any, Final

from tradewind.cli.output import CommandError, UsageError, user_name
from tradewind.ray_jobs.secret_patterns import detect_secret, secret_variable
from tradewind.storage.bounded_read import SMALL, read_local
from tradewind.storage.toml_files import read_toml

SETTINGS_FILE = ".marin.yaml"
_NAME: Final = re.compile(r"[^\s=\x00-\x1f\x7f-\x9f]{1,500}")
_SHELL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SHOWN: Final = 80


def job_env(
    given: Iterable[Sequence[str]], secrets: Iterable[str], folder: Path, settings: Path, say: Callable[[str], None]
) -> dict[str, str]:
    """Return the variables for a job.

    Args:
        given: The words of each ``-e``.
        secrets: The names in ``--secret``.
        folder: The working directory that is sent.
        settings: The ``.marin.yaml``, which need not exist.
        say: Takes warnings about variables that are left out.

    Raises:
        UsageError: An ``-e`` is no variable, or looks like a secret.
        CommandError: The settings cannot be read.
    """
    chosen = dict(one_variable(values) for values in given)
    if twice := sorted(chosen.keys() & set(secrets)):
        raise UsageError(f"{twice[0]} is given by -e and by --secret: give it once.")
    configured = without_secrets(env_in(settings), settings.name, {*chosen, *secrets}, say)
    return {**discover_project(folder), **configured, **chosen}


def one_variable(values: Sequence[str]) -> tuple[str, str]:
    """Parse the variable of one ``-e``: ``NAME=VALUE``, ``NAME VALUE``, or ``NAME`` with an empty value.

    Raises:
        UsageError: It is none of these, or looks like a secret.
    """
    if len(values) > 2 or (len(values) == 2 and "=" in values[0]):
        raise UsageError("-e has more than one value: write -e NAME=VALUE, and '--' before the command.")
    name, equals, value = values[0].partition("=")
    if len(values) == 2:
        value = values[1]
    if not name:
        raise UsageError("-e names no variable: write -e NAME=VALUE.")
    if (kind := detect_secret(name)) is not None:
        raise UsageError(f"-e names a variable that looks like {kind} (not shown): write -e NAME=VALUE.")
    if ":" in name:  # as YAML writes it
        raise UsageError("-e has a colon in its name (not shown, as it may hold a secret): write -e NAME=VALUE.")
    if not _NAME.fullmatch(name):
        raise UsageError(f"-e {name[:_MAX_SHOWN]!r} is not the name of a variable: write -e NAME=VALUE.")
    if "\0" in value:
        raise UsageError(f"the value of -e {name} has a NUL, which no variable can have.")
    is_bare = len(values) == 1 and not equals
    # The user probably expects this machine's value for a bare name like this one.
    why = secret_variable(name, "a value" if is_bare else value)
    if why is not None:
        raise UsageError(f"-e {name} looks like a secret ({why}): {_instead(name)}")
    return name, value


def without_secrets(
    env: Mapping[str, str], where: str, overridden: Iterable[str], say: Callable[[str], None]
) -> dict[str, str]:
    """Return ``env`` without probable secrets; warn of each unless it is ``overridden``."""
    harmless = {name: value for name, value in env.items() if secret_variable(name, value) is None}
    for name in sorted(env.keys() - harmless.keys() - set(overridden)):
        say(f"{name} of {where} looks like a secret and is not sent: {_instead(name)}")
    return harmless


def env_in(settings: Path) -> dict[str, str]:
    """Return the ``env:`` of a settings file; empty if there is no such file.

    Raises:
        CommandError: It cannot be read, or holds an invalid variable. The message has the line and no value.
    """
    if not settings.is_file():
        return {}
    from tradewind.fleet.errors import BadFileError
    from tradewind.fleet.yaml_schema import read_yaml

    try:
        document = read_yaml(settings)
    except BadFileError as error:  # its text may hold secrets
        line = error.problems[0].line
        raise CommandError(
            f"{settings}:{line}: this is not valid YAML in which each key is a text: correct it."
        ) from None
    found = document.value
    env = found.get("env") if isinstance(found, Mapping) else None
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise CommandError(f"{settings}:{document.line_of(('env',))}: 'env' must be a map of names and values.")
    for name, value in env.items():
        if why := _why_no_variable(name, value):
            raise CommandError(f"{settings}:{document.line_of(('env', name))}: {why}: correct or remove it.")
    return {name: _as_text(value) for name, value in env.items()}


def _why_no_variable(name: str, value: Any) -> str:
    """Explain why no process can have this variable; empty if one can. A value is never shown."""
    if not _NAME.fullmatch(name):
        return f"{name[:_MAX_SHOWN]!r} is not the name of a variable"
    if isinstance(value, Mapping | list):
        return f"the value of {name} is not a text"
    if "\0" in _as_text(value):
        return f"the value of {name} has a NUL, which no variable can have"
    return ""


def discover_project(folder: Path) -> dict[str, str]:
    """Return the commit of ``folder``, and the module folders of its workspace."""
    found = {}
    if commit := _commit(folder):
        found["GIT_COMMIT"] = commit
    if places := module_folders(folder):
        found["PYTHONPATH"] = ":".join(places)  # relative: a job starts in its working directory
    return found


def module_folders(folder: Path) -> list[str]:
    """Return the ``src`` of the project and its uv workspace's members, and its submodules.

    Paths are relative to ``folder``. Paths that lead out of it are not sent; unreadable files give none.
    """
    members = [folder, *_workspace_members(folder)]
    sources = [member / "src" for member in members]
    sources += [path / "src" if (path / "src").is_dir() else path for path in _submodules(folder)]
    inside = [path.relative_to(folder).as_posix() for path in sources if _is_inside(path, folder) and path.is_dir()]
    return list(dict.fromkeys(inside))


def _is_inside(path: Path, folder: Path) -> bool:
    if not path.is_relative_to(folder):
        return False
    inside = path.relative_to(folder)
    return ".." not in inside.parts and ":" not in str(inside)  # a colon would split the path in PYTHONPATH


def _workspace_members(folder: Path) -> list[Path]:
    try:
        workspace = read_toml(folder / "pyproject.toml")["tool"]["uv"]["workspace"]
        members, exclude = (list(workspace.get(key, [])) for key in ("members", "exclude"))
        left_out = {path for glob in exclude for path in folder.glob(glob)}
        return [path for glob in members for path in sorted(folder.glob(glob)) if path not in left_out]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, NotImplementedError):
        return []  # also for an absolute glob


def _submodules(folder: Path) -> list[Path]:
    parser = ConfigParser(strict=False, interpolation=None)
    try:
        parser.read_string(read_local(folder / ".gitmodules", SMALL).text)
    except (OSError, ConfigError):
        return []
    return [folder / path for section in parser.sections() if (path := parser.get(section, "path", fallback=""))]


def _commit(folder: Path) -> str | None:
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _instead(name: str) -> str:
    instead = (
        f"give --secret {name}=projects/PROJECT/secrets/SECRET (Secret Manager) or --secret {name}=env:VARIABLE (a "
        "variable of the cluster) instead. The cluster fetches it, and the job's description does not have it."
    )
    if not _SHELL_NAME.fullmatch(name):  # a command with another name could do anything
        return instead
    secret = re.sub(r"[^A-Za-z0-9_-]", "-", f"{user_name() or 'my'}-{name}")
    return (
        f"{instead} To put this machine's value into Secret Manager, once: "
        f'printf %s "${name}" | gcloud secrets create {secret} --project=PROJECT --data-file=-'
    )
