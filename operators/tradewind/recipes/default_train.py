"""``default_train``: a training as one step, in the manner of Marin's function of that name.

Everything that the weights depend on counts in the version, whether it was given or not; how often something is
measured, saved or printed, and where it runs, does not.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from tradewind.recipes.levanter_overrides import check_names
from tradewind.recipes.train_config import RESUMABLE, LmTrainConfig
from tradewind.recipes.train_lm import train_lm
from tradewind.steps import (
    ExecutorStep,
    InputName,
    MirroredValue,
    OutputName,
    Resources,
    VersionedValue,
    ensure_versioned,
    lazy,
    this_output_path,
)
from tradewind.steps.lazy import Lazy

_COUNTED = (
    "num_train_steps",
    "learning_rate",
    "batch_size",
    "seq_len",
    "weight_decay",
    "seed",
)
_GIVEN = ("cache_path", "tokenizer_path", "output_path", "model", "model_size")
_PLACEHOLDERS = (ExecutorStep, InputName, MirroredValue, OutputName, VersionedValue)


def default_train(
    name: str,
    tokenized: ExecutorStep | InputName | str,
    model: Any = "tiny",
    *,
    tokenizer: ExecutorStep | InputName | str | None = None,
    resources: Resources | None = None,
    tags: Sequence[str] = (),
    description: str | None = None,
    override_output_path: str | None = None,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
    **settings: Any,
) -> ExecutorStep:
    """A step ``checkpoints/{name}`` that trains ``model`` on ``tokenized`` with Levanter.

    Args:
        name: Of the run.
        tokenized: The step that made the token cache, or the cache's path.
        model: The name of a size (also ``run_param(...)``), ``lazy("levanter.models.llama:LlamaConfig", ...)``, or a
            model config of Levanter's. All that is given of it counts in the version.
        tokenizer: The tokenizer's step or path; the one that ``tokenized`` was made with if not given.
        resources: Where it runs, such as ``TpuSlice("v4-16")``; one CPU of the cluster if not given.
        tags: For the run at W&B, if there is one.
        description: For people.
        override_output_path: As in ``ExecutorStep``.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``WANDB_API_KEY`` for W&B online.
        settings: Fields of ``LmTrainConfig``.

    Raises:
        ValueError: A setting is no field of ``LmTrainConfig``, or nothing says which tokenizer.
    """
    _check_names_of(settings)
    return ExecutorStep(
        name=f"checkpoints/{name}",
        fn=train_lm,
        config=_config(tokenized, tokenizer, model, _with_tags(settings, tags)),
        description=description or f"Trains {_said(model)} with Levanter.",
        override_output_path=override_output_path,
        resources=resources,
        cluster=cluster,
        secrets=secrets or {},
        resumable=RESUMABLE,
    )


def _config(tokenized: Any, tokenizer: Any, model: Any, settings: dict[str, Any]) -> LmTrainConfig:
    defaults = {field.name: field.default for field in dataclasses.fields(LmTrainConfig)}
    counted = {field: ensure_versioned(settings.pop(field, defaults[field])) for field in _COUNTED}
    levanter = {field: _counted(value) for field, value in settings.pop("levanter", {}).items()}
    if isinstance(settings.get("initialize_from"), str):
        settings["initialize_from"] = ensure_versioned(settings["initialize_from"])
    return LmTrainConfig(
        cache_path=_path(tokenized),
        tokenizer_path=_path(tokenizer) if tokenizer is not None else _tokenizer_of(tokenized),
        output_path=this_output_path(),
        levanter=levanter,
        **_model(model),
        **counted,
        **{field: _path(value) for field, value in settings.items()},
    )


def _model(model: Any) -> dict[str, Any]:
    """A lazy model's class is no part of a version by itself, so it stands in for the size, which is not read then."""
    if isinstance(model, Lazy):
        return {"model": _counted(model), "model_size": ensure_versioned(model.target)}
    if dataclasses.is_dataclass(model) and not isinstance(model, _PLACEHOLDERS) and hasattr(model, "max_seq_len"):
        return {"model": ensure_versioned(model), "model_size": ensure_versioned(type(model).__qualname__)}
    return {"model_size": ensure_versioned(model)}


def _counted(value: Any) -> Any:
    """``value`` as part of the version: fields of a lazy object one by one, references as they are."""
    if isinstance(value, Lazy):
        return lazy(value.target, **{field: _counted(inner) for field, inner in value.kwargs.items()})
    return value if isinstance(value, _PLACEHOLDERS) else ensure_versioned(value)


def _path(value: Any) -> Any:
    return value.as_input_name() if isinstance(value, ExecutorStep) else value


def _tokenizer_of(tokenized: Any) -> Any:
    """The tokenizer that a step of ``build_token_cache`` names in its config."""
    step = tokenized.step if isinstance(tokenized, InputName) else tokenized
    found = getattr(getattr(step, "config", None), "tokenizer_path", None)
    if found is None:
        raise ValueError(
            "tokenizer is missing: the token cache is no step whose config says which one it was made with."
        )
    return found


def _with_tags(settings: dict[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    wandb = settings.get("wandb")
    if wandb is None or not tags:
        return settings
    return settings | {"wandb": dataclasses.replace(wandb, tags=(*wandb.tags, *tags))}


def _check_names_of(settings: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(LmTrainConfig) if field.name not in _GIVEN]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the fields are {', '.join(known)}."
            raise ValueError(f"default_train({name}=...) is no field of LmTrainConfig; {hint}")
    check_names(settings.get("levanter", {}))


def _said(model: Any) -> str:
    if isinstance(model, Lazy):
        return f"a {model.target.rpartition(':')[2]}"
    return f"a model of size {model}" if isinstance(model, str) else "a language model"
