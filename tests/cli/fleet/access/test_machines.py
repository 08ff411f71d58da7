"""Commands on the head and on hosts of slices, through a real ``sshd`` at several addresses of the loopback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tests.fleet.lifecycle.worlds import update
from tests.fleet.sshd import Sshd, running_sshd
from tradewind.cli.main import main
from tradewind.cloud_tpu.api import TpuApi
from tradewind.rehearsal.cloud.google import LocalGoogle
from tradewind.rehearsal.tpu.hosts import NoHosts, SliceFacts

PLACE = ("my-project", "us-central2-b")


class LoopbackHosts(NoHosts):
    """Each host is the server: reached through the head, since it has no address in the world."""

    def __init__(self, sshd: Sshd) -> None:
        self.keys = [dict([sshd.host_key]) for _ in range(2)]

    def start(self, facts: SliceFacts) -> list[str]:
        return ["127.0.0.1"] * facts.shape.hosts

    def host_keys(self, name: str) -> Sequence[Mapping[str, str]]:
        return self.keys


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHosts]:
    folder = tmp_path_factory.mktemp("machines")
    with running_sshd(folder / "sshd") as sshd, pytest.MonkeyPatch.context() as patch:
        hosts = LoopbackHosts(sshd)
        google = LocalGoogle(PLACE, hosts=hosts)
        google.start()
        state, head = google.compute.state, f"projects/{PLACE[0]}/zones/{PLACE[1]}/instances/ray-here-head-1"
        labels = {"ray-cluster-name": "here", "ray-node-type": "head"}
        network = [{"networkIP": "127.0.0.1"}]
        state.add(head, {"labels": labels, "status": "RUNNING", "networkInterfaces": network})
        state.guests[head] = dict([sshd.host_key])
        body = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base", "labels": labels}
        TpuApi(*PLACE, endpoint=google.url, poll_s=0.02).create("one", body)
        more = f"ssh_user: {sshd.user}\nssh_private_key: {sshd.private_key}\n"
        patch.setenv("TRADEWIND_FLEET", str(file := write_fleet(folder, more)))
        update(file)
        patch.setenv("TRADEWIND_SSH_PORT", str(sshd.port))
        patch.setenv("TRADEWIND_RAY_LOGS", str(folder / "logs"))
        (folder / "logs").mkdir()
        (folder / "logs" / "raylet.out").write_text("first\nsecond\nthird\x1b[31m\n")
        for api in ("COMPUTE", "TPU"):
            patch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
        yield hosts
        google.end_all()
        google.stop()


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["cluster", *words])
    printed = capfd.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


def test_one_machine_gives_its_output_and_its_exit_code(
    world: LoopbackHosts, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(capfd, "exec", "here", "--", "printf", "%s|", "a b", "$HOME", "-v") == (0, "a b|$HOME|-v|", "")
    assert run(capfd, "exec", "here", "--run-env", "host", "--", "echo a | tr a b; exit 7")[:2] == (7, "b\n")
    assert run(capfd, "ssh-head", "--", "exit 255")[0] == 255
    assert run(capfd, "ssh-tpu", "one:1", "--", "echo", "there")[:2] == (0, "there\n")


def test_the_cluster_may_be_the_path_of_its_file_or_an_option_before_or_behind_the_command(
    world: LoopbackHosts, capfd: pytest.CaptureFixture[str]
) -> None:
    file = str(Path(os.environ["TRADEWIND_FLEET"]).parent / "clusters" / "here.yaml")
    for words in (
        ["exec", file], ["exec", "--cluster", "here"], ["exec", "here", "--config", file], ["--config", file, "exec"],
        ["ssh-tpu", file, "one:1"], ["ssh-tpu", "--cluster", file, "one:1"], ["--cluster", "here", "ssh-tpu", "one:1"],
    ):  # fmt: skip
        assert run(capfd, *words, "--", "echo", "there")[:2] == (0, "there\n"), words


def test_several_machines_are_told_apart_and_the_bad_one_is_named(
    world: LoopbackHosts, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "exec", "here", "--all-hosts", "--", "echo it; echo not >&2; exit 3")
    assert code == 1 and sorted(out.splitlines()) == ["one:0 | it", "one:1 | it"]
    assert "one:1 | not" in err and "one:1 ended with 3." in err and "0 of 2 machines ended with 0." in err


def test_a_host_with_other_keys_is_not_trusted(world: LoopbackHosts, capfd: pytest.CaptureFixture[str]) -> None:
    kept, key = world.keys[1], "AAAAC3NzaC1lZDI1NTE5AAAAIJd2lzxVQbRbu3yQK0Hk2vE0tbU3hM1M0W8n7T1x9z1q"
    world.keys[1] = {"ssh-ed25519": key}
    try:
        code, out, err = run(capfd, "exec", "--host", "one", "--", "echo it")
    finally:
        world.keys[1] = kept
    assert code == 1 and out == "one:0 | it\n" and "has not the host keys that one:1 wrote down" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["exec", "here", "--host", "on", "--", "ls"], 1, "has no slice or host 'on': did you mean one?"),
        (["exec", "here", "--host", "one:2", "--", "ls"], 1, "Slice one has no host '2': it has 0 to 1."),
        (["exec", "here", "--host", "-oProxyCommand=ls", "--", "ls"], 2, "expected one argument"),
        (["exec", "here", "ls"], 2, "'ls' is one word too many"),
        (["exec", "here"], 2, "There is no command"),
        (["exec", "here", "--cluster", "other", "--", "ls"], 2, "is about one cluster, and here and other are named"),
        (["ssh-tpu"], 2, "Say on which host"),
        (["show-logs", "here", "--file", "../x"], 2, "is no name of a log"),
        (["show-logs", "here", "--file", "none.*"], 1, "no log there is called none.*"),
    ],
)
def test_what_makes_no_sense_is_said(
    world: LoopbackHosts, capfd: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    ended, _, err = run(capfd, *words)
    assert ended == code and re.search(re.escape(says), err), err


def test_logs_are_shown_from_their_end_and_steer_no_terminal(
    world: LoopbackHosts, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(capfd, "show-logs", "here", "-n", "2")[1] == "second\nthird\\x1b[31m\n"
