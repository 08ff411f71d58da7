"""``marin.processing.tokenize.tokenize``: tokenizing configs and the training data they yield."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.marin.legacy.classes import builder, declare_marin_module
from tradewind.steps import InputName

__all__ = ["HfDatasetSpec", "HfTokenizeConfig", "TokenizeConfig", "TokenizeConfigBase"]

logger = logging.getLogger(__name__)

_TEST_DATA: Final = re.compile(r"[^a-zA-Z]test[^a-zA-Z]|validation")
_TEXT: Final = builder().find("levanter.data.text.TextLmDatasetFormat")()


@dataclass(frozen=True)
class HfDatasetSpec:
    """A data set of the Hugging Face hub, optionally the name of a part, and a branch, tag or commit."""

    id: str
    name: str | None = None
    revision: str | None = None


class TokenizeConfigBase:
    """Base of all configs of tokenizing steps."""

    cache_path: str
    tokenizer: str
    cache_options: Any = None
    format: Any = _TEXT

    def as_lm_dataset_source_config(self, actual_output_path: Any, *, include_raw_paths: bool = True) -> Any:
        """Return the training data source: the step's output, and by default the paths of its texts."""
        raise NotImplementedError(f"{type(self).__name__} does not implement as_lm_dataset_source_config().")


@dataclass(frozen=True)
class TokenizeConfig(TokenizeConfigBase):
    """Texts in files; a training file whose path looks like test data needs ``allow_test_in_train``."""

    train_paths: list[str]
    validation_paths: list[str]
    cache_path: str
    tokenizer: str
    tags: list[str] = field(default_factory=list)
    cache_options: Any = None
    format: Any = _TEXT
    allow_test_in_train: bool = False
    sample_count: int | None = None

    def __post_init__(self) -> None:
        if not self.train_paths and not self.validation_paths:
            raise ValueError("At least one of train_paths or validation_paths must be specified")
        for name, paths in (("train_paths", self.train_paths), ("validation_paths", self.validation_paths)):
            if isinstance(paths, str | InputName):
                raise AssertionError(f"{name} must be a list of paths, but is {paths!r}")
            if isinstance(paths, Sequence) and "/" in paths:
                raise AssertionError(f"{name}: don't use the entire fs")
        for path in self.train_paths:
            _check_training_path(path, self.allow_test_in_train)

    def as_lm_dataset_source_config(self, actual_output_path: Any, *, include_raw_paths: bool = True) -> Any:
        return builder().find("levanter.data.text.UrlDatasetSourceConfig")(
            tags=self.tags,
            train_urls=self.train_paths if include_raw_paths else [],
            validation_urls=self.validation_paths if include_raw_paths else [],
            cache_dir=actual_output_path,
            format=self.format,
        )


@dataclass(frozen=True)
class HfTokenizeConfig(TokenizeConfigBase):
    """A data set of the Hugging Face hub, tokenized without a download step.

    Marin's has no ``revision`` (``main``) and no ``sample_count`` (all documents of each file).
    """

    id: str
    cache_path: str
    tokenizer: str
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    cache_options: Any = None
    format: Any = _TEXT
    revision: str | None = None
    sample_count: int | None = None

    def as_lm_dataset_source_config(self, actual_output_path: Any, *, include_raw_paths: bool = True) -> Any:
        return builder().find("levanter.data.text.HfDatasetSourceConfig")(
            id=self.id, name=self.name, tags=self.tags, cache_dir=actual_output_path, format=self.format
        )


def _check_training_path(path: Any, is_allowed: bool) -> None:
    shown = path if isinstance(path, str) else path.name if isinstance(path, InputName) else None
    if not shown or not _TEST_DATA.search(shown):
        return
    found = f"Training data URL or InputName '{shown}' contains a forbidden pattern ('test' or 'validation')"
    if not is_allowed:
        raise ValueError(f"Error: {found}. Please ensure training data does not include test or validation sets.")
    logger.warning(found)


declare_marin_module(
    "marin.processing.tokenize.tokenize", HfDatasetSpec, TokenizeConfigBase, TokenizeConfig, HfTokenizeConfig
)
