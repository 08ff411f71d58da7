"""Development sessions on a real ``sshd``: files are copied exactly, and commands end with their client."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest

from tests.fleet.loopback import LoopbackFleet, loopback_fleet
from tests.runtime.marked import marked
from tests.support.waiting import until
from tradewind.cloud_tpu.host_files import DEV_FOLDER, DevSlice, heartbeat_path
from tradewind.fleet import dev_on_host
from tradewind.fleet.access.hosts import ClusterHosts, SliceHost
from tradewind.fleet.access.ssh import HostRuns, SshError, SshHost
from tradewind.fleet.dev_hosts import DevHosts, LocalTree
from tradewind.fleet.dev_sessions import DevSession, HeartbeatSender
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.errors import BadRequestError

pytestmark = pytest.mark.slow

SESSION = "dev-tpu-ada-ada-1"
MARK = "127.0.0.1/12/345"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackFleet]:
    with loopback_fleet(tmp_path_factory.mktemp("dev")) as fleet:
        yield fleet


@pytest.fixture
def hosts(fleet: LoopbackFleet) -> DevHosts:
    """Return the first host of the slice; both hosts are this machine, with one home folder."""
    cluster = ClusterHosts(load_fleet(fleet.folder / "fleet.yaml").cluster())
    host = SliceHost("one", 0, "127.0.0.1")
    session = DevSession(SESSION, DevSlice("one"), (host,), (MARK,))
    return DevHosts(session, cluster.reachable([host]), [MARK])


@pytest.fixture
def remote(fleet: LoopbackFleet) -> Path:
    """Return the folder on the host."""
    return fleet.home / DEV_FOLDER / SESSION / "tree"


def write(folder: Path, files: dict[str, str]) -> LocalTree:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return LocalTree(folder)


def read(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_host_gets_exactly_the_files_that_it_lacks(hosts: DevHosts, remote: Path, tmp_path: Path) -> None:
    sent = {"train.py": "1", "lib/a.py": "a", "lib/deep/b.py": "b", ".gitignore": "x\n"}
    tree = write(tmp_path, {**sent, ".env": "KEY=1", "x": "it stays"})
    (tmp_path / "train.py").chmod(0o755)
    assert hosts.sync(tree, tree.listing()) == 4
    assert read(remote) == sent and os.access(remote / "train.py", os.X_OK)
    (remote / "made.txt").write_text("by a command there")
    assert hosts.sync(tree, tree.listing()) == 0
    (remote / "lib" / "a.py").write_text("changed there")
    (tmp_path / "train.py").write_text("2")
    (tmp_path / "lib" / "deep" / "b.py").unlink()
    assert hosts.sync(tree, tree.listing()) == 2
    assert read(remote) == {"train.py": "2", "lib/a.py": "a", ".gitignore": "x\n", "made.txt": "by a command there"}
    assert not (remote / "lib" / "deep").exists()
    assert remote.stat().st_mode & 0o777 == 0o700


def test_file_becomes_a_folder_and_a_folder_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    order = {"folder": DEV_FOLDER, "session": SESSION}
    for number, files in enumerate(({"a": "1"}, {"a/b": "2"}, {"a": "3"})):
        put(write(tmp_path / str(number), files), order)
        assert read(Path(dev_on_host.tree_of(order))) == files


def put(tree: LocalTree, order: dict[str, str]) -> None:
    packed, listing = io.BytesIO(), tree.listing()
    tree.pack(listing, listing, packed)
    packed.seek(0)
    dev_on_host.put(order, packed)


@pytest.mark.parametrize(
    "link", ["tree/lib", "tree/lib/deep", "tree", "", ".tradewind-files.new", "tree/lib/a.tradewind-new"]
)
def test_host_writes_and_removes_nothing_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], link: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    order = {"folder": DEV_FOLDER, "session": SESSION}
    tree = write(tmp_path / "code", {"lib/a": "1", "lib/deep/b": "2"})
    put(tree, order)
    place = Path(dev_on_host.tree_of(order)).parent / link
    elsewhere = tmp_path / "elsewhere"
    if place.is_dir():
        place.rename(elsewhere)
    else:
        elsewhere.write_text("theirs")
    place.symlink_to(elsewhere)
    before = read(elsewhere) if elsewhere.is_dir() else elsewhere.read_text()
    if link.startswith("tree/lib") and elsewhere.is_dir():
        dev_on_host.have(order)
        assert json.loads(capsys.readouterr().out).keys() == {"lib/a"} - ({"lib/a"} if link == "tree/lib" else set())
    with pytest.raises(SystemExit, match="is a link") if elsewhere.is_dir() else nullcontext():
        put(tree, order)
    (tmp_path / "code" / "lib" / "deep" / "b").unlink()
    (tmp_path / "code" / "lib" / "a").rename(tmp_path / "code" / "a")
    with pytest.raises(SystemExit, match="is a link") if link in ("", "tree") else nullcontext():
        put(tree, order)
    assert before == (read(elsewhere) if elsewhere.is_dir() else elsewhere.read_text())


def test_symlink_out_of_folder_is_refused_by_name_before_sending(tmp_path: Path) -> None:
    tree = write(tmp_path / "code", {"train.py": "1"})
    (tmp_path / "key").write_text("hidden")
    (tmp_path / "code" / "data").symlink_to(tmp_path / "key")
    with pytest.raises(BadRequestError, match=r"the link 'data' leads out of it, to .*/key: exclude it"):
        tree.listing()
    assert LocalTree(tmp_path / "code", ["data"]).listing().keys() == {"train.py"}


def test_file_changed_during_read_is_not_sent_partially(hosts: DevHosts, remote: Path, tmp_path: Path) -> None:
    tree = write(tmp_path, {"growing.py": "long enough"})
    listing = tree.listing()
    (tmp_path / "growing.py").write_text("short")
    with pytest.raises(Exception, match="growing.py changed while it was read"):
        hosts.sync(tree, listing)
    assert not (remote / "growing.py").exists()


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py", "a/./b", ""])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w|") as tar:
        for entry, text in ((dev_on_host.LISTING, json.dumps({name: [1, 1, 0o644]})), (name, "x")):
            info = tarfile.TarInfo(entry)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    packed.seek(0)
    with pytest.raises(KeyError):
        dev_on_host.put({"folder": DEV_FOLDER, "session": SESSION}, packed)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_environment_file_with_nul_is_reported_with_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    order = {"folder": DEV_FOLDER, "session": SESSION, "variables": "environment", "env": {"A": "1"}, "run": "shell"}
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "KEY").write_text("several\nlines\n")
    (folder / "BINARY").write_bytes(b"\xff\x00")
    env = dev_on_host.environment(order)
    assert (env["KEY"], env["A"]) == ("several\nlines", "1") and "BINARY" not in env
    (folder / "KEY").write_text("one\ntwo\0hidden\n")
    with pytest.raises(SystemExit, match=r"environment/KEY, line 2: it holds a NUL, which no variable can") as refused:
        dev_on_host.environment(order)
    assert "hidden" not in str(refused.value)


class Lines:
    """Lines that hosts print."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.first = threading.Event()

    def write(self, host: SshHost, line: str, is_error: bool) -> None:
        self.texts.append(line)
        self.first.set()


def test_command_has_folder_variables_and_mark(hosts: DevHosts, tmp_path: Path, fleet: LoopbackFleet) -> None:
    environment = fleet.home / ".tradewind" / "environment"
    environment.mkdir(parents=True, exist_ok=True)
    (environment / "HF_TOKEN").write_text("of the cluster\n")
    tree, lines = write(tmp_path, {"here.txt": "it"}), Lines()
    hosts.sync(tree, tree.listing())
    line = 'cat here.txt; echo "|$HF_TOKEN|$MINE|$TRADEWIND_POD"; exit 7'
    [result] = hosts.run(HostRuns(lines.write, is_held=True), line, {"MINE": "a b $HOME"}, "execute-1")
    assert (result.code, lines.texts) == (7, [f"it|of the cluster|a b $HOME|{MARK}"])


def test_endless_line_of_a_host_fills_no_memory(hosts: DevHosts) -> None:
    lines = Lines()
    runs = HostRuns(lines.write, longest_bytes=1000)
    [result] = runs.run(hosts.machines, r"head -c 20000000 /dev/zero | tr '\0' a; echo; echo next")
    assert result.code == 0
    assert lines.texts == ["a" * 1000 + " ... (cut: the line has 1,000 bytes or more)", "next"]


STUBBORN = "trap '' TERM; (setsid sleep 4242 &) ; echo up; sleep 4343"


def sleepers(fleet: LoopbackFleet) -> list[psutil.Process]:
    found = []
    for process in marked("HOME", str(fleet.home)):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found += [process] if process.name() == "sleep" else []
    return found


def until_there_are(fleet: LoopbackFleet, count: int) -> None:
    until(lambda: len(sleepers(fleet)) == count, f"{count} processes", lambda: sleepers(fleet))


def test_all_processes_of_a_command_end_with_it(hosts: DevHosts, fleet: LoopbackFleet) -> None:
    lines = Lines()
    runs = HostRuns(lines.write, is_held=True)
    thread = threading.Thread(target=hosts.run, args=(runs, STUBBORN, {}, "watch-1"))
    thread.start()
    assert lines.first.wait(60)
    until_there_are(fleet, 2)
    runs.end()
    thread.join()
    until_there_are(fleet, 0)


HOLDER = """
import json, sys
from tradewind.fleet.access.ssh import HostRuns, SshHost
host = SshHost(**json.loads(sys.argv[1]))
HostRuns(lambda host, line, is_error: print(line, flush=True), is_held=True).run([host], sys.argv[2])
"""


def test_command_ends_when_its_client_is_killed(hosts: DevHosts, fleet: LoopbackFleet) -> None:
    [machine] = hosts.machines
    assert machine.by is not None
    host = json.dumps({**vars(machine), "by": None})
    command = hosts.command(machine, "run", line=STUBBORN, run="execute-2")
    with subprocess.Popen([sys.executable, "-c", HOLDER, host, command], stdout=subprocess.PIPE, text=True) as laptop:
        try:
            assert laptop.stdout is not None and laptop.stdout.readline() == "up\n"
            until_there_are(fleet, 2)
        finally:
            laptop.kill()
    until_there_are(fleet, 0)


def test_heartbeats_survive_lost_connection_and_end_with_block(fleet: LoopbackFleet) -> None:
    file, messages, tries = fleet.home / heartbeat_path(SESSION), list[str](), list[int]()
    connect = ClusterHosts(load_fleet(fleet.folder / "fleet.yaml").cluster()).head
    written: list[int] = []

    def head() -> SshHost:
        tries.append(1)
        if len(tries) == 1:
            raise SshError("The head does not answer.")
        return connect()

    def has_changed_thrice() -> bool:
        if file.exists() and (changed := file.stat().st_mtime_ns) not in written:
            written.append(changed)
        return len(written) >= 3

    with HeartbeatSender(SESSION, head, every_s=0.05, tell=messages.append):
        until(has_changed_thrice, f"three changes of {file}", pause_s=0.01)
    assert messages == ["The head does not answer. Trying again: the slice is given back if that lasts."]
    assert not file.exists()
