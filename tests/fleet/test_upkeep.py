"""The upkeep report counts the healthy parts and lists everything else."""

from __future__ import annotations

from pathlib import Path

from tests.fleet.fleets import write_fleet
from tradewind.cloud_tpu.resources import TpuNode
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.upkeep import (
    Subject,
    UncheckedItem,
    UpkeepLine,
    UpkeepReport,
    host_lines,
    job_lines,
    orphan_lines,
    slice_lines,
)

REPAIR = {
    "slices": [
        {"slice": "a", "type": "v4-8", "hosts": "1/1", "verdict": "works", "reason": "READY", "done": ""},
        {"slice": "b", "type": "v4-8", "hosts": "0/1", "verdict": "dead", "reason": "PREEMPTED", "done": "replaced"},
        {"slice": "c", "type": "v4-8", "hosts": "0/1", "verdict": "wait", "reason": "CREATING", "done": ""},
        {"slice": "d", "type": "v4-8", "hosts": "0/1", "verdict": "dead", "reason": "it is reserved", "done": ""},
    ],
    "done": ["b: replaced"],
    "stuck": ["d: it is reserved"],
}
HOSTS = [
    {"host": "10.0.0.1", "slice": "a", "use": "in use", "free_disk_percent": 61.5, "done": [], "problem": ""},
    {"host": "10.0.0.2", "slice": "b", "use": "free", "free_disk_percent": 60.0, "done": ["ended x"], "problem": ""},
    {"host": "10.0.0.3", "slice": "c", "use": "does not answer", "free_disk_percent": None, "done": [], "problem": "?"},
]


def node(name: str, **labels: str) -> TpuNode:
    return TpuNode(name, "READY", labels={key.replace("_", "-"): value for key, value in labels.items()})


def test_upkeep_report_lists_unhealthy_items_and_user_tasks() -> None:
    lines = [*slice_lines("here", REPAIR), *host_lines("here", HOSTS), *job_lines("here", ["job-1"])]
    assert [line.done for line in job_lines("here", ["job-1"], is_dry=True)] == ["would be stopped"]
    assert [line.name for line in lines if line.is_well] == ["a", "10.0.0.1"]
    assert [line.name for line in lines if line.needs_person] == ["d", "10.0.0.3"]
    report = UpkeepReport(lines, [UncheckedItem("there", "task stop_jobs has no result: see its log")]).to_json()
    assert report["counts"] == {"here": {"slice": 4, "host": 3, "job": 1}}
    assert [line["name"] for line in report["news"]] == ["b", "c", "d", "10.0.0.2", "10.0.0.3", "job-1"]
    assert report["for_a_person"] == [
        "here, slice d: dead: it is reserved",
        "here, host 10.0.0.3: c: does not answer; ?",
    ]
    assert report["unseen"] == ["there: task stop_jobs has no result: see its log"]


def test_nodes_of_clusters_not_in_fleet_file_need_a_user(tmp_path: Path) -> None:
    fleet = load_fleet(write_fleet(tmp_path))
    nodes = [node("ours", ray_cluster_name="here"), node("without-ray"), node("left", ray_cluster_name="gone")]
    assert [line.name for line in orphan_lines(fleet, "my-project", "us-central2-b", nodes)] == ["left"]
    assert [line.name for line in orphan_lines(fleet, "my-project", "us-east5-a", nodes)] == ["ours", "left"]
    [left] = orphan_lines(fleet, "my-project", "us-central2-b", nodes)
    assert (left.cluster, left.about, left.needs_person) == ("gone", Subject.NODE, True)


def test_the_table_shows_news_and_counts_the_rest() -> None:
    lines = [*slice_lines("here", REPAIR), *host_lines("here", HOSTS)]
    text = UpkeepReport(lines, [UncheckedItem("there", "silent")]).table().splitlines()
    assert text[0].split() == ["cluster", "about", "name", "state", "done"]
    assert text[1].split("  ")[0] == "here" and text[1].endswith("  replaced")
    assert text[1].index("replaced") == text[0].index("done")
    assert text[-2:] == ["there: silent", "All is well with 1 slices, 1 hosts."]
    well = UpkeepLine("here", Subject.SLICE, "a", "works", is_well=True)
    assert UpkeepReport([well]).table() == "All is well with 1 slices."
    assert UpkeepReport([]).table() == "There is nothing to look after."
