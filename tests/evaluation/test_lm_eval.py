"""lm-eval against a served model: scores, files, and what is refused before the model is served."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.evaluation.conftest import LM_EVAL, TASKS, Engine, LevanterEngine, expected_accuracy, lm_eval_config
from tests.serving.exports import tiny_export
from tradewind.evaluation import lm_eval
from tradewind.evaluation.config import ServedAddress
from tradewind.evaluation.lm_eval_files import read_lm_eval
from tradewind.evaluation.results import Status, read_record
from tradewind.evaluation.run import EvaluationError, evaluate
from tradewind.evaluation.tasks import EvalTaskConfig


@pytest.mark.slow
def test_tasks_measured_and_written(
    engine: Engine, export: Path, tmp_path: Path, importable: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 5 CPU seconds: what lm-eval asks and writes shows only in a run of it."""
    output = tmp_path / "out"
    tasks = f"memory://{tmp_path.name}/tasks"
    fsspec.filesystem("memory").put(f"{TASKS}/", f"/{tmp_path.name}/tasks", recursive=True)
    result = evaluate(lm_eval_config(engine.address, export, output, task_path=tasks))
    accuracy = expected_accuracy(export)
    assert result["status"] == "succeeded"
    assert result["scores"] == {
        "colors_0shot": {"acc": accuracy},
        "colors_1shot": {"acc": result["scores"]["colors_1shot"]["acc"]},
        "words": {"exact_match": 0.0},
        "both/colors": {"acc": accuracy},
        "both/words": {"exact_match": 0.0},
        "both": {},
    }
    record = read_record(str(output))
    assert (record.requests, record.cached) == (66, 0) == (len(engine.requests("answered")), 0)
    assert record.tasks["colors_1shot"].num_fewshot == 1
    assert record.tasks["colors_0shot"].task_version == "2.1"
    assert record.groups["both"].members == ("both/colors", "both/words")
    assert (record.harness_version, record.serving.engine) == ("0.4.13", "api")
    assert not (output / ".answers").exists()
    lines = capsys.readouterr().out
    assert "colors_0shot: 6 documents, about 18 requests." in lines
    assert "exact_match ↑" in lines
    (words,) = read_lm_eval(output / "lm_eval/002-words", "words")
    assert [sample.target for sample in words.samples] == ["blue", "green", "white", "black", "yellow", "red"]
    assert words.samples[0].prompt == "What is the color of sky?"
    assert words.higher_is_better == {"exact_match": True}


@pytest.mark.slow
def test_impossible_tasks_refused_together(export: Path, tmp_path: Path, importable: None) -> None:
    evals = [EvalTaskConfig(name) for name in ("long_questions", "of_the_hub", "broken", "words")]
    evals.append(EvalTaskConfig("colors", 200))
    with pytest.raises(ValueError, match="evals has") as refused:
        evaluate(lm_eval_config("http://127.0.0.1:1/v1", export, tmp_path / "out", *evals))
    for part in (
        "'long_questions', of which 2 documents do not fit into the model's context of 256 tokens (the longest needs "
        "1,0",
        "): 1, 3. Give fewer shots",
        "'of_the_hub', whose data is not on this host, and the evaluation may not use the network: give network=True",
        "'broken', which lm-eval cannot prepare: UndefinedError: 'there_is_none' is undefined",
        "'colors', which lm-eval cannot prepare: the data has fewer documents than the shots of a prompt",
    ):
        assert part in str(refused.value)
    assert "words" not in str(refused.value)
    assert not (tmp_path / "out" / "record.json").exists()


@pytest.mark.slow
@pytest.mark.long
def test_chat_tasks_fail_one_by_one(engine: Engine, export: Path, tmp_path: Path, importable: None) -> None:
    """A task whose process dies, and a document that the server refuses, take no other along."""
    output = tmp_path / "out"
    evals = [EvalTaskConfig(name) for name in ("colors", "words", "dies", "refused")]
    with pytest.raises(EvaluationError, match="1 of 4 tasks failed: dies: lm-eval's process ended with exit code 9"):
        evaluate(lm_eval_config(engine.address, export, output, *evals, apply_chat_template=True))
    record = read_record(str(output))
    status = {name: task.status for name, task in record.tasks.items()}
    assert status == {
        "colors": Status.SUCCEEDED,
        "words": Status.SUCCEEDED,
        "dies": Status.FAILED,
        "refused": Status.INCOMPLETE,
    }
    (score,) = record.tasks["refused"].scores
    assert (score.value, score.scored, score.attempted, score.errors) == (None, 5, 6, 1)
    template = (export / "chat_template.jinja").read_text()
    digests = {record.tasks[name].chat_template_sha256 for name in ("colors", "words", "refused")}
    assert digests == {hashlib.sha256(template.encode()).hexdigest()}
    assert "<user>What is the color of sky?" in engine.requests("answered")
    assert len(engine.requests("answered")) == 18 + 6 + 6 + 5
    assert (output / ".answers").exists()


@pytest.mark.slow
@pytest.mark.long
def test_model_that_answers_nothing_fails_its_task(export: Path, tmp_path: Path, importable: None) -> None:
    """A server without ``echo`` would give the scores of ties, and one that refuses all is asked no 100 times."""
    engine = Engine(tmp_path, ("--no-echo",))
    try:
        engine.start()
        output = tmp_path / "out"
        evals = [EvalTaskConfig(name) for name in ("colors", "words", "all_refused")]
        with pytest.raises(EvaluationError, match="2 of 3 tasks failed: .*colors: Of 6 documents 6 .*has no echo"):
            evaluate(lm_eval_config(engine.address, export, output, *evals, apply_chat_template=True))
        record = read_record(str(output))
        assert record.tasks["words"].scores[0].value == 0.0
        assert "answered none of the first 20 requests: HTTP 400: refused" in str(record.tasks["all_refused"].error)
        assert len(engine.requests("begun")) < 18 + 6 + 50
    finally:
        engine.kill()


@pytest.mark.slow
@pytest.mark.long
def test_unknown_task_refused_with_nearest_names(export: Path, tmp_path: Path, importable: None) -> None:
    """Of 16 CPU seconds, in which lm-eval reads its own 14,000 tasks."""
    evals = [EvalTaskConfig("colors"), EvalTaskConfig("arc_eazy")]
    with pytest.raises(
        ValueError, match="evals has 'arc_eazy', which lm-eval does not know.*: did you mean .*arc_easy"
    ):
        evaluate(lm_eval_config("http://127.0.0.1:1/v1", export, tmp_path / "out", *evals))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_PAT", "ANY_URL", "GOOGLE_APPLICATION_CREDENTIALS"}),
        ({"confirm_run_unsafe_code": True}, set()),
    ],
)
def test_keys_of_servers_hidden_from_lm_eval(
    options: dict[str, Any], kept: set[str], export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that a model wrote sees no secret at all."""
    secrets = dict.fromkeys(("NO_KEY", "OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_PAT"), "s3cret")
    secrets |= {"ANY_URL": "https://user:s3cret@host/", "GOOGLE_APPLICATION_CREDENTIALS": "/keys/s3cret.json"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    config = lm_eval_config("http://127.0.0.1:1/v1", export, tmp_path, judge=ABSENT, options=options)
    assert {name for name, value in lm_eval._environment(config).items() if "s3cret" in value} == kept


ABSENT = ServedAddress("http://127.0.0.1:1/v1", "m", "NO_KEY")
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "option": ({"options": {"truncated": True}}, "options has 'truncated', .*; did you mean 'truncate'"),
    "value": ({"options": {"truncate": 1}}, r"options\['truncate'\]=1: give True or False"),
    "none": ({"evals": []}, "evals is empty"),
    "twice": ({"evals": [EvalTaskConfig("a"), EvalTaskConfig("a")]}, "evals has two tasks"),
    "installed": ({}, "lm-eval is not installed on this cluster"),
    "tasks": ({"task_path": "/there/is/none"}, "task_path='/there/is/none' is no folder"),
    "model": ({"model_path": "/there/is/none"}, "model=/there/is/none is not there"),
    "key": ({"serving": ABSENT}, "The environment variable NO_KEY with the key for http"),
    "judge": ({"judge": ABSENT}, "The environment variable NO_KEY with the key for http"),
    "harness": ({"evaluator": "lm_eval_harness"}, "evaluator='lm_eval_harness' is no harness; did you mean"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS.values(), ids=REFUSALS)
def test_impossible_evaluation_refused(
    changes: dict[str, Any], message: str, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "task_path" in changes:
        monkeypatch.syspath_prepend(str(LM_EVAL))
    config = dataclasses.replace(lm_eval_config("http://127.0.0.1:1/v1", export, tmp_path / "out"), **changes)
    with pytest.raises(ValueError, match=message):
        evaluate(config)
    assert not (tmp_path / "out").exists()


def test_chat_without_template_refused(tmp_path: Path) -> None:
    export = tiny_export(tmp_path / "plain", chat=False)
    config = lm_eval_config("http://127.0.0.1:1/v1", export, tmp_path / "out", apply_chat_template=True)
    with pytest.raises(ValueError, match="apply_chat_template=True: the tokenizer of .*plain has no chat template"):
        evaluate(config)


@pytest.mark.slow
@pytest.mark.long
def test_tasks_measured_on_levanter(export: Path, tmp_path: Path, importable: None) -> None:
    """Twice on Levanter's own server, with other requests at once: the same numbers."""
    engine = LevanterEngine(tmp_path, model=str(export))
    try:
        engine.start()
        evals = [EvalTaskConfig(name) for name in ("colors", "words")]
        results = []
        for at_once in (2, 8):
            output = tmp_path / str(at_once)
            options = {"apply_chat_template": True, "num_concurrent": at_once}
            results.append(evaluate(lm_eval_config(engine.address, export, output, *evals, **options)))
            assert read_record(str(output)).tasks["colors"].scores[0].coverage == 1
        assert results[0] == results[1]
        assert results[0]["status"] == "succeeded"
    finally:
        engine.kill()
