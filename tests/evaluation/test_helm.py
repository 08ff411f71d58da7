"""HELM: what is refused before a model is served, what its process is given, and its files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.evaluation.harness_stubs import ADDRESS, RECORDED, harness_python, harness_run
from tradewind.evaluation import helm
from tradewind.evaluation.config import ServedAddress
from tradewind.evaluation.environments import HELM
from tradewind.evaluation.helm_results import HelmRunError, read_metrics, read_run
from tradewind.evaluation.results import Status
from tradewind.evaluation.steps import evaluate_helm
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.steps.resolution import resolve
from tradewind.storage.bounded_read import LARGE

BETTER = {"exact_match": True, "ece_10_bin": False, "inference_runtime": False, "num_prompt_tokens": None}
NAME = "simple_mcqa:model=tradewind_model,max_train_instances=2"
ENDS_RIGHT = f"""
echo '{json.dumps(BETTER)}' > "$2"; env > "$HOME/../environment"; echo "$@" >> "$HOME/../environment"
mkdir -p "$HOME/out/runs/evaluation"; cp -r {RECORDED / "helm"} "$HOME/out/runs/evaluation/{NAME}"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with HELM's modules of tasks."""
    specs = tmp_path / "site" / "helm" / "benchmark" / "run_specs"
    specs.mkdir(parents=True)
    lines = '@run_spec_function("simple_mcqa")\ndef one():\n    pass\n\n@run_spec_function(\n    "mmlu"\n)\n'
    (specs / "some.py").write_text(lines)
    return tmp_path


def test_a_recorded_run_becomes_scores_by_document() -> None:
    result = read_run(RECORDED / "helm", "mcqa", "0.5.16", BETTER)
    assert (result.task, result.task_version, result.num_fewshot) == ("simple_mcqa", "crfm-helm 0.5.16", 2)
    right, also, refused = result.samples
    assert right.document == "id11" and right.prompt.endswith("Question: Is 21 even or odd?\nA. Even\nB. Odd\nAnswer:")
    assert (right.target, right.answer, right.scores["exact_match"], right.error) == ("Odd", " B", 1.0, None)
    assert set(right.scores) == {"exact_match", "quasi_exact_match"}, "neither counts nor costs"
    assert also.scores["exact_match"] == 1.0
    assert refused.scores == {} and "maximum context length" in str(refused.error)
    assert result.higher_is_better == {"exact_match": True} and result.num_documents == 3
    assert result.metrics == {}, "HELM's means take the refused document for a wrong answer"


def test_helms_own_means_are_kept_without_errors(tmp_path: Path) -> None:
    folder = edited(tmp_path, "scenario_state.json", lambda state: state["request_states"].pop())
    result = read_run(folder, "mcqa", "0.5.16", BETTER)
    assert result.higher_is_better == {"exact_match": True, "ece_10_bin": False}
    assert "ece_10_bin" in result.metrics and "inference_runtime" not in result.metrics


def edited(tmp_path: Path, file: str, change: Callable[[Any], Any] | str | None) -> Path:
    """Return a copy of the recorded run with another file; None removes it."""
    folder = tmp_path / "run"
    shutil.copytree(RECORDED / "helm", folder)
    if change is None:
        (folder / file).unlink()
    elif isinstance(change, str):
        (folder / file).write_text(change)
    else:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))
    return folder


def _first(content: Any, *keys: Any, value: Any) -> None:
    *path, last = keys
    for key in path:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(
    ("file", "change", "flaw"),
    [
        ("stats.json", None, "No such file"),
        ("stats.json", '[{"name"', "only the beginning of one"),
        ("stats.json", "[" * 10_000 + "]" * 10_000, "nested too deeply"),
        ("stats.json", "{}", "no list of objects"),
        ("stats.json", '[{"name": {"name": "exact_match"}, "mean": NaN}]', "mean is not a number"),
        ("stats.json", '[{"name": {"name": 3}}]', "name's name is not text"),
        ("per_instance_stats.json", "[1]", "no list of objects"),
        ("per_instance_stats.json", lambda c: _first(c, 0, "instance_id", value=["a"]), "instance_id is not text"),
        ("run_spec.json", "[]", "no JSON object"),
        ("run_spec.json", lambda c: _first(c, "adapter_spec", "max_train_instances", value=-1), "max_train_instances"),
        ("scenario_state.json", "{}", "request_states is missing"),
        ("scenario_state.json", lambda c: _first(c, "request_states", 0, "instance", value={}), "id is missing"),
        ("scenario_state.json", lambda c: c["request_states"][1].pop("result"), "a request's result is missing"),
        ("scenario_state.json", lambda c: _first(c, "request_states", 0, "result", "completions", value=7), "a list"),
        ("scenario_state.json", lambda c: _first(c, "request_states", 0, "request", value={}), "prompt is missing"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_named(tmp_path: Path, file: str, change: Any, flaw: str) -> None:
    with pytest.raises(HelmRunError, match=flaw) as raised:
        read_run(edited(tmp_path, file, change), "mcqa", "1", BETTER)
    assert file in str(raised.value) and len(str(raised.value)) < 300


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    folder = edited(tmp_path, "stats.json", "")
    with (folder / "stats.json").open("wb") as file:
        file.truncate(LARGE + 1)
    with pytest.raises(HelmRunError, match=r"stats.json cannot be used, because it has more than 67,108,864 bytes"):
        read_run(folder, "mcqa", "1", BETTER)
    (tmp_path / "metrics.json").write_text('{"exact_match": "yes"}')
    with pytest.raises(HelmRunError, match="no object of true, false and null"):
        read_metrics(tmp_path / "metrics.json")


@pytest.mark.parametrize(
    ("tasks", "fields", "message"),
    [
        (["simple_mcq"], {}, "'simple_mcq' is no task of HELM's; did you mean 'simple_mcqa'?"),
        (["mmlu:model=gpt2"], {}, "leave out model, which is the served model"),
        (["mmlu"], {"options": {"suite": "x"}}, "options: 'suite' is none of HELM's"),
        (["mmlu"], {"judge": ServedAddress(ADDRESS, "j")}, "judge: HELM's tasks take no judge"),
        (["mmlu"], {"generation_params": {"temprature": 1}}, "did you mean 'temperature'?"),
        (["mmlu"], {"generation_params": {"max_tokens": "9"}}, "max_tokens='9' is not a number"),
        (["mmlu"], {"task_path": "/nowhere/at/all"}, "is no folder: give one with modules"),
        ([], {}, "evals is empty"),
    ],
)
def test_what_helm_cannot_do_is_refused_before_a_model_is_served(
    site: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[str], fields: dict[str, Any], message: str
) -> None:
    harness_python(site, monkeypatch, HELM, "exit 1")
    with pytest.raises(ValueError) as raised:
        helm.check(harness_run("helm", site, [EvalTaskConfig(name) for name in tasks], **fields))
    assert message in str(raised.value)


def test_helms_process_has_the_address_and_no_secrets(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(site))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "JUDGE_KEY", "HTTPS_PROXY", "PYTHONPATH"):
        monkeypatch.setenv(name, "hidden-9")
    harness_python(site, monkeypatch, HELM, ENDS_RIGHT)
    plugins = site / "tasks"
    plugins.mkdir()
    (plugins / "own.py").write_text('@run_spec_function("own")\ndef own():\n    pass\n')
    tasks = [EvalTaskConfig("simple_mcqa", 2), EvalTaskConfig("own:level=2", task_alias="mine")]
    run = harness_run("helm", site, tasks, task_path=str(plugins), max_eval_instances=3)
    first, second = helm.run(dataclasses.replace(run, checked=helm.check(run)))
    assert (first.name, second.name, first.status) == ("simple_mcqa", "mine", Status.SUCCEEDED)
    said = (site / "environment").read_text()
    assert "hidden-9" not in said and "HF_HUB_OFFLINE=1" in said
    assert "--run-entries own:level=2,model=tradewind/model --max-eval-instances 3" in said
    assert "/own_tasks/own.py" in said.partition("--plugins ")[2]
    kept = sorted(str(path.relative_to(site / "work")) for path in (site / "work").rglob("*.json"))
    assert kept[:4] == [
        f"000/000/{name}.json" for name in ("per_instance_stats", "run_spec", "scenario_state", "stats")
    ]
    assert not list(site.glob("tradewind-helm-*")), "what HELM downloads and its home are removed"


def test_a_task_that_fails_does_not_take_the_others_along(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = 'case "$*" in *mmlu*) echo "helm.scenarios.Error: no\033data" >&2; exit 3;; *long*) kill -9 $$;; esac'
    harness_python(site, monkeypatch, HELM, f"{fails}\n{ENDS_RIGHT}")
    tasks = [EvalTaskConfig("mmlu", 5), EvalTaskConfig("simple_mcqa:long=1"), EvalTaskConfig("simple_mcqa")]
    run = harness_run("helm", site, tasks)
    broken, killed, right = helm.run(dataclasses.replace(run, checked=helm.check(run)))
    assert (broken.status, broken.error) == (
        Status.FAILED,
        "HELM ended with exit code 3:\nhelm.scenarios.Error: no\\x1bdata",
    )
    assert (killed.status, str(killed.error)[:31]) == (Status.FAILED, "HELM was killed by signal 9:\n")
    assert (right.status, right.num_documents) == (Status.SUCCEEDED, 3)


def test_helm_knows_the_model_by_its_folder_and_address(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    run = harness_run("helm", tmp_path, apply_chat_template=True, generation_params={"max_gen_toks": 7})
    helm.write_configuration(tmp_path / "a", dataclasses.replace(run, model_dir=str(model), max_context=256))
    files = {file.stem: yaml.safe_load(file.read_text()) for file in (tmp_path / "a").iterdir()}
    (deployment,) = files["model_deployments"]["model_deployments"]
    assert deployment["client_spec"] == {
        "class_name": "helm_client.ChatClient",
        "args": {
            "api_key": "none", "base_url": ADDRESS, "generation": {"max_tokens": 7}, "openai_model_name": "served",
        },
    }  # fmt: skip
    assert deployment["max_sequence_length"] == 256
    (tokenizer,) = files["tokenizer_configs"]["tokenizer_configs"]
    assert tokenizer["end_of_text_token"] == tokenizer["prefix_token"] == "<end>"
    assert tokenizer["tokenizer_spec"]["args"] == {"pretrained_model_name_or_path": str(model)}
    helm.write_configuration(tmp_path / "b", run)
    unknown = yaml.safe_load((tmp_path / "b" / "model_deployments.yaml").read_text())["model_deployments"][0]
    assert "tokenizer_name" not in unknown and "max_sequence_length" not in unknown


def test_steps_count_what_decides_scores_and_no_place() -> None:
    def version(**options: Any) -> str:
        step = evaluate_helm("m", "/models/m", [EvalTaskConfig("mmlu", 5)], name="helm", **options)
        return resolve([step], "/p").of(step).hash

    assert evaluate_helm("m", "/models/m", [EvalTaskConfig("mmlu")]).name == "evaluation/helm/m"
    served = version(serving=ServedAddress(ADDRESS, "m"))
    assert served == version(serving=ServedAddress("http://elsewhere.example/v1", "m"))
    assert len({served, version(), version(max_eval_instances=3)}) == 3
    with pytest.raises(ValueError, match="did you mean 'max_eval_instances'?"):
        version(max_eval_instance=3)
