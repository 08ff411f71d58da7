"""A model in the form of Hugging Face that a training begins with: is it there, and is it of the training's shape?"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, is_remote, join
from tradewind.recipes.checkpoints.stored_shapes import model_shapes
from tradewind.storage import file_system_at

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_HUB: Final = "hf://"
_WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
"""What Levanter reads weights from, the first that is there; one in parts has an index of the same name."""


def check_hub_model(made: Any, begin: Any, field: str) -> None:
    """Refuse what Levanter could not load into its model; no weight is read for that.

    Args:
        made: Levanter's config of the training.
        begin: A folder, a name on the hub, or True for the model's own reference checkpoint.
        field: Of the config.

    Raises:
        ValueError: Nothing is there, it cannot be read, it lacks weights, or it is of another shape.
    """
    path, described, stored = described_on_hub(made, begin, field)
    if getattr(made, "use_hf_model_config", False):
        return  # the model is whatever is there
    found, wanted = model_shapes(stored, described.vocab_size), model_shapes(made, len(made.data.the_tokenizer))
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"{field}: the model {path} is another: {name} is {found.get(name)} there and {wanted.get(name)} in "
                "this one."
            )


def described_on_hub(made: Any, begin: Any, field: str) -> tuple[str, Any, Any]:
    """Where the model is, its own config, and Levanter's config of the training with that model.

    Args:
        made: Levanter's config of the training.
        begin: A folder, a name on the hub, or True for the model's own reference checkpoint.
        field: Of the config.

    Raises:
        ValueError: Nothing is there, it cannot be read, or it lacks weights.
    """
    path = made.model.reference_checkpoint if begin is True else str(begin)
    try:
        converter = made.model.hf_checkpoint_converter()
        described = converter.hf_config_from_hf_checkpoint(path)
        stored = dataclasses.replace(made, model=converter.config_from_hf_config(described))
        missing = _missing_weights(path)
    except Exception as error:  # whatever the hub's client and the reader of its configs raise
        raise ValueError(f"{field}={path!r} {_why_unreadable(error)}") from error
    if missing:
        raise ValueError(f"{field}={path!r} lacks {missing}: give a model that was saved, or uploaded, whole.")
    return path, described, stored


def _missing_weights(path: str) -> str:
    """The file of weights that is not there, of those that Levanter would read; empty if all are."""
    fs, root = _file_system_of(path)
    there = {basename(name) for name in fs.ls(root, detail=False)}
    for name in _WEIGHTS:
        if (index := f"{name}.index.json") in there:
            parts = json.loads(fs.cat_file(join(root, index)))["weight_map"].values()
            return next((part for part in parts if part not in there), "")
    return "" if there.intersection(_WEIGHTS) else " and ".join(_WEIGHTS)


def _file_system_of(path: str) -> tuple[AbstractFileSystem, str]:
    """As Levanter tells a folder from a name on the hub."""
    is_of_hub = path.startswith(_HUB)
    if not is_of_hub and (is_remote(path) or path.startswith(("/", "./", "../")) or os.path.isdir(path)):
        return file_system_at(path)
    from huggingface_hub import HfFileSystem

    return HfFileSystem(), path.removeprefix(_HUB)


def _why_unreadable(error: BaseException) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return "is for those who have accepted its terms on its page: do so, and give the step the secret HF_TOKEN."
        if isinstance(cause, RepositoryNotFoundError):
            return (
                "is not on the hub, or is shown to others only: check the name, or give the step the secret HF_TOKEN."
            )
        if isinstance(cause, RevisionNotFoundError):
            return "is not on the hub in this revision: give a branch, a tag or a commit that its page shows after '@'."
        cause = cause.__cause__ or cause.__context__
    return (
        f"cannot be read ({first_line_of(error)}): give a folder with a model in the form of Hugging Face, or a name "
        "on the hub that the cluster may read."
    )


def first_line_of(error: BaseException) -> str:
    """What a library's error says, in one line."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return f"{type(error).__name__}: {reason}"
