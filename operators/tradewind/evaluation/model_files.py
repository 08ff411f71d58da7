"""Find a model before it is served: its export, tokenizer, chat template and context, and what tells it from others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import exists, join, states_below
from tradewind.datasets.tokenizer_files import TOKENIZER_GLOBS, local_tokenizer
from tradewind.evaluation.config import EvaluationConfig
from tradewind.recipes.lm.stored_models import first_line_of
from tradewind.serving.config import ServingConfig
from tradewind.serving.weights import (
    CHECKPOINT,
    check_model,
    export_beside,
    export_or_none,
    present_model,
    stored_export,
)
from tradewind.steps.paths import HUB_PREFIX
from tradewind.storage.bounded_read import LARGE
from tradewind.storage.files import read_contents
from tradewind.text import truncated_repr

_MODEL_CONFIG: Final = "config.json"
_CONTEXT_KEYS: Final = ("max_position_embeddings", "n_positions", "max_seq_len")
_CONTEXT_OPTIONS: Final = ("max_seq_len", "max_model_len")
_LEVANTER_CONTEXT: Final = 4096
"""Context of Levanter's engine, unless an option gives another or the model's is shorter."""
_HUB_FILES: Final = (_MODEL_CONFIG, *TOKENIZER_GLOBS)


@dataclass(frozen=True)
class ModelFiles:
    """A model that was found.

    Attributes:
        path: Its export or checkpoint, or its name and revision on the hub.
        folder: Local folder with its tokenizer; None for a served address without one.
        max_context: Tokens of a prompt with its answer at most; None if that is unknown.
        chat_template: Its chat template, if it has one.
        state: What differs between two models, such as names, sizes and states of its files.
    """

    path: str
    folder: str | None
    max_context: int | None
    chat_template: str | None
    state: Sequence[Any]


def find_model(config: EvaluationConfig) -> ModelFiles:
    """Find the model of an evaluation.

    Raises:
        ValueError: ``model_path`` holds none, or its tokenizer is missing.
    """
    path, export, state = _stored_at(config)
    field = "model_path" if config.tokenizer is None else "tokenizer"
    source = config.tokenizer or export
    if source and source.startswith(HUB_PREFIX):
        folder: str | None = from_hub(source, field, _HUB_FILES)
    else:
        folder = local_tokenizer(source, field) if source else None
    own = _json(join(folder, _MODEL_CONFIG)) if folder else {}
    template = chat_template_in(folder)
    return ModelFiles(path, folder, _context(config, own), template, [*state, template])


def _stored_at(config: EvaluationConfig) -> tuple[str, str, Sequence[Any]]:
    """Return the path of the model's files, the folder with its tokenizer, and the state of the files."""
    path = (config.model_path or "").rstrip("/")
    if not path or path.startswith(HUB_PREFIX):
        check_model(path)
        return path, path, [path]
    if isinstance(config.serving, ServingConfig) and config.serving.engine == "command":
        own = export_or_none(path)  # the program may read any other form, too
        return own or path, own or "", [path, *states_below(own or path)]
    if not exists(join(path, CHECKPOINT)):
        export = stored_export(path)
        return export, export, model_state(export)
    return path, export_beside(path) or path, model_state(path)


def model_state(path: str) -> Sequence[Any]:
    """Return what differs between this model and another that takes its place; raises ``ValueError`` without one."""
    return present_model(path)[1]


def from_hub(source: str, field: str, patterns: Sequence[str]) -> str:
    """Return a local folder with these files of a model on the hub, at its revision.

    Raises:
        ValueError: The hub has no such model, or denies access, or does not answer.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    try:
        return str(snapshot_download(name, revision=revision or None, allow_patterns=list(patterns)))
    except Exception as error:  # the client raises many kinds
        raise ValueError(
            f"{field}={truncated_repr(source)} cannot be read from the hub ({first_line_of(error)}): check the name, "
            "or give the step the secret HF_TOKEN."
        ) from error


def _context(config: EvaluationConfig, own: Mapping[str, Any]) -> int | None:
    """Return the smallest context that is known."""
    known = [own.get(key) for key in _CONTEXT_KEYS] + [config.max_context]
    served = config.serving if isinstance(config.serving, ServingConfig) else None
    options = (config.engine_kwargs or {}) if served is None else served.engine_options
    given = [options.get(key) for key in _CONTEXT_OPTIONS]
    is_levanter = config.serving is None or (served is not None and served.engine == "levanter")
    if is_levanter and not any(given):
        given = [_LEVANTER_CONTEXT]
    return min((each for each in [*known, *given] if type(each) is int and each > 0), default=None)


def chat_template_in(folder: str | None) -> str | None:
    """Return the chat template of the tokenizer in a folder, if it has one."""
    if folder is None:
        return None
    file = read_contents([join(folder, "chat_template.jinja")], LARGE)
    for content in file.values():
        return content.text or None
    given = _json(join(folder, "tokenizer_config.json")).get("chat_template")
    if isinstance(given, list):  # templates by name
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default", next(iter(named.values()), None))
    return given if isinstance(given, str) and given else None


def _json(path: str) -> Mapping[str, Any]:
    """Return a JSON object; an empty one if there is none."""
    content = read_contents([path], LARGE).get(path)
    try:
        given = json.loads(content.text) if content is not None and content.flaw is None else {}
    except (ValueError, RecursionError):
        given = {}
    return given if isinstance(given, dict) else {}
