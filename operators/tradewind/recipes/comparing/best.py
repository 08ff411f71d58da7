"""Settings and output of the best run of a comparison, for a later step.

The best run is known only when all have ended. So a DAG file gets a placeholder, and the step reads the value where it
runs. The comparison and every run in it count in the step's version.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.datasets.files import join, write_json
from tradewind.recipes.comparing.compare import CompareConfig
from tradewind.recipes.comparing.runs import RunResult
from tradewind.recipes.stored_json import read_object
from tradewind.records.parsing import OBJECT, TEXT
from tradewind.steps import ExecutorStep, InputName, lazy, output_path_of, versioned
from tradewind.text import did_you_mean, single_line, truncated_repr

__all__ = ["best_output", "best_setting"]

BEST_FILE: Final = "best.json"
_KINDS: Final = {"run": TEXT, "output_path": TEXT, "settings": OBJECT}


def best_setting(comparison: Any, name: str) -> Any:
    """Return a setting of the best run, such as ``best_setting(comparison, "learning_rate")``.

    Args:
        comparison: A step of ``compare``.
        name: A setting that counts in the version of the run, or of a step that it was made from.

    Raises:
        ValueError: ``comparison`` is no such step.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {truncated_repr(name)}: give the name of a setting, such as 'learning_rate'.")
    return lazy(f"{__name__}:read_setting", comparison=_comparison(comparison), name=versioned(name))


def best_output(comparison: Any) -> Any:
    """Return the output of the best run, such as for ``train(initialize_from=...)``.

    Args:
        comparison: A step of ``compare``.

    Raises:
        ValueError: ``comparison`` is no such step.
    """
    return lazy(f"{__name__}:read_output", comparison=_comparison(comparison))


def write_best(comparison: str, run: RunResult, output_path: str) -> None:
    """Record the best run and its settings in the output of a comparison."""
    best = {"run": run.label, "output_path": output_path, "settings": dict(run.settings)}
    write_json(join(comparison, BEST_FILE), best)


def read_setting(comparison: str, name: str) -> Any:
    """Read a setting of the best run; raises ``ValueError`` if it has none of that name."""
    best = _best(comparison)
    if name not in best["settings"]:
        meant = did_you_mean(name, [single_line(each) for each in best["settings"]])
        raise ValueError(
            f"{best['run']!r}, the best run of {comparison}, has no setting {truncated_repr(name)}; {meant}"
        )
    return best["settings"][name]


def read_output(comparison: str) -> str:
    """Read the best run's output path."""
    return str(_best(comparison)["output_path"])


def _comparison(value: Any) -> Any:
    step = value.step if isinstance(value, InputName) else value
    if not isinstance(step, ExecutorStep) or not isinstance(step.config, CompareConfig):
        raise ValueError(f"comparison is {truncated_repr(value)}: give a step of compare.")
    return output_path_of(step)


def _best(comparison: str) -> dict[str, Any]:
    file = join(comparison, BEST_FILE)
    best = read_object(file, _KINDS, _KINDS)
    if best is None:
        raise ValueError(
            f"There is no {file}: force the step of this comparison once, so that it records the best run."
        )
    return best
