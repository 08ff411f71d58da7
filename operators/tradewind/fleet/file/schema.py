"""What a JSON schema has against a file, as problems with lines: for the fleet file, and for Ray's cluster files.

A schema's descriptions say what a field takes, so they end the sentence. Fields that name secrets are ``writeOnly``:
what stands there may be a secret by mistake, and is not shown.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from tradewind.fleet.errors import FileProblem, meant
from tradewind.fleet.file.yaml_document import YamlDocument, YamlPath

SCHEMA_FILE: Final = Path(__file__).with_name("fleet.schema.json")
LONGEST_VALUE: Final = 60
_KINDS: Final = {
    "string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "object": "a table of fields", "array": "a list", "null": "nothing",
}  # fmt: skip
"""JSON's types in words."""
_NATURES: Final = (
    (bool, "true or false", True), (int, "a number", True), (float, "a number", True), (str, "text", False),
    (datetime.date, "a date", True), (dict, "a table of fields", False), (list, "a list", False),
    (object, "nothing", False),
)  # fmt: skip
"""What YAML makes of a text, in words, and whether quotes would make it a text."""


@cache
def fleet_schema() -> Mapping[str, Any]:
    """The schema of the fleet file."""
    return dict(json.loads(SCHEMA_FILE.read_text()))


def schema_problems(
    document: YamlDocument, schema: Mapping[str, Any], place_of: Callable[[YamlPath], str]
) -> Iterator[FileProblem]:
    """What ``schema`` has against the document; ``place_of`` a path begins the sentence about it."""
    for where, sentence in schema_faults(document.value, schema):
        yield FileProblem(document.line_of(where), f"{place_of(where)}: {sentence}")


def schema_faults(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """What ``schema`` has against ``value``: the place in it, and what is wrong there."""
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    validator = validator_for(schema)(schema)
    for error in validator.iter_errors(value):
        path = tuple(error.absolute_path)
        if "propertyNames" in error.absolute_schema_path:
            path = (*path, error.instance)
        for ending, sentence in _sentences(error):
            yield (*path, *ending), sentence


def _sentences(error: Any) -> Iterator[tuple[YamlPath, str]]:
    """What one error of ``jsonschema`` says, and of which field below the place of the error."""
    wanted, value = error.validator_value, _shown(error)
    match error.validator:
        case "additionalProperties":
            known = error.schema.get("properties", {})
            patterns = error.schema.get("patternProperties", {})
            for name in error.instance:
                if name not in known and not any(re.search(pattern, name) for pattern in patterns):
                    yield (name,), f"there is no such field: {meant(name, known)}"
        case "required":
            for name in wanted:
                if name not in error.instance:
                    yield (), f"{name!r} is missing: add it{_takes(error.schema['properties'].get(name, {}))}."
        case "type":
            kinds = [_KINDS[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted)]
            nature, may_be_quoted = next(
                ((words, quotable) for kind, words, quotable in _NATURES if isinstance(error.instance, kind))
            )
            quotes = ": put it in quotes" if wanted == "string" and may_be_quoted else ""
            yield (), f"{value} is {nature}, where {' or '.join(kinds)} belongs{quotes}."
        case "enum":
            yield (), f"{value} is none of {', '.join(map(str, wanted))}: {meant(str(error.instance), wanted)}"
        case "minimum" | "maximum":
            bound = "less" if error.validator == "minimum" else "more"
            yield (), f"{value} is {bound} than {wanted}, and must not be."
        case "maxLength":
            yield (), f"{value} is longer than {wanted} characters: shorten it."
        case "minProperties":
            yield (), f"there is nothing in it: add at least {wanted}."
        case "pattern":
            yield (), f"{value} does not go here: write{_takes(error.schema, ' what is asked for')}."
        case _:
            yield (), f"{error.message[:LONGEST_VALUE]}: mend it."


def _shown(error: Any) -> str:
    if error.schema.get("writeOnly"):
        return "the value (not shown)"
    text = repr(error.instance)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _takes(schema: Mapping[str, Any], otherwise: str = "") -> str:
    """The description of a field, to go on with."""
    about = str(schema.get("description", ""))
    return f" {about[0].lower()}{about[1:].rstrip('.')}" if about else otherwise
