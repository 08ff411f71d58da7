"""What a host does with its process's output. The actor's class is used directly; Ray itself is in test_pods."""

import sys

import fsspec

from tradewind.runtime.pod_host import LAST_LINES, Launch, PodHost, Report


def _run(code: str, *, rank: int = 0, log_dir: str | None = None) -> tuple[list[str], Report]:
    host = PodHost()
    host.start(Launch((sys.executable, "-c", code), {}, rank, 2, "127.0.0.1:1", log_dir))
    lines: list[str] = []
    while True:
        report = host.poll(5.0, eager=rank == 0)
        lines += report.lines
        if report.exit_code is not None:
            return [*lines, *host.end().lines], report


def test_host_0_passes_on_every_line_and_the_exit_code():
    lines, report = _run("import sys; [print(i) for i in range(500)]; print('oops', file=sys.stderr); sys.exit(4)")
    assert lines == [*map(str, range(500)), "oops"]
    assert report.exit_code == 4


def test_other_hosts_pass_on_their_last_lines():
    lines, _ = _run("[print(i) for i in range(500)]", rank=1)
    assert lines[-LAST_LINES:] == [str(i) for i in range(500 - LAST_LINES, 500)]


def test_the_log_of_a_local_folder_grows_as_the_process_writes(tmp_path):
    _run("print('whole', end='\\r'); print('output')", rank=3, log_dir=str(tmp_path / "new"))
    assert (tmp_path / "new" / "host-3.log").read_bytes() == b"whole\routput\n"


def test_the_log_for_an_object_store_is_brought_there_at_the_end():
    _run("print('output')", rank=1, log_dir="memory://pods/attempt-1/")
    assert fsspec.filesystem("memory").cat("/pods/attempt-1/host-1.log") == b"output\n"


def test_ending_a_host_ends_its_process_and_tells_how():
    host = PodHost()
    host.start(Launch(("sh", "-c", "echo up; sleep 600"), {}, 0, 1, "127.0.0.1:1", None))
    assert host.poll(30.0, eager=True).lines == ("up",)
    assert host.end().exit_code == -15
    assert host.end().exit_code == -15
