"""What a file asks of the Hugging Face hub while steps are made, answered from the folder that the user names.

An answer is still a value that only a cluster knows, of which what the folder says is known here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tradewind.marin.era.behaviour.tokenizers import known_sizes
from tradewind.marin.offline import answer_to
from tradewind.marin.refusals import refuse
from tradewind.marin.world.standins import Opaque, origin_of


class ToldObject:
    """A part of an answer, of which the fields are known that the folder has."""

    def __init__(self, label: str, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)
        self.__dict__["_label"] = label

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refuse(f"{name} is asked of {self._label}, and the answer that lies here does not say it.")

    def __repr__(self) -> str:
        raise refuse(f"the text of {self._label} is asked, and only some of its fields are known here.")


class SizedTokenizer(Opaque):
    """A tokenizer whose size is known."""

    __slots__ = ("_tradewind_length",)

    def __init__(self, made: Opaque, vocab_size: int, length: int) -> None:
        super().__init__(origin_of(made))
        self._tradewind_attributes["vocab_size"] = vocab_size
        object.__setattr__(self, "_tradewind_length", length)

    def __len__(self) -> int:
        return int(self._tradewind_length)


def _collection(made: Opaque, collection_slug: Any, **_: Any) -> Opaque:
    items = answer_to("collections", collection_slug) if isinstance(collection_slug, str) else None
    if items is not None:
        label = f"an item of the collection {collection_slug}"
        made._tradewind_attributes["items"] = [ToldObject(label, item) for item in items]
    return made


def _refs(made: Opaque, repo_id: Any, *, repo_type: Any = None, **_: Any) -> Opaque:
    if not isinstance(repo_id, str) or repo_type not in (None, "model", "dataset", "space"):
        return made
    refs = answer_to("refs", repo_id if repo_type in (None, "model") else f"{repo_type}s/{repo_id}")
    for kind, names in (refs or {}).items():
        label = f"one of the {kind} of {repo_id}"
        made._tradewind_attributes[kind] = [ToldObject(label, {"name": name}) for name in names]
    return made


def _dataset_configs(made: Opaque, path: Any, **_: Any) -> Any:
    names = answer_to("dataset_configs", path) if isinstance(path, str) else None
    return made if names is None else list(names)


def _dataset_splits(made: Opaque, path: Any, config_name: Any = None, **_: Any) -> Any:
    if not isinstance(path, str) or not isinstance(config_name, str | None):
        return made
    names = answer_to("dataset_splits", path if config_name is None else f"{path}/{config_name}")
    return made if names is None else list(names)


def _model_config(made: Opaque, name: Any, *, revision: Any = None, **changed: Any) -> Opaque:
    if not isinstance(name, str) or not isinstance(revision, str | None) or set(changed) - {"trust_remote_code"}:
        return made
    fields = answer_to("model_configs", name if revision is None else f"{name}@{revision}")
    made._tradewind_attributes.update(fields or {})
    return made


def _tokenizer(made: Opaque, name: Any, *_: Any, revision: Any = None, **changed: Any) -> Opaque:
    if not isinstance(name, str) or not isinstance(revision, str | None) or set(changed) - {"trust_remote_code"}:
        return made
    sizes = known_sizes(name, revision)
    return made if sizes is None else SizedTokenizer(made, *sizes)


HUB_ANSWERS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "huggingface_hub": {"get_collection": _collection, "list_repo_refs": _refs},
    "datasets": {"get_dataset_config_names": _dataset_configs, "get_dataset_split_names": _dataset_splits},
    "transformers": {"AutoConfig.from_pretrained": _model_config, "AutoTokenizer.from_pretrained": _tokenizer},
}
"""Module -> function, or method of a class -> what answers in its place."""
