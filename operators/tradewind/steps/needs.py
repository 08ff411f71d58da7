"""Name the libraries that a function of Tradewind's own imports: a step checks them before its attempt starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def needs(*modules: str, extra: str = "train") -> Callable[[F], F]:
    """Return a decorator that notes what the function of a step, or of its pipeline, imports on the cluster.

    Args:
        modules: Names of modules.
        extra: Extra of this distribution that installs them.
    """

    def noted(function: F) -> F:
        function.needs = modules  # type: ignore[attr-defined]
        function.extra = extra  # type: ignore[attr-defined]
        return function

    return noted
