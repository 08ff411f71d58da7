"""Ask a served model, or a judge, many things at once: what it refuses is an error of that one alone."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from tradewind.records.parsing import NUMBER, replace_surrogates
from tradewind.text import did_you_mean, escape_control_characters, truncate_middle, truncated_repr

_TIMEOUT_S: Final = (30.0, 7 * 24 * 3600.0)
"""To connect and to read: the gateway, which is asked, has limits of its own."""
_MAX_ERROR_CHARS: Final = 500


@dataclass(frozen=True)
class Reply:
    """What a model said.

    Attributes:
        text: The answer; empty if there is none.
        error: Why there is none.
    """

    text: str
    error: str | None = None


def check_numbers(given: Mapping[str, Any], known: Collection[str], lists: Collection[str] = ()) -> None:
    """Refuse settings of answers that no request has; raises ``ValueError``.

    Args:
        given: ``generation_params`` of an evaluation.
        known: Names of settings, which are numbers.
        lists: Those of them that are lists.
    """
    for name, value in given.items():
        if name not in known:
            meant = did_you_mean(name, known)
            raise ValueError(f"generation_params: {truncated_repr(name)} is no setting of answers; {meant}")
        kind = "a list" if name in lists else "a number"
        if value is not None and not (isinstance(value, (list, tuple)) if name in lists else NUMBER.fits(value)):
            raise ValueError(f"generation_params: {name}={truncated_repr(value)} is not {kind}.")


def ask_all(
    address: str, model: str, messages: Sequence[str], fields: Mapping[str, Any], num_concurrent: int
) -> list[Reply]:
    """Send each message as the first of a conversation, and return the replies in order.

    Args:
        address: Base URL of an OpenAI-compatible server; that of a gateway waits for a lost server.
        model: The model's name there.
        fields: Further fields of the requests, such as ``temperature``.
        num_concurrent: Requests at once.
    """
    import requests  # not while a DAG file is parsed

    local = threading.local()

    def ask(message: str) -> Reply:
        session = local.__dict__.setdefault("session", requests.Session())
        session.trust_env = False  # no proxy and no .netrc for a server of this host
        body = {**fields, "model": model, "messages": [{"role": "user", "content": message}]}
        try:
            response = session.post(f"{address}/chat/completions", json=body, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            return Reply("", _shown(f"The server did not answer: {error}"))
        return reply_of(response.status_code, response.content)

    with ThreadPoolExecutor(num_concurrent) as pool:
        return list(pool.map(ask, messages))


def reply_of(status: int, content: bytes) -> Reply:
    """Return what the content of a response says."""
    import json

    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        given = None
    if status != 200:
        error = given.get("error") if isinstance(given, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        shown = message if isinstance(message, str) else content[:_MAX_ERROR_CHARS].decode(errors="replace")
        return Reply("", _shown(f"HTTP {status}: {shown}"))
    try:
        text = given["choices"][0]["message"]["content"]
    except (TypeError, KeyError, IndexError):
        text = None
    if not isinstance(text, str):
        return Reply("", "The answer is no text.")
    return Reply(replace_surrogates(text))


def _shown(text: str) -> str:
    return truncate_middle(escape_control_characters(replace_surrogates(text)), _MAX_ERROR_CHARS)
