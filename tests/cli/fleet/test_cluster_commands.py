"""``tradewind cluster``: choice of the file, output, and the error for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

from tests.fleet.fleets import HEAD, SHIPPED, many_clusters, write_fleet
from tests.fleet.lifecycle.fleet_environment import update
from tests.support.google import LocalGoogle
from tradewind.cli.main import main, parser
from tradewind.deployment.fleet import configured_fleet, current_operation
from tradewind.fleet.cluster_files import HEADER as TEMPLATE_HEADER
from tradewind.fleet.clusters import unknown_zone_warnings
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return a command's exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        main(["cluster", *words])
    printed = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, printed.out, printed.err


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a fleet file of two clusters and set the variable that names it."""
    file = write_fleet(tmp_path, many_clusters(1), inside=False)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    return file


# ---- list


def test_the_table_has_what_people_ask_for(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "CLUSTER  ZONE           GENERATION  SLICES                                 BUCKET       TAG     CONNECTION"
        "  STAGING",
        "here*    us-central2-b  v4          v4-8 4..1024, 9 more                   my-bucket    latest  here      "
        "  no",
        "extra-0  us-east5-a     v5p         v5p-8 4..1024, v5p-64 4..1024, 7 more  my-bucket-5  latest  extra-0   "
        "  no",
    ]


def test_json_has_every_slice_type_and_no_secret(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "extra-0", "--json")
    (cluster,) = json.loads(out)
    assert code == 0 and (cluster["region"], cluster["is_default"]) == ("us-east5", False)
    assert {"type": "v5p-64", "node_type": "tpu_slice_v5p_64", "min": 4, "max": 1024} in cluster["slices"]
    assert "RAY_AUTH_TOKEN" not in out


def test_an_unknown_cluster_is_answered_with_the_nearest(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list", "hear")
    assert (code, out) == (2, "") and "describes no cluster 'hear': did you mean here?" in err


# ---- choice of the file


def test_fleet_option_wins_over_environment_and_airflow_config(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("option", "configured", "usual/infra"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "fleet.yaml").write_text(HEAD.replace("here", place.partition("/")[0]))
    monkeypatch.chdir(tmp_path / "usual")
    monkeypatch.setenv("AIRFLOW__TRADEWIND__FLEET_FILE", str(tmp_path / "configured" / "fleet.yaml"))
    found = [run(capsys, "list", "--fleet", str(tmp_path / "option" / "fleet.yaml"))[1], run(capsys, "list")[1]]
    monkeypatch.delenv("TRADEWIND_FLEET")
    found.append(run(capsys, "list")[1])
    monkeypatch.delenv("AIRFLOW__TRADEWIND__FLEET_FILE")
    found.append(run(capsys, "list")[1])
    assert [out.splitlines()[1].split("*")[0] for out in found] == ["option", "here", "configured", "usual"]


def test_missing_fleet_file_error_names_option_and_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "list", "--fleet", str(tmp_path / "none.yaml"))
    assert code == 2 and "There is no fleet file" in err and "name it with --fleet, or set TRADEWIND_FLEET." in err


def test_every_problem_of_the_file_is_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_fleet(tmp_path, "zonee: a\nstaging: 1\n")
    code, out, err = run(capsys, "list", "--fleet", str(file))
    assert (code, out) == (1, "")
    first, second, last = err.splitlines()
    assert first.startswith(f"tradewind: {file}:11: cluster here, zonee: ") and second.startswith(
        f"tradewind: {file}:12: "
    )
    assert last == "tradewind: The fleet file cannot be used as it is."


# ---- clusters by file path and by other names


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the names in the list that a command prints."""
    code, out, err = run(capsys, *words)
    assert code == 0, err
    return [line.split()[0].rstrip("*") for line in out.splitlines()[1:]]


@pytest.mark.parametrize(
    "words",
    [
        ["list", "FILE"], ["list", "--cluster", "FILE"], ["list", "--config", "FILE"], ["--config", "FILE", "list"],
        ["--cluster", "FILE", "list"], ["list", "--cluster", "extra-0"], ["list", "FILE", "--config", "FILE"],
    ],
)  # fmt: skip
def test_the_path_of_a_clusters_file_stands_where_its_name_does(
    words: list[str], fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update(fleet)
    file = str(fleet.parent / "clusters" / "extra-0.yaml")
    assert listed(capsys, *(word.replace("FILE", file) for word in words)) == ["extra-0"]
    if any("/" in word.replace("FILE", file) for word in words):
        monkeypatch.setenv("TRADEWIND_FLEET", str(fleet.parent / "gone.yaml"))
        assert listed(capsys, *(word.replace("FILE", file) for word in words)) == ["extra-0"], "it names its fleet too"


def test_config_may_name_the_fleet_file(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRADEWIND_FLEET")
    assert listed(capsys, "list", "--config", str(fleet)) == ["here", "extra-0"]
    assert listed(capsys, "--config", str(fleet), "list", "--cluster", "here", "--cluster", "extra-0") == [
        "here", "extra-0",
    ]  # fmt: skip
    assert run(capsys, "update-configs", "--config", str(fleet))[0] == 0
    code, _, err = run(capsys, "list", "--config", str(fleet), "--fleet", "other.yaml")
    assert code == 2 and "name two fleet files: give one." in err
    file = str(fleet.parent / "clusters" / "here.yaml")
    assert "is about the whole fleet" in run(capsys, "update-configs", "--config", file)[2]


def test_invalid_cluster_file_path_error_gives_reason(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    update(fleet)
    folder = fleet.parent / "clusters"
    for path, says in (
        (folder / "gone.yaml", "gone.yaml cannot be read (No such file or directory)."),
        (fleet, f": name a cluster of {fleet}, or its file in"),
        (folder, "cannot be read (Is a directory)."),
    ):
        code, out, err = run(capsys, "list", str(path), "--fleet", str(fleet))
        assert (code, out) == (2, "") and says in err, err
    (folder / "hear.yaml").write_text((folder / "here.yaml").read_text())
    code, _, err = run(capsys, "list", str(folder / "hear.yaml"))
    assert code == 2 and f"No cluster in {fleet} has the file " in err and "did you mean here?" in err
    (folder / "here.yaml").write_text((folder / "here.yaml").read_text() + "# changed\n")
    code, _, err = run(capsys, "list", f"{folder}/here.yaml")
    assert code == 2 and f"here.yaml differs from {fleet}: run 'tradewind cluster update-configs' first" in err
    (tmp_path / "away" / "clusters").mkdir(parents=True)
    away = tmp_path / "away" / "clusters" / "extra-0.yaml"
    away.write_text((folder / "extra-0.yaml").read_text())
    assert "fleet.yaml: name it with --fleet." in run(capsys, "list", str(away))[2]
    assert f"No cluster in {fleet} has the file" in run(capsys, "list", str(away), "--fleet", str(fleet))[2]


def nobodys(name: str) -> str:
    """Return a path in the home of a user that does not exist."""
    return f"~no-such-person/{name}"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["list", "--fleet", nobodys("f.yaml")], "--fleet"),
        (["list", "--config", nobodys("f.yaml")], "--config"),
        (["--config", nobodys("f.yaml"), "list"], "--config"),
        (["list", nobodys("f.yaml")], "The cluster file"),
        (["list", "--cluster", nobodys("f.yaml")], "The cluster file"),
        (["list", nobodys("f.yaml"), "--fleet", "FLEET"], "The cluster file"),
    ],
)
def test_unknown_home_error_names_the_option(
    words: list[str], named: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *(word.replace("FLEET", str(fleet)) for word in words))
    assert (code, out) == (2, "") and err.startswith(f"tradewind: {named} ~no-such-person/")
    assert "this machine does not know whose home ~no-such-person is: write the whole path." in err
    assert len(err.splitlines()) == 1


def test_unknown_home_error_names_variable_or_airflow_setting(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", nobodys("f.yaml"))
    code, _, err = run(capsys, "list")
    assert code == 2 and err.startswith("tradewind: TRADEWIND_FLEET ~no-such-person/f.yaml: this machine")
    with pytest.raises(FleetError, match="TRADEWIND_FLEET.* does not know whose home"):
        configured_fleet()
    assert current_operation("here") is None, "no task fails for it"
    monkeypatch.delenv("TRADEWIND_FLEET")
    monkeypatch.setenv("AIRFLOW__TRADEWIND__FLEET_FILE", nobodys("f.yaml"))
    code, _, err = run(capsys, "list")
    assert code == 2 and err.startswith(r"tradewind: [tradewind] fleet_file ~no-such-person/f.yaml: this machine")


@pytest.mark.parametrize("option", ["--fleet", "--config", "--cluster", None])
@pytest.mark.parametrize(
    "hostile", ["circle.yaml", "a" * 300 + ".yaml", "a/" * 2100 + "b.yaml"], ids=lambda text: text[:9]
)
def test_a_path_in_a_circle_or_without_end_is_a_sentence(
    option: str | None, hostile: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, leads_to in (("circle.yaml", "circle-2.yaml"), ("circle-2.yaml", "circle.yaml")):
        (fleet.parent / name).symlink_to(leads_to)
    file = str(fleet.parent / hostile)
    code, out, err = run(capsys, "list", *filter(None, (option, file)))
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "no fleet file" in err or f"{option or ''} {file} cannot be read (" in err


def test_symlink_loop_is_reported_and_other_clusters_work(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update(fleet)
    file = fleet.parent / "clusters" / "extra-0.yaml"
    file.unlink()
    file.symlink_to(file.name)
    assert listed(capsys, "list", str(file.with_name("here.yaml"))) == ["here"]
    code, _, err = run(capsys, "list", str(file))
    assert code == 2 and "cannot be read (Too many levels of symbolic links)" in err


def test_two_clusters_are_too_many_for_one_command(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["start", "here", "--cluster", "extra-0"], ["--cluster", "here", "start", "extra-0"]):
        code, _, err = run(capsys, *words)
        assert code == 2 and "is about one cluster, and extra-0 and here are named" in err.replace(
            "here and extra-0", "extra-0 and here"
        )


# ---- update-configs


def test_a_check_names_what_is_stale_and_how_to_mend_it(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "update-configs", "--check", "--fleet", str(fleet))
    assert (code, out) == (1, "") and not (fleet.parent / "clusters").exists()
    assert f"{fleet.parent}/clusters/here.yaml, {fleet.parent}/clusters/extra-0.yaml" in err
    assert err.endswith(f"To update them: tradewind cluster update-configs --fleet {fleet}\n")
    assert run(capsys, "update-configs")[0] == 0
    assert run(capsys, "update-configs", "--check")[0] == 0


def test_update_configs_writes_files_and_removes_obsolete_ones(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    google = LocalGoogle(("my-project", "us-east5-a"))
    google.start()
    for api in ("COMPUTE", "TPU"):
        monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
    assert f"Wrote {fleet.parent}/clusters/extra-0.yaml." in run(capsys, "update-configs")[2]
    fleet.write_text(HEAD)
    code, _, err = run(capsys, "update-configs", "--check")
    assert code == 1 and f"These files belong to removed clusters: {fleet.parent}/clusters/extra-0.yaml." in err
    assert "Removed" in run(capsys, "update-configs")[2]
    google.stop()
    assert "2 files match" in run(capsys, "update-configs")[2]


@pytest.mark.parametrize(
    "content",
    [
        "", "[1]", "cluster_name: gone", "cluster_name: gone\nprovider: [1]", "a: " + "[" * 100_000, "a: [",
        "cluster_name: ../../x\nprovider: {project_id: my-project, availability_zone: us-east5-a}",
        "cluster_name: [gone]\nprovider: {project_id: my-project, availability_zone: us-east5-a}",
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_obsolete_file_without_cluster_name_blocks_all_writes(
    content: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = fleet.parent / "clusters" / "gone.yaml"
    gone.parent.mkdir()
    gone.write_text(f"{TEMPLATE_HEADER}\n{content}\n")
    code, out, err = run(capsys, "update-configs")
    assert (code, out) == (1, "") and "but does not name it: check that it has no nodes, and remove the file" in err
    assert [file.name for file in gone.parent.iterdir()] == ["gone.yaml"]


# ---- validate


def test_what_was_written_is_valid_and_a_typo_in_it_is_found(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "update-configs")
    file = fleet.parent / "clusters" / "here.yaml"
    assert run(capsys, "validate", str(file))[0] == 0
    file.write_text(file.read_text().replace("preemptible: true", "preemptable: true", 1))
    code, out, err = run(capsys, "validate", str(file), str(fleet.parent / "none.yaml"))
    assert code == 1 and "2 of 2 files cannot be used as they are." in err
    found, missing = out.splitlines()
    assert (
        found.startswith(f"{file}:") and "schedulingConfig.preemptable" in found and "did you mean preemptible" in found
    )
    assert "none.yaml:1: the file cannot be read" in missing


# ---- the same in Airflow


@pytest.mark.parametrize(
    "words",
    [
        ["list", "a", "--json", "--fleet", "b"],
        ["update-configs", "--check"],
        ["validate", "a", "b"],
        ["list", "--cluster", "a/b.yaml", "--config", "c"],
        ["connections", "a", "--apply"],
    ],
)
def test_airflows_command_line_understands_the_same(words: list[str]) -> None:
    ours = vars(parser().parse_args(["cluster", *words]))
    theirs = vars(get_parser().parse_args(["tradewind", "cluster", *words]))
    assert {name: theirs[name] for name in ours if name != "run"} == {
        name: value for name, value in ours.items() if name != "run"
    }


# ---- near misses in what the user typed


def test_missing_file_error_suggests_nearest_neighbour(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update(fleet)
    near = f"(did you mean {fleet}?)"
    code, _, err = run(capsys, "list", "--fleet", str(fleet.with_name("flet.yaml")))
    assert code == 2 and f"Thas no fleet file {fleet.with_name('flet.yaml')} {near}" in err
    code, _, err = run(capsys, "list", str(fleet.parent / "clusters" / "heer.yaml"))
    assert code == 2 and f"(did you mean {fleet.parent / 'clusters' / 'here.yaml'}?)" in err
    code, out, _ = run(capsys, "validate", str(fleet.with_name("fleet.yml")))
    assert code == 1 and near in out


@pytest.mark.parametrize("words", [["list"], ["update-configs"], ["validate", "FILE"]])
def test_unknown_zone_warns_with_nearest_and_is_accepted(
    words: list[str], fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.write_text(fleet.read_text().replace("us-central2-b", "us-centrall2-b"))
    code, _, err = run(capsys, *(word.replace("FILE", str(fleet)) for word in words))
    assert code == 0
    assert "Cluster here, zone: us-centrall2-b is no zone of Google Cloud that is known here: did you mean us-" in err
    assert "extra-0" not in err.split("new one")[0], "the other one is in a zone that is known"


def test_every_zone_of_the_shipped_fleet_is_known() -> None:
    assert [*unknown_zone_warnings(load_fleet(SHIPPED).clusters.values())] == []


def test_a_fleet_file_is_validated_as_such(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 file is valid" in run(capsys, "validate", str(fleet))[2]
    fleet.write_text(fleet.read_text().replace("zone:", "zonee:"))
    code, out, _ = run(capsys, "validate", str(fleet))
    assert code == 1 and "cluster here, zonee: there is no such field: did you mean zone" in out


def test_without_a_template_it_is_said_where_there_is_one(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fleet.parent / "cluster.yaml.j2").unlink()
    code, _, err = run(capsys, "update-configs")
    assert code == 1 and "Copy infra/cluster.yaml.j2 of Tradewind's repository there." in err
