"""Tradewind in an Airflow of one's own, with a Ray of one's own: what its user sees, from the wheel to Git bundles.

The tests of a site go in the order of this file, as its user does: the first brings what steps need to the cluster.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adopt.site import RAYS, ROOT, Site, clean_env, environment, output_of
from tests.chaos.runs.postgres import LocalPostgres
from tests.support.pages import blocks_of
from tests.support.waiting import until
from tradewind.rehearsal.local.processes import LocalStack

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.ray, pytest.mark.timeout(3000)]

AIRFLOW = ("apache-airflow==3.3.*", "apache-airflow-providers-git")
DRIVERS = {"sqlite": (), "postgresql": ("psycopg2-binary", "asyncpg")}
RAY = {"sqlite": "oldest", "postgresql": "newest"}
JOBS = Path(__file__).with_name("jobs_dags.py")
PAGE = "docs/your-own-airflow-and-ray.md"


def example(page: str, number: int = 0) -> str:
    """Return a Python block of a page."""
    return [block.text for block in blocks_of(ROOT / page) if block.language == "python"][number]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of this checkout, as a release builds them."""
    folder = tmp_path_factory.mktemp("dist")
    output_of(environment("build") / "python", "-m", "build", "--outdir", folder, ROOT)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module", params=RAY)
def site(
    request: pytest.FixtureRequest, built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    stack = LocalStack(tmp_path_factory.mktemp(request.param))
    settings, postgres = {}, None
    try:
        if request.param == "postgresql":
            postgres = LocalPostgres(stack)
            postgres.start()
            settings["DATABASE__SQL_ALCHEMY_CONN"] = postgres.url
        ray = environment(RAYS[RAY[request.param]])
        output_of(ray / "python", "-m", "pip", "--quiet", "uninstall", "--yes", "fsspec")  # of an earlier run
        site = Site(stack, environment(*AIRFLOW, *DRIVERS[request.param], built[1]), ray, settings)
        examples = {"readme": example("README.md"), "first_ray_jobs": example("docs/ray-jobs.md")}
        examples |= {"where": example(PAGE), "group": example(PAGE, 1), "jobs": JOBS.read_text()}
        for name, text in examples.items():
            (site.dags / f"{name}.py").write_text(text)
        site.start()
        yield site
    finally:
        stack.stop()
        if postgres:
            postgres.remove()


def test_steps_of_the_readme_run_once_fsspec_is_there(site: Site) -> None:
    run = site.trigger("readme").ended()
    assert run.states() == {"plan": "success", "data": "failed", "total": "upstream_failed"}
    [command] = set(re.findall(r"no fsspec, .* run (\S+ -m pip install fsspec) on each node", run.log("data")))
    output_of(*command.split())
    assert set(run.clear("data").states().values()) == {"success"}
    assert [path.read_text() for path in site.outputs.glob("total-*/.artifact.json")] == ["4950"]
    assert site.trigger("readme").ended().states() == {"plan": "success", "data": "skipped", "total": "skipped"}


def test_dags_test_follows_deferred_tasks_and_ends(site: Site) -> None:
    for words, deferred in ((["first_ray_jobs"], 2), (["seen"], 2), (["readme", "--conf", '{"force": ["total"]}'], 1)):
        site.api.pause(words[0])  # else the scheduler, which runs on the same database, may take its tasks
        printed = site.command("dags", "test", *words)
        site.api.unpause(words[0])
        print(*printed.splitlines()[-9:], sep="\n")
        assert printed.count("running trigger in line") == deferred


def test_sigterm_ends_dags_test_and_says_what_becomes_of_the_job(site: Site) -> None:
    site.api.pause("sleeper")
    shell, printed = site.shell("dags", "test", "sleeper")
    until(lambda: "asleep" in printed.read_text(), "the job's output", printed.read_text)
    shell.terminate()
    until(lambda: shell.poll() is not None, "the end of airflow dags test", printed.read_text)
    print(*printed.read_text().splitlines()[-10:], sep="\n")
    assert "Stopping Ray job sleeper-" in printed.read_text()
    until(lambda: not site.running("sleeper-"), "the end of the job", site.jobs)


def test_functions_run_in_the_python_that_runs_ray(site: Site) -> None:
    assert site.trigger("where").ended().result("where").endswith(f" in {site.ray.parent}")
    site.connect("ray_missing_python", python="/opt/missing/bin/python")
    run = site.trigger("pythons").ended()
    assert run.states() == {"command": "success", "nowhere": "failed"}
    assert str(site.other) in run.log("command"), "a command keeps the PATH"
    assert all(path in run.log("nowhere") for path in ("/opt/missing/bin/python", str(site.ray)))


def test_command_gets_the_result_of_a_function_before_it(site: Site) -> None:
    run = site.trigger("first_ray_jobs").ended()
    assert run.states() == {"add": "success", "say": "success"}
    assert re.search(r" 42$", run.log("say"), re.MULTILINE)


def test_execution_timeout_stops_the_job(site: Site) -> None:
    assert site.trigger("limits").ended().states() == {"deferred": "failed", "held": "failed"}
    assert [each["status"] for each in site.jobs() if each["entrypoint"] == "sleep 600"] == ["STOPPED", "STOPPED"]


def test_jobs_that_wait_for_themselves_are_explained(site: Site) -> None:
    run = site.trigger("full")
    try:
        until(lambda: run.told().count("of its Ray tasks waits for 1 CPU") == 2, "the reason", run.told, pause_s=1)
        print(run.told())
    finally:
        site.api.mark_task(run.dag, run.id, "wait_for_itself", "failed")
    until(lambda: not site.running("full-"), "the end of the jobs", site.jobs)


def test_airflow_3_2_is_refused_in_one_line(built: tuple[Path, Path], tmp_path: Path) -> None:
    home = clean_env(HOME=str(tmp_path), AIRFLOW_HOME=str(tmp_path), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "first.py").write_text(example("docs/ray-jobs.md"))
    airflow = environment("apache-airflow==3.2.2", built[0]) / "airflow"
    output_of(airflow, "db", "migrate", env=home)
    asked = [airflow, "dags", "list-import-errors", "--local", "--output", "plain"]
    printed = subprocess.run(asked, env=home, capture_output=True, text=True).stdout
    print(printed)
    assert printed.count("needs Airflow 3.3 or newer, this is 3.2.2") == 1


def test_group_hands_its_outputs_on_also_when_it_reuses_them(site: Site) -> None:
    for reused in (set(), {"sums.own_numbers", "sums.own_total"}):
        run = site.trigger("choose_sum_publish").ended()
        states = run.states()
        assert {task for task, state in states.items() if state == "skipped"} == reused
        assert set(states.values()) <= {"success", "skipped"}
        assert run.result("publish") == "The sum is 378."


def test_git_bundle_keeps_a_run_on_its_commit(site: Site) -> None:
    run = site.trigger("shop", site.shop.commit(1, price=1, is_broken=True)).ended()
    assert run.states() == {"plan": "success", "prices": "success", "total": "failed"}
    second = site.shop.commit(2, price=1)
    assert site.trigger("shop_function", second).ended().result("commit") == 2
    for code, state in ((1, "failed"), (2, "success")):
        assert run.clear("total", newest_code=code == 2).states()["total"] == state
        assert f"add_up of commit {code}" in run.log("total")


def test_git_bundle_runs_two_commits_at_once(site: Site) -> None:
    site.shop.gate.unlink()
    runs = []
    for number in (3, 4):
        runs.append(site.trigger("shop", site.shop.commit(number, price=number)))
        until(lambda: len(site.running("prices")) == len(runs), "its job", site.jobs)
    site.shop.gate.touch()
    for number, run in zip((3, 4), runs, strict=True):
        assert set(run.ended().states().values()) == {"success"}
        assert f"add_up of commit {number}" in run.log("total")
    made = sorted(json.loads(path.read_text()) for path in site.outputs.glob("prices-*/prices.json"))
    assert made == [[1, 1], [3, 3], [4, 4]]
    assert runs[0].clear("total", newest_code=True).states()["total"] == "failed"
    assert "Clear the plan task too." in runs[0].log("total")
    ended = runs[0].clear("plan", newest_code=True).states()
    assert ended == {"plan": "success", "prices": "skipped", "total": "skipped"}
