"""Tags are replaced in place: comments, order and every other line of a fleet file stay the same."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.fleets import HEAD, SHIPPED, many_clusters, write_fleet
from tradewind.fleet.cluster_files import set_tags
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet


def changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that differ, with minus for an old one and plus for a new one."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


NAMES = ("here", "extra-0", "extra-1")


@settings(deadline=None, max_examples=10)
@given(chosen=st.sets(st.sampled_from(NAMES)), later=st.sets(st.sampled_from(NAMES)))
def test_set_tags_changes_chosen_clusters_only(
    tmp_path_factory: pytest.TempPathFactory, chosen: set[str], later: set[str]
) -> None:
    file = write_fleet(tmp_path_factory.mktemp("fleet"), many_clusters(2), inside=False)
    set_tags(file, chosen, "abc1234")
    set_tags(file, later, "20260129")
    tags = {name: cluster.tag for name, cluster in load_fleet(file).clusters.items()}
    assert tags == dict.fromkeys(NAMES, "latest") | dict.fromkeys(chosen, "abc1234") | dict.fromkeys(later, "20260129")


def test_every_other_line_of_the_fleet_file_stays(tmp_path: Path) -> None:
    file, before = tmp_path / "fleet.yaml", SHIPPED.read_text()
    file.write_text(before)
    assert set_tags(file, ["us-central2", "us-central1", "eu-west4-a"], "abc1234")
    assert changed_lines(before, file.read_text()) == ['+     tag: "abc1234"'] * 3


@pytest.mark.parametrize(
    ("more", "changes"),
    [
        ("tag: old  # mine\nstaging: true\n", ["-     tag: old  # mine", '+     tag: "new"  # mine']),
        ("'tag' : 'old'\n", ["-     'tag' : 'old'", "+     'tag' : \"new\""]),
        ("staging: true # our own\nslices:\n  v4-16: {min: 1}\n", ['+     tag: "new"']),
    ],
)
def test_tag_is_replaced_in_place_or_added_after_short_fields(tmp_path: Path, more: str, changes: list[str]) -> None:
    file = write_fleet(tmp_path, more)
    before = file.read_text()
    assert set_tags(file, ["here"], "new")
    assert changed_lines(before, file.read_text()) == changes
    assert load_fleet(file).cluster("here").tag == "new"
    assert not set_tags(file, ["here"], "new")


def test_clusters_on_one_line_get_their_tags_too(tmp_path: Path) -> None:
    file = write_fleet(tmp_path, "  there: {zone: us-east5-a, generation: v5p, bucket: b-5}", inside=False)
    before = file.read_text()
    set_tags(file, ["here", "there"], "0123456")
    tagged = before.replace("my-bucket\n", 'my-bucket\n    tag: "0123456"\n')
    assert file.read_text() == tagged.replace("{zone", '{tag: "0123456", zone')


def test_shared_tag_changes_for_one_cluster_only_where_possible(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    here = HEAD.replace("  here:\n", "  here: &here\n    tag: old\n")
    file.write_text(f"{here}  there:\n    <<: *here\n    connection: there\n")
    before = file.read_text()
    with pytest.raises(FleetError, match="The tag of here cannot be changed in .*: write tag: 'new' there"):
        set_tags(file, ["here"], "new")
    assert file.read_text() == before and [*tmp_path.iterdir()] == [file]
    set_tags(file, ["there"], "new")
    assert {name: cluster.tag for name, cluster in load_fleet(file).clusters.items()} == {"here": "old", "there": "new"}


def test_invalid_image_tag_is_refused_without_change(tmp_path: Path) -> None:
    file = write_fleet(tmp_path)
    with pytest.raises(FleetError, match=f"^{file}:11: .*tag"):
        set_tags(file, ["here"], "no tag")
    assert file.read_text() == HEAD
    assert len([*tmp_path.iterdir()]) == 2
