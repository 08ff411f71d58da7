"""`tradewind port`: text and JSON output, exit codes, and outputs that it finds under a prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.experiments.conftest import Environment
from tests.marin.checkouts import EXECUTOR, STEP, put, write_checkout

FINE = EXECUTOR + "print('a line of the file')\n" + STEP + "executor_main(steps=[step])\n"
CLOCK = f"import time\n{EXECUTOR}name = f'run-{{time.time()}}'\nexecutor_main(steps=[ExecutorStep(name, None, None)])\n"
BROKEN = "import marin.gone\nexecutor_main(steps=[])\n"
RAY_EVENTS = "".join(json.dumps({"date": "d", "status": status}) + "\n" for status in ("RUNNING", "SUCCESS"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a checkout with one file of each verdict and make it the working directory."""
    root = write_checkout(tmp_path / "marin", fine=FINE, clock=CLOCK, broken=BROKEN)
    monkeypatch.chdir(root)
    return root


def finish(path: str, status: str) -> None:
    """Write the files of a finished Marin executor step."""
    put(Path(path, ".executor_status"), status)
    put(Path(path, "data.txt"), "made")


def test_port_names_dag_of_unchanged_file(cli: Environment, checkout: Path) -> None:
    done = cli("port", "experiments/fine.py")
    assert (done.code, done.out) == (0, "experiments/fine.py: runs unchanged\n  DAG fine: 1 step\n")


@pytest.mark.parametrize(
    ("top", "body", "fn", "need"),
    [
        ("from zephyr import ZephyrContext", "ZephyrContext()", "outer", "zephyr.ZephyrContext, which Tradewind's"),
        ("import ray, zephyr.plan as z", "z.compute_plan(c)", "ray.remote(outer)", "zephyr.plan.compute_plan, which"),
        ("", "from zephyr import Dataset, load_vortex", "outer", "zephyr.load_vortex, which Tradewind's engine does"),
        ("import zephyr", "zephyr.Dataset; zephyr.load_vortex", "outer", "zephyr.load_vortex, which Tradewind's"),
        (
            "import ray",
            "",
            "ray.remote(resources={'head_node': 0.1})(outer)",
            "'head_node', which a",
        ),
        ("from marin.generation.run import generate", "", "generate", "marin.generation.run.generate, which runs from"),
    ],
)
def test_port_tells_what_a_function_lacks_on_the_cluster(
    cli: Environment, checkout: Path, top: str, body: str, fn: str, need: str
) -> None:
    put(checkout / "src/marin/generation/run.py", "def generate(config): ...\n")
    functions = f"def inner(c):\n    {body or 'pass'}\ndef outer(c):\n    return inner(c)\n"
    text = f"{top}\n{EXECUTOR}{functions}executor_main([ExecutorStep('s', {fn}, None)])\n"
    put(checkout / "experiments/fine.py", text)
    done = cli("port", "experiments/fine.py")
    head, _, remark = done.out.splitlines()
    assert done.code == 0 and head.endswith("fine.py: becomes a DAG unchanged, but a step fails on the cluster")
    assert remark.startswith("  line 7: experiments/fine.py makes step 's', which fails on the cluster as it is: it ")
    assert need in remark


@pytest.mark.parametrize(
    ("top", "body"),
    [
        ("from zephyr import Dataset, flow_backend, load_jsonl", "flow_backend().execute(Dataset.from_list([c]))"),
        ("import zephyr.readers as z, zephyr", "zephyr.Dataset.from_files(c).flat_map(z.load_file)"),
        ("", "import ray; ray.remote(num_cpus=1, resources={'TPU-v4-8-head': 1})(len)"),
        ("", "from zephyr.writers import atomic_rename; import zephyr.readers as r; r.load_jsonl(c)"),
    ],
)
def test_port_does_not_warn_of_zephyr_that_the_engine_has(
    cli: Environment, checkout: Path, top: str, body: str
) -> None:
    text = f"{top}\n{EXECUTOR}def work(c):\n    {body}\nexecutor_main([ExecutorStep('s', work, None)])\n"
    put(checkout / "experiments/fine.py", text)
    assert cli("port", "experiments/fine.py").out.startswith("experiments/fine.py: runs unchanged\n")


@pytest.mark.slow
def test_port_shows_line_and_edit_or_reason_for_other_files(cli: Environment, checkout: Path) -> None:
    done = cli("port", "experiments/clock.py")
    assert done.code == 1 and done.err.endswith("tradewind: 1 of 1 files do not become DAGs as they are.\n")
    head, reason, source, edit = done.out.splitlines()
    assert head == "experiments/clock.py: needs these edits"
    assert reason.startswith("  line 3: evaluated twice, a step is called 'run-")
    assert source == "      name = f'run-{time.time()}'"
    assert edit.startswith("  edit: replace what this line reads by a fixed text")
    done = cli("port", "experiments/broken.py")
    assert done.code == 1
    head, reason, source = done.out.splitlines()
    assert head == "experiments/broken.py: cannot become a DAG, because"
    assert reason.startswith("  line 1: ModuleNotFoundError: No module named 'marin.gone'")
    assert source == "      import marin.gone"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["experiments"], ["."], ["experiments/fine.py", "."]])
def test_a_folder_has_a_summary(cli: Environment, checkout: Path, words: list[str]) -> None:
    done = cli("port", *words)
    assert done.code == 1 and done.err.endswith("tradewind: 2 of 4 files do not become DAGs as they are.\n")
    assert done.out.splitlines()[-1] == (
        "4 files: 2 run unchanged (2 DAGs, 5 steps), 1 need edits, 1 cannot become DAGs."
    )


@pytest.mark.slow
def test_port_finds_steps_finished_by_marin_below_prefix(cli: Environment, checkout: Path) -> None:
    words = ("port", "experiments/tutorials/train_tiny.py", "--prefix", str(cli.store))
    steps = cli(*words, "--json").json["files"][0]["dags"][0]["steps"]
    paths = {step["name"]: step["output_path"] for step in steps}
    assert {step["state"] for step in steps} == {"none"}
    finish(paths["tokenized/corpus"], "SUCCESS")
    finish(paths["tokenized/paloma"], RAY_EVENTS)
    finish(paths["checkpoints/tiny-0.1"], "FAILED")
    done = cli(*words)
    assert done.code == 0, done.err
    head, dag, *finished = done.out.splitlines()
    assert dag == f"  DAG tutorials.train_tiny: 4 steps, 2 of them finished below {cli.store}"
    assert finished == [f"    finished: {paths[name]}" for name in ("tokenized/corpus", "tokenized/paloma")]
    steps = cli(*words, "--json").json["files"][0]["dags"][0]["steps"]
    assert {step["name"]: step["state"] for step in steps} == {
        "tokenized/corpus": "finished",
        "tokenized/paloma": "finished",
        "checkpoints/tiny-0.1": "failed",
        "checkpoints/tiny-0.01": "none",
    }
    summary = cli("port", "experiments", "--prefix", str(cli.store)).out.splitlines()[-1]
    assert summary.endswith(f" Of 5 outputs 2 are finished below {cli.store}.")


@pytest.mark.slow
def test_plan_reuses_what_port_says_is_finished(cli: Environment, checkout: Path) -> None:
    """The same file serves as a DAG of the deployment."""
    given = f"checkout={str(checkout)!r}, prefix={str(cli.store)!r}"
    cli.add_dag(
        "marins",
        '"""An Airflow DAG."""\nfrom tradewind.marin import marin_experiment\n'
        f"marin_experiment({str(checkout / 'experiments/tutorials/train_tiny.py')!r}, {given})\n",
    )
    (file,) = cli("port", "experiments/tutorials/train_tiny.py", "--prefix", str(cli.store), "--json").json["files"]
    ported = {step["name"]: step["output_path"] for step in file["dags"][0]["steps"]}
    finish(ported["tokenized/corpus"], "SUCCESS")
    planned = cli("plan", "tutorials.train_tiny", "--json").json["steps"]
    assert {step["name"]: step["output_path"] for step in planned} == ported
    reused = [step["name"] for step in planned if step["decision"] == "REUSE"]
    assert reused == ["tokenized/corpus"]


@pytest.mark.slow
def test_json_matches_text_and_excludes_output_of_files(cli: Environment, checkout: Path) -> None:
    done = cli("port", ".", "--json")
    assert done.code == 1 and "a line of the file" in done.err
    report = done.json
    files = {file["file"]: file for file in report["files"]}
    assert {name: file["verdict"] for name, file in files.items()} == {
        "experiments/broken.py": "cannot",
        "experiments/clock.py": "edits",
        "experiments/fine.py": "unchanged",
        "experiments/tutorials/train_tiny.py": "unchanged",
    }
    fine = files["experiments/fine.py"]
    assert fine["checkout"] == str(checkout) and fine["finding"] is None and not fine["fails_on_cluster"]
    assert fine["dags"] == [{"dag_id": "fine", "count": 1, "problem": None, "steps": []}]
    finding = files["experiments/clock.py"]["finding"]
    assert (finding["file"], finding["line"]) == ("experiments/clock.py", 3)
    assert finding["source"] == "name = f'run-{time.time()}'"
    assert finding["edit"].startswith("replace what this line reads by a fixed text")
    assert report["prefix"] is None and report["summary"] == {
        "files": 4, "unchanged": 2, "edits": 1, "cannot": 1, "dags": 2, "steps": 5, "outputs": 0, "finished": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "No nowhere of a Marin checkout in "),
        (["src"], "No file below "),
        (["experiments/fine.py", "--prefix", "relative/path"], "relative/path"),
        (["experiments/fine.py", "--prefix", "https://example.org/x"], "https://example.org/x"),
        (["experiments", "--checkout", "src"], "is no folder around"),
        (["old/experiments"], "unsupported version: its lib/marin/src/marin/execution has no executor.py"),
    ],
)
def test_unusable_checkout_or_prefix_is_bad_usage(
    cli: Environment, checkout: Path, words: list[str], complaint: str
) -> None:
    put(checkout / "old/experiments/fine.py", FINE)
    put(checkout / "old/lib/marin/src/marin/execution/step_spec.py", "class StepSpec: ...\n")
    put(checkout / "old/src/marin/__init__.py", "")
    done = cli("port", *words)
    assert (done.code, done.out) == (2, "")
    (sentence,) = done.err.splitlines()
    assert sentence.startswith("tradewind: ") and complaint in sentence


@pytest.mark.slow
def test_limits_and_params_are_those_that_are_given(cli: Environment, checkout: Path) -> None:
    put(checkout / "experiments/slow.py", "while True: pass\nexecutor_main()\n")
    assert "after 0.2 s it was still being loaded" in cli("port", "experiments/slow.py", "--time-limit", "0.2").out
    tiny = "experiments/tutorials/train_tiny.py"
    assert "edit: write most_steps=4 in the DAG file" in cli("port", tiny, "--most-steps", "3").out
    text = "from tradewind import run_param\nstep = ExecutorStep('a', None, {'at': versioned(run_param('n'))})\n"
    put(checkout / "experiments/asks.py", EXECUTOR + text + "executor_main(steps=[step])\n")
    assert cli("port", "experiments/asks.py").code == 1
    asked = ("port", "experiments/asks.py", "--prefix", str(cli.store), "--json", "--param")
    hashes = [cli(*asked, f"n={n}").json["files"][0]["dags"][0]["steps"][0]["hash"] for n in (1, 2, 2)]
    assert hashes[0] != hashes[1] == hashes[2]


@pytest.mark.slow
def test_command_for_marin_dag_evaluates_only_its_file(cli: Environment, checkout: Path) -> None:
    cli.add_dag(
        "marins",
        '"""An Airflow DAG."""\nfrom tradewind.marin import marin_experiments\n'
        f"marin_experiments({str(checkout / 'experiments')!r}, prefix={str(cli.store)!r})\n",
    )
    put(checkout / "experiments/seen.py", FINE.replace("a line of the file", "another file"))
    done = cli("plan", "seen")
    assert done.code == 0 and "another file" in done.err and "a line of the file" not in done.err
    for name in "abc":
        put(checkout / f"experiments/broken_{name}.py", BROKEN)
    for dag_id, problem in (("clock", "experiments/clock.py:3 cannot become a DAG"), ("gone", "2 more could not be")):
        done = cli("plan", dag_id)
        assert done.code == 1, done.out
        sentence = done.err.splitlines()[-1]
        assert problem in sentence and "broken_c" not in sentence, sentence
