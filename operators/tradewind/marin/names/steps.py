"""``marin.execution.executor.ExecutorStep``, with the version that Marin gave it, and placed as its config says."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.marin.names.functions import own_function, placement
from tradewind.steps import ExecutorStep, Recipe, Resources

__all__ = ["MarinStep"]


@dataclass(frozen=True, eq=False, repr=False)
class MarinStep(ExecutorStep):
    """A step whose version is as Marin's executor wrote it when these experiments were.

    Attributes:
        placed: The resources that it has because its config says so; a step that is made from it has its own config.
    """

    recipe: Recipe = Recipe.NOVEMBER_2025
    placed: Resources | None = None

    def __post_init__(self) -> None:
        ours = own_function(self.fn)
        if self.resources is None or self.resources is self.placed:
            object.__setattr__(self, "placed", placement(ours, self.config))
            object.__setattr__(self, "resources", self.placed)
        if ours is not None and not self.resumable:
            object.__setattr__(self, "resumable", ours.resumable)
        super().__post_init__()
