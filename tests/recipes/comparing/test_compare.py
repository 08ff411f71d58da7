"""Run comparison by the results of steps; the page lists runs without a result and shows the others."""

from __future__ import annotations

import csv
import json
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.comparing.ended_runs import write_failed_run, write_output, write_run
from tradewind import ExecutorStep, InputName, experiment_dag, this_output_path, versioned
from tradewind.recipes.comparing.best import best_output, best_setting, read_setting, write_best
from tradewind.recipes.comparing.compare import CompareConfig, compare_runs
from tradewind.recipes.comparing.reading import read_runs
from tradewind.recipes.comparing.runs import MissingRunsError, RunResult, differing_settings, is_wide, numeric_setting
from tradewind.recipes.steps import compare, evaluate, tokenize, train
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import Encoder, decode
from tradewind.steps import resolve

pytestmark = pytest.mark.slow


def trained(folder: Path, rate: float, loss: float) -> str:
    rows = [{"step": 0, "time": 1.0, "eval/loss": 5.0}, {"step": 9, "time": 2.0, "eval/loss": loss}]
    return write_run(
        folder,
        f"lr-{rate}",
        {"eval_loss": loss, "train_loss": loss - 0.1, "tokens": 100, "settings": {"seed": 0}},
        {"learning_rate": versioned(rate), "seed": versioned(0)},
        "".join(json.dumps(row) + "\n" for row in rows),
    )


def config(folder: Path, runs: Mapping[str, str], **options: Any) -> CompareConfig:
    return CompareConfig(runs, str(folder / "out"), **options)


def table(folder: Path) -> list[list[str]]:
    return list(csv.reader((folder / "out" / "comparison.csv").open()))


def test_best_run_first_with_differing_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {f"lr={rate}": trained(tmp_path, rate, loss) for rate, loss in ((0.1, 4.0), (0.01, 3.0), (0.001, 3.5))}
    assert compare_runs(config(tmp_path, runs, title="Rates")) == {
        "best": "lr=0.01",
        "runs": {"lr=0.01": 3.0, "lr=0.001": 3.5, "lr=0.1": 4.0},
    }
    head, *rows = table(tmp_path)
    assert head == ["run", "learning_rate", "eval_loss", "train_loss", "tokens"], "and not what they were given"
    assert rows[0] == ["lr=0.01", "0.01", "3", "2.9", "100"]
    assert capsys.readouterr().out.splitlines()[1].startswith("lr=0.01")
    assert (tmp_path / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "| lr=0.01 | 0.01 | 3 |" in (tmp_path / "out" / "comparison.md").read_text()


def test_later_step_uses_setting_and_output_of_best_run(tmp_path: Path) -> None:
    runs = {f"lr={rate}": trained(tmp_path, rate, loss) for rate, loss in ((0.1, 4.0), (0.01, 3.0))}
    pictures = []
    for _ in range(2):
        compare_runs(config(tmp_path, runs))
        pictures.append((tmp_path / "out" / "comparison.png").read_bytes())
    assert pictures[0] == pictures[1]
    comparison = compare("comparison", {label: train_at(rate) for label, rate in (("a", 0.1), ("b", 0.01))})
    longer = train_at(best_setting(comparison, "learning_rate"), initialize_from=best_output(comparison))
    resolved = resolve([longer], str(tmp_path)).of(longer)
    assert [step.name for step in resolved.dependencies] == ["comparison"] * 2
    one, other = (ExecutorStep("s", posixpath.join, {"a": best_setting(comparison, name)}) for name in ("lr", "seed"))
    assert len({step.hash for step in resolve([one, other], "/p").steps if step.name == "s"}) == 2, "which one counts"
    written = Encoder(CodeFolder(Path("/nowhere"))).encode(resolved.config, "config")
    encoded = json.loads(json.dumps(written).replace(str(resolved.dependencies[0].output_path), str(tmp_path / "out")))
    taken = decode(encoded)
    assert (taken.learning_rate, taken.initialize_from) == (0.01, runs["lr=0.01"])


def test_best_run_refused_for_missing_values_or_non_comparison(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^There is no .*/out/best.json: force the step"):
        read_setting(str(tmp_path / "out"), "seed")
    compare_runs(config(tmp_path, {"a": trained(tmp_path, 0.1, 4.0)}))
    with pytest.raises(ValueError, match="'a', the best run of .* has no setting 'learning_rat'; did you mean 'lear"):
        read_setting(str(tmp_path / "out"), "learning_rat")
    write_best(str(tmp_path), RunResult("a", {"b\x1b[2J": 1}), "out")
    with pytest.raises(ValueError, match=r"has no setting 'seed'; there are b\?\[2J\.$"):
        read_setting(str(tmp_path), "seed")
    for wrong in (train_at(0.1), "gs://b/comparison"):
        with pytest.raises(ValueError, match=r"^comparison is .*: give a step of compare.$"):
            best_output(wrong)
    with pytest.raises(ValueError, match="^name is 5: give the name of a setting"):
        best_setting(compare("c", {"a": train_at(0.1)}), 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "its run is missing"),
        ('{"run": "a", "output_path": "b", "settings": []}', "its settings is not an object"),
        ("[" * 100_000, "it is nested too deeply"),
        (f'{{"run": {"9" * 5000}}}', "it holds no JSON"),
        (None, "it has more than 1,048,576 bytes"),
    ],
)
def test_invalid_best_file_is_refused_by_name(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "best.json"
    file.write_text(text or "")
    if text is None:
        os.truncate(file, 3 << 30)
    with pytest.raises(ValueError, match=f"^{file} is not what its step writes, because {why}.*: force that step once"):
        read_setting(str(tmp_path), "seed")


def train_at(rate: Any, **options: Any) -> ExecutorStep:
    settings = {"num_train_steps": 4, "batch_size": 8, "seq_len": 16, **options}
    return train("t", "gs://b/tokens", "tiny", tokenizer="gs://b/tokenizer", learning_rate=rate, **settings)


def test_runs_without_result_named_and_others_compared(tmp_path: Path) -> None:
    runs = {
        "good": trained(tmp_path, 0.1, 3.0),
        "bad": write_failed_run(tmp_path, "bad", "a rate\n<b>\x1b all"),
        "never": str(tmp_path / "never-1"),
        "odd": write_run(tmp_path, "odd", ["no number"]),
    }
    with pytest.raises(MissingRunsError) as error:
        compare_runs(config(tmp_path, runs))
    assert str(error.value) == (
        "3 of 4 runs have no result: bad (failed: ValueError: a rate <b>? all); never (never ran); odd (returned no "
        f"'eval_loss', but no numbers). The others are compared in {tmp_path}/out/comparison.md."
    )
    assert [row[0] for row in table(tmp_path)] == ["run", "good"]
    page = (tmp_path / "out" / "comparison.md").read_text()
    assert r"- bad: failed: ValueError: a rate \<b>? all" in page and "- never: never ran" in page
    runs = {f"run{number}": str(tmp_path / f"r{number}") for number in range(14)}
    with pytest.raises(MissingRunsError, match=r"^14 of 14 runs have .*run9 \(never ran\) and 4 more\.$"):
        compare_runs(config(tmp_path / "none", runs))
    assert not (tmp_path / "none").exists()


def test_diverged_runs_come_last_in_both_orders(tmp_path: Path) -> None:
    values = {"a": 1.0, "b": float("nan"), "c": 3.0, "d": float("inf")}
    runs = {label: write_run(tmp_path, label, {"score": value}) for label, value in values.items()}
    for higher, order in ((False, ["a", "c"]), (True, ["c", "a"])):
        result = compare_runs(config(tmp_path, runs, metric="score", higher_is_better=higher))
        assert (result["best"], list(result["runs"])[:2]) == (order[0], order)
        assert (result["runs"]["b"], result["runs"]["d"]) == (None, None)


def test_dependency_settings_used_where_run_has_none(tmp_path: Path) -> None:
    below = ExecutorStep("below", posixpath.join, {"rate": versioned(1), "seed": versioned(7)})
    for seed in (8, 9):
        step = ExecutorStep(f"e{seed}", posixpath.join, {"from": InputName(below, None), "seed": versioned(seed)})
        experiment = resolve([step], str(tmp_path))
        write_run(tmp_path, "below", {"n": 1}, below.config) if seed == 8 else None
        write_output(experiment.of(step))
    paths = {folder.name[:2]: str(folder) for folder in tmp_path.glob("e?-*")}
    runs, missing = read_runs(dict(sorted(paths.items())))
    assert missing == [] and [run.settings for run in runs] == [{"seed": 8, "rate": 1}, {"seed": 9, "rate": 1}]
    assert differing_settings(runs) == ["seed"]


def test_sweep_axis_is_only_varying_number() -> None:
    def runs(*settings: dict[str, Any]) -> list[RunResult]:
        return [RunResult(str(number), each) for number, each in enumerate(settings)]

    assert numeric_setting(runs({"lr": 0.1, "s": 0}, {"lr": 1, "s": 0})) == "lr"
    assert numeric_setting(runs({"lr": 0.1, "s": 0}, {"lr": 1, "s": 1})) is None
    assert numeric_setting(runs({"lr": 0.1}, {})) is None
    assert numeric_setting(runs({"size": "tiny"}, {"size": "small"})) is None
    assert numeric_setting(runs({"ema": True}, {"ema": False})) is None
    assert is_wide([1.0, 8.0]) and not is_wide([1.0, 7.9]) and not is_wide([0.0, 9.0]) and not is_wide([1.0])


RAW = ExecutorStep("raw", None, {"n": versioned(3)})
TOKENS = tokenize("tokens", RAW, RAW)
SETTINGS = {"num_train_steps": 9, "batch_size": 8, "seq_len": 32}
POINTS = {f"lr={rate}": train(f"lr-{rate}", TOKENS, "tiny", learning_rate=rate, **SETTINGS) for rate in (0.1, 0.2)}


def test_compare_step_waits_for_all_runs_and_requires_none() -> None:
    step = compare("table", POINTS, title="Rates")
    [resolved] = [each for each in resolve([step], "/p").steps if each.name == "table"]
    assert [each.name for each in resolved.dependencies] == ["lr-0.1", "lr-0.2"]
    assert resolved.needed == ()
    assert resolved.version["config"] == {"runs.lr=0.1": "DEP[0]", "runs.lr=0.2": "DEP[1]"}
    dag = experiment_dag("sweep", [step])
    assert dag is not None and dag.get_task("table").trigger_rule == "all_done"


def test_evaluations_compared_by_checkpoint_loss() -> None:
    evaluated = {label: evaluate(f"e-{label}", step) for label, step in POINTS.items()}
    assert compare("t", evaluated).config.metric.value == "checkpoint.loss"
    assert compare("t", POINTS).config.metric == "eval_loss"
    assert compare("t", {**evaluated, "other": POINTS["lr=0.1"]}, metric="loss").config.metric.value == "loss"


@pytest.mark.parametrize(
    ("runs", "options", "sentence"),
    [
        ({}, {}, "Step 't': runs is {}: give labels and steps, such as {'lr=0.1': trained}."),
        ([RAW], {}, "Step 't': runs is [ExecutorStep('raw')]: give labels and steps"),
        ({"a": 3}, {}, "Step 't': runs['a'] is 3, which is no input: give a step"),
        ({"a\n": RAW}, {}, "give a mapping of labels to steps"),
        ({"a": RAW}, {"metrics": "x"}, "is no field of CompareConfig; did you mean metric?"),
        ({"a": RAW}, {"higher_is_better": 1}, "higher_is_better=1: give True or False."),
    ],
)
def test_invalid_input_refused_at_dag_parse(runs: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        compare("t", runs, **options)
    assert sentence in str(error.value)


def test_paths_are_compared_like_steps(tmp_path: Path) -> None:
    path = trained(tmp_path, 0.5, 2.0)
    step = compare("t", {"there": path, "odd": str(tmp_path / "no")})
    [resolved] = resolve([step], "/p").steps
    assert resolved.config.runs == {"there": path, "odd": str(tmp_path / "no")}
    assert this_output_path() == step.config.output_path
