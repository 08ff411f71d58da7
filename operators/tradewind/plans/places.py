"""Where a step runs and where its outputs go: the first of several sources that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tradewind.steps import ExecutorStep, MissingPrefixError, RelativePrefixError
from tradewind.steps.paths import is_absolute

PREFIX_VARIABLES = ("TRADEWIND_PREFIX", "MARIN_PREFIX")


def choose_cluster(step: ExecutorStep | None, of_dag: str | None, default: str) -> str:
    """The cluster of a step: its own, else the DAG's, else the deployment's default."""
    return (step.cluster if step else None) or of_dag or default


def choose_prefix(
    argument: str | None,
    param: str | None,
    environ: Mapping[str, str],
    configured: str | None,
    bucket: Callable[[], str | None],
) -> str:
    """The prefix: the argument, the DAG param, the environment, the configuration, or the cluster's bucket.

    ``bucket`` is asked last, since it may have to look up a connection.

    Raises:
        MissingPrefixError: None of them says anything.
        RelativePrefixError: What is said first means another place in each process.
    """
    from_environ = next((environ[name] for name in PREFIX_VARIABLES if environ.get(name)), None)
    prefix = argument or param or from_environ or configured or bucket()
    if not prefix:
        raise MissingPrefixError(
            "Nothing says where outputs go: give experiment_dag(prefix=...) or a DAG param 'prefix', set "
            "TRADEWIND_PREFIX, set prefix in the [tradewind] section of airflow.cfg, or give the cluster's connection "
            "a bucket."
        )
    if not is_absolute(prefix):
        raise RelativePrefixError(
            f"The prefix {prefix!r} is a relative path, which workers and clusters would each look up from where they "
            "are: give an absolute path or a URL."
        )
    return prefix
