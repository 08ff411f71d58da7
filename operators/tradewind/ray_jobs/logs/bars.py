"""Progress bars in a log, folded to their last state.

A bar redraws itself with carriage returns, which Ray's log hands out as newlines: each state looks like a line. So
bars are known by their shape (tqdm's and Keras's), and a line of any other shape is never held back or dropped.
Consecutive states of one bar are folded; the newest is let through now and then while the bar goes on, and the last
one always, before the next ordinary line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHOW_INTERVAL_S = 30.0
_MOST_EMPTY_LINES = 20
_LONGEST_STATE = 1000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIMES = r"\[\d+:\d\d(?::\d\d)?(?:<[^,\]]+)?(?:, [^\]]*)?\]"
_SHAPES = (
    # tqdm: "desc:  42%|####2     | 42/100 [00:01<00:02, 31.2it/s, loss=2]"
    re.compile(rf"(?P<what>.*?)\s*(?P<done>\d{{1,3}})%\|[ #\d█▉▊▋▌▍▎▏]*\|\s*\S+/(?P<total>\S+) {_TIMES}.*"),
    # tqdm without a total: "desc: 42it [00:01, 31.2it/s]"
    re.compile(r"(?P<what>.*?)(?<![\w.])(?P<done>\d+)(?P<total>[A-Za-z]+) \[\d+:\d\d(?::\d\d)?, [^\]]*/[^\]]*\]"),
    # Keras: "42/100 [=====>......] - ETA: 3s - loss: 2", "42/100 ━━━━━━ 3s 31ms/step - loss: 2"
    re.compile(r"(?P<what>)\s*(?P<done>\d+)/(?P<total>\d+) (?:\[[=>.]{10,}\] - .*|━{10,} .*)"),
)


@dataclass(frozen=True)
class BarState:
    """One state of a progress bar: which bar, and how far it has come."""

    bar: tuple[str, str]
    done: int

    def goes_on_from(self, former: BarState | None) -> bool:
        """Whether it is a later state of the same bar; one that starts again is another bar."""
        return former is not None and self.bar == former.bar and self.done >= former.done


def bar_state(line: str) -> BarState | None:
    """The state that ``line`` shows, or None when it is an ordinary line."""
    if "/" not in line or ("[" not in line and "━" not in line) or len(line) > _LONGEST_STATE:
        return None
    plain = _ANSI.sub("", line).strip()
    for shape in _SHAPES:
        if match := shape.fullmatch(plain):
            what = re.sub(r"\d+(\.\d+)?", "0", match["what"])  # a description may show a running loss
            return BarState((what, match["total"]), int(match["done"]))
    return None


class BarFold:
    """Lines in, lines out: states of a progress bar that are followed by newer ones are missing."""

    def __init__(self, now: float = 0.0) -> None:
        self._last: BarState | None = None
        self._shown_at = now
        self.held: list[str] = []
        """The newest state, if it was not let through yet, and the empty lines since; they come out later or never."""

    def add(self, line: str, now: float) -> list[str]:
        """The lines that can be shown now that ``line`` has come."""
        state = bar_state(line)
        if state is None:
            return self._ordinary(line)
        if state.goes_on_from(self._last):
            self.held, out = [line], []
        else:
            out, self.held = self.held, [line]
            self._shown_at = now
        self._last = state
        return out

    def show(self, now: float) -> list[str]:
        """The newest state, when it is time to let it through; the bar may go on."""
        if self.due_at is None or now < self.due_at:
            return []
        self._shown_at = now
        out, self.held = self.held, []
        return out

    def end(self) -> list[str]:
        """What is held back: nothing more comes."""
        out, self.held, self._last = self.held, [], None
        return out

    @property
    def due_at(self) -> float | None:
        """When the newest state should be let through if nothing comes."""
        return self._shown_at + SHOW_INTERVAL_S if self.held else None

    def _ordinary(self, line: str) -> list[str]:
        is_empty = not _ANSI.sub("", line).strip()
        if is_empty and self.held and len(self.held) <= _MOST_EMPTY_LINES:
            self.held.append(line)  # nested bars have such lines between their states
            return []
        return [*self.end(), line]
