"""Estimate pi in parallel tasks: a plain Ray script, without Airflow and without steps.

``tradewind jobs submit -- python examples/estimate_pi.py --tasks 16`` runs it on a cluster.
"""

import argparse
import random

import ray


@ray.remote
def count_hits(seed: int, throws: int) -> int:
    """Count the random points of the unit square that are in the quarter circle."""
    generator = random.Random(seed)
    return sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(throws))


def main() -> None:
    """Print a line per finished task, then the estimate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=4, help="how many Ray tasks (default: 4)")
    parser.add_argument("--throws", type=int, default=200_000, help="how many points per task (default: 200000)")
    options = parser.parse_args()
    ray.init()  # in a job, this connects to the job's cluster
    running = [count_hits.remote(seed, options.throws) for seed in range(options.tasks)]
    hits = 0
    for done in range(1, options.tasks + 1):
        (ready,), running = ray.wait(running)
        hits += ray.get(ready)
        print(f"Task {done} of {options.tasks}: pi is about {4 * hits / (done * options.throws):.4f}", flush=True)


if __name__ == "__main__":
    main()
