"""Steps that tokenize files of texts, of any store and in any format of Levanter's, into token caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tradewind.datasets.token_inputs import check_no_test_data
from tradewind.datasets.tokenization import RESUMABLE, TokenizeFilesConfig, tokenize
from tradewind.recipes.steps import naming_step
from tradewind.steps import (
    ExecutorStep,
    InputName,
    MirroredValue,
    VersionedValue,
    ensure_versioned,
    lazy,
    this_output_path,
)
from tradewind.steps.placeholders import Lazy
from tradewind.steps.run_values import RunValue
from tradewind.text import truncated_repr


@naming_step
def tokenize_files(
    name: str,
    train_paths: Sequence[Any],
    tokenizer: Any,
    validation_paths: Sequence[Any] = (),
    *,
    text_key: str | None = None,
    format: Any = None,
    allow_test_in_train: bool = False,
    sample_count: int | None = None,
    **options: Any,
) -> ExecutorStep:
    """A step that tokenizes files; paths, tokenizer, format and sample count in its version.

    Args:
        name: Of the step.
        train_paths: Steps, paths inside some, and other files, folders or globs; a relative one is below the prefix.
        tokenizer: A step, a path inside one, a folder, or a name on the Hugging Face hub.
        validation_paths: As ``train_paths``.
        text_key: Where the text of a document is; ``text`` if nothing is given.
        format: ``lazy("levanter.data.text:ChatLmDatasetFormat", ...)`` or another format of Levanter's.
        allow_test_in_train: Whether files to train on may look like test data.
        sample_count: How many documents of each file, from its beginning; None for all.
        options: Of ``ExecutorStep``, such as ``description`` or ``override_output_path``.

    Raises:
        ValueError: A path is none, there is none at all, or one to train on looks like test data.
    """
    if not allow_test_in_train and isinstance(train_paths, (list, tuple)):
        check_no_test_data([path for path in map(_shown, train_paths) if path], is_allowed=False)
    kind = format.target if isinstance(format, Lazy) else None if format is None else type(format).__qualname__
    # The class of a lazy object is no part of a version by itself.
    given = {"text_key": text_key, "sample_count": sample_count, "format": format, "format_name": kind}
    config = TokenizeFilesConfig(
        _sources("train_paths", train_paths),
        _sources("validation_paths", validation_paths),
        this_output_path(),
        _tokenizer(tokenizer),
        allow_test_in_train=allow_test_in_train,
        **{field: _counted(value) for field, value in given.items() if value is not None},
    )
    of_step: Mapping[str, Any] = {"description": "Token caches, made of files.", "resumable": RESUMABLE} | options
    return ExecutorStep(name, tokenize, config, **of_step)


def _sources(field: str, paths: Any) -> list[Any]:
    if not isinstance(paths, (list, tuple)):
        raise ValueError(f"{field}={truncated_repr(paths)}: give a list of steps, files, folders or globs.")
    return [_source(field, path) for path in paths]


def _source(field: str, path: Any) -> Any:
    if isinstance(path, ExecutorStep):
        return path.as_input_name()
    if isinstance(path, (str, PurePath)) and str(path):
        return InputName.hardcoded(str(path))
    if isinstance(path, (InputName, MirroredValue, VersionedValue, RunValue)):
        return path
    raise ValueError(f"{field} holds {truncated_repr(path)}: give steps, files, folders or globs.")


def _counted(value: Any) -> Any:
    if isinstance(value, Lazy):
        return lazy(value.target, **{field: ensure_versioned(inner) for field, inner in value.kwargs.items()})
    return ensure_versioned(value)


def _tokenizer(given: Any) -> Any:
    if isinstance(given, ExecutorStep):
        return given.as_input_name()
    return ensure_versioned(str(given)) if isinstance(given, (str, PurePath)) and str(given) else given


def _shown(path: Any) -> str | None:
    return path.name if isinstance(path, InputName) else str(path) if isinstance(path, (str, PurePath)) else None
