"""Two evaluations by task: pairs of documents, directions, verdicts, and what cannot be compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_results import made_record, made_task
from tests.recipes.comparing.ended_runs import write_failed_run
from tradewind.evaluation.compare import CompareEvaluationsConfig, Comparison, Verdict, compare_subjects, compare_two
from tradewind.evaluation.evaluated import read_subjects
from tradewind.evaluation.results import Sample, Status, TaskResult, write_results
from tradewind.recipes.comparing.runs import MissingRunsError


def write(folder: Path, *tasks: TaskResult, **options: Any) -> str:
    write_results(str(folder), made_record(**options), tasks)
    return str(folder)


def better(task: TaskResult, count: int, metric: str = "acc") -> TaskResult:
    """Return the result with so many wrong answers made right."""
    wrong = [sample for sample in task.samples if sample.scores.get(metric) == 0][:count]
    raised = {sample.document: replace(sample, scores={**sample.scores, metric: 1.0}) for sample in wrong}
    return replace(task, samples=tuple(raised.get(sample.document, sample) for sample in task.samples))


def compare(folder: Path, before: TaskResult, after: TaskResult, metric: str = "acc") -> Comparison:
    paths = {"before": write(folder / "before", before), "after": write(folder / "after", after)}
    subjects, missing = read_subjects(paths)
    assert not missing
    return next(each for each in compare_subjects(*subjects) if each.metric in (metric, ""))


@pytest.mark.parametrize(
    ("count", "up", "verdict"),
    [
        (0, True, Verdict.NO_DIFFERENCE),
        (3, True, Verdict.NO_DIFFERENCE),
        (10, True, Verdict.BETTER),
        (10, False, Verdict.WORSE),
    ],
)
def test_verdict_follows_interval_and_direction(tmp_path: Path, count: int, up: bool, verdict: Verdict) -> None:
    task = made_task("arc", 0.5, 200, higher_is_better={"acc": up})
    found = compare(tmp_path / "up", task, better(task, count))
    assert (found.verdict, found.documents, found.interval, found.note) == (verdict, 200, "bonett_price", "")
    assert found.difference == pytest.approx(count / 200)
    back = compare(tmp_path / "down", better(task, count), task)
    assert back.difference == pytest.approx(-count / 200)
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    assert back.verdict is opposite.get(verdict, verdict)


def test_group_compared_by_documents_of_all_tasks(tmp_path: Path) -> None:
    tasks = [made_task(name, 0.5, 100, seed=seed, groups=("mmlu",)) for seed, name in enumerate("ab")]
    before = write(tmp_path / "before", *tasks)
    after = write(tmp_path / "after", *(better(task, 5) for task in tasks))
    subjects, _ = read_subjects({"before": before, "after": after})
    found = {each.task: each for each in compare_subjects(*subjects) if each.metric == "acc"}
    assert {name: (each.documents, each.verdict.value) for name, each in found.items()} == {
        "a": (100, "no difference known"), "b": (100, "no difference known"), "mmlu": (200, "better")
    }  # fmt: skip


def test_task_without_score_is_named_and_its_group_not(tmp_path: Path) -> None:
    failed = replace(ARC, status=Status.FAILED, error="gone", groups=("all",))
    paths = {label: write(tmp_path / label, failed) for label in ("before", "after")}
    (found,) = compare_subjects(*read_subjects(paths)[0])
    assert (found.task, found.metric, found.note) == ("arc", "", "before has no score: gone")


def test_other_prompts_are_compared_without_pairs(tmp_path: Path) -> None:
    task = made_task("arc", 0.5, 200)
    other = replace(better(task, 10), chat_template_sha256="0" * 64)
    other = replace(other, samples=tuple(replace(each, prompt=f"<user>{each.prompt}") for each in other.samples))
    found = compare(tmp_path, task, other)
    assert (found.verdict, found.interval) == (Verdict.NO_DIFFERENCE, "newcombe")
    assert found.difference == pytest.approx(0.05)
    assert found.note == "not paired: the prompts differ, as do the chat templates"


def test_documents_of_smaller_evaluation_are_paired(tmp_path: Path) -> None:
    task = made_task("arc", 0.5, 300)
    found = compare(tmp_path, replace(task, samples=task.samples[:50], num_documents=50), task)
    assert (found.documents, found.difference, found.note) == (50, 0, "")
    assert found.low is not None and found.low > -0.06


def test_missing_documents_widen_difference(tmp_path: Path) -> None:
    task = made_task("arc", 0.5, 200)
    holes = replace(task, samples=task.samples[20:])
    whole = compare(tmp_path / "whole", task, better(task, 10))
    found = compare(tmp_path / "holes", holes, better(task, 10))
    assert whole.verdict is Verdict.BETTER and found.verdict is Verdict.NO_DIFFERENCE and found.documents == 180


ARC = made_task("arc", 0.5, 50)
CORPUS = replace(
    made_task("arc"),
    samples=tuple(Sample(f"{at}", "", "", "", {"acc": -2.5}) for at in range(100)),
    metrics={"acc": math.exp(2.5)},
)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"name": "other"}, "before has no such task"),
        ({"task": "arc_hard"}, "it is the task arc and arc_hard"),
        ({"task_version": "2"}, "the versions of the task are 1 and 2"),
        ({"num_fewshot": None}, "the numbers of examples in the prompt are 0 and unknown"),
        ({"num_documents": 100}, "after is incomplete, with 50 of 100 documents"),
        ({"status": Status.FAILED, "error": "no such data"}, "after has no acc: no such data"),
        ({"samples": CORPUS.samples, "metrics": CORPUS.metrics, "num_documents": 100}, "acc is no mean of documents"),
        ({"higher_is_better": {}}, "whether a higher acc is better is not known"),
        ({"higher_is_better": {"acc": False}}, "whether a higher acc is better is not known"),
    ],
)
def test_other_question_is_not_comparable(tmp_path: Path, change: dict[str, Any], note: str) -> None:
    found = compare(tmp_path, ARC, replace(ARC, **change))
    assert (found.verdict, found.difference) == (Verdict.NOT_COMPARABLE, None)
    assert found.note.startswith(note)


def test_files_show_verdicts_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "one", ARC, made_task("hard", 0.2, 50), made_task("old"))
    second = write(tmp_path / "two", better(ARC, 20), made_task("hard", 0.2, 50, task_version="2|\n"))
    config = CompareEvaluationsConfig(first, [second], str(tmp_path / "out"), "=main", "new", "<Title>")
    verdicts = compare_two(config)
    assert verdicts["better"] == ["arc acc"]
    assert verdicts["not comparable"] == ["hard acc", "hard f1", "hard logprob", "old acc", "old f1", "old logprob"]
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert text.startswith("# \\<Title>\n\n- =main: tiny (hub:org/tiny@0123abcd), lm_evaluation_harness, succeeded\n")
    assert "| arc | acc ↑ | 0.3800 | 0.7800 | +0.4000 | 0.2420 to 0.5272 | 50 | better |" in text
    assert "\n- hard acc: the versions of the task are 1 and 2|\n" in text and "about 1 in 20" in text
    assert "'=main" in (tmp_path / "out" / "comparison.csv").read_text()
    assert "arc" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert rows[0]["verdict"] == "better" and rows[0]["after"]["value"] == 0.78


def test_evaluations_without_record_named_with_reason(tmp_path: Path) -> None:
    failed = write_failed_run(tmp_path, "failed", "No space\nleft")
    for path, reason in ((failed, "failed: ValueError: No space left"), (str(tmp_path / "no"), "There is no .*json")):
        with pytest.raises(MissingRunsError, match=rf"1 of 2 runs have no result: after \(.*{reason}"):
            compare_two(CompareEvaluationsConfig(write(tmp_path / "a", ARC), path, str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_task_in_two_evaluations_of_one_label_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, ARC) for name in "ab"]
    with pytest.raises(ValueError, match="'before' has 'arc' in .*/a and in .*/b: give each"):
        compare_two(CompareEvaluationsConfig(paths, paths[0], str(tmp_path / "out")))
