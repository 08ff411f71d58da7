"""Requests in OpenAI's form, read and refused: what is asked for of a model with a context and a vocabulary."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.text import single_line, truncated_repr

MAX_LOGPROBS: Final = 20
"""Number of likeliest tokens that are reported, at most."""
MAX_CHOICES: Final = 128
MAX_PROMPTS: Final = 2048
"""Most prompts of a request, and most answers to all of them."""
_MAX_STOPS: Final = 64
_MAX_STOP_CHARS: Final = 256
_MAX_TOKEN_CHARS: Final = 128
"""As long as the longest tokens of known vocabularies are: a longer text is refused before minutes are spent on it."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": (None, ""),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
}
"""Fields that would change answers and that this server does not have → values that change nothing."""


class RequestError(Exception):
    """A request that is refused, with the status of the answer."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.status}}


@dataclass(frozen=True)
class Limits:
    """What the model takes."""

    name: str
    context: int
    vocabulary: int


@dataclass(frozen=True)
class Prompt:
    """A prompt as tokens, and as it was written if it was a text."""

    tokens: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True)
class Asked:
    """A request that the model can answer."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    n: int
    stops: tuple[str, ...]
    logprobs: int | None
    """Number of likeliest tokens to tell; None for no log probabilities."""
    echo: bool
    stream: bool
    with_usage: bool
    """Whether a stream ends with the usage."""
    ignore_eos: bool


def read_body(data: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a request."""
    try:
        body = json.loads(data)
        if b"\\u" in data:
            json.dumps(body, ensure_ascii=False).encode()  # refuses halves of characters
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body of the request is no JSON: {single_line(error)}") from None
    if not isinstance(body, dict):
        raise RequestError("The body of the request is no JSON object.")
    return body


def completion(body: Mapping[str, Any], tokenizer: Any, limits: Limits) -> Asked:
    """Read a request of ``/v1/completions``."""
    prompts = _prompts(body, tokenizer, limits)
    echo = _flag(body, "echo")
    logprobs = _whole(body, "logprobs", None, 0, MAX_LOGPROBS)
    max_tokens = _whole(body, "max_tokens", 16, 0 if echo else 1, math.inf)
    assert max_tokens is not None
    return _asked(body, prompts, max_tokens, logprobs, limits, echo=echo)


def chat(body: Mapping[str, Any], tokenizer: Any, limits: Limits) -> Asked:
    """Read a request of ``/v1/chat/completions``."""
    prompt = _prompt_of_messages(body, tokenizer, limits)
    top = _whole(body, "top_logprobs", None, 0, MAX_LOGPROBS)
    wants = _flag(body, "logprobs")
    if top is not None and not wants:
        raise RequestError("top_logprobs needs logprobs=true.", "top_logprobs")
    field = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    rest = limits.context - len(prompt.tokens)
    max_tokens = _whole(body, field, max(rest, 1), 1, math.inf)
    assert max_tokens is not None
    return _asked(body, (prompt,), max_tokens, (top or 0) if wants else None, limits, echo=False)


def _asked(
    body: Mapping[str, Any],
    prompts: tuple[Prompt, ...],
    max_tokens: int,
    logprobs: int | None,
    limits: Limits,
    *,
    echo: bool,
) -> Asked:
    _check_model(body, limits)
    n = _whole(body, "n", 1, 1, MAX_CHOICES) or 1
    if len(prompts) * n > MAX_PROMPTS:
        raise RequestError(f"n={n} for {len(prompts)} prompts: a request has at most {MAX_PROMPTS} answers.", "n")
    for field, neutral in {**_NEUTRAL, "best_of": (None, n)}.items():
        if body.get(field) not in neutral:
            raise RequestError(f"{field}={truncated_repr(body[field])}: this server has no such option.", field)
    for prompt in prompts:
        _check_length(prompt.tokens, max_tokens, limits)
    return Asked(
        prompts=prompts,
        max_tokens=max_tokens,
        temperature=_number(body, "temperature", 1.0, 0, 100),
        top_p=_number(body, "top_p", 1.0, 0, 1, above=True),
        seed=_whole(body, "seed", None, -math.inf, math.inf),
        n=n,
        stops=_stops(body),
        logprobs=logprobs,
        echo=echo,
        stream=_flag(body, "stream"),
        with_usage=_wants_usage(body),
        ignore_eos=_flag(body, "ignore_eos"),
    )


def _check_model(body: Mapping[str, Any], limits: Limits) -> None:
    model = body.get("model")
    if model is not None and model != limits.name:
        message = f"The model {truncated_repr(model)} is not served here: there is {limits.name!r}."
        raise RequestError(message, "model", status=404)


def _check_length(prompt: Sequence[int], max_tokens: int, limits: Limits) -> None:
    if not prompt:
        raise RequestError("The prompt has no tokens: give at least one.", "prompt")
    if len(prompt) + max_tokens > limits.context:
        raise RequestError(
            f"This model's maximum context length is {limits.context} tokens, and {len(prompt) + max_tokens} were "
            f"requested: {len(prompt)} in the prompt, and max_tokens={max_tokens}.",
            "max_tokens" if len(prompt) < limits.context else "prompt",
        )


def _prompts(body: Mapping[str, Any], tokenizer: Any, limits: Limits) -> tuple[Prompt, ...]:
    """Return the tokens of one text, of several texts, of token ids, or of several lists of them."""
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(map(_is_token, prompt))):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError("prompt is missing: give a text, texts, token ids, or lists of token ids.", "prompt")
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"There are {len(prompt)} prompts; a request has at most {MAX_PROMPTS}.", "prompt")
    special = _flag(body, "add_special_tokens", True)
    return tuple(_prompt(each, tokenizer, limits, special) for each in prompt)


def _prompt(prompt: Any, tokenizer: Any, limits: Limits, special: bool) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(_tokens(prompt, tokenizer, limits, special), prompt)
    if not isinstance(prompt, list) or not all(map(_is_token, prompt)):
        what = truncated_repr(prompt)
        raise RequestError(f"prompt has {what}, which is neither a text nor a list of token ids.", "prompt")
    if odd := [token for token in prompt if not 0 <= token < limits.vocabulary]:
        message = f"prompt has the token id {odd[0]}; the model's are from 0 to {limits.vocabulary - 1}."
        raise RequestError(message, "prompt")
    return Prompt(tuple(prompt))


def _tokens(text: str, tokenizer: Any, limits: Limits, special: bool) -> tuple[int, ...]:
    if len(text) > limits.context * _MAX_TOKEN_CHARS:
        message = f"This model's maximum context length is {limits.context} tokens, and the prompt has {len(text)} "
        raise RequestError(f"{message}characters.", "prompt")
    return tuple(tokenizer.encode(text, add_special_tokens=special))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt_of_messages(body: Mapping[str, Any], tokenizer: Any, limits: Limits) -> Prompt:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise RequestError("messages is missing: give a list of objects with 'role' and 'content'.", "messages")
    if not tokenizer.chat_template:
        raise RequestError(
            "This model's tokenizer has no chat template: use /v1/completions, or export the model with a template.",
            "messages",
        )
    try:
        text = tokenizer.apply_chat_template(
            [each | {"content": _content(each)} for each in messages], tokenize=False, add_generation_prompt=True
        )
    except RequestError:
        raise
    except Exception as error:  # a template is a program
        raise RequestError(f"The chat template refuses these messages: {single_line(error)}", "messages") from None
    return Prompt(_tokens(text, tokenizer, limits, special=False))


def _content(message: Mapping[str, Any]) -> str:
    """Return the text of a message, which may be in parts."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(message.get("role"), str) or not isinstance(content, str):
        raise RequestError(f"messages has {truncated_repr(message)}: a message has a role and a text.", "messages")
    return content


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise RequestError(f"stop={truncated_repr(stop)} is no text and no list of texts.", "stop")
    if len(stops) > _MAX_STOPS or any(len(each) > _MAX_STOP_CHARS for each in stops):
        raise RequestError(
            f"stop has more than {_MAX_STOPS} texts, or one of over {_MAX_STOP_CHARS} characters.", "stop"
        )
    return tuple(stops)


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _flag(body: Mapping[str, Any], field: str, default: bool = False) -> bool:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{field}={truncated_repr(value)} is neither true nor false.", field)
    return value


def _whole(body: Mapping[str, Any], field: str, default: int | None, low: float, high: float) -> int | None:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{field}={truncated_repr(value)} is no whole number{_range(low, high)}.", field)
    return value


def _number(
    body: Mapping[str, Any], field: str, default: float, low: float, high: float, *, above: bool = False
) -> float:
    value = body.get(field)
    if value is None:
        return default
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        limits = f" above {low} up to {high}" if above else _range(low, high)
        raise RequestError(f"{field}={truncated_repr(value)} is no number{limits}.", field)
    return float(value)


def _range(low: float, high: float) -> str:
    if math.isinf(low):
        return ""
    return f" from {low} on" if math.isinf(high) else f" from {low} to {high}"
