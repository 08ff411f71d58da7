"""``tradewind cluster dashboard``: a real head behind a real ``sshd``, and a cluster without a head."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import Run
from tests.cli.guarded_fleet import guarded_fleet
from tests.fleet.fleets import many_clusters
from tests.runtime.marked import descendants_named
from tests.support.shared_clusters import TOKEN

COMMAND = ("cluster", "dashboard")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set up a fleet: cluster ``here`` has a head, cluster ``extra-0`` has none."""
    with guarded_fleet(tmp_path_factory.mktemp("dashboard"), many_clusters(1)):
        yield


@dataclass
class Opened:
    """The running command and its output."""

    process: subprocess.Popen[str]
    output: str = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        assert self.process.stderr is not None
        while not (found := re.search(pattern, self.output)):
            line = self.process.stderr.readline()
            assert line, self.output
            self.output += line
        return found

    def interrupt(self) -> int:
        """Send Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        self.output += self.process.communicate(timeout=60)[1]
        return self.process.returncode


@pytest.fixture
def opened(fleet: None, request: pytest.FixtureRequest) -> Iterator[Opened]:
    words = [sys.executable, "-m", "tradewind.cli.main", "cluster", "dashboard", "--no-open", *request.param]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        yield Opened(process)
        process.kill()


def get(url: str, **headers: str) -> str:
    """Fetch a page as a browser does: every name under ``localhost`` resolves to the loopback."""
    host, port = re.fullmatch(r"http://([^/:]+):(\d+).*", url).groups()  # type: ignore[union-attr]
    with urlopen(Request(f"http://127.0.0.1:{port}/api/version", headers={"Host": f"{host}:{port}", **headers})) as got:
        return str(got.read().decode())


@pytest.mark.ray
@pytest.mark.parametrize("opened", [["here"]], indirect=True)
def test_dashboards_have_own_hosts_need_token_end_on_ctrl_c(opened: Opened) -> None:
    url = opened.wait_for(r"The dashboard of here is at (http://here\.localhost:\d+) until Ctrl-C")[1]
    assert "ray_version" in get(url, Authorization=f"Bearer {TOKEN}")
    with pytest.raises(HTTPError, match="401"):
        get(url)
    [ssh] = descendants_named("ssh", opened.process.pid)
    assert opened.interrupt() == 0
    assert not ssh.is_running() and TOKEN not in opened.output
    with pytest.raises(OSError, match="refused"):
        get(url)


@pytest.mark.ray
@pytest.mark.parametrize("opened", [["--all"]], indirect=True)
def test_one_page_shows_all_of_them(opened: Opened) -> None:
    page = opened.wait_for(r"2 clusters are at (http://127\.0\.0\.1:\d+) until")[1]
    opened.wait_for("The dashboard of here is at ")
    opened.wait_for("extra-0 does not answer: Cluster extra-0 has no head that runs in us-east5-a")
    with urlopen(page) as answer:
        text = answer.read().decode()
    assert re.search(r'<a href="http://here\.localhost:\d+".*0 slices with 0 hosts</p><p>0 jobs running', text)
    assert "<h2>extra-0</h2>" in text and TOKEN not in text + opened.output
    assert opened.interrupt() == 0


@pytest.mark.ray
def test_dashboard_reports_unusable_choice_of_clusters(fleet: None, run: Run) -> None:
    for words, expected, says in (
        (["extra-0"], 1, "extra-0 does not answer: Cluster extra-0 has no head"),
        (["hear"], 2, "did you mean here?"),
        (["--all", "here"], 2, "--all means every cluster of the fleet file"),
    ):
        code, _, err = run("--no-open", *words)
        assert code == expected and says in err
