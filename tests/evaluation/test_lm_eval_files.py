"""Files of lm-eval: filters, groups, likelihoods of whole texts, errors; and the lines about its progress."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tradewind.evaluation.lm_eval_files import read_lm_eval, save_samples, task_results
from tradewind.evaluation.progress import progress_line
from tradewind.evaluation.results import Sample
from tradewind.serving.gateway import Traffic


def line(number: int, by: str = "none", **more: Any) -> dict[str, Any]:
    arguments = {"gen_args_0": {"arg_0": f"Q{number}", "arg_1": {"until": []}}}
    plain = {"doc_id": number, "doc_hash": "ab" * 32, "target": "5", "arguments": arguments, "filter": by}
    return {**plain, "filtered_resps": ["5"], "metrics": ["exact_match"], "exact_match": 1.0} | more


def results(*tasks: str, **more: Any) -> dict[str, Any]:
    return {
        "results": {
            task: {"alias": task, "exact_match,strict": 0.5, "exact_match_stderr,strict": "N/A"} for task in tasks
        },
        "configs": {task: {"output_type": "generate_until"} for task in tasks},
        "versions": dict.fromkeys(tasks, 3.0),
        "n-shot": dict.fromkeys(tasks, 5),
        "n-samples": dict.fromkeys(tasks, {"original": 9, "effective": 2}),
        "higher_is_better": dict.fromkeys(tasks, {"exact_match": True}),
    } | more


def test_filters_are_scores_of_one_document() -> None:
    lines = [line(0, "strict"), line(1, "strict", exact_match=0.0), line(0, "flexible"), line(1, "flexible")]
    (result,) = task_results(results("gsm8k"), {"gsm8k": lines}, "gsm8k_5shot")
    assert (result.name, result.task, result.task_version, result.num_fewshot) == ("gsm8k_5shot", "gsm8k", "3.0", 5)
    assert result.num_documents == 2
    assert [sample.scores for sample in result.samples] == [
        {"exact_match,strict": 1.0, "exact_match,flexible": 1.0},
        {"exact_match,strict": 0.0, "exact_match,flexible": 1.0},
    ]
    assert result.metrics == {"exact_match,strict": 0.5}
    assert result.higher_is_better == {"exact_match,strict": True, "exact_match,flexible": True}


def test_document_with_error_has_no_score_nor_harness_number() -> None:
    lines = [line(0), line(1, error="HTTP 400: too long")]
    (result,) = task_results(results("t"), {"t": lines})
    assert result.samples[1] == Sample("1-abababababab", "Q1", "5", "", {}, "HTTP 400: too long")
    assert math.isnan(result.metrics["exact_match,strict"])


def test_scores_that_are_no_numbers_left_out() -> None:
    values = {"word_perplexity": (-10.0, 5), "acc": True, "bleu": ["a", "b"], "nan": float("nan"), "f1": 0.5}
    (result,) = task_results(results("t"), {"t": [line(0, metrics=list(values), **values)]})
    assert result.samples[0].scores == {"acc": 1.0, "f1": 0.5}


def test_tasks_of_groups_named_below_label() -> None:
    groups = {"mmlu": ["mmlu_stem", "mmlu_law"], "mmlu_stem": ["mmlu_physics"], "mmlu_physics": []}
    found = task_results(results("mmlu_physics", "mmlu_law", group_subtasks=groups), {}, "mmlu_5shot")
    assert {result.name: result.groups for result in found} == {
        "mmlu_5shot/mmlu_physics": ("mmlu_5shot", "mmlu_5shot/mmlu_stem"),
        "mmlu_5shot/mmlu_law": ("mmlu_5shot",),
    }


def test_choice_shown_as_text() -> None:
    arguments = {f"gen_args_{n}": {"arg_0": "Q", "arg_1": f" {n}"} for n in (10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)}
    responses = [[str(-abs(n - 10)), "False"] for n in range(11)]
    given = line(0, arguments=arguments, filtered_resps=responses, target="2")
    made = results("t", configs={"t": {"output_type": "multiple_choice"}})
    (result,) = task_results(made, {"t": [given]})
    assert (result.samples[0].target, result.samples[0].answer) == (" 2", " 10")


def test_folder_without_one_run_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 0 files results_"):
        read_lm_eval(tmp_path)


NONE = Traffic()
PROGRESS = {
    "120 of about 400 requests answered, 20 tokens/s, about 23 s left": (
        Traffic(requests=130, answered=120, prompt_tokens=180, completion_tokens=20), 10.0, 0.0,
    ),
    "120 of about 400 requests answered (100 in an earlier attempt), 2 refused, about 3 min left": (
        Traffic(requests=130, answered=118, cached=100, errors=2), 10.9, 0.0,
    ),
    "500 of about 500 requests answered": (Traffic(requests=500, answered=500), 10.0, 0.0),
    "0 of about 400 requests answered, paused for 40 s, since the server is lost": (Traffic(paused_s=40.0), 50.0, 40.0),
}  # fmt: skip


@pytest.mark.parametrize("expected", PROGRESS)
def test_progress_line_says_what_is_left(expected: str) -> None:
    now, seconds, pause_s = PROGRESS[expected]
    assert progress_line(NONE, now, 400, seconds, pause_s) == expected


def test_samples_that_are_not_all_written_are_an_error(tmp_path: Path) -> None:
    """lm-eval's tracker ends at the first that cannot be written, and says so only in its log."""

    class Tracker:
        date_id = "2026"

        def save_results_samples(self, task_name: str, samples: list[str]) -> None:
            with (tmp_path / f"samples_{task_name}_2026.jsonl").open("w") as file:
                for sample in samples:
                    if sample == "odd":
                        return
                    file.write("{}\n")

    save_samples(Tracker(), tmp_path, {"a_b": [""], "a": ["", ""]})
    with pytest.raises(RuntimeError, match="could save only 1 of 3 samples"):
        save_samples(Tracker(), tmp_path, {"c[1]": ["", "odd", ""]})
