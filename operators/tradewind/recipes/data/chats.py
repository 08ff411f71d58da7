"""Convert chats, rows with ``messages`` of ``role`` and ``content``, to a set of documents and back.

In a text, each message is a line ``### ROLE`` and its content, with an empty line between messages. A line of a content
that looks like the first line of a message gets a backslash before it, so the way back is exact.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, counters, dataset_step
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json
from tradewind.datasets.rows import RowError, selected
from tradewind.datasets.token_inputs import input_files
from tradewind.recipes.data.document_sets import (
    Counted,
    dataset_of,
    document_schema,
    documents_of,
    part_pattern,
    path_input,
    set_files,
)
from tradewind.recipes.data.normalized import content_id, origin_text
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, SOME_TEXT, check_fields, integer
from tradewind.steps.needs import needs
from tradewind.text import quote_first_names, single_line, truncated_repr

TEMPLATE: Final = "headings-1"
"""Counts in the versions of steps: give another one with each change of the texts."""
_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_HEADING: Final = re.compile(r"(?:\A|\n\n)### ([A-Za-z][A-Za-z0-9_-]{0,63})\n")
_LOOKS_LIKE_HEADING: Final = re.compile(r"^(?=\\*### )", re.MULTILINE)
_BACKSLASH: Final = r"\\"
_ESCAPED: Final = re.compile(r"^\\(?=\\*### )", re.MULTILINE)


@dataclass(frozen=True)
class ChatsConfig:
    """What ``chats_to_documents`` reads, and where in a row."""

    chats: Sequence[str]
    """Files, folders or globs of JSON lines and Parquet."""
    output_path: str
    """Gets the set, and ``stats.json``."""
    messages_field: str = "messages"
    """Column of the messages."""
    id_field: str | None = None
    """Column of the original id; None for ``id``, if a row has it."""
    source: str | None = None
    """Name of the collection; None for the row's own ``source``, if it has one."""
    shards: int | None = None
    """Number of shards; None for as many as there are files."""
    template: str = TEMPLATE

    def __post_init__(self) -> None:
        for each in self.chats:
            PATH.check("chats", each)
        check_fields(
            self,
            output_path=PATH,
            messages_field=SOME_TEXT,
            id_field=SOME_TEXT.or_none(),
            source=SOME_TEXT.or_none(),
            shards=integer(1).or_none(),
        )


@dataclass(frozen=True)
class ToChatsConfig:
    """What ``documents_to_chats`` converts."""

    documents: str
    """A set of documents."""
    output_path: str
    """Gets ``part-*.jsonl.gz``."""
    messages_field: str = "messages"
    """Column of the messages."""
    template: str = TEMPLATE

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, output_path=PATH, messages_field=SOME_TEXT)


@naming_step
def chats_to_documents(
    name: str,
    chats: Any,
    *,
    messages_field: str = "messages",
    id_field: str | None = None,
    source: str | None = None,
    shards: int | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that makes a set of documents of chats; of equal chats the first remains.

    Args:
        name: Name of the step.
        chats: A step, a path, a glob, or a list of these, of JSON lines and Parquet files.
        messages_field: Column of the messages, a list of objects with ``role`` and ``content``.
        id_field: Column of the original id, which becomes ``source_id``; the default is ``id``, if a row has it.
        source: Name of the collection; the default is the row's own ``source``, if it has one.
        shards: Number of shards; the default is as many as there are files.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    inputs = chats if isinstance(chats, (list, tuple)) else [chats]
    if not inputs:
        raise ValueError("chats=[]: give a step, a path, or a list of these.")
    given = {"messages_field": messages_field, "id_field": id_field, "source": source, "shards": shards}
    config = ChatsConfig(
        [path_input("chats", each) for each in inputs],
        this_output_path(),
        **{field: versioned_value(value) for field, value in given.items()},
        template=versioned_value(TEMPLATE),
    )
    about = {"description": "Documents of chats, with ids from their texts, sorted."}
    return dataset_step(name, chat_documents, config, finish=write_stats, **(about | options))


@naming_step
def documents_to_chats(name: str, documents: Any, *, messages_field: str = "messages", **options: Any) -> ExecutorStep:
    """Return a step that makes JSON lines of chats of documents that ``chats_to_documents`` made.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder. Filters may have left out some, or parts of contents.
        messages_field: Column for the messages; the other columns are those of the original chats.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = ToChatsConfig(
        path_input("documents", documents),
        this_output_path(),
        versioned_value(messages_field),
        template=versioned_value(TEMPLATE),
    )
    return dataset_step(name, document_chats, config, **({"description": "Chats of documents."} | options))


@needs("pyarrow", "zstandard", extra="data")
def chat_documents(config: ChatsConfig) -> Dataset[Any]:
    """Return the pipeline of ``chats_to_documents``."""
    files = input_files([str(path) for path in config.chats], "chats")
    documents = dataset_of(files).load_file().map(_ToDocument(config)).map_shard(Counted("chats"))
    unique = documents.deduplicate(itemgetter("id"), config.shards or len(files)).map_shard(Counted("documents"))
    return unique.write_parquet(part_pattern(config.output_path, ".parquet"), document_schema())


def write_stats(config: ChatsConfig, results: Results) -> None:
    """Write how many chats there were.

    Raises:
        ValueError: There is none.
    """
    counts = {name: results.counters.get(name, 0) for name in ("chats", "messages", "documents")}
    if not counts["chats"]:
        raise ValueError("chats: there is no row.")
    counts |= {"duplicates": counts["chats"] - counts["documents"], "rejected": results.rejected}
    write_json(join(config.output_path, "stats.json"), {"template": config.template, "counts": counts})


@needs("pyarrow", "zstandard", extra="data")
def document_chats(config: ToChatsConfig) -> Dataset[Any]:
    """Return the pipeline of ``documents_to_chats``."""
    rows = documents_of(set_files(config.documents, "documents")).map(_ToChat(config.messages_field))
    return rows.write_jsonl(part_pattern(config.output_path, ".jsonl.gz"))


def chat_text(messages: Any) -> str:
    """Return the text of a chat.

    Raises:
        RowError: The messages are none, or have more than role and content.
    """
    if not isinstance(messages, list) or not messages:
        raise RowError(f"The messages are {truncated_repr(messages)}: give a list of at least one.")
    parts = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RowError(f"messages[{at}] is {truncated_repr(message)}: give an object with role and content.")
        given = {key: value for key, value in message.items() if value is not None}
        if missing := [key for key in ("role", "content") if key not in given]:
            raise RowError(f"messages[{at}] has no {missing[0]!r}: it has {quote_first_names(given)}.")
        if more := [key for key in given if key not in ("role", "content")]:
            raise RowError(f"messages[{at}] has {truncated_repr(more[0])}, which a document cannot hold: leave it out.")
        role, content = given["role"], given["content"]
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise RowError(f"messages[{at}] has the role {truncated_repr(role)}: give letters, digits, '_' and '-'.")
        if not isinstance(content, str):
            raise RowError(f"messages[{at}] has the content {truncated_repr(content)}: give a text.")
        parts.append(f"### {role}\n{_LOOKS_LIKE_HEADING.sub(_BACKSLASH, content)}")
    return "\n\n".join(parts)


def messages_of(text: str) -> list[dict[str, str]]:
    """Return the messages of a text that ``chat_text`` made.

    Raises:
        RowError: It made no such text.
    """
    headings = list(_HEADING.finditer(text))
    messages = [
        {"role": each[1], "content": _ESCAPED.sub("", text[each.end() : following.start() if following else len(text)])}
        for each, following in itertools.zip_longest(headings, headings[1:])
    ]
    if not messages or chat_text(messages) != text:
        raise RowError(
            f"The text {truncated_repr(text)} is no chat of the template {TEMPLATE!r}: give documents that "
            "chats_to_documents(...) made."
        )
    return messages


@dataclass(frozen=True)
class _ToDocument:
    """Make the document of a chat; its metadata are all columns but the messages."""

    config: ChatsConfig

    def __call__(self, row: Any) -> dict[str, Any]:
        config = self.config
        messages = selected(row, [config.messages_field])[config.messages_field]
        text = chat_text(messages)
        counters.increment("messages", len(messages))
        own = selected(row, [config.id_field])[config.id_field] if config.id_field else row.get("id")
        source = config.source or row.get("source")
        others = {name: value for name, value in row.items() if name != config.messages_field}
        try:
            metadata = json.dumps(others, ensure_ascii=False, sort_keys=True, default=str) if others else None
            document = {
                "id": content_id(text),
                "text": text,
                "source_id": origin_text("id", own),
                "source": origin_text("source", source),
                "metadata": metadata,
            }
            for value in document.values():
                (value or "").encode()
        except (TypeError, ValueError, RecursionError) as error:  # half of a character, too deep
            raise RowError(f"The chat cannot become a document: {single_line(error).rstrip('.')}.") from error
        return document


@dataclass(frozen=True)
class _ToChat:
    """Make the chat of a document."""

    messages_field: str

    def __call__(self, document: dict[str, Any]) -> dict[str, Any]:
        try:
            others = json.loads(document["metadata"] or "{}")
        except (ValueError, RecursionError) as error:
            shown = truncated_repr(document["metadata"])
            raise RowError(f"The metadata of {document['id']} are no JSON: {single_line(error)}: {shown}.") from error
        if not isinstance(others, dict) or self.messages_field in others:
            raise RowError(
                f"The metadata of {document['id']} are {truncated_repr(others)}: give an object without the column "
                f"{self.messages_field!r}."
            )
        return {self.messages_field: messages_of(document["text"]), **others}
