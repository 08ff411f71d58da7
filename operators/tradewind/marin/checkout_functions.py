"""Load a step's Marin function: the checkout's if it can be imported, else Tradewind's replacement.

Training always runs Tradewind's function: the checkout's would ask Ray for devices that the step already holds. So do
the results of a speedrun: the checkout's asks W&B for values that the training output contains.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from tradewind.marin.names.steps import REPLACEMENTS
from tradewind.serialization.errors import FunctionImportError
from tradewind.serialization.references import Reference


def load(reference: Reference, tell: Callable[[str], object]) -> Any:
    """Return the function to run for ``reference``; ``tell`` receives a sentence that names the choice.

    Raises:
        FunctionImportError: Neither can be imported.
    """
    replacement = REPLACEMENTS.get(str(reference))
    if replacement is None:
        return reference.load()
    if replacement.always:
        function = Reference.parse(replacement.name).load()
        tell(f"{reference} is replaced by {replacement.name}: {replacement.always}")
        return function
    try:
        function = reference.load()
    except FunctionImportError as error:
        if not _is_there(replacement.name):
            raise
        function = Reference.parse(replacement.name).load()
        cause = error.__cause__
        tell(f"{reference} is replaced by {replacement.name}: it cannot be imported ({type(cause).__name__}: {cause}).")
    else:
        tell(f"{reference} runs from the checkout.")
    return function


def _is_there(name: str) -> bool:
    """Whether the function exists here; a failed import is then reported as its own error."""
    try:
        return importlib.util.find_spec(Reference.parse(name).module) is not None
    except ModuleNotFoundError:
        return False


__all__ = ["load"]
