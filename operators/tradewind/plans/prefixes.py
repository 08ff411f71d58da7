"""Choose a step's cluster and its prefix: the first of several sources that gives one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tradewind.steps import ExecutorStep, MissingPrefixError, RelativePrefixError
from tradewind.storage import Location, Roots

MIRROR_VARIABLE = "TRADEWIND_MIRROR_PREFIXES"
PREFIX_VARIABLES = ("TRADEWIND_PREFIX", "MARIN_PREFIX")


def choose_cluster(step: ExecutorStep | None, of_dag: str | None, default: str) -> str:
    """Return the cluster of a step: its own, else the DAG's, else the deployment's default."""
    return (step.cluster if step else None) or of_dag or default


def cluster_prefix() -> str | None:
    """Return the prefix that this node's environment names; None without one."""
    return next((os.environ[name] for name in PREFIX_VARIABLES if os.environ.get(name)), None)


@dataclass(frozen=True)
class ChosenPrefix:
    """A prefix and its source, in words."""

    path: str
    source: str


def choose_prefix(
    argument: str | None,
    param: Any,
    environ: Mapping[str, str],
    configured: str | None,
    bucket: Callable[[], str | None],
    param_name: str = "prefix",
) -> ChosenPrefix:
    """Choose the prefix: argument, DAG param, environment, configuration, or the cluster's bucket.

    ``bucket`` is called last, since it may have to read a connection.

    Raises:
        MissingPrefixError: No source gives one.
        RelativePrefixError: The first one given is relative: its meaning depends on the process.
        UnusablePathError: It is not a path that may be opened.
        UnsupportedStoreError: It is of another store.
    """
    given = [(argument, "The prefix"), (param, f"The run's param {param_name!r}")]
    given += [(environ.get(name), name) for name in PREFIX_VARIABLES]
    given += [(configured, "prefix in the [tradewind] section of airflow.cfg")]
    prefix, source = next((pair for pair in given if pair[0]), (None, "The bucket of the cluster's connection"))
    prefix = prefix or bucket()
    if not prefix:
        raise MissingPrefixError(
            f"No source sets the prefix of outputs: give experiment_dag(prefix=...) or a DAG param {param_name!r}, set "
            "TRADEWIND_PREFIX, set prefix in the [tradewind] section of airflow.cfg, or give the cluster's connection "
            "a bucket."
        )
    if not Location.of(prefix, source).is_absolute:
        raise RelativePrefixError(
            f"{source}: {prefix!r} is a relative path, which each worker and cluster would resolve differently: "
            "give an absolute path or a URL."
        )
    return ChosenPrefix(prefix, source)


def roots_in(text: str | None) -> Roots | None:
    """Parse the roots of a configuration, separated by lines or commas; None if it names none.

    Raises:
        UnusablePathError: One of them is not a path, or is relative.
        UnsupportedStoreError: One of them is of another store.
    """
    paths = [path.strip() for path in re.split(r"[,\n]", text or "") if path.strip()]
    return Roots.of(paths, "allowed_roots in the [tradewind] section of airflow.cfg") if paths else None


def mirror_prefixes(configured: str | None, environ: Mapping[str, str], buckets: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the prefixes that mirrored paths may be copied from: configured ones, else the fleet's buckets.

    Args:
        configured: ``mirror_prefixes`` of the configuration, separated by lines or commas; the environment has
            precedence.

    Raises:
        UnusablePathError: One of them is not a path, or is relative.
        UnsupportedStoreError: One of them is of another store.
    """
    text = environ.get(MIRROR_VARIABLE)
    where = MIRROR_VARIABLE if text else "mirror_prefixes in the [tradewind] section of airflow.cfg"
    named = [path.strip() for path in re.split(r"[,\n]", text or configured or "") if path.strip()]
    return Roots.of(named, where).paths or tuple(dict.fromkeys(f"gs://{bucket}" for bucket in buckets))


def configured_roots(allowed: str | None, environ: Mapping[str, str], configured: str | None) -> Roots:
    """Return what the deployment allows: ``allowed_roots``, else its default prefix.

    Raises:
        UnusablePathError: The configuration names a path that is not absolute.
        UnsupportedStoreError: It names another store.
    """
    if (named := roots_in(allowed)) is not None:
        return named
    given = {name: environ.get(name) for name in PREFIX_VARIABLES}
    given["prefix in the [tradewind] section of airflow.cfg"] = configured
    return Roots(tuple(path for where, each in given.items() if each for path in Roots.of([each], where).paths))
