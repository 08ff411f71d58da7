"""Tell a user how far a pipeline is: a line in the log that is renewed, and a file that a page can read."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from tradewind.datasets.files import write_text
from tradewind.datasets.shard_task import ShardFailure, ShardResult
from tradewind.datasets.stages import Stage
from tradewind.steps.amounts import human_size

SECONDS_PER_LINE: Final = 15.0
_STRAGGLER: Final = 3.0
"""A shard is a straggler if it runs so many times as long as half of the others took, and for a minute."""
_MIN_STRAGGLER_S: Final = 60.0
_MAX_NAMED: Final = 3
_MAX_FAILURES: Final = 20
"""Shards that failed too often, with their records, in the file of a stage."""
_MAX_FAILURE_CHARS: Final = 2_000
PROGRESS_FILE: Final = "progress.json"


class StageProgress:
    """Counts the shards of one stage.

    Args:
        stage: The stage.
        stages: How many there are.
        reused: Shards that an earlier attempt made.
        clock: Monotonic seconds.
    """

    def __init__(
        self, stage: Stage, stages: int, reused: Mapping[int, ShardResult], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stage = stage
        self._head = f"Stage {stage.number + 1} of {stages} ({stage.name})"
        self._clock = clock
        self._began = self._printed = self._shard_ended = clock()
        self._running: dict[int, float] = {}
        self._seconds: list[float] = []
        self._reused = len(reused)
        self.done = self._reused
        self.failed = self.losses = self.rows = self.rejected = self._bytes = 0
        self.counters: Counter[str] = Counter()
        self._failures: list[ShardFailure] = []
        for result in reused.values():
            self._add(result)

    def begin(self, shard: int) -> None:
        """Note that a shard runs."""
        self._running[shard] = self._clock()

    def end(self, outcome: ShardResult | ShardFailure) -> None:
        """Note how a shard ended."""
        began = self._running.pop(outcome.shard, self._clock())
        if isinstance(outcome, ShardResult):
            self.done += 1
            self._shard_ended = self._clock()
            self._seconds.append(self._clock() - began)
            self._bytes += self._size(outcome.shard)
            self._add(outcome)
        elif outcome.is_loss:
            self.losses += 1

    def give_up(self, failure: ShardFailure) -> None:
        """Note that a shard failed too often."""
        self.failed += 1
        if len(self._failures) < _MAX_FAILURES:
            self._failures.append(failure)

    def _add(self, result: ShardResult) -> None:
        self.rows += result.rows
        self.rejected += result.rejected
        self.counters.update(result.counters)

    def _size(self, shard: int) -> int:
        return self._stage.chain.size(shard)

    def line(self) -> str:
        """``Stage 1 of 2 (…): 12 of 40 shards, 4 running, 1,200 rows/s, 31 MB/s, 9 min left, too_short 12``."""
        seconds = max(self._clock() - self._began, 1e-3)
        made = self.done - self._reused
        parts = [f"{self.done:,} of {self._stage.shards:,} shards"]
        parts += [f"{self._reused:,} of them there already"] if self._reused else []
        parts += [f"{len(self._running):,} running"] if self._running else []
        parts += [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{self.losses:,} lost and begun again"] if self.losses else []
        parts += [f"{self.rows:,} rows"]
        parts += [f"{human_size(int(self._bytes / seconds))}/s"] if self._bytes else []
        left = self._stage.shards - self.done - self.failed
        parts += [f"{left * seconds / made / 60:.0f} min left"] if made and left and seconds > 60 else []
        parts += [f"{self.rejected:,} rows left out"] if self.rejected else []
        parts += [f"{name} {count:,}" for name, count in self.counters.most_common(10)]
        parts += [f"waiting for {', '.join(slow)}"] if (slow := self.stragglers()) else []
        return f"{self._head}: {', '.join(parts)}"

    def stragglers(self) -> list[str]:
        """Return the shards that run much longer than others took."""
        if not self._seconds or not self._running:
            return []
        usual = sorted(self._seconds)[len(self._seconds) // 2]
        limit, now = max(usual * _STRAGGLER, _MIN_STRAGGLER_S), self._clock()
        slow = sorted((began, shard) for shard, began in self._running.items() if now - began > limit)
        return [f"{self._name(shard)} ({now - began:.0f} s)" for began, shard in slow[:_MAX_NAMED]]

    def _name(self, shard: int) -> str:
        files = self._stage.chain.files[shard] if self._stage.chain.files else ()
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        return f"shard {shard:,}" + (f" of {files[0].path}{more}" if files else "")

    def tick(self, write: Callable[[StageProgress], Any]) -> None:
        """Print a line and call ``write`` if the last ones are 15 s old."""
        if self._clock() - self._printed >= SECONDS_PER_LINE:
            self._printed = self._clock()
            print(self.line(), flush=True)
            write(self)

    def as_json(self) -> dict[str, Any]:
        """Return what a page shows."""
        return {
            "stage": self._stage.number + 1,
            "name": self._stage.name,
            "shards": self._stage.shards,
            "done": self.done,
            "reused": self._reused,
            "running": len(self._running),
            "failed": self.failed,
            "losses": self.losses,
            "rows": self.rows,
            "rejected": self.rejected,
            "counters": dict(self.counters),
            "stragglers": self.stragglers(),
            "failures": list(map(_as_row, self._failures)),
            "seconds": round(self._clock() - self._began, 1),
            "idle_s": round(self._clock() - self._shard_ended, 1),
        }


def _as_row(failure: ShardFailure) -> dict[str, Any]:
    texts = {name: getattr(failure, name)[:_MAX_FAILURE_CHARS] for name in ("message", "place", "row", "frame")}
    return {"shard": failure.shard, **texts}


def write_progress(path: str, stages: list[dict[str, Any]], total: int, problem: str | None = None) -> None:
    """Write ``progress.json``: the stages so far, of ``total``, and why the pipeline failed, if it did."""
    write_text(path, json.dumps({"stages": stages, "total_stages": total, "problem": problem}, indent=1) + "\n")
