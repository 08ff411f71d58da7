"""Tokens as text: the spelling of each, and text that grows by tokens and ends before a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_CONTEXT: Final = 5
"""Tokens before a new one that decide how it is spelled, such as whether with a space."""
_BROKEN: Final = "\ufffd"
"""What a tokenizer gives for bytes that are no whole character."""


class Spelling:
    """The text of single tokens, as in a running text; the vocabulary's own name for a part of a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._text_before: str = self._decode(self._before)

    def of(self, token: int) -> str:
        """Return the token's text; no two tokens of a byte-level vocabulary have the same."""
        if token not in self._known:
            text = self._decode([*self._before, token])[len(self._text_before) :]
            if not text or _BROKEN in text:
                text = str(self._tokenizer.convert_ids_to_tokens(token) or "")
            self._known[token] = text
        return self._known[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class GrowingText:
    """The text of the tokens after a prompt, up to and without the first stop string.

    Args:
        tokenizer: Of the model.
        prompt: Its last tokens decide how the first new one is spelled.
        stops: The text ends before the first of them.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_CONTEXT:])
        self._from, self._spelled = 0, len(self._tokens)
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=1)
        self._text = ""
        self._taken = 0
        self.is_stopped = False
        """Whether a stop string is complete."""

    def add(self, token: int) -> None:
        """Add a token. Bytes that are no whole character wait for those of the next token."""
        self._tokens.append(token)
        self._spell(must_be_whole=True)

    def take(self) -> str:
        """Return the new text since the last call, without its end that may yet become a stop string."""
        end = len(self._text)
        if not self.is_stopped:
            sizes = range(min(self._longest - 1, end), 0, -1)
            end -= next((size for size in sizes if self._may_become_stop(self._text[-size:])), 0)
        return self._take(end)

    def take_rest(self) -> str:
        """Return all new text since the last call; there are no more tokens."""
        if not self.is_stopped:
            self._spell(must_be_whole=False)
        return self._take(len(self._text))

    def _take(self, end: int) -> str:
        new = self._text[self._taken : end]
        self._taken = max(self._taken, end)
        return new

    def _may_become_stop(self, ending: str) -> bool:
        return any(stop.startswith(ending) for stop in self._stops)

    def _spell(self, *, must_be_whole: bool) -> None:
        before, after = self._decode(self._from, self._spelled), self._decode(self._from, len(self._tokens))
        if len(after) <= len(before) or (must_be_whole and after.endswith(_BROKEN)):
            return
        self._from, self._spelled = self._spelled, len(self._tokens)
        start = max(0, len(self._text) - self._longest + 1)
        self._text += after[len(before) :]
        if found := [at for stop in self._stops if (at := self._text.find(stop, start)) >= 0]:
            self._text = self._text[: min(found)]
            self.is_stopped = True

    def _decode(self, start: int, end: int) -> str:
        tokens = self._tokens[start:end]
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
