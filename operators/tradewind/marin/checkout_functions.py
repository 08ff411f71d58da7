"""A function of Marin's own is the checkout's where it can be imported on the cluster, and else ours, if there is one.

Training is always ours: the checkout's asks Ray for the devices that its step has already. So are the results of a
speedrun: the checkout's asks W&B for what the output of the training says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from tradewind.marin.names.steps import REPLACEMENTS
from tradewind.serialization.errors import FunctionImportError
from tradewind.serialization.references import Reference


def load(reference: Reference, tell: Callable[[str], object]) -> Any:
    """The function that runs where a step names ``reference``; ``tell`` gets a sentence that says which one it is.

    Raises:
        FunctionImportError: Neither can be imported.
    """
    ours = REPLACEMENTS.get(str(reference))
    if ours is None:
        return reference.load()
    if ours.always:
        function = Reference.parse(ours.name).load()
        tell(f"{reference} is {ours.name} here: {ours.always}")
        return function
    try:
        function = reference.load()
    except FunctionImportError as error:
        if not _is_there(ours.name):
            raise
        function = Reference.parse(ours.name).load()
        cause = error.__cause__
        tell(f"{reference} is {ours.name} here: it cannot be imported ({type(cause).__name__}: {cause}).")
    else:
        tell(f"{reference} runs as the checkout has it.")
    return function


def _is_there(name: str) -> bool:
    """Whether we have the function; that it cannot be imported then is an error of its own."""
    try:
        return importlib.util.find_spec(Reference.parse(name).module) is not None
    except ModuleNotFoundError:
        return False


__all__ = ["load"]
