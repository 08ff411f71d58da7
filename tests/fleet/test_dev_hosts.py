"""A push copies local files exactly to the hosts of a development session.

Commands there end with the process that started them. The tests use a real ``sshd``.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.fleet.loopback import LoopbackFleet, loopback_fleet
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
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackFleet]:
    with loopback_fleet(tmp_path_factory.mktemp("dev")) as fleet:
        yield fleet


@pytest.fixture
def hosts(world: LoopbackFleet) -> DevHosts:
    """Return the first host of the slice; both hosts are this machine, with one home folder."""
    there = ClusterHosts(load_fleet(world.folder / "fleet.yaml").cluster())
    host = SliceHost("one", 0, "127.0.0.1")
    session = DevSession(SESSION, DevSlice("one"), (host,), (MARK,))
    return DevHosts(session, there.reachable([host]), [MARK])


@pytest.fixture
def there(world: LoopbackFleet) -> Path:
    """Return the folder on the host."""
    return world.home / DEV_FOLDER / SESSION / "tree"


def write(folder: Path, files: dict[str, str]) -> LocalTree:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return LocalTree(folder)


def found(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_a_host_has_what_is_here_and_gets_only_what_it_lacks(hosts: DevHosts, there: Path, tmp_path: Path) -> None:
    tree = write(
        tmp_path, {"train.py": "1", "lib/a.py": "a", "lib/deep/b.py": "b", ".env": "KEY=1", ".gitignore": "x\n"}
    )
    (tmp_path / "x").write_text("it stays")
    (tmp_path / "train.py").chmod(0o755)
    assert hosts.sync(tree, tree.listing()) == 4
    sent = {"train.py": "1", "lib/a.py": "a", "lib/deep/b.py": "b", ".gitignore": "x\n"}
    assert found(there) == sent and os.access(there / "train.py", os.X_OK)
    (there / "made.txt").write_text("by a command there")
    assert hosts.sync(tree, tree.listing()) == 0
    (there / "lib" / "a.py").write_text("changed there")
    (tmp_path / "train.py").write_text("2")
    (tmp_path / "lib" / "deep" / "b.py").unlink()
    assert hosts.sync(tree, tree.listing()) == 2
    assert found(there) == {"train.py": "2", "lib/a.py": "a", ".gitignore": "x\n", "made.txt": "by a command there"}
    assert not (there / "lib" / "deep").exists()
    assert there.stat().st_mode & 0o777 == 0o700


def test_a_file_becomes_a_folder_and_a_folder_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    order = {"folder": DEV_FOLDER, "session": SESSION}
    for number, files in enumerate(({"a": "1"}, {"a/b": "2"}, {"a": "3"})):
        tree, packed = write(tmp_path / str(number), files), io.BytesIO()
        tree.pack(tree.listing(), files, packed)
        packed.seek(0)
        dev_on_host.put(order, packed)
        assert found(Path(dev_on_host.tree_of(order))) == files


def test_symlink_out_of_folder_is_refused_by_name_before_sending(tmp_path: Path) -> None:
    tree = write(tmp_path / "code", {"train.py": "1"})
    (tmp_path / "key").write_text("hidden")
    (tmp_path / "code" / "data").symlink_to(tmp_path / "key")
    with pytest.raises(BadRequestError, match=r"the link 'data' leads out of it, to .*/key: leave it out"):
        tree.listing()
    assert LocalTree(tmp_path / "code", ["data"]).listing().keys() == {"train.py"}


def test_file_changed_during_read_is_not_sent_partially(hosts: DevHosts, there: Path, tmp_path: Path) -> None:
    tree = write(tmp_path, {"growing.py": "long enough"})
    listing = tree.listing()
    (tmp_path / "growing.py").write_text("short")
    with pytest.raises(Exception, match="growing.py changed while it was read"):
        hosts.sync(tree, listing)
    assert not (there / "growing.py").exists()


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py", "a/./b", ""])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
    with pytest.raises(
        SystemExit, match=r"environment/KEY, line 2: it holds a NUL, which no variable can: add a"
    ) as said:
        dev_on_host.environment(order)
    assert "hidden" not in str(said.value)


class Lines:
    """Lines that hosts print."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.some = threading.Event()

    def write(self, host: SshHost, line: str, is_error: bool) -> None:
        self.told.append(line)
        self.some.set()


def test_a_command_has_the_folder_the_variables_and_the_mark(
    hosts: DevHosts, there: Path, tmp_path: Path, world: LoopbackFleet
) -> None:
    environment = world.home / ".tradewind" / "environment"
    environment.mkdir(parents=True, exist_ok=True)
    (environment / "HF_TOKEN").write_text("of the cluster\n")
    tree, lines = write(tmp_path, {"here.txt": "it"}), Lines()
    hosts.sync(tree, tree.listing())
    runs = HostRuns(lines.write, is_held=True)
    line = 'cat here.txt; echo "|$HF_TOKEN|$MINE|$TRADEWIND_POD"; exit 7'
    [result] = hosts.run(runs, line, {"MINE": "a b $HOME"}, "execute-1")
    assert (result.code, lines.told) == (7, [f"it|of the cluster|a b $HOME|{MARK}"])


def test_a_host_that_ends_no_line_fills_no_memory(hosts: DevHosts) -> None:
    lines = Lines()
    runs = HostRuns(lines.write, longest_bytes=1000)
    [result] = runs.run(hosts.machines, r"head -c 20000000 /dev/zero | tr '\0' a; echo; echo next")
    assert result.code == 0
    assert lines.told == ["a" * 1000 + " ... (cut: the line has 1,000 bytes or more)", "next"]


STUBBORN = "trap '' TERM; (setsid sleep 4242 &) ; echo up; sleep 4343"


def sleepers(world: LoopbackFleet) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(world.home) and process.name() == "sleep":
                found.append(process)
        except psutil.Error:
            continue
    return found


def until_there_are(world: LoopbackFleet, count: int) -> None:
    until(lambda: len(sleepers(world)) == count, f"{count} processes", lambda: sleepers(world))


def test_all_that_a_command_has_started_ends_with_it(hosts: DevHosts, world: LoopbackFleet) -> None:
    lines = Lines()
    runs = HostRuns(lines.write, is_held=True)
    thread = threading.Thread(target=hosts.run, args=(runs, STUBBORN, {}, "watch-1"))
    thread.start()
    assert lines.some.wait(60)
    until_there_are(world, 2)
    runs.end()
    thread.join()
    until_there_are(world, 0)


HOLDER = """
import json, sys
from tradewind.fleet.access.ssh import HostRuns
from tradewind.fleet.access.ssh import SshHost
host = SshHost(**json.loads(sys.argv[1]))
HostRuns(lambda host, line, is_error: print(line, flush=True), is_held=True).run([host], sys.argv[2])
"""


def test_it_ends_when_the_laptop_is_killed(hosts: DevHosts, world: LoopbackFleet) -> None:
    [machine] = hosts.machines
    assert machine.by is not None
    host = json.dumps({**vars(machine), "by": None})
    command = hosts.command(machine, "run", line=STUBBORN, run="execute-2")
    with subprocess.Popen([sys.executable, "-c", HOLDER, host, command], stdout=subprocess.PIPE, text=True) as laptop:
        try:
            assert laptop.stdout is not None and laptop.stdout.readline() == "up\n"
            until_there_are(world, 2)
        finally:
            laptop.kill()
    until_there_are(world, 0)


def test_signs_of_life_come_until_the_person_is_done(world: LoopbackFleet) -> None:
    file, told = world.home / heartbeat_path(SESSION), list[str]()
    head = ClusterHosts(load_fleet(world.folder / "fleet.yaml").cluster()).head
    with HeartbeatSender(SESSION, head, every_s=0.05, tell=told.append):
        changed = changes_of(file, 3)
    assert len(set(changed)) == 3 and not told
    assert not file.exists()


def test_signs_go_on_after_the_way_was_lost(world: LoopbackFleet) -> None:
    file, told, tries = world.home / heartbeat_path(SESSION), list[str](), list[int]()
    real = ClusterHosts(load_fleet(world.folder / "fleet.yaml").cluster()).head

    def head() -> SshHost:
        tries.append(1)
        if len(tries) == 1:
            raise SshError("The head does not answer.")
        return real()

    with HeartbeatSender(SESSION, head, every_s=0.05, tell=told.append):
        changes_of(file, 2)
    assert told == ["The head does not answer. Trying again: the slice is given back if that lasts."]


def changes_of(file: Path, count: int) -> Sequence[int]:
    """Return the first ``count`` modification times of the file."""
    found: list[int] = []

    def are_enough() -> bool:
        if file.exists() and (changed := file.stat().st_mtime_ns) not in found:
            found.append(changed)
        return len(found) >= count

    until(are_enough, f"{count} changes of {file}", pause_s=0.01)
    return found
