"""Commands on the head and on slice hosts, through a real ``sshd`` at several loopback addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.lifecycle.fleet_environment import update
from tests.fleet.loopback import LoopbackHosts, loopback_fleet

COMMAND = ("cluster",)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHosts]:
    folder = tmp_path_factory.mktemp("machines")
    with loopback_fleet(folder) as fleet, pytest.MonkeyPatch.context() as patch:
        update(Path(os.environ["TRADEWIND_FLEET"]))
        patch.setenv("TRADEWIND_RAY_LOGS", str(folder / "logs"))
        (folder / "logs").mkdir()
        (folder / "logs" / "raylet.out").write_text("first\nsecond\nthird\x1b[31m\n")
        yield fleet.hosts


def test_one_machine_gives_its_output_and_its_exit_code(hosts: LoopbackHosts, run: Run) -> None:
    assert run("exec", "here", "--", "printf", "%s|", "a b", "$HOME", "-v") == (0, "a b|$HOME|-v|", "")
    assert run("exec", "here", "--run-env", "host", "--", "echo a | tr a b; exit 7")[:2] == (7, "b\n")
    assert run("ssh-head", "--", "exit 255")[0] == 255
    assert run("ssh-tpu", "one:1", "--", "echo", "there")[:2] == (0, "there\n")


def test_cluster_is_given_by_file_path_or_option_anywhere(hosts: LoopbackHosts, run: Run) -> None:
    file = str(Path(os.environ["TRADEWIND_FLEET"]).parent / "clusters" / "here.yaml")
    for words in (
        ["exec", file], ["exec", "--cluster", "here"], ["exec", "here", "--config", file], ["--config", file, "exec"],
        ["ssh-tpu", file, "one:1"], ["ssh-tpu", "--cluster", file, "one:1"], ["--cluster", "here", "ssh-tpu", "one:1"],
    ):  # fmt: skip
        assert run(*words, "--", "echo", "there")[:2] == (0, "there\n"), words


def test_exec_on_all_hosts_prefixes_output_and_names_failures(hosts: LoopbackHosts, run: Run) -> None:
    code, out, err = run("exec", "here", "--all-hosts", "--", "echo it; echo not >&2; exit 3")
    assert code == 1 and sorted(out.splitlines()) == ["one:0 | it", "one:1 | it"]
    assert "one:1 | not" in err and "one:1 ended with 3." in err and "0 of 2 machines ended with 0." in err


def test_a_host_with_other_keys_is_not_trusted(hosts: LoopbackHosts, run: Run) -> None:
    own_keys, key = hosts.keys[1], "AAAAC3NzaC1lZDI1NTE5AAAAIJd2lzxVQbRbu3yQK0Hk2vE0tbU3hM1M0W8n7T1x9z1q"
    hosts.keys[1] = {"ssh-ed25519": key}
    try:
        code, out, err = run("exec", "--host", "one", "--", "echo it")
    finally:
        hosts.keys[1] = own_keys
    assert code == 1 and out == "one:0 | it\n" and "has not the host keys that one:1 wrote down" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["exec", "here", "--host", "on", "--", "ls"], 1, "has no slice or host 'on': did you mean one?"),
        (["exec", "here", "--host", "one:2", "--", "ls"], 1, "Slice one has no host '2': it has 0 to 1."),
        (["exec", "here", "--host", "-oProxyCommand=ls", "--", "ls"], 2, "expected one argument"),
        (["exec", "here", "ls"], 2, "'ls' is one word too many"),
        (["exec", "here"], 2, "No command is given"),
        (["exec", "here", "--cluster", "other", "--", "ls"], 2, "is about one cluster, and here and other are named"),
        (["ssh-tpu"], 2, "Name the host"),
        (["show-logs", "here", "--file", "../x"], 2, "is not the name of a log"),
        (["show-logs", "here", "--file", "none.*"], 1, "no log is called none.*"),
    ],
)
def test_invalid_host_or_command_is_refused(
    hosts: LoopbackHosts, run: Run, words: list[str], code: int, says: str
) -> None:
    ended, _, err = run(*words)
    assert ended == code and says in err, err


def test_logs_are_shown_from_their_end_and_steer_no_terminal(hosts: LoopbackHosts, run: Run) -> None:
    assert run("show-logs", "here", "-n", "2")[1] == "second\nthird\\x1b[31m\n"
