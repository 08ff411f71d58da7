"""Generated files follow their fleet file; the generator never touches files of another author."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.fleets import SHIPPED, many_clusters, write_fleet
from tradewind.fleet.cluster_files import GeneratedFiles
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.cluster_manager import config_hash, written_config_hash


def files_of(file: Path) -> GeneratedFiles:
    return GeneratedFiles.of(load_fleet(file))


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_missing_generated_files_are_written_then_up_to_date(tmp_path: Path) -> None:
    file = write_fleet(tmp_path, many_clusters(2), inside=False)
    before = contents(tmp_path)
    assert len(files_of(file).stale) == 4 and contents(tmp_path) == before, "a comparison writes nothing"
    lines = list(files_of(file).update())
    assert len(lines) == 4 and f"Wrote {tmp_path}/clusters/here.yaml." in lines
    assert {file.name for file in (tmp_path / "clusters").iterdir()} == {"here.yaml", "extra-0.yaml", "extra-1.yaml"}
    after = files_of(file)
    assert (after.stale, after.surplus) == ((), ()) and list(after.update()) == []


def test_only_differing_files_are_stale(tmp_path: Path) -> None:
    list(files_of(write_fleet(tmp_path, many_clusters(2), inside=False)).update())
    changed = write_fleet(tmp_path, many_clusters(2).replace("extra-1: {", "extra-1: {tag: new, "), inside=False)
    assert files_of(changed).stale == (tmp_path / "clusters" / "extra-1.yaml",)


def test_edited_cluster_file_or_outdated_schema_is_stale(tmp_path: Path) -> None:
    file = write_fleet(tmp_path)
    list(files_of(file).update())
    edited, schema = tmp_path / "clusters" / "here.yaml", tmp_path / "fleet.schema.json"
    edited.write_text(edited.read_text().replace("max_workers: 1024", "max_workers: 9"))
    schema.write_text("{}")
    assert files_of(file).stale == (edited, schema)


def test_files_of_removed_clusters_go_and_user_files_stay(tmp_path: Path) -> None:
    list(files_of(write_fleet(tmp_path, many_clusters(2), inside=False)).update())
    own, note = tmp_path / "clusters" / "mine.yaml", tmp_path / "clusters" / "notes.txt"
    own.write_text("cluster_name: mine\n")
    note.write_text("note\n")
    files = files_of(write_fleet(tmp_path, many_clusters(1), inside=False))
    assert files.surplus == (tmp_path / "clusters" / "extra-1.yaml",)
    assert [sentence.split(":")[0] for sentence in files.update()] == [f"Removed {files.surplus[0]}"]
    assert not files.surplus[0].exists() and own.exists() and note.exists()


def test_file_of_another_author_is_not_overwritten(tmp_path: Path) -> None:
    file = write_fleet(tmp_path)
    own = tmp_path / "clusters" / "here.yaml"
    own.parent.mkdir()
    own.write_text("cluster_name: here\n")
    before = contents(tmp_path)
    with pytest.raises(FleetError, match="here.yaml does not begin with .* a user's own: move it away"):
        files_of(file)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("link", ["clusters", "clusters/here.yaml", "clusters/extra-0.yaml", "fleet.schema.json"])
def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path, link: str) -> None:
    folder = tmp_path / "infra"
    folder.mkdir()
    list(files_of(write_fleet(folder, many_clusters(1), inside=False)).update())
    (folder / link).rename(tmp_path / "elsewhere")
    (folder / link).symlink_to(tmp_path / "elsewhere")
    file = write_fleet(folder, "tag: other\n")
    (folder / "fleet.schema.json").write_text("{}")
    before = contents(tmp_path)
    with pytest.raises(FleetError, match=f"{link} is a link, which leads elsewhere: replace it. Nothing was written"):
        list(files_of(file).update())
    assert contents(tmp_path) == before


def test_generated_file_is_replaced_not_rewritten(tmp_path: Path) -> None:
    """A reader that has the file open, for example ``ray up``, continues to read the old one."""
    file = write_fleet(tmp_path)
    list(files_of(file).update())
    made = tmp_path / "clusters" / "here.yaml"
    with made.open() as reader:
        list(files_of(write_fleet(tmp_path, "tag: other\n")).update())
        assert "other" not in reader.read() and "other" in made.read_text()
    assert sorted(file.name for file in made.parent.iterdir()) == ["here.yaml"]


def test_written_hash_is_that_of_shipped_file() -> None:
    fleet = load_fleet(SHIPPED)
    for cluster in fleet.clusters.values():
        assert written_config_hash(cluster, fleet) == config_hash(cluster, fleet)


def test_cluster_without_file_has_no_written_hash(tmp_path: Path) -> None:
    fleet = load_fleet(write_fleet(tmp_path))
    assert written_config_hash(fleet.cluster("here"), fleet) is None
