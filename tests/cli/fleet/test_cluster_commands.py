"""``tradewind cluster``: choice of the file, output, and the error for each mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.fleets import HEAD, SHIPPED, many_clusters, write_fleet
from tests.fleet.lifecycle.fleet_environment import update
from tests.support.google import LocalGoogle
from tradewind.deployment.fleet import configured_fleet, current_operation
from tradewind.fleet.cluster_files import HEADER as TEMPLATE_HEADER
from tradewind.fleet.clusters import unknown_zone_warnings
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet

COMMAND = ("cluster",)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a fleet file of two clusters and set the variable that names it."""
    file = write_fleet(tmp_path, many_clusters(1), inside=False)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    return file


def test_list_prints_table_of_clusters(fleet: Path, run: Run) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    slices, more = "v5p-8 4..1024, v5p-64 4..1024, 7 more", "v4-8 4..1024, 9 more"
    assert out.splitlines() == [
        f"CLUSTER  ZONE           GENERATION  {'SLICES':<{len(slices)}}  BUCKET       TAG     CONNECTION  STAGING",
        f"here*    us-central2-b  v4          {more:<{len(slices)}}  my-bucket    latest  here        no",
        f"extra-0  us-east5-a     v5p         {slices}  my-bucket-5  latest  extra-0     no",
    ]


def test_json_has_every_slice_type_and_no_secret(fleet: Path, run: Run) -> None:
    listing = run("list", "extra-0", "--json")
    (cluster,) = listing.json
    assert listing.code == 0 and (cluster["region"], cluster["is_default"]) == ("us-east5", False)
    assert {"type": "v5p-64", "node_type": "tpu_slice_v5p_64", "min": 4, "max": 1024} in cluster["slices"]
    assert "RAY_AUTH_TOKEN" not in listing.out


def test_fleet_option_wins_over_environment_and_airflow_config(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    for place in ("option", "configured", "usual/infra"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "fleet.yaml").write_text(HEAD.replace("here", place.partition("/")[0]))
    monkeypatch.chdir(tmp_path / "usual")
    monkeypatch.setenv("AIRFLOW__TRADEWIND__FLEET_FILE", str(tmp_path / "configured" / "fleet.yaml"))
    assert listed(run, "list", "--fleet", str(tmp_path / "option" / "fleet.yaml")) == ["option"]
    assert listed(run, "list")[0] == "here"
    monkeypatch.delenv("TRADEWIND_FLEET")
    assert listed(run, "list") == ["configured"]
    monkeypatch.delenv("AIRFLOW__TRADEWIND__FLEET_FILE")
    assert listed(run, "list") == ["usual"]


def test_every_problem_of_the_file_is_a_line_of_its_own(tmp_path: Path, run: Run) -> None:
    file = write_fleet(tmp_path, "zonee: a\nstaging: 1\n")
    code, out, err = run("list", "--fleet", str(file))
    assert (code, out) == (1, "")
    first, second, last = err.splitlines()
    assert first.startswith(f"tradewind: {file}:11: cluster here, zonee: ")
    assert second.startswith(f"tradewind: {file}:12: ")
    assert last == "tradewind: The fleet file cannot be used as it is."


def listed(run: Run, *words: str) -> list[str]:
    """Return the names in the list that a command prints."""
    code, out, err = run(*words)
    assert code == 0, err
    return [line.split()[0].rstrip("*") for line in out.splitlines()[1:]]


@pytest.mark.parametrize(
    "words",
    [
        ["list", "FILE"], ["list", "--cluster", "FILE"], ["list", "--config", "FILE"], ["--config", "FILE", "list"],
        ["--cluster", "FILE", "list"], ["list", "--cluster", "extra-0"], ["list", "FILE", "--config", "FILE"],
    ],
)  # fmt: skip
def test_cluster_file_path_replaces_cluster_name(
    words: list[str], fleet: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    update(fleet)
    file = str(fleet.parent / "clusters" / "extra-0.yaml")
    assert listed(run, *(word.replace("FILE", file) for word in words)) == ["extra-0"]
    if any("/" in word.replace("FILE", file) for word in words):
        monkeypatch.setenv("TRADEWIND_FLEET", str(fleet.parent / "gone.yaml"))
        assert listed(run, *(word.replace("FILE", file) for word in words)) == ["extra-0"], "it names its fleet too"


def test_config_may_name_the_fleet_file(fleet: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("TRADEWIND_FLEET")
    assert listed(run, "list", "--config", str(fleet)) == ["here", "extra-0"]
    both = ("--cluster", "here", "--cluster", "extra-0")
    assert listed(run, "--config", str(fleet), "list", *both) == ["here", "extra-0"]
    assert run("update-configs", "--config", str(fleet))[0] == 0
    code, _, err = run("list", "--config", str(fleet), "--fleet", "other.yaml")
    assert code == 2 and "name two fleet files: give one." in err
    file = str(fleet.parent / "clusters" / "here.yaml")
    assert "is about the whole fleet" in run("update-configs", "--config", file)[2]


def test_invalid_cluster_file_path_error_gives_reason(fleet: Path, tmp_path: Path, run: Run) -> None:
    update(fleet)
    folder = fleet.parent / "clusters"
    os.mkfifo(fleet.parent / "pipe.yaml")
    for path, says in (
        (folder / "gone.yaml", "gone.yaml cannot be read (No such file or directory)."),
        (fleet, f": name a cluster of {fleet}, or its file in"),
        (folder, "clusters cannot be read: it is a folder."),
        (fleet.parent / "pipe.yaml", "pipe.yaml cannot be read: it is no regular file."),
    ):
        code, out, err = run("list", str(path), "--fleet", str(fleet))
        assert (code, out) == (2, "") and says in err, err
    (folder / "hear.yaml").write_text((folder / "here.yaml").read_text())
    code, _, err = run("list", str(folder / "hear.yaml"))
    assert code == 2 and f"No cluster in {fleet} has the file " in err and "did you mean here?" in err
    (folder / "here.yaml").write_text((folder / "here.yaml").read_text() + "# changed\n")
    code, _, err = run("list", f"{folder}/here.yaml")
    assert code == 2 and f"here.yaml differs from {fleet}: run 'tradewind cluster update-configs' first" in err
    (tmp_path / "away" / "clusters").mkdir(parents=True)
    away = tmp_path / "away" / "clusters" / "extra-0.yaml"
    away.write_text((folder / "extra-0.yaml").read_text())
    assert "fleet.yaml: name it with --fleet." in run("list", str(away))[2]
    assert f"No cluster in {fleet} has the file" in run("list", str(away), "--fleet", str(fleet))[2]


UNKNOWN_HOME = "~no-such-person/f.yaml"
"""A path in the home of a user that does not exist."""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["list", "--fleet", UNKNOWN_HOME], "--fleet"), (["list", "--config", UNKNOWN_HOME], "--config"),
        (["--config", UNKNOWN_HOME, "list"], "--config"), (["list", UNKNOWN_HOME], "The cluster file"),
        (["list", "--cluster", UNKNOWN_HOME], "The cluster file"),
        (["list", UNKNOWN_HOME, "--fleet", "FLEET"], "The cluster file"),
    ],
)  # fmt: skip
def test_unknown_home_error_names_the_option(words: list[str], named: str, fleet: Path, run: Run) -> None:
    code, out, err = run(*(word.replace("FLEET", str(fleet)) for word in words))
    assert (code, out) == (2, "") and err.startswith(f"tradewind: {named} ~no-such-person/")
    assert "this machine does not know whose home ~no-such-person is: write the whole path." in err
    assert len(err.splitlines()) == 1


def test_unknown_home_error_names_variable_or_airflow_setting(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", UNKNOWN_HOME)
    code, _, err = run("list")
    assert code == 2 and err.startswith("tradewind: TRADEWIND_FLEET ~no-such-person/f.yaml: this machine")
    with pytest.raises(FleetError, match="TRADEWIND_FLEET.* does not know whose home"):
        configured_fleet()
    assert current_operation("here") is None, "no task fails for it"
    monkeypatch.delenv("TRADEWIND_FLEET")
    monkeypatch.setenv("AIRFLOW__TRADEWIND__FLEET_FILE", UNKNOWN_HOME)
    code, _, err = run("list")
    assert code == 2 and err.startswith(r"tradewind: [tradewind] fleet_file ~no-such-person/f.yaml: this machine")


@pytest.mark.parametrize("option", ["--fleet", "--config", "--cluster", None])
@pytest.mark.parametrize(
    "hostile", ["circle.yaml", "a" * 300 + ".yaml", "a/" * 2100 + "b.yaml"], ids=lambda text: text[:9]
)
def test_circular_or_endless_path_is_one_sentence(option: str | None, hostile: str, fleet: Path, run: Run) -> None:
    for name, leads_to in (("circle.yaml", "circle-2.yaml"), ("circle-2.yaml", "circle.yaml")):
        (fleet.parent / name).symlink_to(leads_to)
    file = str(fleet.parent / hostile)
    code, out, err = run("list", *filter(None, (option, file)))
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "no fleet file" in err or f"{option or ''} {file} cannot be read (" in err


def test_two_clusters_are_too_many_for_one_command(fleet: Path, run: Run) -> None:
    for words in (
        ["start", "here", "--cluster", "extra-0"], ["--cluster", "here", "start", "extra-0"],
        ["--cluster", "here", "--cluster", "extra-0", "stop-job", "a"],
    ):  # fmt: skip
        code, _, err = run(*words)
        assert code == 2 and "is about one cluster, and extra-0 and here are named" in err.replace(
            "here and extra-0", "extra-0 and here"
        )


def test_check_names_stale_files_and_fix(fleet: Path, run: Run) -> None:
    code, out, err = run("update-configs", "--check", "--fleet", str(fleet))
    assert (code, out) == (1, "") and not (fleet.parent / "clusters").exists()
    assert f"{fleet.parent}/clusters/here.yaml, {fleet.parent}/clusters/extra-0.yaml" in err
    assert err.endswith(f"To update them: tradewind cluster update-configs --fleet {fleet}\n")
    assert run("update-configs")[0] == 0
    assert run("update-configs", "--check")[0] == 0


def test_update_configs_writes_files_and_removes_obsolete_ones(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    google = LocalGoogle(("my-project", "us-east5-a"))
    google.start()
    for api in ("COMPUTE", "TPU"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
    assert f"Wrote {fleet.parent}/clusters/extra-0.yaml." in run("update-configs")[2]
    fleet.write_text(HEAD)
    code, _, err = run("update-configs", "--check")
    assert code == 1 and f"These files belong to removed clusters: {fleet.parent}/clusters/extra-0.yaml." in err
    assert "Removed" in run("update-configs")[2]
    google.stop()
    assert "2 files match" in run("update-configs")[2]


@pytest.mark.parametrize(
    "content",
    [
        "", "[1]", "cluster_name: gone", "cluster_name: gone\nprovider: [1]", "a: " + "[" * 100_000, "a: [",
        "cluster_name: ../../x\nprovider: {project_id: my-project, availability_zone: us-east5-a}",
        "cluster_name: [gone]\nprovider: {project_id: my-project, availability_zone: us-east5-a}",
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_obsolete_file_without_cluster_name_blocks_all_writes(content: str, fleet: Path, run: Run) -> None:
    gone = fleet.parent / "clusters" / "gone.yaml"
    gone.parent.mkdir()
    gone.write_text(f"{TEMPLATE_HEADER}\n{content}\n")
    code, out, err = run("update-configs")
    assert (code, out) == (1, "") and "but does not name it: check that it has no nodes, and remove the file" in err
    assert [file.name for file in gone.parent.iterdir()] == ["gone.yaml"]


def test_written_file_is_valid_and_typo_is_found(fleet: Path, run: Run) -> None:
    run("update-configs")
    file = fleet.parent / "clusters" / "here.yaml"
    assert run("validate", str(file))[0] == 0
    file.write_text(file.read_text().replace("preemptible: true", "preemptable: true", 1))
    code, out, err = run("validate", str(file), str(fleet.parent / "none.yaml"))
    assert code == 1 and "2 of 2 files cannot be used as they are." in err
    found, missing = out.splitlines()
    assert found.startswith(f"{file}:") and "preemptable" in found and "did you mean preemptible" in found
    assert "none.yaml:1: the file cannot be read" in missing
    assert "1 file is valid" in run("validate", str(fleet))[2]
    fleet.write_text(fleet.read_text().replace("zone:", "zonee:"))
    code, out, _ = run("validate", str(fleet))
    assert code == 1 and "cluster here, zonee: there is no such field: did you mean zone" in out


def test_missing_file_error_suggests_nearest_neighbour(fleet: Path, run: Run) -> None:
    update(fleet)
    near = f"(did you mean {fleet}?)"
    assert "name it with --fleet, or set TRADEWIND_FLEET." in run("list", "--fleet", str(fleet.with_name("x")))[2]
    code, _, err = run("list", "--fleet", str(fleet.with_name("flet.yaml")))
    assert code == 2 and f"There is no fleet file {fleet.with_name('flet.yaml')} {near}" in err
    code, _, err = run("list", str(fleet.parent / "clusters" / "heer.yaml"))
    assert code == 2 and f"(did you mean {fleet.parent / 'clusters' / 'here.yaml'}?)" in err
    code, out, _ = run("validate", str(fleet.with_name("fleet.yml")))
    assert code == 1 and near in out


@pytest.mark.parametrize("words", [["list"], ["update-configs"], ["validate", "FILE"]])
def test_unknown_zone_warns_with_nearest_and_is_accepted(words: list[str], fleet: Path, run: Run) -> None:
    fleet.write_text(fleet.read_text().replace("us-central2-b", "us-centrall2-b"))
    code, _, err = run(*(word.replace("FILE", str(fleet)) for word in words))
    assert code == 0
    assert "Cluster here, zone: us-centrall2-b is no zone of Google Cloud that is known here: did you mean us-" in err
    assert "extra-0" not in err.split("new one")[0], "the other one is in a zone that is known"


def test_every_zone_of_the_shipped_fleet_is_known() -> None:
    assert [*unknown_zone_warnings(load_fleet(SHIPPED).clusters.values())] == []


def test_missing_template_error_names_the_shipped_one(fleet: Path, run: Run) -> None:
    (fleet.parent / "cluster.yaml.j2").unlink()
    code, _, err = run("update-configs")
    assert code == 1 and "Copy infra/cluster.yaml.j2 of Tradewind's repository there." in err
