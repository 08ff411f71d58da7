"""A thread that has the model: it scores waiting sequences in batches, and generates for as many others as it has rows.

Sequences come and go between any two steps, so a short answer never waits for a long one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.serving.levanter_model import LevanterModel, Row, ScoredToken, Scores
from tradewind.serving.levanter_text import GrowingText

_log: Final = logging.getLogger(__name__)


@dataclass
class Scoring:
    """A sequence to score; the future gets its ``Scores``."""

    tokens: Sequence[int]
    future: asyncio.Future[Scores]


@dataclass(eq=False)
class Generation:
    """A sequence to continue.

    Attributes:
        prompt: Its tokens.
        max_tokens: It ends after so many new ones.
        ends: It ends with one of these tokens, which is not in its text.
        text: Grows by the new tokens, in the engine's thread; it ends with a stop string.
        events: Gets each ``Grown``, or the generation with what it failed with.
    """

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    ends: frozenset[int]
    text: GrowingText
    events: asyncio.Queue[Grown | tuple[Generation, Exception]]
    loop: asyncio.AbstractEventLoop
    is_cancelled: bool = False
    slot: int = -1
    drawn: int = 0
    last: int = -1

    def row(self) -> Row:
        """Return what the model reads next."""
        if not self.drawn:
            return Row(self.slot, self.prompt, 0, self.temperature, self.top_p, self.seed)
        start = len(self.prompt) + self.drawn - 1
        return Row(self.slot, [self.last], start, self.temperature, self.top_p, self.seed)

    def take(self, drawn: ScoredToken) -> Grown:
        """Add a token."""
        self.drawn += 1
        self.last = drawn.token
        if drawn.token not in self.ends:
            self.text.add(drawn.token)
        if drawn.token in self.ends or self.text.is_stopped:
            return Grown(self, drawn, self.text.take_rest(), "stop")
        if self.drawn == self.max_tokens:
            rest = self.text.take_rest()  # its last bytes may complete a stop string
            return Grown(self, drawn, rest, "stop" if self.text.is_stopped else "length")
        return Grown(self, drawn, self.text.take(), None)


@dataclass(frozen=True)
class Grown:
    """A new token of a generation, the new text, and why it ends if it does: ``stop`` or ``length``."""

    generation: Generation
    drawn: ScoredToken
    text: str
    reason: str | None


class Engine:
    """Runs a model in a thread of its own.

    Args:
        make: Loads the model, in that thread.
    """

    def __init__(self, make: Callable[[], LevanterModel]) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._scorings: deque[Scoring] = deque()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._free: list[int] = []
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._model: LevanterModel | None = None
        self._problem: BaseException | None = None

    def start(self) -> LevanterModel:
        """Load the model and start to answer; raises what the loading raised."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._model is not None or self._problem is not None)
        if self._problem is not None:
            raise self._problem
        assert self._model is not None
        return self._model

    def end(self) -> None:
        """End the thread after what it has."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[asyncio.Future[Scores]]:
        """Return futures of the scores; call it in the event loop."""
        loop = asyncio.get_running_loop()
        scorings = [Scoring(tokens, loop.create_future()) for tokens in sequences]
        with self._changed:
            self._scorings.extend(scorings)
            self._changed.notify_all()
        return [each.future for each in scorings]

    def generate(self, generations: Sequence[Generation]) -> None:
        """Start to fill the events of these."""
        with self._changed:
            self._waiting.extend(generations)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            model = self._make()
            model.read_next([Row(0, [0], 0, 0.0, 1.0, 0)])  # compiles it, and finds out whether memory is enough
        except BaseException as error:
            with self._changed:
                self._problem = error
                self._changed.notify_all()
            return
        self._free = list(range(model.max_seqs))
        with self._changed:
            self._model = model
            self._changed.notify_all()
        try:
            while self._wait():
                self._score_batch(model)
                self._read_prompt(model)
                self._generate(model)
        except BaseException:  # not of the model, whose errors are answered: nothing would be answered any more
            _log.exception("the engine's thread failed")
            os._exit(1)

    def _wait(self) -> bool:
        """Wait for work; return whether there is some."""
        with self._changed:
            self._changed.wait_for(lambda: self._scorings or self._waiting or self._running or self._is_ended)
            return bool(self._scorings or self._waiting or self._running)

    def _score_batch(self, model: LevanterModel) -> None:
        with self._changed:
            self._scorings = deque(each for each in self._scorings if not each.future.cancelled())
            if not self._scorings:
                return
            bucket = model.bucket(len(self._scorings[0].tokens))
            fitting = [each for each in self._scorings if model.bucket(len(each.tokens)) == bucket]
            batch = fitting[: model.rows_of(bucket)]
            taken = set(map(id, batch))
            self._scorings = deque(each for each in self._scorings if id(each) not in taken)
        try:
            answers: Sequence[Scores | Exception] = model.score([each.tokens for each in batch])
        except Exception as error:
            _log.exception("scoring failed")
            answers = [error] * len(batch)
        loop = batch[0].future.get_loop()
        loop.call_soon_threadsafe(_answer, [each.future for each in batch], answers)

    def _read_prompt(self, model: LevanterModel) -> None:
        """Give a free row to the next sequence, and draw its first token."""
        if not self._free:
            return
        with self._changed:
            while self._waiting and self._waiting[0].is_cancelled:
                self._waiting.popleft()
            if not self._waiting:
                return
            new = self._waiting.popleft()
        new.slot = self._free.pop()
        self._running.append(new)
        self._advance(model, [new], lambda: [model.read_prompt(new.row())])

    def _generate(self, model: LevanterModel) -> None:
        """Draw the next token of each sequence."""
        for each in [each for each in self._running if each.is_cancelled]:
            self._release(each)
        if running := list(self._running):
            self._advance(model, running, lambda: model.read_next([each.row() for each in running]))

    def _advance(
        self, model: LevanterModel, generations: Sequence[Generation], draw: Callable[[], Sequence[ScoredToken]]
    ) -> None:
        try:
            drawn = draw()
        except Exception as error:
            _log.exception("generation failed")
            lost = list(self._running)  # all: what they had read is lost with the cache
            model.forget()
            for each in lost:
                self._release(each)
            _put(lost, [(each, error) for each in lost])
            return
        grown = [each.take(token) for each, token in zip(generations, drawn, strict=True)]
        for one in grown:
            if one.reason is not None:
                self._release(one.generation)
        _put(generations, grown)

    def _release(self, generation: Generation) -> None:
        self._running.remove(generation)
        self._free.append(generation.slot)


def _put(generations: Sequence[Generation], events: Sequence[Any]) -> None:
    """Let the event loop put each generation's event into its queue: once for all, as each call wakes it up."""
    queues = [each.events for each in generations]
    generations[0].loop.call_soon_threadsafe(_put_all, queues, events)


def _put_all(queues: Sequence[asyncio.Queue[Any]], events: Sequence[Any]) -> None:
    for queue, event in zip(queues, events, strict=True):
        queue.put_nowait(event)


def _answer(futures: Sequence[asyncio.Future[Scores]], answers: Sequence[Scores | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
