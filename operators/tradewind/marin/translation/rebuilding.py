"""One written config becomes an object of the installed class."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tradewind.calls.errors import FunctionImportError, TranslationError
from tradewind.calls.references import Reference
from tradewind.calls.spec import TRANSLATED_BY
from tradewind.marin.era.building import builder
from tradewind.marin.translation.given import Given
from tradewind.marin.translation.rules import MOVED, REPLACED, RULES, Rule


def rebuilt(written: Mapping[str, Any]) -> Any:
    """The object that ``written`` means: of the installed class of its name, or of the user's that inherits from it.

    Args:
        written: ``class`` and ``of``, the class and the nearest one of the era that it is or inherits from, each
            ``module:qualname``; ``at``, the place in the step's config; ``fields``.

    Raises:
        TranslationError: A field or the class has no counterpart, and the value is not what everybody had.
        FunctionImportError: The user's own class cannot be imported.
    """
    of = written["of"].replace(":", ".")
    given = Given(of, written["at"], written["fields"])
    if written["class"] != written["of"]:
        made = Reference.parse(written["class"]).load()
    else:
        made = _installed(given)
        if made is None:
            return REPLACED[of](given)
    values = translated(given, known_fields(made))
    try:
        return made(**values)
    except (TypeError, ValueError, AssertionError) as error:
        raise given.class_refusal(f"it says {type(error).__name__}: {error}") from error


def translated(given: Given, known: Collection[str]) -> dict[str, Any]:
    """Values for the installed class, whose fields are ``known``, from those that the era's was given.

    Raises:
        TranslationError: One has no counterpart, and is not what everybody had.
    """
    values: dict[str, Any] = {}
    for rule in _rules_of(given.of):
        _apply(rule, given, values, known)
    for name in given:
        if name in known:
            values.setdefault(name, given.take(name))
        elif given.is_default(name):
            given.drop(name)
        else:
            raise given.refusal(name)
    return values


def known_fields(made: Any) -> set[str]:
    """What an installed class can be made of."""
    return {spec.name for spec in dataclasses.fields(made) if spec.init}


def renamed_fields(of: str) -> dict[str, str]:
    """Fields of the era's class that have another name today."""
    return {old: new for rule in _rules_of(of) for old, new in rule.renamed.items()}


def _installed(given: Given) -> Any:
    """The class today, ours if it is one of Marin's that cannot be imported, None if it is replaced."""
    replaced = given.of in REPLACED
    for name in (given.of, MOVED.get(given.of, given.of)):
        module, _, qualname = name.rpartition(".")
        try:
            made = Reference(module, qualname).load()
        except FunctionImportError:
            continue
        if TRANSLATED_BY not in vars(made) and (not replaced or _has_fields_of(made, given)):
            return made
    if replaced:
        return None
    if given.of.startswith("marin."):
        return builder().find(given.of)
    raise given.class_refusal()


def _has_fields_of(made: Any, given: Given) -> bool:
    return {spec.name for spec in dataclasses.fields(made)} >= set(given)


def _rules_of(of: str) -> Iterator[Rule]:
    """The rules of a class of the era and of those that it inherits from."""
    for base in builder().find(of).__mro__:
        rule = RULES.get(f"{base.__module__}.{base.__qualname__}")
        if rule is not None:
            yield rule


def _apply(rule: Rule, given: Given, values: dict[str, Any], known: Collection[str]) -> None:
    for name in rule.dropped:
        if name in given and name not in known:
            given.drop(name)
    for old, new in rule.renamed.items():
        if new in known and new not in given and old in given:
            values[new] = given.read(old) if old in known else given.take(old)
    for change in rule.changes:
        change(given, values, known)
    for name, value in rule.added.items():
        if name in known and name not in given:
            values.setdefault(name, value)


__all__ = ["TranslationError", "rebuilt"]
