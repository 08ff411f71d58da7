"""Config of ``run_levanter_train_lm``: Levanter's config and the output path.

Marin's ``TrainLmOnPodConfig`` has the same fields, so fields are read by name, for any class.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.datasets.files import basename
from tradewind.recipes.model_spec import check_context, check_sizes
from tradewind.steps.fields import FLAG, PATH, TEXTS, check_fields, instance
from tradewind.steps.placeholders import Lazy
from tradewind.text import truncated_repr

_SET_BY_RESOURCES: Final = ("JAX_PLATFORMS",)
"""Variables that the step's resources set."""
_MAX_ID_BYTES: Final = 255


@dataclass(frozen=True)
class LevanterTrainConfig:
    """A training of any ``levanter.main.train_lm.TrainLmConfig``."""

    train_config: Any
    """Levanter's config; in a DAG file ``lazy("levanter.main.train_lm:TrainLmConfig", ...)``."""
    output_path: str
    """Gets ``checkpoints/``, ``hf/step-N/``, ``metrics.jsonl`` and, last of all, ``result.json``."""
    allow_out_of_region: Sequence[str] = ()
    """Fields whose buckets may be in another region, by path from Levanter's config, such as ``data.cache_dir``."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Variables of the training processes."""
    auto_build_caches: bool | None = None
    """Whether to tokenize missing data first; None leaves it to ``data.auto_build_caches``."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            output_path=PATH,
            allow_out_of_region=TEXTS,
            env_vars=instance("a mapping of variables, such as {'LIBTPU_INIT_ARGS': '...'}", Mapping),
            auto_build_caches=FLAG.or_none(),
        )
        if isinstance(self.train_config, Lazy) and (model := self.train_config.kwargs.get("model")) is not None:
            check_sizes(model, "train_config.model")
            check_context(model, self.train_config.kwargs.get("train_seq_len"), "train_config.train_seq_len")


def output_path_of(config: Any) -> str:
    """Return the output path; raises ``ValueError`` without one."""
    path = getattr(config, "output_path", None)
    if not path:
        raise ValueError("output_path is missing: give this_output_path(), below which checkpoints and export go.")
    return str(path)


def run_id_of(config: Any) -> str:
    """Return the given run id, or the last part of the output path, as in Marin.

    Raises:
        ValueError: It is no valid name of a folder, as Levanter needs.
    """
    given = config.train_config.trainer.id or variables_of(config).get("RUN_ID") or os.environ.get("RUN_ID")
    run_id = str(given or basename(output_path_of(config)))
    if "/" in run_id or run_id in (".", "..") or not run_id.isprintable() or len(run_id.encode()) > _MAX_ID_BYTES:
        raise ValueError(f"train_config.trainer.id={truncated_repr(run_id)}: give a name, without '/', for the run.")
    return run_id


def variables_of(config: Any) -> dict[str, str]:
    """Return the variables for the training processes, also from Marin's older ``runtime_env``."""
    runtime_env = getattr(getattr(config, "resources", None), "runtime_env", None) or {}
    given = {**(runtime_env.get("env_vars") or {}), **(getattr(config, "env_vars", None) or {})}
    return {str(name): str(value) for name, value in given.items() if name not in _SET_BY_RESOURCES}


def set_variables(config: Any) -> None:
    """Set the variables in this process; print those that JAX, already imported, will not read."""
    given = variables_of(config)
    late = [name for name in given if name.startswith("JAX_") and os.environ.get(name) != given[name]]
    os.environ.update(given)
    if late and "jax" in sys.modules:
        print(f"{', '.join(sorted(late))} of env_vars come too late: set them in the cluster file.", flush=True)
