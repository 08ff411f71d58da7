"""What a later step takes from the best run of a comparison: a setting of it, or its output.

Which run that is shows only when all have ended, so a DAG file gets what stands for the value, and the step reads it
where it runs. The comparison counts in its version, and so does every run in that.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.datasets.files import exists, join, read_json, write_json
from tradewind.recipes.comparing.compare import CompareConfig
from tradewind.recipes.comparing.runs import RunResult
from tradewind.steps import ExecutorStep, InputName, lazy, output_path_of, versioned
from tradewind.text import did_you_mean, truncated_repr

__all__ = ["best_output", "best_setting"]

BEST_FILE: Final = "best.json"


def best_setting(comparison: Any, name: str) -> Any:
    """A setting of the best run, such as ``best_setting(comparison, "learning_rate")``.

    Args:
        comparison: A step of ``compare``.
        name: Of a setting that counts in the run's version, or in that of a step that it was made from.

    Raises:
        ValueError: It is no such step.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {truncated_repr(name)}: give the name of a setting, such as 'learning_rate'.")
    return lazy(f"{__name__}:read_setting", comparison=_comparison(comparison), name=versioned(name))


def best_output(comparison: Any) -> Any:
    """The output of the best run, such as for ``train(initialize_from=...)``.

    Args:
        comparison: A step of ``compare``.

    Raises:
        ValueError: It is no such step.
    """
    return lazy(f"{__name__}:read_output", comparison=_comparison(comparison))


def write_best(comparison: str, run: RunResult, output_path: str) -> None:
    """Note the best run and its settings in the output of a comparison."""
    told = {"run": run.label, "output_path": output_path, "settings": dict(run.settings)}
    write_json(join(comparison, BEST_FILE), told)


def read_setting(comparison: str, name: str) -> Any:
    """Raises ``ValueError`` if the best run has no such setting."""
    best = _best(comparison)
    if name not in best["settings"]:
        meant = did_you_mean(name, best["settings"])
        raise ValueError(
            f"{best['run']!r}, the best run of {comparison}, has no setting {truncated_repr(name)}; {meant}"
        )
    return best["settings"][name]


def read_output(comparison: str) -> str:
    """The best run's output path."""
    return str(_best(comparison)["output_path"])


def _comparison(value: Any) -> Any:
    step = value.step if isinstance(value, InputName) else value
    if not isinstance(step, ExecutorStep) or not isinstance(step.config, CompareConfig):
        raise ValueError(f"comparison is {truncated_repr(value)}: give a step of compare.")
    return output_path_of(step)


def _best(comparison: str) -> dict[str, Any]:
    file = join(comparison, BEST_FILE)
    if not exists(file):
        raise ValueError(f"There is no {file}: force the step of this comparison once, so that it notes the best run.")
    found: dict[str, Any] = read_json(file)
    return found
