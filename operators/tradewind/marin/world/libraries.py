"""The few names of heavy libraries that mean something while a file is loaded: Ray's functions and draccus' main."""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from tradewind.marin.refusals import refuse
from tradewind.marin.world.standins import Opaque, Origin
from tradewind.steps import RemoteFunction


class RayOptions(dict[str, Any]):
    """The options of a Ray function that can be written down; called, they give the function with further ones.

    ``options`` is a method with Ray and a dictionary with us. The cluster finds all of a function's own there again.
    """

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        super().__init__({name: value for name, value in given.items() if _is_plain(value)})
        self._function = function
        self._given = dict(given)

    def __call__(self, **options: Any) -> RayFunction:
        return RayFunction(self._function, {**self._given, **options})


class RayFunction(RemoteFunction):
    """A function under ``ray.remote``: a step may run it, but nothing is started while a file is loaded."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        super().__init__(function, RayOptions(function, options))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"Remote functions cannot be called directly. Instead of running '{self.function.__name__}()', try "
            f"'{self.function.__name__}.remote()'."
        )

    def remote(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: there is no cluster yet."""
        raise refuse(
            f"{self.function.__name__}.remote() starts a Ray task while the steps are made: let a step's function do "
            "it."
        )

    @property
    def _function(self) -> Callable[..., Any]:
        return self.function


def ray_remote(*args: Any, **options: Any) -> Any:
    """``ray.remote``, bare or with options; a class becomes an actor that only a cluster knows."""
    if args and inspect.isfunction(args[0]):
        return RayFunction(args[0], options)
    if args:
        return Opaque(Origin(f"ray.remote({getattr(args[0], '__name__', 'class')})", "ray", wrapped=args[0]))
    return lambda decorated: ray_remote(decorated, **(options if inspect.isfunction(decorated) else {}))


def _refused_ray(name: str) -> Callable[..., NoReturn]:
    def called(*args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(f"ray.{name}() needs a Ray cluster while the steps are made: let a step's function do it.")

    return called


def draccus_wrap(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``draccus.wrap()``: called without a config, a main function gets what an empty command line gives."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def main(*given: Any, **named: Any) -> Any:
            parameter = next(iter(inspect.signature(function).parameters.values()), None)
            if given or parameter is None or parameter.name in named:
                return function(*given, **named)
            return function(_default_config(function, parameter), **named)

        return main

    return decorate


def _default_config(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    kind = parameter.annotation
    if isinstance(kind, str):
        kind = typing.get_type_hints(function).get(parameter.name)
    if not inspect.isclass(kind):
        raise refuse(f"{function.__name__}() wants a config from the command line, and its class is not known here.")
    try:
        return kind()
    except TypeError as error:
        raise refuse(
            f"{function.__name__}() wants arguments from the command line, which a DAG has none of ({error})."
        ) from error


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


_NEEDS_CLUSTER: Final = ("init", "get", "put", "wait", "kill", "get_actor", "cluster_resources")
NAMES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ray": {
        "remote": ray_remote,
        **{name: _refused_ray(name) for name in _NEEDS_CLUSTER},
    },
    "draccus": {"wrap": draccus_wrap},
}
"""Module -> name -> what it is here."""
