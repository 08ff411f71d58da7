"""Evaluation harness tasks: measures in a training, and unknown tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.recipes.lm.programs import END, MADE, PREPARE
from tests.recipes.workbench import Workbench
from tests.support.fork_server import prepared_to_train
from tradewind.recipes.lm.checks import refuse_unknown

KNOWN = ["hellaswag", "piqa", "mmlu"]
LM_EVAL = Path(sys.prefix, "lm-eval")
"""Folder where ``make init`` installs the harness. Processes with this path import it with Levanter."""

QUESTIONS = 6
TRAIN_ON_QUIZ = f"""
from levanter.eval_harness import TaskConfig

os.makedirs(f"{{root}}/questions")
with open(f"{{root}}/questions/test.jsonl", "w") as file:
    file.writelines(
        json.dumps({{"question": "one and one", "choices": ["a", "a" * 40], "answer": 0}}) + "\\n"
        for _ in range({QUESTIONS})
    )
quiz = TaskConfig(
    task="quiz", dataset_path=f"{{root}}/questions", output_type="multiple_choice", test_split="test",
    doc_to_text="{{{{question}}}}:", doc_to_choice="{{{{choices}}}}", doc_to_target="answer",
    metric_list=[{{"metric": "acc", "aggregation": "mean", "higher_is_better": True}}])

def with_tasks(*tasks):
    harness = LmEvalHarnessConfig(task_spec=tasks)
    return made("quiz", 4, hf_save_steps=None, eval_harness=harness, eval_harness_steps=2)

try:
    run_levanter_train_lm.preflight(with_tasks(quiz, "hellaswagg"), 4)
except ValueError as error:
    print(error)
run_levanter_train_lm.preflight(with_tasks(quiz), 4)
run_levanter_train_lm(with_tasks(quiz))
"""


@pytest.mark.slow
@pytest.mark.long
def test_harness_tasks_evaluated_during_training_if_installed(tmp_path: Path) -> None:
    with prepared_to_train(tmp_path, PYTHONPATH=str(LM_EVAL)) as python:
        bench = Workbench(tmp_path, python)
        bench.run(PREPARE)
        printed = bench.run(MADE + TRAIN_ON_QUIZ + END)
    assert printed[0].startswith("train_config.eval_harness.task_spec has 'hellaswagg', which lm-eval does not know")
    assert [line for line in printed if " quiz/" in line] == [f"step {step}/4  quiz/acc 1.000" for step in (3, 4)]
    measured = {row["step"]: row for row in bench.metrics("quiz") if "lm_eval/quiz/acc" in row}
    assert measured.keys() == {2, 3}
    assert all(row["lm_eval/quiz/sample_len"] == QUESTIONS for row in measured.values())


def test_unknown_harness_task_refused_with_nearest_names() -> None:
    own = SimpleNamespace(task="quiz", dataset_path="/quiz")
    refuse_unknown(["piqa", SimpleNamespace(task="mmlu", dataset_path=None), own], KNOWN)
    with pytest.raises(ValueError, match="task_spec has 'hellaswagg', which lm-eval does not know: did you mean hella"):
        refuse_unknown(["piqa", SimpleNamespace(task="hellaswagg", dataset_path=None)], KNOWN)
    with pytest.raises(ValueError, match="task_spec has 'x', which lm-eval does not know: see 'lm-eval ls tasks'"):
        refuse_unknown(["x"], KNOWN)
