"""Airflow DAG of 1,000 steps, in a folder of its own, since each run reads all files of its folder three times."""

from __future__ import annotations

from sample_links import link

from tradewind import experiment_dag

DOMAINS = ["books", "code", "forums", "law", "maths", "news", "papers", "patents", "recipes", "web"]
SHARDS_PER_DOMAIN = 96


def big_plan() -> None:
    """Define 1,000 steps: ten domains of shards that are cleaned, their statistics, a mixture and trainings."""
    mixed, last = [], []
    for domain in DOMAINS:
        raw = link(f"big/{domain}/raw")
        shards = [link(f"big/{domain}/clean_{number:02d}", raw) for number in range(SHARDS_PER_DOMAIN)]
        mixed.append(link(f"big/{domain}/tokens", *shards))
    mixture = link("big/mixture", *mixed)
    trained = [link(f"big/train_{size}", mixture) for size in ("130m", "300m", "1b", "3b")]
    for each in trained:
        size = each.name.rpartition("_")[2]
        last += [link(f"big/{task}_{size}", each) for task in ("perplexity", "arc", "mmlu")]
    experiment_dag(
        "big_plan", [*last, link("big/scaling_law", *trained), link("big/board", *last), link("big/report", *last)]
    )


big_plan()
