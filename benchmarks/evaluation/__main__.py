"""``python -m benchmarks.evaluation [--quick]``: requests through a pool beside those to its engine alone.

Both ways reach the same engine on the same machine, in turns. The client, the pool and the engine share its cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.evaluation import harness_run, serving
from benchmarks.harness import Goal, at_most, bench, median
from benchmarks.processes import in_fresh_process
from benchmarks.report import Table, ratio, seconds

_LEAST_OF_ALONE = 0.95
_RECOVERY_S = 10.0


def bench_tiny(quick: bool) -> Iterator[Table | Goal]:
    """Measure an engine that answers each request after two seconds."""
    yield from _throughput("tiny", quick)


def bench_levanter(quick: bool) -> Iterator[Table | Goal]:
    """Measure Levanter's server with a tiny model."""
    yield from _throughput("levanter", quick)


def _throughput(engine: str, quick: bool) -> Iterator[Table | Goal]:
    found = in_fresh_process(serving.measure_throughput, engine, *((1, 6.0) if quick else (5, 20.0)))
    columns = ("at once", "requests/s alone", "through the pool", "ratio", "median latency alone", "through the pool")
    table = Table(f"{engine}: requests through a pool beside its engine alone", columns)
    for at_once, rounds in found.items():
        alone, pooled = ([each[way] for each in rounds] for way in ("alone", "pool"))
        rates = [median(each["rate"] for each in way) or 0.0 for way in (alone, pooled)]
        latencies = [median(each["latency_s"] for each in way) or 0.0 for way in (alone, pooled)]
        table.add(
            at_once,
            f"{rates[0]:.1f}",
            f"{rates[1]:.1f}",
            ratio(rates[1], rates[0]),
            seconds(latencies[0]),
            seconds(latencies[1]),
        )
        share = median(each["pool"]["rate"] / each["alone"]["rate"] for each in rounds) or 0.0
        yield Goal(
            f"{engine}, {at_once} at once, of the engine alone",
            f">= {_LEAST_OF_ALONE:.0%}",
            f"{share:.1%}",
            share >= _LEAST_OF_ALONE,
        )
    yield table


def bench_recovery(quick: bool) -> Iterator[Table | Goal]:
    """Measure a pool of one engine whose worker is killed."""
    found = in_fresh_process(serving.measure_recovery, 1 if quick else 5)
    started = median(found["start_s"]) or 0.0
    table = Table("recovery: SIGKILL of the only worker of a pool", ("", "seconds"))
    table.add("until the next answer", seconds(median(found["recovery_s"]) or 0.0))
    table.add("start of the engine alone", seconds(started))
    yield table
    beside = median(each - started for each in found["recovery_s"]) or 0.0
    yield at_most("recovery, beside the engine's own start", beside, _RECOVERY_S)


def bench_lm_eval(quick: bool) -> Iterator[Table | Goal]:
    """Measure lm-eval's questions with three choices, alone and as an evaluation through the gateway and the pool."""
    found = in_fresh_process(harness_run.measure_evaluation, *((1, 200) if quick else (5, 600)))
    table = Table("lm-eval: an evaluation beside lm-eval alone, on the same engine", ("", "seconds", "ratio"))
    alone = median(each["alone"] for each in found) or 0.0
    for way, name in {"alone": "lm-eval alone", "gateway": "through the gateway", "pool": "gateway and pool"}.items():
        taken = median(each[way] for each in found) or 0.0
        table.add(name, seconds(taken), ratio(taken, alone))
    yield table
    beside = median(each["pool"] / each["alone"] for each in found) or 0.0
    most = 2 - _LEAST_OF_ALONE
    yield Goal("evaluation through gateway and pool", f"<= {most:.0%}", f"{beside:.1%}", beside <= most)


if __name__ == "__main__":
    bench(
        "evaluation",
        __doc__,
        {"tiny": bench_tiny, "levanter": bench_levanter, "recovery": bench_recovery, "lm_eval": bench_lm_eval},
    )
