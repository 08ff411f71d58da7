"""Network answers while steps are built, from a folder that the user names; no request is sent.

The folder has one file per kind of question, ``KIND.json``: a dictionary of questions and answers. Code that needs the
answer to an unanswered question is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tradewind.steps.errors import ExperimentError
from tradewind.storage.bounded_read import read_local

FOLDER_VARIABLE: Final = "TRADEWIND_MARIN_ANSWERS"


class BadAnswerError(ExperimentError):
    """The folder with answers has an unreadable file or an invalid answer."""


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_refs(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"branches", "tags"} and all(map(_is_texts, value.values()))


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and each > 0 for each in value)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


_FORMS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "collections": (_is_objects, "a list of the collection's items, each an object"),
    "refs": (_is_refs, 'an object of two lists of names, "branches" and "tags"'),
    "dataset_configs": (_is_texts, "a list of names"),
    "dataset_splits": (_is_texts, "a list of names"),
    "model_configs": (lambda value: isinstance(value, dict), "the object in the model's config.json"),
    "tokenizers": (_is_sizes, "a list of two sizes of the vocabulary, without and with added tokens"),
    "exists": (lambda value: isinstance(value, bool), "true or false"),
}


def answer_to(kind: str, question: str) -> Any:
    """Return the folder's answer; None if it has none, or no folder is named.

    Raises:
        BadAnswerError: The answer is invalid.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    file = Path(folder).expanduser() / f"{kind}.json"
    stamp = _stamp_of(file)
    found = _read(file, stamp).get(question) if stamp is not None else None
    is_of_form, form = _FORMS[kind]
    if found is not None and not is_of_form(found):
        raise BadAnswerError(f"{file}: the answer to {question!r} must be {form}.")
    return found


def answers_fingerprint() -> object:
    """Return a value that is equal while the folder and its answers stay the same."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    files = [Path(folder).expanduser() / f"{kind}.json" for kind in _FORMS]
    return folder, [_stamp_of(file) for file in files]


def _stamp_of(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadAnswerError(f"{file}, which {FOLDER_VARIABLE} names, cannot be read: {error}.") from error
    return stat.st_mtime_ns, stat.st_size


def read_json(file: Path) -> Any:
    """Return the JSON in a local file.

    Raises:
        OSError: It does not exist or cannot be opened.
        ValueError: It holds no JSON of bounded size and depth.
    """
    content = read_local(file)
    if content.flaw:
        raise ValueError(content.flaw)
    try:
        return json.loads(content.text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@lru_cache(maxsize=32)
def _read(file: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise BadAnswerError(f"{file} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise BadAnswerError(f"{file} must be a dictionary of questions and answers.")
    return found
