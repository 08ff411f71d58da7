"""Answers in OpenAI's form: completions and chats, whole or as a stream, with true counts of tokens."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from tradewind.serving.levanter_engine import Engine, Generation, Grown
from tradewind.serving.levanter_model import ScoredToken, Scores
from tradewind.serving.levanter_requests import Asked, Limits, Prompt
from tradewind.serving.levanter_text import GrowingText, Spelling


@dataclass
class Choice:
    """One answer to one prompt, as it grows."""

    index: int
    prompt: Prompt
    new_text: str = ""
    """Text that was not sent yet, as ``told``."""
    told: list[ScoredToken] = field(default_factory=list)
    offset: int = 0
    """Number of characters of the tokens that were reported before."""
    tokens: int = 0
    """Number of generated tokens, including the one that ended it."""
    reason: str | None = None


class Answers:
    """Makes answers of a model.

    Args:
        engine: Has the model.
        tokenizer: Of the model.
        limits: Of the model.
        ends: Tokens that end an answer.
    """

    def __init__(self, engine: Engine, tokenizer: Any, limits: Limits, ends: frozenset[int]) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._limits = limits
        self._ends = ends
        self._spelling = Spelling(tokenizer)

    async def completion(self, asked: Asked) -> dict[str, Any]:
        """Return the answer to a request of ``/v1/completions``."""
        choices = await self._all(asked)
        shown = [self._completion_choice(asked, each) for each in choices]
        return self._frame("text_completion", "cmpl") | {"choices": shown, "usage": _usage(asked, choices)}

    async def chat(self, asked: Asked) -> dict[str, Any]:
        """Return the answer to a request of ``/v1/chat/completions``."""
        choices = await self._all(asked)
        shown = [
            {"index": each.index, "message": {"role": "assistant", "content": each.new_text}}
            | self._chat_ending(asked, each)
            for each in choices
        ]
        return self._frame("chat.completion", "chatcmpl") | {"choices": shown, "usage": _usage(asked, choices)}

    async def completion_stream(self, asked: Asked) -> AsyncIterator[dict[str, Any]]:
        """Yield the parts of an answer to a request of ``/v1/completions``."""
        frame = self._frame("text_completion", "cmpl")
        choices = self._choices(asked)
        async with aclosing(self._grow(asked, choices)) as growing:
            async for choice in growing:
                yield frame | {"choices": [self._completion_choice(asked, choice)]}
        if asked.with_usage:
            yield frame | {"choices": [], "usage": _usage(asked, choices)}

    async def chat_stream(self, asked: Asked) -> AsyncIterator[dict[str, Any]]:
        """Yield the parts of an answer to a request of ``/v1/chat/completions``."""
        frame = self._frame("chat.completion.chunk", "chatcmpl")
        choices = self._choices(asked)
        for choice in choices:
            begin = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield frame | {"choices": [begin]}
        async with aclosing(self._grow(asked, choices)) as growing:
            async for choice in growing:
                new = {"index": choice.index, "delta": {"content": choice.new_text}}
                yield frame | {"choices": [new | self._chat_ending(asked, choice)]}
        if asked.with_usage:
            yield frame | {"choices": [], "usage": _usage(asked, choices)}

    async def _all(self, asked: Asked) -> list[Choice]:
        choices = self._choices(asked)
        texts: dict[int, str] = {}
        told: dict[int, list[ScoredToken]] = {}
        async with aclosing(self._grow(asked, choices)) as growing:
            async for choice in growing:
                texts[choice.index] = texts.get(choice.index, "") + choice.new_text
                told.setdefault(choice.index, []).extend(choice.told)
        for choice in choices:
            choice.new_text, choice.told = texts[choice.index], told[choice.index]
        return choices

    def _choices(self, asked: Asked) -> list[Choice]:
        prompts = [prompt for prompt in asked.prompts for _ in range(asked.n)]
        return [Choice(index, prompt) for index, prompt in enumerate(prompts)]

    async def _grow(self, asked: Asked, choices: Sequence[Choice]) -> AsyncGenerator[Choice, None]:
        """Yield a choice whenever it has new text or tokens, and when it ends; what is new is gone at the next one."""
        scores = await self._scores(asked)
        events: asyncio.Queue[Any] = asyncio.Queue()
        generations = self._generations(asked, choices, events)
        choice_of = dict(zip(generations, choices, strict=True))
        for choice in choices:
            self._begin(asked, choice, scores[choice.index // asked.n] if scores else None)
        if asked.max_tokens == 0:
            for choice in choices:
                choice.reason = "length"
                yield choice
            return
        if _says_next(asked):  # the scores tell the one new token, too
            for generation, choice in choice_of.items():
                events.put_nowait(generation.take(_likeliest(scores[choice.index // asked.n])))
        else:
            self._engine.generate(generations)
        try:
            left = len(choices)
            while left:
                grown = await events.get()
                if not isinstance(grown, Grown):
                    raise grown[1]
                choice = choice_of[grown.generation]
                _add(asked, choice, grown)
                left -= choice.reason is not None
                if choice.new_text or choice.told or choice.reason is not None:
                    yield choice
                    choice.new_text = ""
                    choice.told.clear()
        finally:
            for generation in generations:
                generation.is_cancelled = True

    async def _scores(self, asked: Asked) -> list[Scores]:
        if not asked.echo or (asked.logprobs is None and not _says_next(asked)):
            return []
        return list(await asyncio.gather(*self._engine.score([each.tokens for each in asked.prompts])))

    def _generations(self, asked: Asked, choices: Sequence[Choice], events: asyncio.Queue[Any]) -> list[Generation]:
        seed = uuid.uuid4().int if asked.seed is None else asked.seed % (1 << 64)
        seeds = np.random.SeedSequence(seed).generate_state(len(choices))
        return [
            Generation(
                prompt=choice.prompt.tokens,
                max_tokens=asked.max_tokens,
                temperature=asked.temperature,
                top_p=asked.top_p,
                seed=int(seeds[choice.index]),
                ends=frozenset() if asked.ignore_eos else self._ends,
                text=GrowingText(self._tokenizer, choice.prompt.tokens, asked.stops),
                events=events,
                loop=asyncio.get_running_loop(),
            )
            for choice in choices
        ]

    def _begin(self, asked: Asked, choice: Choice, scores: Scores | None) -> None:
        """Repeat the prompt at the begin of the answer."""
        if not asked.echo:
            return
        tokens, text = choice.prompt.tokens, choice.prompt.text
        choice.new_text = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False) if text is None else text
        if asked.logprobs is not None and scores is not None:
            none = np.zeros(0)
            choice.told.append(ScoredToken(tokens[0], None, none, none))
            following = zip(tokens[1:], scores.logprobs, scores.top_ids, scores.top_logprobs, strict=False)
            choice.told.extend(ScoredToken(token, float(logprob), ids, tops) for token, logprob, ids, tops in following)

    def _frame(self, kind: str, begin: str) -> dict[str, Any]:
        name = f"{begin}-{uuid.uuid4().hex}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self._limits.name}

    def _completion_choice(self, asked: Asked, choice: Choice) -> dict[str, Any]:
        logprobs = None if asked.logprobs is None else self._completion_logprobs(choice, asked.logprobs)
        return {"index": choice.index, "text": choice.new_text, "logprobs": logprobs, "finish_reason": choice.reason}

    def _completion_logprobs(self, choice: Choice, count: int) -> dict[str, Any]:
        tokens = [self._spelling.of(each.token) for each in choice.told]
        offsets = [choice.offset]
        for token in tokens:
            offsets.append(offsets[-1] + len(token))
        choice.offset = offsets.pop()
        return {
            "tokens": tokens,
            "token_logprobs": [each.logprob for each in choice.told],
            "top_logprobs": [None if each.logprob is None else self._top(each, count) for each in choice.told],
            "text_offset": offsets,
        }

    def _top(self, told: ScoredToken, count: int) -> dict[str, float | None]:
        """Return the likeliest tokens, and the token itself."""
        likeliest = islice(zip(told.top_ids, told.top_logprobs, strict=True), count)
        top = {self._spelling.of(int(token)): float(logprob) for token, logprob in likeliest}
        return top | {self._spelling.of(told.token): told.logprob}

    def _chat_ending(self, asked: Asked, choice: Choice) -> dict[str, Any]:
        count = asked.logprobs
        logprobs = None if count is None else {"content": [self._chat_token(each, count) for each in choice.told]}
        return {"logprobs": logprobs, "finish_reason": choice.reason}

    def _chat_token(self, told: ScoredToken, count: int) -> dict[str, Any]:
        likeliest = islice(zip(told.top_ids, told.top_logprobs, strict=True), count)
        top = [self._spelled(int(token), float(logprob)) for token, logprob in likeliest]
        return self._spelled(told.token, told.logprob) | {"top_logprobs": top}

    def _spelled(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self._spelling.of(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _says_next(asked: Asked) -> bool:
    """Whether the scores of the prompt are all that is asked for."""
    return asked.echo and (asked.max_tokens == 0 or (asked.max_tokens == 1 and asked.temperature == 0))


def _likeliest(scores: Scores) -> ScoredToken:
    ids, tops = scores.top_ids[-1], scores.top_logprobs[-1]
    return ScoredToken(int(ids[0]), float(tops[0]), ids, tops)


def _add(asked: Asked, choice: Choice, grown: Grown) -> None:
    choice.tokens += 1
    choice.new_text += grown.text
    choice.reason = grown.reason
    if asked.logprobs is not None:
        choice.told.append(grown.drawn)


def _usage(asked: Asked, choices: Sequence[Choice]) -> dict[str, int]:
    prompt = sum(len(each.tokens) for each in asked.prompts)
    completion = sum(choice.tokens for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
