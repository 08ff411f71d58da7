"""Check that an answer has the form that its request asks for, since clients take what is there for the model's.

A server without ``echo`` tells log probabilities of what it generated only, one that puts a token before the prompt
shifts all, broken weights give NaN, and a filter of contents may give no choice at all. Each would become a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.records.parsing import NUMBER
from tradewind.text import pluralize, single_line, truncated_repr

_CHECKED: Final = ("completions", "chat/completions")


def flaw_of(path: str, asked: Mapping[str, Any], answer: Any) -> str | None:
    """Return what is wrong with an answer of status 200; None if it is what was asked for.

    Args:
        path: Of the request, below the base URL.
        asked: Its body.
        answer: The body of the answer.
    """
    if path not in _CHECKED:
        return None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
        return f"it has no choices: {truncated_repr(answer)}"
    prompts, n = _prompts(asked.get("prompt")), asked.get("n")
    count = len(prompts) * (n if type(n) is int else 1)
    by_index = {str(choice.get("index", place)): choice for place, choice in enumerate(choices)}
    if len(choices) != count or by_index.keys() != set(map(str, range(count))):
        own = single_line(", ".join(by_index) or "none", 80)
        return f"it has {pluralize(len(choices), 'choice')} with the indices {own}, not {count:,}"
    if asked.get("echo") and asked.get("logprobs") is not None:
        for index in range(count):
            flaw = _flaw_of_echo(prompts[index * len(prompts) // count], asked.get("max_tokens"), by_index[str(index)])
            if flaw is not None:
                return flaw
    return None


def _prompts(given: Any) -> Sequence[Any]:
    """Return the prompts of a request, texts or lists of token ids; one of a chat."""
    is_batch = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    return given if is_batch else [given]


def _flaw_of_echo(prompt: Any, max_tokens: Any, choice: Mapping[str, Any]) -> str | None:
    """Return why a choice does not repeat the prompt with a log probability for each token but the first."""
    told = choice.get("logprobs")
    values = told.get("token_logprobs") if isinstance(told, dict) else None
    if not isinstance(values, list):
        return "it has no log probabilities of tokens"
    if isinstance(prompt, str) and not str(choice.get("text")).startswith(prompt):
        return "its text does not begin with the prompt, so the server has no echo"
    if isinstance(prompt, list):
        most = max_tokens if type(max_tokens) is int else len(values)
        least = len(prompt) + min(most, 1)
        if not least <= len(values) <= len(prompt) + most:
            return (
                f"it has {len(values):,} log probabilities for {pluralize(len(prompt), 'token')} of the prompt and at "
                f"most {most:,} more: the server has no echo of prompts, or changes them"
            )
    if odd := [value for value in values[1:] if not NUMBER.fits(value)]:
        return f"it has the log probability {odd[0]}"
    return None
