"""Sample steps that write a line each, or fail."""

from __future__ import annotations

from sample_work import Link, write_link

from tradewind import ExecutorStep, on_airflow_worker, output_path_of, versioned

DOMAINS = ["books", "code", "forums", "law", "maths", "news", "papers", "patents", "recipes", "web"]
SHARDS_PER_DOMAIN = 96
OCTOBER, NOVEMBER = "crawl of October", "crawl of November"


def link(name: str, *inputs: ExecutorStep, fails: bool = False, text: str = "") -> ExecutorStep:
    config = Link(versioned(text or name), [output_path_of(each) for each in inputs], versioned(fails))
    return ExecutorStep(name, write_link, config, resources=on_airflow_worker())


def big_steps(crawl: str) -> list[ExecutorStep]:
    """Define 1,000 steps: ten domains of shards that are cleaned, their statistics, a mixture and trainings."""
    mixed, last = [], []
    for domain in DOMAINS:
        raw = link(f"big/{domain}/raw", text=crawl if domain == "web" else "")
        shards = [link(f"big/{domain}/clean_{number:02d}", raw) for number in range(SHARDS_PER_DOMAIN)]
        mixed.append(link(f"big/{domain}/tokens", *shards))
    mixture = link("big/mixture", *mixed)
    trained = [link(f"big/train_{size}", mixture) for size in ("130m", "300m", "1b", "3b")]
    for each in trained:
        size = each.name.rpartition("_")[2]
        last += [link(f"big/{task}_{size}", each) for task in ("perplexity", "arc", "mmlu")]
    return [*last, link("big/scaling_law", *trained), link("big/board", *last), link("big/report", *last)]
