"""Shell scripts pass shellcheck, and the tmux session opens the documented panes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.fleets import REPOSITORY

SCRIPTS = [REPOSITORY / ".ci" / "run", *(REPOSITORY / "scripts").glob("*.sh"), *(REPOSITORY / "docker").glob("*.sh")]
SHELLCHECK = Path(sysconfig.get_path("scripts"), "shellcheck")


@pytest.mark.slow
@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck is not in this environment: make init")
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    checked = subprocess.run([SHELLCHECK, *SCRIPTS], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "bad.sh").write_text("#!/bin/bash\nrm -r $1\n")
    assert subprocess.run([SHELLCHECK, tmp_path / "bad.sh"], capture_output=True).returncode == 1


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a separate tmux server; kill the server at the end."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: apt-get install tmux")
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    environment |= {"TMUX_TMPDIR": str(tmp_path), "TRADEWIND_DASHBOARD": "echo dashboard of"}
    yield environment
    subprocess.run(["tmux", "kill-server"], env=environment, capture_output=True)


def marins(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    script = REPOSITORY / "scripts" / "marin-tmux.sh"
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True)


def test_session_has_shell_and_dashboard_and_is_created_once(tmux: dict[str, str]) -> None:
    for _ in range(2):
        assert "tmux attach -t marin" in marins(tmux, "us-east5").stdout
    panes = subprocess.run(
        ["tmux", "list-panes", "-t", "marin", "-F", "#{pane_active}"],
        env=tmux, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert panes.stdout.split() == ["1", "0"]
    typed = ["tmux", "capture-pane", "-p", "-J", "-t", "marin:.1"]
    assert _shows(typed, tmux, "dashboard of infra/clusters/us-east5.yaml")


def _shows(command: list[str], environment: dict[str, str], text: str) -> bool:
    """Wait until the shell has started and its pane shows the text; the test's timeout ends the wait."""
    while text not in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout:
        pass
    return True


def test_a_cluster_without_a_file_is_refused(tmux: dict[str, str]) -> None:
    ended = marins(tmux, "us-west9")
    assert ended.returncode == 1
    assert "There is no infra/clusters/us-west9.yaml" in ended.stderr


@pytest.mark.parametrize("name", ["../clusters/us-east5", "us-east5; ls", "-h", "$(ls)"])
def test_invalid_cluster_name_starts_no_session(tmux: dict[str, str], name: str) -> None:
    ended = marins(tmux, name)
    assert ended.returncode == 1 and "is no name of a cluster" in ended.stderr
    listed = subprocess.run(["tmux", "list-sessions"], env=tmux, capture_output=True)
    assert listed.returncode != 0
