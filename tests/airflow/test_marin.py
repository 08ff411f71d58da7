"""An unchanged Marin experiment file: a DAG of the local Airflow whose steps run on real Ray."""

from __future__ import annotations

import json

import pytest

from tests.airflow.conftest import DagRun, Environment
from tests.marin.checkouts import put
from tests.support.waiting import limit_s

pytestmark = pytest.mark.airflow

CHECKOUT = {
    "src/marin/__init__.py": "",
    "src/marin/execution/__init__.py": "",
    "src/marin/execution/executor.py": """
        from dataclasses import dataclass
        import ray

        @dataclass(frozen=True)
        class ExecutorStep:
            name: str
            fn: object
            config: object
            description: str | None = None

        def this_output_path(name=None): ...
        def output_path_of(step, name=None): ...
        def versioned(value): ...
        def executor_main(steps, description=None):
            raise RuntimeError("a step's process runs no guard")
    """,
    "src/marin/utilities/tables.py": """
        import json
        import os

        def write(folder: str, table: dict) -> None:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "table.json"), "w") as file:
                json.dump(table, file)
    """,
    "experiments/counting.py": """
        from collections import Counter

        LEAST = 2

        def count(words: list[str]) -> dict[str, int]:
            return {word: count for word, count in sorted(Counter(words).items()) if count >= LEAST}
    """,
    "experiments/tutorials/poem.txt": "a rose is a rose is a rose",
    "experiments/tutorials/count_words.py": """
        import json
        import logging
        import os
        from dataclasses import dataclass, field

        import ray
        from experiments.counting import LEAST, count
        from marin.execution.executor import ExecutorStep, executor_main, output_path_of, this_output_path, versioned
        from marin.utilities.tables import write
        from zephyr import Dataset, flow_backend

        POEM = "experiments/tutorials/poem.txt"
        logger = logging.getLogger("ray")

        @dataclass(frozen=True)
        class WordsConfig:
            output_path: str
            least: int
            words: list[str] = field(default_factory=list)

        def split(config: WordsConfig) -> None:
            with open(POEM) as poem:  # on the cluster, too
                assert poem.read().split() == config.words
            words = Dataset.from_list([config.words]).flat_map(list)
            numbers = words.group_by(key=str, reducer=lambda word, all: (word, len([*all])))
            pairs = flow_backend(chunk_size=5).execute(numbers)
            assert {word: number for word, number in pairs if number >= LEAST} == count(config.words)
            write(config.output_path, count(config.words))

        @dataclass(frozen=True)
        class LongestConfig:
            table: str
            output_path: str

        @ray.remote(num_cpus=0.5)
        def longest(config: LongestConfig):
            with open(os.path.join(config.table, "table.json")) as file:
                words = list(json.load(file))
            write(config.output_path, {"longest": max(words, key=len)})
            return {"task": ray.get_runtime_context().get_task_id(), "module": __name__}

        with open(POEM) as poem:
            WORDS = poem.read().split()
        counted = ExecutorStep(
            name=f"words/{len(WORDS)}/counted",
            fn=split,
            config=WordsConfig(output_path=this_output_path(), least=versioned(LEAST), words=WORDS),
        )
        found = ExecutorStep(
            name="words/longest",
            fn=longest,
            config=LongestConfig(table=output_path_of(counted), output_path=this_output_path()),
            description="Find the longest word.",
        )

        if __name__ == "__main__":
            executor_main(steps=[counted, found], description="Words of a poem.")
    """,
}
DAG_FILE = """
"Marin's experiments as Airflow DAGs."
from tradewind.marin import marin_experiment

marin_experiment("experiments/tutorials/count_words.py", tags=["marin"])
"""


def test_marin_checkout_beside_dags_runs_and_is_reused(env: Environment) -> None:
    for name, text in CHECKOUT.items():
        put(env.dags.parent / "marin" / name, text)
    put(env.dags / "marin_dags.py", DAG_FILE)
    dag = env.api.wait_for_dag("tutorials.count_words", limit_s())
    tags = sorted(tag["name"] for tag in dag["tags"])
    assert (dag["description"], tags) == ("Words of a poem.", ["marin", "tradewind"])
    run = env.run("tutorials.count_words")
    assert run.state == "success", run.states()
    check_outputs(env, run)
    again = env.run("tutorials.count_words")
    assert set(again.decisions().values()) == {"REUSE"}
    assert again.states() == {"plan": "success", "words_8_counted": "skipped", "words_longest": "skipped"}
    assert env.attempts("words/longest") == 1


def check_outputs(env: Environment, run: DagRun) -> None:
    counted, found = env.output("words/8/counted"), env.output("words/longest")
    assert json.loads((counted / "table.json").read_text()) == {"a": 3, "is": 2, "rose": 3}
    assert json.loads((found / "table.json").read_text()) == {"longest": "rose"}
    assert (found / ".executor_status").read_text() == "SUCCESS"
    info = json.loads((found / ".executor_info").read_text())
    assert (info["fn_name"], info["dependencies"]) == ("experiments.tutorials.count_words.longest", [str(counted)])
    result = json.loads((found / ".artifact.json").read_text())
    assert result["module"] == "experiments.tutorials.count_words" and result["task"]
    assert "Stage 2 of 2 (group_by): 1 of 1 shards, 3 rows" in run.log("words_8_counted"), "Tradewind's engine ran it"
    log = run.log("words_longest")
    for text in ("submitted as Ray job words-longest-", "is finished: "):
        assert log.count(text) == 1, text
