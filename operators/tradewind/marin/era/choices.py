"""Registries of choices: classes that are told apart by a name in a config file, as draccus keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class ChoiceRegistryBase:
    """A base whose subclasses are choices under names; the first subclass of a registry begins one of its own."""

    _choice_registry: ClassVar[dict[str, Any]]
    _complete: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Makes the library's own choices, which are made late."""

    def __init_subclass__(cls, discover_packages_path: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        is_registry = ChoiceRegistryBase not in cls.__bases__
        if is_registry and not hasattr(cls, "_choice_registry"):
            cls._choice_registry = {}

    @classmethod
    def get_choice_class(cls, name: str) -> Any:
        """The class of a name; KeyError if there is none."""
        cls._complete()
        return cls._choice_registry[name]

    @classmethod
    def get_known_choices(cls) -> dict[str, Any]:
        """Name -> class."""
        cls._complete()
        return cls._choice_registry

    @classmethod
    def get_choice_name(cls, subcls: type) -> str:
        """The first name of a class.

        Raises:
            ValueError: The class is no choice.
        """
        for name, choice in cls._choice_registry.items():
            if choice is subcls:
                return name
        raise ValueError(f"Cannot find choice name for {subcls}")

    @classmethod
    def default_choice_name(cls) -> str | None:
        """The name that is meant where none is given."""
        return None

    @classmethod
    def register_subclass(cls, name: str, choice_type: Any = None) -> Any:
        """Make a class a choice, as a decorator or by a call.

        A name of the library itself stays what it is. One of an experiment may come again, because many experiments
        are read in one process, and each is read anew when it changes.

        Raises:
            ValueError: The name is one of the library's.
        """
        if choice_type is None:
            return lambda choice: cls.register_subclass(name, choice)
        other = cls._choice_registry.get(name)
        if other is not None and other is not choice_type and "__era__" in vars(other):
            raise ValueError(f"Cannot register {choice_type} as {name} because {other} is already registered as {name}")
        cls._choice_registry[name] = choice_type
        return choice_type


class ChoiceRegistry(ChoiceRegistryBase):
    """A registry whose choices are in the modules that an experiment imports."""


class PluginRegistry(ChoiceRegistryBase):
    """A registry whose choices come with their package; here they all stand in the tables."""
