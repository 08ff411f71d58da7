"""``@remote``: a step function that runs as a Ray task, marked without importing Ray."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class RemoteFunction:
    """A function and the options of the Ray task that it runs as. Called directly, it is just the function."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def remote(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Run the decorated step function as a Ray task: ``@remote`` or ``@remote(num_cpus=4, ...)``.

    ``options`` are those of ``ray.remote``; they are outside the version.
    """
    if function is not None:
        return RemoteFunction(function, {})
    return lambda decorated: RemoteFunction(decorated, options)
