"""Vocabulary sizes of tokenizers, for descriptions of steps, without loading a library.

A table has the tokenizers of Marin's experiments. Others are looked up in the user's folder with answers, then in the
Hugging Face cache that ``HF_HUB_CACHE`` or ``HF_HOME`` names, if set. Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tradewind.marin.offline import FOLDER_VARIABLE, answer_to, read_json
from tradewind.steps.errors import ExperimentError

_LLAMA_3: Final = (128000, 128256)
_QWEN_3: Final = (151643, 151669)
SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "EleutherAI/gpt-neox-20b": (50254, 50277),
    "meta-llama/Llama-2-7b-hf": (32000, 32000),
    "meta-llama/Meta-Llama-3.1-8B": _LLAMA_3,
    "meta-llama/Meta-Llama-3.1-8B-Instruct": _LLAMA_3,
    "stanford-crfm/marin-tokenizer": _LLAMA_3,
    **{f"Qwen/Qwen3-{size}": _QWEN_3 for size in ("0.6B", "1.7B", "4B", "8B", "32B")},
}
"""Tokenizer on the Hugging Face hub -> vocabulary size without and with added tokens."""


_ON_THE_HUB: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of known size; nothing else of it is available.

    Attributes:
        vocab_size: Vocabulary size without added tokens; ``len()`` includes them.
    """

    name_or_path: str
    vocab_size: int
    _length: int

    def __len__(self) -> int:
        return self._length

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ExperimentError(
            f"{name} of the tokenizer {self.name_or_path} is unknown while a DAG file is parsed: read it in the step's "
            "function."
        )


def load_tokenizer(model_name_or_path: Any, *, revision: str | None = None, **_: Any) -> Tokenizer:
    """Return a tokenizer whose size is in the table, the user's folder or the cache.

    Raises:
        ExperimentError: None of them has it at that revision.
    """
    sizes = known_sizes(str(model_name_or_path), revision)
    if sizes is None:
        raise ExperimentError(
            f"The sizes of the tokenizer {model_name_or_path}{f' at {revision}' if revision else ''} are unknown, and "
            "nothing is downloaded while a DAG file is parsed: set HF_HUB_CACHE there to a Hugging Face cache that has "
            f"it, or write its sizes into tokenizers.json in the folder that {FOLDER_VARIABLE} names. Known are "
            f"{', '.join(sorted(SIZES))}."
        )
    return Tokenizer(model_name_or_path, *sizes)


def known_sizes(name: str, revision: str | None = None) -> tuple[int, int] | None:
    """Return the sizes without and with added tokens; None for an unknown tokenizer.

    Raises:
        BadAnswerError: The user's folder has it in an invalid form.
        ExperimentError: The cached tokenizer cannot be read.
    """
    answer = answer_to("tokenizers", name if revision is None else f"{name}@{revision}")
    if answer is not None:
        return answer[0], answer[1]
    sizes = SIZES.get(name) if revision is None else None
    return _sizes_in_cache(name, revision or "main") if sizes is None else sizes


def _sizes_in_cache(name: str, revision: str) -> tuple[int, int] | None:
    """Return the sizes without and with added tokens; None if the user's cache does not have it."""
    home = os.environ.get("HF_HOME")
    cache = os.environ.get("HF_HUB_CACHE") or (home and os.path.join(home, "hub"))
    if not cache or not _ON_THE_HUB.fullmatch(name) or not _REVISION.fullmatch(revision):
        return None
    model = Path(cache) / f"models--{name.replace('/', '--')}"
    try:
        reference = model / "refs" / revision
        snapshot = model / "snapshots" / (reference.read_text().strip() if reference.is_file() else revision)
        vocabulary = _vocabulary(read_json(snapshot / "tokenizer.json"))
        added = _added_by(read_json(snapshot / "tokenizer_config.json"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExperimentError(f"The tokenizer {name} in {model} cannot be read: {error}.") from error
    without = set(vocabulary[0])
    return len(without), len(without.union(vocabulary[1], added))


def _vocabulary(tokenizer: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the tokens of the model, and those added to them."""
    vocabulary = tokenizer["model"]["vocab"]
    tokens = list(vocabulary) if isinstance(vocabulary, dict) else [token for token, _ in vocabulary]
    return tokens, [added["content"] for added in tokenizer.get("added_tokens", ())]


def _added_by(config: Mapping[str, Any]) -> list[str]:
    """Return the tokens that loading adds under this configuration, if the vocabulary lacks them."""
    named = [value for key, value in config.items() if key.endswith("_token") and not isinstance(value, bool)]
    given = [*config.get("added_tokens_decoder", {}).values(), *config.get("additional_special_tokens", ()), *named]
    return [token["content"] if isinstance(token, dict) else token for token in given if token is not None]


NAMES: Final[Mapping[str, Any]] = {"levanter.compat.hf_checkpoints.load_tokenizer": load_tokenizer}
