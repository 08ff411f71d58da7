"""Scores by task with their coverage, the files of an evaluation, and records that others wrote."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyarrow import parquet

from tests.browsing.files import allowed
from tests.evaluation.every_eval_ever_schema import AGGREGATE, INSTANCE
from tests.evaluation.made_results import made_record, made_samples, made_task
from tradewind.browsing import look
from tradewind.evaluation.files import read_scores
from tradewind.evaluation.lm_eval_files import task_results
from tradewind.evaluation.results import (
    EvaluationRecord,
    Model,
    Sample,
    Status,
    TaskResult,
    read_record,
    write_results,
)
from tradewind.evaluation.scores import make_score
from tradewind.evaluation.summary import score_table
from tradewind.records.attempts import Attempt, write_attempt

LL = {"perplexity": -2.5}


def mixed_tasks() -> list[TaskResult]:
    """Return results of all kinds."""
    hard = made_task("mmlu_hard", 0.3, 50, groups=("mmlu",))
    easy = made_task("mmlu_easy", 0.9, 150, groups=("mmlu",), errors=3)
    corpus = replace(
        made_task("corpus", count=4),
        samples=tuple(Sample(f"{at}", "", "", "", LL) for at in range(4)),
        metrics={"perplexity": math.exp(2.5)},
        higher_is_better={"perplexity": False},
    )
    failed = made_task("failed", count=0, num_documents=10, status=Status.FAILED, error="No such\nfile")
    return [hard, easy, corpus, failed, made_task("few", count=20, errors=3)]


def written(folder: Path, tasks: list[TaskResult], **options: Any) -> EvaluationRecord:
    record = write_results(str(folder), made_record(**options), tasks)
    assert read_record(str(folder)) == record
    return record


def value(record: EvaluationRecord, name: str, metric: str = "acc") -> float | None:
    task = record.task(name)
    score = task and task.score(metric)
    assert score is not None
    return score.value


def test_record_has_no_number_below_90_percent_coverage(tmp_path: Path) -> None:
    tasks = [
        made_task("whole"),
        made_task("nine_tenths", errors=10),
        made_task("less", errors=11),
        made_task("cut", count=50, num_documents=100),
        made_task("none", errors=100),
        made_task("lost", count=3, status=Status.INFRASTRUCTURE_LOST, num_documents=10),
    ]
    record = written(tmp_path, tasks)
    found = {name: (task.status.value, task.score("acc")) for name, task in record.tasks.items()}
    assert {name: status for name, (status, _) in found.items()} == {
        "whole": "succeeded", "nine_tenths": "succeeded", "less": "incomplete", "cut": "incomplete",
        "none": "failed", "lost": "infrastructure_lost",
    }  # fmt: skip
    counts = {
        name: (s.scored, s.attempted, s.errors, s.coverage, s.value is None) for name, (_, s) in found.items() if s
    }
    assert counts == {
        "whole": (100, 100, 0, 1.0, False), "nine_tenths": (90, 100, 10, 0.9, False),
        "less": (89, 100, 11, 0.89, True), "cut": (50, 50, 0, 0.5, True),
    }  # fmt: skip
    assert record.status is Status.INFRASTRUCTURE_LOST
    assert record.tasks["none"].error == (
        "Of 100 documents 100 were attempted, 100 with an error; the first error: HTTP 400: the prompt is too long"
    )


def test_group_pools_documents_and_needs_all_its_tasks(tmp_path: Path) -> None:
    record = written(tmp_path / "whole", mixed_tasks())
    group, hard, easy = record.groups["mmlu"], value(record, "mmlu_hard"), value(record, "mmlu_easy")
    assert hard is not None and easy is not None
    assert value(record, "mmlu") == pytest.approx((hard * 50 + easy * 147) / 197)
    assert group.members == ("mmlu_easy", "mmlu_hard") and (group.num_documents, group.status) == (200, "succeeded")
    unlike = [made_task("a", groups=("unlike",)), replace(mixed_tasks()[2], groups=("unlike",))]
    group = written(tmp_path / "unlike", unlike).groups["unlike"]
    assert (group.scores, group.status, group.error) == ((), "succeeded", "Its tasks share no metric")
    lost = [*mixed_tasks(), made_task("mmlu_lost", count=0, groups=("mmlu",), status=Status.FAILED, error="gone")]
    group = written(tmp_path / "lost", lost).groups["mmlu"]
    assert (group.scores, group.status, group.error) == ((), "incomplete", "Without a result of mmlu_lost")


def test_number_that_is_no_mean_of_documents_has_no_interval(tmp_path: Path) -> None:
    score = written(tmp_path, mixed_tasks()).tasks["corpus"].score("perplexity")
    assert score is not None and (score.interval, score.low, score.high) == ("none", None, None)
    assert score.value == pytest.approx(math.exp(2.5)) and score.coverage == 1
    unknown = written(tmp_path / "nan", [replace(mixed_tasks()[2], metrics={"perplexity": math.nan})]).tasks["corpus"]
    assert unknown.status is Status.INCOMPLETE and unknown.scores[0].value is None
    mean = sum(sample.scores["acc"] for sample in made_samples(0.6, 100)) / 100
    assert value(written(tmp_path / "mean", [made_task("same", metrics={"acc": mean})]), "same") == mean


def test_perplexity_with_errors_is_no_mean_of_documents(tmp_path: Path) -> None:
    lines = [
        {
            "doc_id": at, "doc_hash": "0" * 64, "target": "x", "arguments": {"gen_args_0": {"arg_0": "Q"}},
            "filtered_resps": ["-2.5"], "filter": "none", "metrics": ["perplexity", "acc"], "perplexity": -2.5,
            "acc": at % 2, "error": "HTTP 500" if at == 0 else None,
        }
        for at in range(20)
    ]  # fmt: skip
    own = {"perplexity,none": math.exp(2.5), "acc,none": 0.5, "bleu,none": 3.0}
    results = {
        "results": {"t": own}, "configs": {"t": {}}, "versions": {"t": 1}, "n-samples": {"t": {"effective": 20}},
        "higher_is_better": {"t": {"perplexity": False, "acc": True}},
    }  # fmt: skip
    record = written(tmp_path, task_results(results, {"t": lines}))
    assert value(record, "t") == pytest.approx(10 / 19)
    assert value(record, "t", "perplexity") is None and value(record, "t", "bleu") is None


def test_every_number_of_record_follows_from_samples(tmp_path: Path) -> None:
    record = written(tmp_path, mixed_tasks())
    rows = parquet.read_table(tmp_path / "samples.parquet").to_pylist()
    assert [(row["task"], row["document"]) for row in rows] == sorted((row["task"], row["document"]) for row in rows)
    checked = 0
    for name, task in (*record.tasks.items(), *record.groups.items()):
        own = [row for row in rows if row["task"] in (task.members or (name,))]
        lines = sorted(f"{row['document']}\t{row['prompt_sha256']}" for row in own)
        assert task.members or not own or task.prompts_sha256 == hashlib.sha256("\n".join(lines).encode()).hexdigest()
        for score in task.scores:
            if score.interval == "none" and score.value is not None:  # not a mean of documents
                continue
            scores = [row.get(f"score/{score.metric}") for row in own]
            again = make_score(
                [*scores, *[None] * (task.num_documents - len(own))], len(own), score.metric, score.higher_is_better
            )
            for field in ("value", "low", "high", "coverage"):
                assert getattr(again, field) == pytest.approx(getattr(score, field))
            assert (again.scored, again.attempted, again.errors) == (score.scored, score.attempted, score.errors)
            checked += 1
    assert checked == 12


def test_samples_have_stable_columns_and_bounded_texts(tmp_path: Path) -> None:
    long, surrogate = "x" * 300_000, "half \ud83d"
    sample = Sample("7", long, surrogate, long, {"b": 1.0, "a": math.nan}, None)
    broken = Sample("8", "", "", "", {}, f"a\x1b[31m{long}")
    written(tmp_path, [made_task("one", samples=(broken, sample), num_documents=2)])
    table = parquet.read_table(tmp_path / "samples.parquet")
    assert table.column_names == [
        "task", "document", "prompt", "prompt_sha256", "target", "answer", "error", "score/a", "score/b"
    ]  # fmt: skip
    first, second = table.to_pylist()
    assert len(first["prompt"]) == len(first["answer"]) == 100_003 and first["target"] == "half ?"
    assert first["prompt_sha256"] == hashlib.sha256(long.encode()).hexdigest()
    assert (first["score/a"], first["score/b"]) == (None, 1.0)
    assert len(second["error"]) <= 300 and "\x1b" not in second["error"]
    scores = read_scores(str(tmp_path), ["one"])["one"]
    assert scores.scores == {"b": {"7": 1.0}} and set(scores.prompts) == {"7", "8"}


def test_every_eval_ever_files_fit_its_schema(tmp_path: Path) -> None:
    record = written(tmp_path, mixed_tasks())
    files = sorted((tmp_path / "every_eval_ever").rglob("*.json*"))
    aggregate = json.loads(files[0].read_text())
    jsonschema.validate(aggregate, AGGREGATE)
    lines = files[1].read_bytes()
    rows = [json.loads(line) for line in lines.splitlines()]
    detailed = aggregate["detailed_evaluation_results"]
    assert f"every_eval_ever/{detailed['file_path']}" == str(files[1].relative_to(tmp_path))
    assert detailed["total_rows"] == len(rows) and detailed["checksum"] == hashlib.sha256(lines).hexdigest()
    ids = {each["evaluation_result_id"] for each in aggregate["evaluation_results"]}
    validator = jsonschema.validators.validator_for(INSTANCE)(INSTANCE)
    for row in rows:
        validator.validate(row)
        assert row["evaluation_result_id"] in ids and row["model_id"] == aggregate["model_info"]["id"] == "org/tiny"
        assert row["evaluation_id"] == aggregate["evaluation_id"]
    assert {name for name in ids if name.startswith(("few", "failed"))} == set()
    accuracy = next(each for each in aggregate["evaluation_results"] if each["evaluation_result_id"] == "mmlu/acc")
    assert accuracy["score_details"]["score"] == value(record, "mmlu")


@pytest.mark.parametrize(
    ("path", "name", "place"),
    [
        ("hub:org/tiny.v2@main", "x", "org/tiny.v2"),
        ("hub:org/a/b@main", "my model/é", "local/my_model"),
        ("/m", "data", "local/_data"),
        ("/m", "Con.v1", "local/_Con.v1"),
        ("/m", "../..", "local/unnamed"),
        ("/m", f"{'x' * 99}.y", f"local/{'x' * 99}"),
    ],
)
def test_every_eval_ever_names_folders_for_any_model(tmp_path: Path, path: str, name: str, place: str) -> None:
    written(tmp_path, [made_task("a", count=3)], model=Model(path, name))
    [samples] = tmp_path.glob("every_eval_ever/data/lm_evaluation_harness/*/*/*_samples.jsonl")
    assert samples.parent.relative_to(tmp_path / "every_eval_ever/data/lm_evaluation_harness") == Path(place)


def test_no_every_eval_ever_files_without_a_number(tmp_path: Path) -> None:
    written(tmp_path, [made_task("none", errors=100)])
    assert not (tmp_path / "every_eval_ever").exists()


def test_summary_shows_intervals_and_says_what_is_missing(tmp_path: Path) -> None:
    written(tmp_path, mixed_tasks(), commit="abc", model=replace(made_record().model, name="<b>tiny"))
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("# \\<b>tiny: lm_evaluation_harness\n\n- Status: failed\n")
    for line in (
        "| mmlu (2 tasks) | 1 | 0 | acc ↑ | 0.7462 | 0.6698 to 0.8049 | 197 of 200 | succeeded |",
        "| corpus | 1 | 0 | perplexity ↓ | 12.18 |  | 4 of 4 | succeeded |",
        "| few | 1 | 0 | acc ↑ |  |  | 17 of 20 | incomplete |",
        "| failed | 1 | 0 |  |  |  |  | failed |",
        "- failed: No such file",
        "- mmlu_easy: Of 150 documents 150 were attempted, 3 with an error; the first error: HTTP 400: the prompt is "
        "too long",
        "- From 2023-11-14 22:13 UTC, 100 s, of which 30 s paused",
        "- 300 requests, 0 of them answered by an earlier attempt, 50 tokens/s",
    ):
        assert line in text.splitlines(), text


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([made_task("a"), made_task("a")], "Two results are named 'a'"),
        ([made_task("a", samples=tuple(made_samples(0.5, 2)) * 2)], "Task 'a' has two samples of document '0'"),
        ([made_task("a", groups=("b",)), made_task("b")], "'b' is a task and a group"),
        ([made_task(f"t{at}", count=1) for at in range(2001)], "2,001 tasks; a record holds 2,000"),
    ],
)
def test_ambiguous_results_refused_before_any_file(tmp_path: Path, tasks: list[TaskResult], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_results(str(tmp_path / "out"), made_record(), tasks)
    assert not (tmp_path / "out").exists()


def test_record_has_commit_of_attempt_and_version_of_model(tmp_path: Path) -> None:
    write_attempt(str(tmp_path), Attempt(1, "job", "cluster", {}, {}, code_commit="c0ffee"))
    model = Model("/outputs/a-1a2b3c/train-4d5e6f/hf/step-7", "tiny")
    record = written(tmp_path, [made_task("a")], model=model)
    assert (record.commit, record.model.version) == ("c0ffee", "4d5e6f")
    (tmp_path / ".attempts" / "1.json").write_text("{")
    assert written(tmp_path, [made_task("a")], model=replace(model, path="/m")).commit is None


def test_interrupted_writing_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [made_task("a")])
    (tmp_path / "summary.md").unlink()
    (tmp_path / "summary.md").mkdir()
    with pytest.raises(OSError, match=r"summary\.md"):
        write_results(str(tmp_path), made_record(), [made_task("a")])
    assert not (tmp_path / "record.json").exists()


def test_record_of_later_version_read_and_marked(tmp_path: Path) -> None:
    record = written(tmp_path, mixed_tasks())
    file = tmp_path / "record.json"
    fields = json.loads(file.read_text())
    fields |= {"schema": "tradewind.evaluation/2", "judges": [{"new": 1}]}
    fields["tasks"]["few"]["median"] = 0.5
    file.write_text(json.dumps(fields))
    later = read_record(str(tmp_path))
    assert later.is_later and replace(later, schema=record.schema) == record and not record.is_later


def field(*path: Any, to: Any) -> Any:
    def change(fields: Any) -> Any:
        inner = fields
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to
        return fields

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: [], "it holds no JSON object"),
        (field("schema", to="marin/1"), "its schema is not tradewind.evaluation/1, or a later one"),
        (field("status", to="fine"), "its status is not one of failed, incomplete"),
        (field("ended_at", to=1e300), "its ended_at is not a time"),
        (field("model", to={"name": 1, "path": ""}), "its model's name is not text"),
        (field("serving", to={}), "its serving's engine is missing"),
        (field("tasks", to=[1]), "its tasks is not an object"),
        (field("tasks", "few", to=3), "it holds no JSON object"),
        (field("tasks", "few", "num_documents", to=-1), "a task's num_documents is not a whole number"),
        (field("tasks", "few", "scores", 0, "coverage", to=1.5), "a score's coverage is not a share"),
        (field("tasks", "few", "scores", 0, "value", to=math.nan), "a score's value is not a number"),
        (field("tasks", "few", "scores", 0, to={}), "a score's metric is missing"),
        (field("tasks", to={f"{at}": {} for at in range(2001)}), "it has more than 2,000 tasks"),
        (field("error", to="\ud83d"), "its error is not text"),
        (lambda _: " " * 5_000_000, "it has more than 4,194,304 bytes"),
    ],
)
def test_record_that_is_none_refused_with_field(tmp_path: Path, change: Any, reason: str) -> None:
    written(tmp_path, mixed_tasks())
    file = tmp_path / "record.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(ValueError, match=r"record\.json is no record of an evaluation, because " + reason):
        read_record(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: None, "There is no .*samples.parquet"),
        (lambda file: file.write_bytes(b"PAR1"), "samples.parquet holds no samples"),
        (lambda file: file.mkdir(), "samples.parquet holds no samples"),
        (
            lambda file: write_parquet(file, {"task": ["a"], "document": ["1"]}),
            "because it has no column prompt_sha256",
        ),
        (lambda file: write_parquet(file, columns(["1", "1"])), "because document '1' of a occurs twice"),
        (lambda file: write_parquet(file, columns([1])), "because document is no column of texts"),
        (lambda file: write_parquet(file, columns([None])), "because document is no column of texts"),
        (lambda file: write_parquet(file, columns(["1", None])), "because a document or its hash is no text"),
        (lambda file: write_parquet(file, columns(["x" * 20_000])), "because a text in document is longer than 10,000"),
        (lambda file: write_parquet(file, columns(["1"]) | {"score/x": ["?"]}), "because score/x holds no numbers"),
    ],
)
def test_file_that_holds_no_samples_refused(tmp_path: Path, make: Any, reason: str) -> None:
    make(tmp_path / "samples.parquet")
    with pytest.raises(ValueError, match=reason):
        read_scores(str(tmp_path), ["a"])


def test_missing_record_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no .*/record\.json: give the output of an evaluation that has"):
        read_record(str(tmp_path))
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(ValueError, match="because it is no regular file"):
        read_record(str(tmp_path))


def columns(documents: list[Any]) -> dict[str, list[Any]]:
    count = len(documents)
    return {"task": ["a"] * count, "document": documents, "prompt_sha256": ["0"] * count}


def write_parquet(file: Path, content: dict[str, list[Any]]) -> None:
    import pyarrow as pa

    parquet.write_table(pa.table(content), file)


def test_table_for_a_page_has_groups_last_and_intervals(tmp_path: Path) -> None:
    tasks = [made_task("mc", groups=("all",)), made_task("few", errors=60)]
    table = score_table("/out", write_results(str(tmp_path), made_record(), tasks))
    assert list(dict.fromkeys(row.task for row in table.rows)) == ["few", "mc", "all"]
    first = next(row for row in table.rows if (row.task, row.metric) == ("mc", "acc"))
    assert first.value is not None and first.low is not None and first.high is not None
    assert first.low < first.value < first.high
    assert (first.scored, first.documents, first.members, first.status) == (100, 100, 0, "succeeded")
    few = next(row for row in table.rows if row.task == "few")
    assert few.value is None and few.scored == 40 and few.status == "incomplete" and few.error
    assert table.left_out == 0 and table.model == "tiny" and not table.is_model_stored
    assert "Harness: lm_evaluation_harness 0.4.13" in table.facts and not any("Model:" in fact for fact in table.facts)
    assert score_table("/out", made_record(model=Model("gs://b/train-0a1b2c", "tiny"))).is_model_stored


def test_score_leads_to_its_wrong_answers_or_to_all(tmp_path: Path) -> None:
    tasks = [
        made_task("mc", groups=("all",)),
        made_task("toxic", higher_is_better={"acc": False}),
        made_task("right", 1.0),
        made_task("a & b"),
        made_task("few", errors=60),
        made_task("lost", errors=100),
    ]
    table = score_table(str(tmp_path), write_results(str(tmp_path), made_record(), tasks))
    asked = {(row.task, row.metric): row.samples for row in table.rows}
    filters = {name: rows and (rows.filter, rows.wrong is not None) for name, rows in asked.items()}
    assert {name[0]: rows for name, rows in filters.items() if name[1] in ("acc", "")} == {
        "mc": ("task=mc & score/acc=0", True),
        "toxic": ("task=toxic & score/acc=1", True),
        "right": ("task=right", False),
        "a & b": ("", False),
        "few": ("task=few", False),
        "lost": None,
        "all": None,
    }
    assert filters["mc", "f1"] == ("task=mc", False)
    for name in ("mc", "toxic"):
        samples = asked[name, "acc"]
        assert samples is not None
        page = look.rows(allowed(tmp_path), samples.path, filter=samples.filter, limit=1000)
        at = [column.name for column in page.columns].index("task")
        assert [row.values[at] for row in page.rows] == [name] * (samples.wrong or 0)
