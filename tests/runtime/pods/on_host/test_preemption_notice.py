"""The host writes a preemption notice to a file, and its process reads the file."""

from tradewind.runtime.pods.on_host.preemption_notice import (
    NOTICE_VARIABLE,
    Notice,
    is_sooner,
    preemption_notice,
    read_notice,
    write_notice,
)

NOTICE = Notice(deadline=1_750_000_030.0, reason="host 1 of slice s1 will be preempted")


def test_growing_pod_leaves_by_preemption_deadline():
    goes, grows = Notice(1030.0, "host 1 is about to go"), Notice(1120.0, "the pod is to grow")
    assert is_sooner(goes, None) and is_sooner(goes, grows)
    assert not is_sooner(grows, goes) and not is_sooner(Notice(1030.5, "again"), goes)


def test_a_process_finds_the_notice_of_its_pod(monkeypatch, tmp_path):
    path = str(tmp_path / "notice")
    monkeypatch.setenv(NOTICE_VARIABLE, path)
    assert preemption_notice() is None
    write_notice(path, NOTICE)
    assert preemption_notice() == NOTICE


def test_outside_a_pod_there_is_no_notice(monkeypatch):
    monkeypatch.delenv(NOTICE_VARIABLE, raising=False)
    assert preemption_notice() is None


def test_a_later_notice_takes_the_place_of_the_former(tmp_path):
    path = str(tmp_path / "notice")
    assert read_notice(path) is None
    write_notice(path, NOTICE)
    write_notice(path, Notice(1.0, "sooner"))
    assert read_notice(path) == Notice(1.0, "sooner")
    assert [file.name for file in tmp_path.iterdir()] == ["notice"]
