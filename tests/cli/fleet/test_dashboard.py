"""``tradewind cluster dashboard``: a real head behind a real ``sshd``, and a cluster without a head."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.fleet.clouds import put_head, served
from tests.fleet.fleets import many_clusters, write_fleet
from tests.fleet.sshd import running_sshd
from tests.runtime.marked import descendants_named
from tests.support.google import LocalCompute
from tests.support.shared_clusters import TOKEN, shared_cluster
from tradewind.cli.main import main
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set up a fleet: cluster ``here`` has a head, cluster ``extra-0`` has none."""
    folder = tmp_path_factory.mktemp("dashboard")
    ray, secrets = shared_cluster("guarded"), LocalSecretManager()
    secrets.start()
    secrets.put("projects/my-project/secrets/RAY_AUTH_TOKEN", TOKEN)
    with running_sshd(folder / "sshd") as sshd, served(LocalCompute(), "compute") as compute:
        ssh = f"ssh_user: {sshd.user}\nssh_private_key: {sshd.private_key}\n"
        file = write_fleet(folder, ssh)
        file.write_text(file.read_text() + many_clusters(1))
        put_head(compute, ip="127.0.0.1", host_keys=dict([sshd.host_key]))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TRADEWIND_FLEET", str(file))
                patch.setenv("TRADEWIND_SSH_PORT", str(sshd.port))
                patch.setenv("TRADEWIND_HEAD_DASHBOARD", ray.address.removeprefix("http://"))
                patch.setenv(ENDPOINT_VARIABLE, secrets.endpoint)
                patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
                yield file
        finally:
            secrets.stop()


@dataclass
class Opened:
    """The running command and its output."""

    process: subprocess.Popen[str]
    said: str = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        assert self.process.stderr is not None
        while not (found := re.search(pattern, self.said)):
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        return found

    def interrupt(self) -> int:
        """Send Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        self.said += self.process.communicate(timeout=60)[1]
        return self.process.returncode


@pytest.fixture
def opened(fleet: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
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
    assert not ssh.is_running() and TOKEN not in opened.said
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
    assert "<h2>extra-0</h2>" in text and TOKEN not in text + opened.said
    assert opened.interrupt() == 0


@pytest.mark.ray
def test_a_cluster_without_a_head_is_said_and_nothing_stays_open(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["extra-0"], ["hear"], ["--all", "here"]):
        with pytest.raises(SystemExit) as end:
            main(["cluster", "dashboard", "--no-open", *words])
        assert end.value.code == (1 if words == ["extra-0"] else 2)
    said = capsys.readouterr().err
    assert "extra-0 does not answer: Cluster extra-0 has no head" in said and "did you mean here?" in said
    assert "--all means every cluster of the file" in said
