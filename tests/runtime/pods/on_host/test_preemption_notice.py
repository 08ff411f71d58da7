"""The host writes a preemption notice to a file, and its process reads the file."""

from tradewind.runtime.pods.on_host.preemption_notice import (
    NOTICE_VARIABLE,
    Notice,
    is_sooner,
    preemption_notice,
    read_notice,
    write_notice,
)


def test_growing_pod_leaves_by_preemption_deadline():
    preempted, grows = Notice(1030.0, "host 1 is about to go"), Notice(1120.0, "the pod is to grow")
    assert is_sooner(preempted, None) and is_sooner(preempted, grows)
    assert not is_sooner(grows, preempted) and not is_sooner(Notice(1030.5, "again"), preempted)


def test_process_reads_newest_notice_of_its_pod(monkeypatch, tmp_path):
    monkeypatch.delenv(NOTICE_VARIABLE, raising=False)
    assert preemption_notice() is None
    path = str(tmp_path / "notice")
    monkeypatch.setenv(NOTICE_VARIABLE, path)
    assert preemption_notice() is None
    for notice in (Notice(1_750_000_030.0, "host 1 of slice s1 will be preempted"), Notice(1.0, "sooner")):
        write_notice(path, notice)
        assert preemption_notice() == read_notice(path) == notice
    assert [file.name for file in tmp_path.iterdir()] == ["notice"]
