"""Small pipelines of ``dags/``: all their steps, one after another in one process."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.dags.making import Maker, load
from tradewind.marin.defaults import (
    AnnealConfig,
    SimpleTrainConfig,
    default_anneal,
    default_train,
    simulated_epoching_train,
)
from tradewind.marin.names.data_configs import lm_mixture_data_config, lm_varying_mixture_data_config
from tradewind.recipes.metrics.file import read_metrics, series
from tradewind.recipes.steps import evaluate
from tradewind.steps import Cpu

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    with Maker(tmp_path_factory.mktemp("store")).using_ray() as maker:
        yield maker


@pytest.mark.ray
@pytest.mark.long
def test_a_tiny_model_is_trained_from_text_to_evaluation(maker: Maker) -> None:
    pipeline = load("train_tiny_model")
    evaluated = maker.make(pipeline.evaluate("tiny/evaluate", pipeline.trained, sample_tokens=10), train_steps=6)
    results: dict[str, Any] = json.loads((evaluated / "results.json").read_text())
    assert 0 < results["checkpoint"]["loss"] < 6.5
    assert results["checkpoint"]["loss"] == pytest.approx(results["hf"]["loss"], abs=1e-3)


@pytest.mark.ray
@pytest.mark.long
def test_sweep_reuses_tokens_and_finds_best_learning_rate(maker: Maker) -> None:
    pipeline = load("learning_rate_sweep")
    maker.make(pipeline.tokens)
    before = list(maker.made)
    compared = maker.make(pipeline.compare("sweep/comparison", pipeline.points))
    assert maker.made[len(before) :] == ["sweep/lr_0.001", "sweep/lr_0.01", "sweep/lr_0.1", "sweep/comparison"]
    head, *rows = csv.reader((compared / "comparison.csv").open())
    assert head[:3] == ["run", "learning_rate", "eval_loss"]
    losses = [float(row[2]) for row in rows]
    assert len(rows) == 3 and losses == sorted(losses)


@pytest.mark.ray
@pytest.mark.long
def test_three_models_are_ranked_under_budgets_of_compute(maker: Maker) -> None:
    pipeline = load("speedrun_tiny")
    maker.make(pipeline.tokens)
    runs = {name: pipeline.runs[name] for name in ("short", "hot")}
    board = maker.make(pipeline.leaderboard("speedrun/leaderboard", runs, budgets=[1e9, 1e11]))
    rows = json.loads((board / "leaderboard.json").read_text())
    assert {row["run"]: row["author"]["name"] for row in rows} == dict.fromkeys(runs, "Ada Lovelace")
    assert all(row["training_time"] > 0 and row["model_flops"] > 0 for row in rows), rows


@pytest.mark.ray
@pytest.mark.long
def test_second_mixture_component_improves_its_own_eval_loss(maker: Maker) -> None:
    pipeline = load("data_mixture")
    compared = maker.make(pipeline.compare("mixture/comparison", pipeline.runs, metric="eval_losses.asyncio"))
    head, best, other = csv.reader((compared / "comparison.csv").open())
    assert (best[0], other[0]) == ("mixed", "alone")
    assert {"eval_losses.email", "eval_losses.asyncio"} <= set(head)
    mixed, tokens = pipeline.runs["mixed"], pipeline.components["asyncio"]
    given = {"tokenizer": pipeline.tokenizer, "model": "tiny", "seq_len": 64, "sample_tokens": 0}
    evaluated = maker.make(evaluate("mixture/evaluate", mixed, tokens=tokens, **given))
    results = json.loads((evaluated / "results.json").read_text())
    assert results["hf"]["loss"] == pytest.approx(float(best[head.index("eval_losses.asyncio")]), abs=0.2)


@pytest.mark.ray
@pytest.mark.long
def test_tiny_model_pretrains_and_fine_tunes_with_marin_helpers(maker: Maker) -> None:
    pipeline = load("sft_tiny")
    tuned = maker.make(pipeline.tuned)
    result, (chats,) = json.loads((tuned / "result.json").read_text()), maker.store.glob("documents/sft_tiny-*")
    (base,) = maker.store.glob("checkpoints/sft_tiny/base-*")
    losses = [series(read_metrics(str(run / "metrics.jsonl")), "train/loss")[1] for run in (base, tuned)]
    assert losses[0][-1] < losses[0][0] and losses[1][-1] < losses[1][0]
    assert losses[1][0] < losses[0][0], "it begins with what the base has learned"
    assert (result["steps"], result["tokens"]) == (20, 20 * 4 * 512)
    (cache,) = maker.store.glob("tokenized/sft_tiny/chats-*")
    record = json.loads((cache / "tokenization.json").read_text())
    assert record["train"]["documents"] == json.loads((chats / ".artifact.json").read_text())["chats"]


@pytest.mark.ray
@pytest.mark.long
def test_two_stages_and_simulated_epochs_train_on_tokenized_data(maker: Maker) -> None:
    """Both use the fine-tuning's tokens and model, which may exist from an earlier test."""
    pipeline = load("sft_tiny")
    short = SimpleTrainConfig(Cpu(), train_batch_size=4, num_train_steps=8, learning_rate=1e-2, steps_per_hf_export=-1)
    components = {"texts": pipeline.texts, "chats": pipeline.questions}
    stages = [(0, {"texts": 1.0, "chats": 0.0}), (16, {"texts": 0.0, "chats": 1.0})]
    mixture = lm_varying_mixture_data_config(components, stages, mixture_block_size=16)
    plain = {"use_default_validation": False, "eval_harness_tasks": ()}
    two_stages = maker.make(default_train("sft_tiny/stages", mixture, pipeline.model, short, **plain))
    result = json.loads((two_stages / "result.json").read_text())
    assert (result["steps"], result["export"]) == (8, None)
    epochs = simulated_epoching_train("sft_tiny/epochs", pipeline.texts, pipeline.model, short, 10**6, **plain)
    assert json.loads((maker.make(epochs) / "result.json").read_text())["tokens"] == 8 * 4 * 512


@pytest.mark.ray
@pytest.mark.long
def test_anneal_continues_the_training_that_it_ends(maker: Maker) -> None:
    """The test replaces ``llama_8b`` by the tiny model; all else is the anneal's own."""
    pipeline = load("sft_tiny")
    base = maker.make(pipeline.base)
    anneal = AnnealConfig(
        lm_mixture_data_config({"texts": pipeline.texts, "chats": pipeline.questions}, {"texts": 0.5, "chats": 0.5}),
        initialize_from_checkpoint_path=f"{base}/checkpoints/step-19",
        train_batch_size=4,
        num_anneal_training_tokens=4 * 4 * AnnealConfig.LLAMA_MAX_SEQ_LEN,
        resources=Cpu(),
        use_default_validation=False,
    )
    step = default_anneal("sft_tiny/anneal", anneal)
    tiny = replace(step.config.train_config, model=pipeline.model)
    annealed = maker.make(replace(step, config=replace(step.config, train_config=tiny)))
    result, rows = json.loads((annealed / "result.json").read_text()), read_metrics(str(annealed / "metrics.jsonl"))
    assert (result["steps"], result["tokens"]) == (23, 3 * 4 * 512), "of 19 + 4 steps, 20 were done"
    before = series(read_metrics(str(base / "metrics.jsonl")), "train/loss")[1]
    assert series(rows, "train/loss")[0] == [20, 21, 22]
    assert max(series(rows, "train/loss")[1]) < before[0], "it has learned already"
