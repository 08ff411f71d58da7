"""Scaling law of losses by size and tokens: the fit finds known laws and refuses uncertain ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.comparing.ended_runs import write_failed_run, write_run
from tradewind import experiment_dag
from tradewind.recipes.comparing.fit_scaling_law import ScalingLawConfig, fit_scaling_law
from tradewind.recipes.comparing.runs import MissingRunsError
from tradewind.recipes.comparing.scaling_law import Point, PowerTerm, ScalingLaw, TooFewPointsError, fit_law
from tradewind.recipes.steps import compare, scaling_law, train
from tradewind.steps import resolve

pytestmark = pytest.mark.slow

CHINCHILLA = ScalingLaw(1.69, PowerTerm(406.4, 0.34), PowerTerm(410.7, 0.28))
"""Equation 10 of Hoffmann et al. 2022."""
SIZES, LENGTHS = (4e7, 2e8, 1e9), (1e9, 4e9, 2e10)


def points(law: ScalingLaw, sizes: tuple[float, ...] = SIZES, lengths: tuple[float, ...] = LENGTHS) -> list[Point]:
    return [Point(size, length, law.loss(size, length)) for size in sizes for length in lengths]


def numbers(law: ScalingLaw) -> list[float]:
    terms = [term for term in (law.parameters, law.tokens) if term is not None]
    return [law.floor, *(number for term in terms for number in (term.coefficient, term.exponent))]


@pytest.mark.parametrize(
    "law", [CHINCHILLA, ScalingLaw(2.0, PowerTerm(100.0, 0.3), None), ScalingLaw(2.0, None, PowerTerm(900.0, 0.4))]
)
def test_fit_recovers_law_without_term_for_constant_input(law: ScalingLaw) -> None:
    fitted = fit_law(points(law, SIZES if law.parameters else SIZES[:1], LENGTHS if law.tokens else LENGTHS[:1]))
    assert (fitted.parameters is None, fitted.tokens is None) == (law.parameters is None, law.tokens is None)
    assert numbers(fitted) == pytest.approx(numbers(law), rel=1e-4)
    assert (fitted.best_for(1e21) is None) == (law is not CHINCHILLA)


def test_fit_is_robust_to_one_outlier() -> None:
    given = points(CHINCHILLA)
    given[5] = Point(given[5].parameters, given[5].tokens, given[5].loss * 1.5)
    assert fit_law(given).loss(1e10, 2e11) == pytest.approx(CHINCHILLA.loss(1e10, 2e11), rel=1e-2)


def test_optimal_training_spends_all_flops_and_minimizes_loss() -> None:
    best = CHINCHILLA.best_for(5.76e23)
    assert best is not None and 6 * best[0] * best[1] == pytest.approx(5.76e23)
    for factor in (0.9, 1.1):
        assert CHINCHILLA.loss(best[0] * factor, best[1] / factor) > CHINCHILLA.loss(*best)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([points(CHINCHILLA)[each] for each in (0, 4, 8)], "in parameters and tokens has 5 unknowns, and there are 3"),
        (points(CHINCHILLA, SIZES, LENGTHS[:2]), "2 different numbers of tokens determine no curve: give trainings"),
        (points(CHINCHILLA, SIZES[:2], LENGTHS[:1]), "2 different numbers of parameters determine no curve"),
        (points(CHINCHILLA, SIZES[:1], LENGTHS[:1]) * 5, "needs trainings that differ in parameters or in tokens."),
        ([], "needs trainings that differ in parameters or in tokens."),
        ([Point(1e90 * 2**n, 1, 1e3**-n) for n in range(3)], "are too far apart for a scaling law"),
    ],
)
def test_too_few_points_refused(given: list[Point], sentence: str) -> None:
    with pytest.raises(TooFewPointsError, match=sentence):
        fit_law(given)


def suite(folder: Path) -> dict[str, str]:
    """Write the outputs of trainings whose losses follow a law of their size; return them by label."""
    law = ScalingLaw(2.0, PowerTerm(100.0, 0.3), None)
    results = {f"{size:g}": {"eval_loss": law.loss(size, 1), "parameters": size, "tokens": 1e9} for size in SIZES}
    return {label: write_run(folder, f"size-{label}", result) for label, result in results.items()}


def config(folder: Path, runs: dict[str, str], **options: Any) -> ScalingLawConfig:
    return ScalingLawConfig(runs, str(folder / "out"), **options)


def test_trainings_give_law_page_and_picture(tmp_path: Path) -> None:
    told = fit_scaling_law(config(tmp_path, suite(tmp_path), title="Sizes"))
    assert (told["floor"], told["parameters"]["exponent"]) == (pytest.approx(2.0), pytest.approx(0.3))
    assert told["tokens"] is None and told["worst_error"] < 1e-6
    page = (tmp_path / "out" / "scaling_law.md").read_text()
    assert page.startswith("# Sizes\n\n`L = 2 + 100 / N**0.3`\n")
    assert "| 1e+09 | 1e+09 | 1e+09 | 2.1995 | 2.1995 |" in page
    assert json.loads((tmp_path / "out" / "scaling_law.json").read_text()) == {**told, "best": []}
    assert (tmp_path / "out" / "scaling_law.png").read_bytes().startswith(b"\x89PNG")


def test_budget_is_answered_by_law_in_both_terms(tmp_path: Path) -> None:
    results = [{"loss": each.loss, "n": each.parameters, "d": each.tokens} for each in points(CHINCHILLA)]
    runs = {f"r{number}": write_run(tmp_path, f"r{number}", result) for number, result in enumerate(results)}
    fit_scaling_law(config(tmp_path, runs, loss="loss", parameters="n", tokens="d", budgets=[1e21]))
    [best] = json.loads((tmp_path / "out" / "scaling_law.json").read_text())["best"]
    assert (best["parameters"], best["tokens"]) == pytest.approx(CHINCHILLA.best_for(1e21), rel=1e-2)
    assert "## The best training for a number of FLOPs" in (tmp_path / "out" / "scaling_law.md").read_text()


def test_law_fits_other_trainings_and_names_those_without_result(tmp_path: Path) -> None:
    runs = suite(tmp_path) | {
        "bad": write_failed_run(tmp_path, "bad", "no"),
        "nan": write_run(tmp_path, "nan", {"eval_loss": float("nan"), "parameters": 5, "tokens": 5}),
        "odd": write_run(tmp_path, "odd", {"eval_loss": 3.0}),
    }
    with pytest.raises(MissingRunsError) as error:
        fit_scaling_law(config(tmp_path, runs))
    assert str(error.value) == (
        "3 of 6 runs have no result: bad (failed: ValueError: no); nan (its eval_loss is nan, and a law needs "
        "positive numbers); odd (returned no 'parameters', but eval_loss). "
        f"The law through the others is in {tmp_path}/out/scaling_law.md."
    )
    page = (tmp_path / "out" / "scaling_law.md").read_text()
    assert "L = 2 + 100 / N**0.3" in page and "## Without a result\n\n- bad: failed: ValueError: no\n" in page


def test_too_few_results_name_missing_runs(tmp_path: Path) -> None:
    runs = dict(list(suite(tmp_path).items())[:2])
    with pytest.raises(TooFewPointsError):
        fit_scaling_law(config(tmp_path, runs))
    with pytest.raises(MissingRunsError, match=r"gone \(never ran\)\. 2 different numbers of parameters"):
        fit_scaling_law(config(tmp_path, runs | {"gone": str(tmp_path / "gone")}))
    assert not (tmp_path / "out").exists()


def test_step_waits_for_all_trainings_and_needs_none() -> None:
    settings = {"tokenizer": "tokenizer", "learning_rate": 0.1, "batch_size": 8, "seq_len": 32}
    runs = {f"{n}": train(f"t{n}", "tokens", "tiny", num_train_steps=n, **settings) for n in (10, 20, 40)}
    step = scaling_law("law", runs, budgets=[1e18], title="Lengths")
    [resolved] = [each for each in resolve([step], "/p").steps if each.name == "law"]
    assert [each.name for each in resolved.dependencies] == ["t10", "t20", "t40"] and resolved.needed == ()
    dependencies = {f"runs.{label}": f"DEP[{n}]" for n, label in enumerate(runs)}
    assert resolved.version["config"] == dependencies | {"budgets": [1e18]}
    dag = experiment_dag("suite", [step, compare("table", runs)])
    assert dag is not None and dag.get_task("law").trigger_rule == "all_done"


@pytest.mark.parametrize("budgets", [1e21, [0], [-1.0], [float("inf")], [10**400], ["1e21"], [True]])
def test_invalid_budget_refused_at_dag_parse(budgets: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Step 'law': budgets=.*: give a list of numbers from 1e-100 to 1e100, such as"
    ):
        scaling_law("law", {"a": "path"}, budgets=budgets)
