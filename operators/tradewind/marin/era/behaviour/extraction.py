"""What configs of text extraction say to the library that extracts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

Config = Any
_NOT_FOR_RESILIPARSE: Final = frozenset({"use_custom_variant", "markdownify_config", "prepend_title"})


def _default(cls: Any) -> Any:
    return cls()


def _preset(cls: Any, config: str) -> Any:
    if config != "default":
        raise ValueError(f"Invalid preset config: {config}. Please use 'default'.")
    return cls()


def _values(config: Config, excluded: frozenset[str]) -> dict[str, Any]:
    names = (spec.name for spec in dataclasses.fields(config))
    return {name: getattr(config, name) for name in names if name not in excluded}


def _markdownify(config: Config) -> dict[str, Any]:
    return _values(config, frozenset({"include_images", "include_links"}))


def _resiliparse(config: Config) -> dict[str, Any]:
    return _values(config, _NOT_FOR_RESILIPARSE)


def _markdownify_of_resiliparse(config: Config) -> dict[str, Any]:
    excluded = frozenset({"use_custom_variant", "prepend_title", *config.resiliparse_kwargs})
    names = (spec.name for spec in dataclasses.fields(config.markdownify_config))
    return {name: getattr(config, name) for name in names if name not in excluded}


_MADE: Final = {"default_config": classmethod(_default), "get_preset_config": classmethod(_preset)}
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "marin.schemas.web.convert.HtmlToMarkdownConfig": {**_MADE, "markdownify_kwargs": property(_markdownify)},
    "marin.schemas.web.convert.ResiliparseConfig": {
        **_MADE, "resiliparse_kwargs": property(_resiliparse),
        "markdownify_kwargs": property(_markdownify_of_resiliparse),
    },
}  # fmt: skip
