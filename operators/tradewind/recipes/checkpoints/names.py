"""Names for what is made from a checkpoint, which identify its run and step."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

_HASH: Final = re.compile(r"-[0-9a-f]{6}$")
_CHECKPOINT: Final = re.compile(r"(?:^|/)(?P<run>[^/]+)/checkpoints/step-(?P<step>\d+)/*$")
_HUB_ID: Final = re.compile(r"[\w.-]+/(?P<model>[\w.-]+)")


class PathInStep(Protocol):
    """A path inside the output of a step; ``tradewind.InputName`` is one."""

    @property
    def step(self) -> Any: ...

    @property
    def name(self) -> str | None: ...


def checkpoint_name(checkpoint: str | PathInStep) -> str:
    """Return a name such as ``llama-8b-730000`` for ``…/llama-8b-1a2b3c/checkpoints/step-730000``.

    Args:
        checkpoint: A path, a path inside a training step's output, or the id of a model on the Hugging Face hub,
            whose second part is its name.

    Raises:
        ValueError: It is none of these.
    """
    path = _path(checkpoint)
    match = _CHECKPOINT.search(path)
    if match is not None:
        return f"{_HASH.sub('', match['run'])}-{match['step']}"
    hub_id = _HUB_ID.fullmatch(path)
    if hub_id is None:
        raise ValueError(
            f"Invalid path {path!r}: a checkpoint's path ends like 'my-run/checkpoints/step-1000', and a model of the "
            "Hugging Face hub is named like 'meta-llama/Llama-3.1-8B'."
        )
    return hub_id["model"]


def _path(checkpoint: Any) -> str:
    if isinstance(checkpoint, str):
        return checkpoint
    if hasattr(checkpoint, "step") and hasattr(checkpoint, "name"):
        return f"{checkpoint.step.name if checkpoint.step else ''}/{checkpoint.name or ''}"
    raise ValueError(f"Unknown type {type(checkpoint).__name__}: give a checkpoint's path, or a path inside a step.")
