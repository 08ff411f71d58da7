"""``tradewind evaluations``: the scores below a prefix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.evaluation.made_results import made_record, made_task
from tests.recipes.comparing.ended_runs import write_run
from tradewind.evaluation.results import Model, write_results


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Return a prefix with two evaluations, the newer first by name, and other outputs."""
    for name, started_at in (("eval/a", 1.6e9), ("eval/b", 1.5e9)):
        output = write_run(tmp_path, name, {})
        record = made_record(started_at=started_at, model=Model("/m", f"{name}\x1b[31m"))
        write_results(output, record, [made_task("arc"), made_task("hard", groups=("all",), errors=20)])
    write_run(tmp_path, "train", {"loss": 1.0})
    broken = replace(made_task("arc"), name="broken")
    output = write_run(tmp_path, "broken", {})
    write_results(output, made_record(), [broken])
    Path(output, "record.json").write_text("{")
    return tmp_path


def test_scores_below_prefix_are_listed_the_newest_last(prefix: Path, run: Run) -> None:
    code, out, err = run("evaluations", "--prefix", str(prefix))
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("label ")
    assert [line.split("-")[0] for line in lines[1:]] == ["eval/b"] * 9 + ["eval/a"] * 9
    assert "\x1b" not in out and " acc ↑" in lines[1] and "80 of 100" in out
    assert "record.json is no record of an evaluation, because it holds no JSON" in err


def test_rows_of_a_task_are_printed_for_programs(prefix: Path, run: Run) -> None:
    code, out, _ = run("evaluations", "--prefix", str(prefix), "--task", "all", "--json")
    rows = json.loads(out)
    assert code == 0 and {row["task"] for row in rows} == {"all"} and len(rows) == 6
    assert rows[0]["pooled_tasks"] == "hard" and rows[0]["status"] == "incomplete"
    code, _, err = run("evaluations", "--prefix", str(prefix), "--task", "arx")
    assert code == 1 and "No evaluation below" in err and "has arx." in err
