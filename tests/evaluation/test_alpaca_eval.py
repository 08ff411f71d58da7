"""AlpacaEval: what is refused before a model is served, answers, and what the judge said of them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.harness_stubs import RECORDED, harness_python, harness_run
from tests.evaluation.loopback_chat import LoopbackChat, said
from tradewind.evaluation import alpaca_eval
from tradewind.evaluation.alpaca_eval_files import read_judged
from tradewind.evaluation.chat import reply_of
from tradewind.evaluation.config import ServedAddress
from tradewind.evaluation.environments import ALPACA_EVAL
from tradewind.evaluation.harnesses import HarnessRun
from tradewind.evaluation.results import Status
from tradewind.evaluation.steps import evaluate_alpaca_eval
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.steps.resolution import resolve
from tradewind.storage.bounded_read import LARGE

JUDGE = ServedAddress("http://127.0.0.1:9/v1", "the-judge")
OWN_JUDGE = Path(__file__).parent / "alpaca_eval" / "annotator"
INSTRUCTIONS = [{"instruction": f"Say {name}", "output": f"{name}!"} for name in ("a", "b", "c", "d", "e")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with instructions, and a Python that judges as in a real run."""
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "reference_outputs.json").write_text(json.dumps(INSTRUCTIONS))
    bundled = tmp_path / "site" / "alpaca_eval" / "evaluators_configs"
    shutil.copytree(OWN_JUDGE, bundled / "annotator")
    script = f'cp "$2" "{tmp_path}/spec"; env > "{tmp_path}/environment"; cp {RECORDED}/alpaca_eval/judged.json "$3"'
    harness_python(tmp_path, monkeypatch, ALPACA_EVAL, script)
    return tmp_path


def alpaca_run(folder: Path, **fields: Any) -> HarnessRun:
    given = {"judge": JUDGE, "task_path": str(folder / "tasks"), "options": {"annotators_config": "annotator"}}
    return dataclasses.replace(harness_run("alpaca", folder, [], **given | fields), judge_model="the-judge")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"judge": None}, "judge: AlpacaEval needs one"),
        ({"task_path": None}, "task_path: give a folder with reference_outputs.json"),
        ({"task_path": "/nowhere"}, "'/nowhere' has no reference_outputs.json"),
        ({"options": {"annotator": "x"}}, "did you mean 'annotators_config'?"),
        ({"options": {"annotators_config": "anotator"}}, "and no folder; did you mean 'annotator'?"),
        ({"options": {"annotators_config": "/nowhere/x"}}, "it does not exist"),
        ({"generation_params": {"temprature": 1}}, "did you mean 'temperature'?"),
        ({"generation_params": {"stop_token_ids": 5}}, "stop_token_ids=5 is not a list"),
    ],
)  # fmt: skip
def test_what_alpaca_eval_lacks_is_refused_first(folder: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        alpaca_eval.check(alpaca_run(folder, **fields))
    assert message in str(raised.value)


def test_tasks_and_a_model_without_chat_template_are_refused(folder: Path) -> None:
    run = alpaca_run(folder)
    with_tasks = dataclasses.replace(run.config, evals=[EvalTaskConfig("mmlu")])
    with pytest.raises(ValueError, match="evals: AlpacaEval has one task"):
        alpaca_eval.check(dataclasses.replace(run, config=with_tasks))
    with pytest.raises(ValueError, match="served: AlpacaEval's instructions are conversations"):
        alpaca_eval.check(dataclasses.replace(run, model_dir=str(folder / "tasks")))


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("", "it is empty"),
        ("[]", "no list of objects"),
        ('{"instruction": "a"}', "no list of objects"),
        ("[1]", "no JSON object"),
        ('[{"instruction": "a", "output": "b"}, {"instruction": "c"}]', "entry 1's output is missing"),
        ('[{"instruction": "a", "output": ["b"]}]', "entry 0's output is not text"),
        ("[" * 5_000, "nested too deeply"),
    ],
)
def test_hostile_reference_outputs_are_refused(folder: Path, text: str, flaw: str) -> None:
    (folder / "tasks" / "reference_outputs.json").write_text(text)
    with pytest.raises(ValueError, match=r"reference_outputs.json cannot be used, because .*" + flaw):
        alpaca_eval.check(alpaca_run(folder))


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("a: [", "is no YAML"),
        ("a: {}\nb: {}", "has no config of one judge"),
        ("a: 3", "has no config of one judge"),
        ("a: {fn_completions: anthropic_completions}", "is for another API"),
        ("a: {batch_size: 5}", "several pairs at once"),
        ("a: {prompt_template: ../../../etc/passwd}", "there is no prompt_template"),
        ("a: {prompt_template: /etc/passwd}", "there is no prompt_template"),
        ("a: {}", "there is no prompt_template 'None'"),
    ],
)
def test_hostile_configs_of_judges_are_refused(folder: Path, text: str, flaw: str) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "configs.yaml").write_text(text)
    with pytest.raises(ValueError) as raised:
        alpaca_eval.check(alpaca_run(folder, options={"annotators_config": str(own)}))
    assert flaw in str(raised.value) and "annotators_config" in str(raised.value)


def test_answers_are_judged_document_by_document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded judge prefers 0, finds 1 worse, has no opinion of 2 and refuses 3; the model refuses 4."""
    monkeypatch.setenv("JUDGE_KEY", "hidden-9")
    answers = {"Say e": (400, "context \033 too long")}
    with LoopbackChat(lambda body: answers.get(said(body), f"I {said(body).lower()}")) as model:
        run = dataclasses.replace(alpaca_run(folder), address=model.address, judge_address=JUDGE.address)
        checked = alpaca_eval.check(run)
        (result,) = alpaca_eval.run(dataclasses.replace(run, checked=checked, max_context=256))
    assert [sample.scores.get("win_rate") for sample in result.samples] == [1.0, 0.0, None, None, None]
    assert [str(sample.error) for sample in result.samples[2:]] == [
        "The judge's answer names neither answer as better: 'Both are fine.'.",
        "The judge gave no answer: BadRequestError: Error code: 400 - too long for me",
        "HTTP 400: context \\x1b too long",
    ]
    first = result.samples[0]
    assert (first.document, first.prompt, first.target, first.answer) == ("0", "Say a", "a!", "I say a")
    assert (result.num_documents, result.status) == (5, Status.SUCCEEDED)
    assert result.task_version.startswith("alpaca-eval 9.9, the-judge, ")
    assert result.metrics == {"length_controlled_win_rate_minimal": 0.5}
    assert {body["max_tokens"] for body in model.bodies} == {128} and model.keys == [None] * 5
    spec = json.loads((folder / "spec").read_text())
    assert [pair["document"] for pair in spec["pairs"]] == ["0", "1", "2", "3"], "no pair without an answer"
    assert (spec["address"], spec["model"], spec["gamed"]) == (JUDGE.address, "the-judge", None)
    assert "hidden-9" not in (folder / "environment").read_text()


def test_a_model_that_answers_nothing_is_told_without_the_judge(folder: Path) -> None:
    with LoopbackChat(lambda body: 422) as model:
        run = dataclasses.replace(alpaca_run(folder), address=model.address)
        (result,) = alpaca_eval.run(dataclasses.replace(run, checked=alpaca_eval.check(run)))
    assert (result.status, result.error) == (Status.FAILED, "The model answered no instruction: HTTP 422: not now")
    assert not (folder / "spec").exists()


def test_a_judge_that_never_answers_as_asked_fails_the_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = [{"document": "0", "preference": None, "said": "Hello!", "error": None}]
    (folder / "none.json").write_text(json.dumps({"judged": judged, "metrics": {}}))
    harness_python(folder, monkeypatch, ALPACA_EVAL, f'cp "{folder}/none.json" "$3"')
    with LoopbackChat(lambda body: "I say") as model:
        run = dataclasses.replace(alpaca_run(folder), address=model.address)
        (result,) = alpaca_eval.run(dataclasses.replace(run, checked=alpaca_eval.check(run)))
    assert result.status is Status.FAILED
    assert str(result.error).startswith("No answer of the judge is a preference; the first is 'Hello!'. Give the annot")
    assert str(result.samples[0].error).startswith("The judge's answer names neither answer as better: 'Hello!'")


def test_fewer_instructions_are_the_same_in_each_attempt(folder: Path) -> None:
    chosen = [alpaca_eval.check(alpaca_run(folder, max_eval_instances=3)).instructions for _ in range(2)]
    other = alpaca_eval.check(alpaca_run(folder, max_eval_instances=3, seed=7)).instructions
    assert chosen[0] == chosen[1] != other and len(other) == 3
    assert len(alpaca_eval.check(alpaca_run(folder, max_eval_instances=99)).instructions) == 5


def test_neutral_sampling_settings_are_not_sent(folder: Path) -> None:
    marins = {"temperature": 0.7, "presence_penalty": 0.0, "top_k": -1, "stop_token_ids": [], "top_p": 0.9}
    run = alpaca_run(folder, generation_params=marins)
    assert alpaca_eval.generation_fields(run) == {"max_tokens": 2048, "temperature": 0.7, "top_p": 0.9}


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("", "it is empty"),
        ("[]", "no JSON object"),
        ('{"judged": [], "metrics": {"a": NaN}}', "metrics is not an object"),
        ('{"judged": [{"document": "0"}], "metrics": {}}', "preference is missing"),
        ('{"judged": [{"document": "0", "preference": 3, "said": "", "error": null}], "metrics": {}}', "from 1 to 2"),
        ('{"judged": [{"document": 0, "preference": 1, "said": "", "error": null}], "metrics": {}}', "is not text"),
    ],
)
def test_hostile_judgements_are_refused(tmp_path: Path, text: str, flaw: str) -> None:
    (tmp_path / "judged.json").write_text(text)
    with pytest.raises(ValueError, match="judged.json cannot be used, because .*" + flaw):
        read_judged(tmp_path / "judged.json")


def test_judgements_that_are_missing_or_too_large_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="AlpacaEval's judged.json cannot be read: No such file"):
        read_judged(tmp_path / "judged.json")
    with (tmp_path / "judged.json").open("wb") as file:
        file.truncate(LARGE + 1)
    with pytest.raises(ValueError, match="it has more than 67,108,864 bytes"):
        read_judged(tmp_path / "judged.json")


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (200, b"{}", "The answer is no text."),
        (200, b"[" * 100_000, "The answer is no text."),
        (200, b'{"choices": [{"message": {"content": null}}]}', "The answer is no text."),
        (500, b"<html>\x1b[2J", "HTTP 500: <html>\\x1b[2J"),
        (429, b'{"error": "slow"}', "HTTP 429: slow"),
    ],
)
def test_odd_answers_are_errors_of_their_document(status: int, content: bytes, error: str) -> None:
    assert reply_of(status, content).error == error


def test_steps_count_the_judge_and_its_questions_and_no_place() -> None:
    def version(judge: ServedAddress = JUDGE, temperature: float = 0.7, **options: Any) -> str:
        given = {"judge": judge, "task_path": "/data/alpaca", "temperature": temperature, "name": "judged"} | options
        step = evaluate_alpaca_eval("m", "/models/m", **given)
        return resolve([step], "/p").of(step).hash

    assert version() == version(ServedAddress("https://elsewhere.example/v1", "the-judge", "OTHER_KEY"))
    changed = [version(ServedAddress(JUDGE.address, "another")), version(temperature=0.0)]
    changed += [version(annotators_config="alpaca_eval_gpt4"), version(max_eval_instances=5), version(task_path="/b")]
    assert len({version(), *changed}) == 6
