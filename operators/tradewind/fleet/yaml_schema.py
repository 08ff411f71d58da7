"""YAML files as values with lines, and violations of a JSON schema as problems with lines.

For the fleet file and Ray's cluster files. The schema's descriptions of fields end the sentences. Fields that name
secrets are ``writeOnly``: their value may be a secret by mistake, and is not shown.

The reader refuses files that would exhaust memory or stack, and reports repeated keys, of which PyYAML silently keeps
the last. It reads only YAML's plain types, so no tag creates an object.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # of Ray's own requirements

from tradewind.fleet.errors import BadFileError, FileProblem, nearest_files_hint, nearest_names_hint
from tradewind.storage.bounded_read import SMALL, read_local

YamlPath = tuple[str | int, ...]

MAX_DEPTH: Final = 30
MAX_VALUES: Final = 10_000
"""Maximum number of values of a file, with the copies of its aliases."""
MAX_FAULTS: Final = 100
"""Violations of a schema that are reported."""
_MAX_NUMBER_CHARS: Final = 40
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "tag:yaml.org,2002:merge"
_COLLECTIONS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True)
class YamlDocument:
    """Content of a file, with the line of each value.

    Attributes:
        problems: Entries that are missing in ``value``, or have another value than in the file.
        unread: Paths of the latter.
    """

    file: str
    value: Any
    lines: Mapping[YamlPath, int]
    problems: Sequence[FileProblem] = ()
    unread: frozenset[YamlPath] = frozenset()

    def line_of(self, path: YamlPath) -> int:
        """Return the line of the value at ``path``, else of the nearest value above it."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_yaml(file: Path) -> YamlDocument:
    """Read the only document in ``file``.

    Raises:
        BadFileError: It cannot be read, is no YAML, has a key twice, or is too large or too deep.
    """
    document = read_yaml_with_problems(file)
    if document.problems:
        raise BadFileError(document.file, document.problems)
    return document


def read_yaml_with_problems(file: Path) -> YamlDocument:
    """Read the only document in ``file``, with its problems, so that the caller can add others.

    Raises:
        BadFileError: It cannot be read, is no YAML, or is too large or too deep.
    """
    try:
        content = read_local(file, SMALL)
        why, text = content.flaw, content.text
    except (OSError, ValueError) as error:  # a path may hold a NUL
        why, text = f"{getattr(error, 'strerror', None) or error}", ""
    if why:
        sentence = f"the file cannot be read ({why}){nearest_files_hint(file)}: name another one, or mend that."
        raise _broken(file, 1, sentence) from None
    try:
        _refuse_depth(file, text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        said = getattr(error, "problem", None) or "a character that YAML does not allow"
        sentence = f"this is no YAML ({said}): look at the indentation, quotes and colons here and just above."
        raise _broken(file, _line(getattr(error, "problem_mark", None)), sentence) from None
    reader = _NodeReader(file)
    value = {} if root is None else reader.value(root, (), 0)
    lines = {(): 1} | reader.lines
    return YamlDocument(str(file), value, lines, tuple(reader.problems), frozenset(reader.unread))


def _refuse_depth(file: Path, text: str) -> None:
    """What nests deeply must not reach ``compose``, which calls itself for each level; nor may too many values."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if number > 2 * MAX_VALUES:
            raise _broken(file, _line(event.start_mark), f"the file has more than {MAX_VALUES:,} values: split it.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _broken(file, _line(event.start_mark), f"values nest more than {MAX_DEPTH} deep: write them flatter.")


class _NodeReader:
    """Turns composed nodes into values, and notes the line of each and what is wrong with it."""

    def __init__(self, file: Path) -> None:
        self.lines: dict[YamlPath, int] = {}
        self.problems: list[FileProblem] = []
        self.unread: set[YamlPath] = set()
        self._file = file
        self._read = 0
        self._construct = yaml.SafeLoader("").construct_object

    def value(self, node: yaml.Node, path: YamlPath, depth: int) -> Any:
        self._read += 1
        if self._read > MAX_VALUES or depth > MAX_DEPTH:  # only aliases get as far as this
            raise _broken(
                self._file, _line(node.start_mark), "its aliases repeat too much, or themselves: write the values out."
            )
        self.lines.setdefault(path, _line(node.start_mark))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in _COLLECTIONS:
            self.unread.add(path)
            self._add(node, f"the tag {node.tag} means nothing here: write the value without a tag.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        return [self.value(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode, path: YamlPath) -> Any:
        if node.tag in _NUMBERS and (":" in node.value or len(node.value) > _MAX_NUMBER_CHARS):
            self.unread.add(path)
            self._add(node, f"{node.value[:40]!r} is a number in base 60, or too long for one: write it in quotes.")
            return None
        try:
            return self._construct(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            self.unread.add(path)
            self._add(node, f"{node.value[:40]!r} is not what its tag {node.tag} says: write it without a tag.")
            return None

    def _mapping(self, node: yaml.MappingNode, path: YamlPath, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in sorted(node.value, key=lambda entry: bool(entry[0].tag != _MERGE)):
            if key.tag == _MERGE:
                for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    found = self.value(one, path, depth + 1)
                    merged = {**(found if isinstance(found, dict) else {}), **merged}
            elif key.tag != "tag:yaml.org,2002:str":
                self._add(key, f"the key {str(key.value)[:40]!r} is no text: write it in quotes.")
            elif key.value in own:
                name = ".".join(map(str, (*path, key.value)))
                first = self.lines[*path, key.value]
                self._add(key, f"{name} is here and in line {first}: give one another name, or leave it out.")
            else:
                self.lines[*path, key.value] = _line(key.start_mark)
                own[key.value] = self.value(value, (*path, key.value), depth + 1)
        return {**merged, **own}

    def _add(self, node: yaml.Node, sentence: str) -> None:
        self.problems.append(FileProblem(_line(node.start_mark), sentence))


def _broken(file: Path, line: int, sentence: str) -> BadFileError:
    return BadFileError(str(file), [FileProblem(line, sentence)])


def _line(mark: Any) -> int:
    return 1 if mark is None else mark.line + 1


SCHEMA_FILE: Final = Path(__file__).with_name("fleet.schema.json")
MAX_VALUE_CHARS: Final = 60
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
"""Type of a YAML value, its name in messages, and whether quotes would make the value a text."""


@cache
def fleet_schema() -> Mapping[str, Any]:
    """Return the schema of the fleet file."""
    return dict(json.loads(SCHEMA_FILE.read_text()))


def schema_problems(
    document: YamlDocument, schema: Mapping[str, Any], place_of: Callable[[YamlPath], str]
) -> Iterator[FileProblem]:
    """Yield the violations of ``schema`` in the document; ``place_of`` a path begins the sentence about it."""
    for where, sentence in islice(schema_faults(document.value, schema), MAX_FAULTS):
        yield FileProblem(document.line_of(where), f"{place_of(where)}: {sentence}")


def schema_faults(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Yield path and problem of each violation of ``schema`` in ``value``."""
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    validator = validator_for(schema)(schema)
    for error in validator.iter_errors(value):
        path = tuple(error.absolute_path)
        if "propertyNames" in error.absolute_schema_path:
            path = (*path, error.instance)
        for ending, sentence in _sentences(error):
            yield (*path, *ending), sentence


def _sentences(error: Any) -> Iterator[tuple[YamlPath, str]]:
    """Yield the fields below an error of ``jsonschema`` that it is about, each with a sentence."""
    wanted, value = error.validator_value, _shown(error)
    match error.validator:
        case "additionalProperties":
            known = error.schema.get("properties", {})
            patterns = error.schema.get("patternProperties", {})
            for name in error.instance:
                if name not in known and not any(re.search(pattern, name) for pattern in patterns):
                    yield (name,), f"there is no such field: {nearest_names_hint(name, known)}"
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
            near = nearest_names_hint(str(error.instance), wanted)
            yield (), f"{value} is none of {', '.join(map(str, wanted))}: {near}"
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
            yield (), f"{error.message[:MAX_VALUE_CHARS]}: mend it."


def _shown(error: Any) -> str:
    if error.schema.get("writeOnly"):
        return "the value (not shown)"
    text = repr(error.instance)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def _takes(schema: Mapping[str, Any], otherwise: str = "") -> str:
    """Return the description of a field, as the end of a sentence."""
    about = str(schema.get("description", ""))
    return f" {about[0].lower()}{about[1:].rstrip('.')}" if about else otherwise
