"""What a file calls at its end: ``executor_main``, once, often or never. Each call is one DAG."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.marin.refusals import SourceLine, notes, refuse, running_place
from tradewind.steps import ExecutorStep, InputName


@dataclass(frozen=True)
class ExecutorMainConfig:
    """Marin's command line of an experiment; here what a file itself says of it."""

    prefix: str | None = None
    executor_info_base_path: str | None = None
    dry_run: bool = False
    force_run_failed: bool = False
    run_only: list[str] | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True, eq=False)
class Captured:
    """One call of ``executor_main``.

    Attributes:
        steps: The steps that are wanted; maybe none.
        description: For people.
        config: What the file says of prefix and choice, or None.
        place: The line of the call.
    """

    steps: tuple[ExecutorStep | InputName, ...]
    description: str | None
    config: ExecutorMainConfig | None
    place: SourceLine | None


class _Calls(threading.local):
    """The calls of the file that this thread is loading."""

    made: list[Captured] | None = None


calls = _Calls()


def executor_main(*args: Any, **kwargs: Any) -> None:
    """Note the call: ``executor_main(steps, description)``, with an ``ExecutorMainConfig`` first or by its name."""
    given = list(args)
    config = kwargs.pop("config", None)
    if given and isinstance(given[0], ExecutorMainConfig):
        config = given.pop(0)
    for name in ("steps", "description", "max_concurrent"):
        if given:
            kwargs[name] = given.pop(0)
    _note(config, **kwargs)


def _note(
    config: ExecutorMainConfig | None,
    steps: Sequence[ExecutorStep | InputName] = (),
    description: str | None = None,
    max_concurrent: int | None = None,
) -> None:
    if calls.made is None or notes.root is None:
        return  # called by a step's function, or by a module after it was loaded
    place = running_place(notes.root)
    wanted = tuple(steps)
    for step in wanted:
        if not isinstance(step, ExecutorStep | InputName):
            raise refuse(f"executor_main is given a {type(step).__name__} where it wants steps.", place)
    if description is not None and not isinstance(description, str):
        raise refuse("executor_main is given a description that is no text.", place)
    if max_concurrent is not None and config is None:
        config = ExecutorMainConfig(max_concurrent=max_concurrent)
    calls.made.append(Captured(wanted, description, config, place))
