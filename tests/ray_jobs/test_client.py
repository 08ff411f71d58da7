"""Errors of the blocking client: one sentence each, never with the token."""

from __future__ import annotations

import shlex
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.ray_jobs.tls import tls_in_front_of
from tests.support.shared_clusters import TOKEN, shared_cluster
from tests.support.waiting import until
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import (
    RayAuthenticationError,
    RayJobRefusedError,
    RayTlsError,
    RayUnreachableError,
    RayVersionError,
)
from tradewind.ray_jobs.request import JobRequest

pytestmark = pytest.mark.ray

WRONG = "wrong-and-secret-0123456789abcdef"


@pytest.fixture(scope="module")
def address() -> str:
    """Return the address of a head that requires a token."""
    return shared_cluster("guarded").address


@pytest.fixture(scope="module")
def secure(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address of the same head behind TLS, and its certificate."""
    certificate = tmp_path_factory.mktemp("tls") / "ca.pem"
    port = urlsplit(address).port
    assert port
    with tls_in_front_of(port, certificate) as secure_port:
        yield f"https://127.0.0.1:{secure_port}", certificate


def client(address: str, token: str | None = TOKEN, verify: bool | str = True) -> RayJobs:
    return RayJobs(RayCluster("mine", address, token=token, verify=verify))


def all_text(error: BaseException) -> str:
    """Return all text of an error that a log could show, with causes and contexts."""
    texts, one = ["".join(traceback.format_exception(error))], error.__context__
    while one:
        texts += [repr(one), str(one), repr(one.args)]
        one = one.__context__
    return "\n".join(texts)


@pytest.mark.parametrize("token", [WRONG, None])
def test_wrong_token_is_reported_and_redacted(address: str, token: str | None) -> None:
    with pytest.raises(RayAuthenticationError, match="refuses the token: .* connection 'mine'") as caught:
        client(address, token)
    assert WRONG not in all_text(caught.value)


def test_token_that_changes_later_is_reported_by_every_call(address: str) -> None:
    jobs = client(address)
    jobs.cluster = RayCluster("mine", address, token=WRONG)
    calls = [jobs.jobs, jobs.version, lambda: jobs.details("x"), lambda: jobs.log_text("x")]
    for call in [*calls, lambda: jobs.submit_or_attach(JobRequest("x", "true"))]:
        with pytest.raises(RayAuthenticationError) as caught:
            call()
        assert WRONG not in all_text(caught.value)


def test_netrc_and_environment_change_neither_token_nor_address(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    assert client(address).details("unknown") is None


def test_cluster_with_old_ray_is_refused(address: str) -> None:
    with pytest.raises(RayVersionError, match=r"runs Ray 2\.\d+\.\d+, which is too old: update .* to Ray 99\.1"):
        RayJobs(RayCluster("mine", address, token=TOKEN), oldest_ray="99.1")


def test_https_works_with_the_certificate_as_ca_bundle(secure: tuple[str, Path]) -> None:
    url, certificate = secure
    assert client(url, verify=str(certificate)).version()
    assert client(url, verify=False).version()


def test_tls_mistakes_are_named_with_remedy(address: str, secure: tuple[str, Path], tmp_path: Path) -> None:
    no_bundle = tmp_path / "ca.pem"
    no_bundle.write_text("this is no certificate")
    url = secure[0]
    for server, verify, sentence in [
        (url, True, "certificate is self-signed: name it as 'CA bundle'"),
        (url.replace("https:", "http:"), True, "speaks TLS: write https:// instead of http://"),
        (address.replace("http:", "https:"), True, "does not speak TLS: write http:// instead of https://"),
        (url, "/nowhere/ca.pem", "CA bundle '/nowhere/ca.pem' cannot be read"),
        (url, str(no_bundle), "cannot be read"),
    ]:
        with pytest.raises(RayTlsError, match=sentence) as caught:
            client(server, verify=verify)
        assert TOKEN not in all_text(caught.value)


def test_host_that_does_not_answer_is_named_with_its_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RayUnreachableError, match=rf"Ray cluster 'mine' \({url}\) does not answer") as caught:
        client(url)
    assert TOKEN not in all_text(caught.value)


def test_refused_job_is_reported_with_reason(address: str) -> None:
    jobs = client(address)
    bad = JobRequest("bad-label", "true", label_selector={"no key!": "value"})
    with pytest.raises(RayJobRefusedError, match="refuses job 'bad-label': .*[Ll]abel"):
        jobs.submit_or_attach(bad)
    assert jobs.details("bad-label") is None


DOLLARS = "costs $HOME ${HOME} $UNSET ${UNSET} $$ ${0} \\$a $"
PRINT_ENVIRONMENT = """
import os, ray
print("driver", os.environ["TEXT"])
print("worker", ray.get(ray.remote(lambda: os.environ["TEXT"]).options(num_cpus=0).remote()))
"""


def test_log_is_read_whole_and_unknown_log_is_none(address: str) -> None:
    """The lines also show that Ray expands no variable in the values that a user gave."""
    jobs = client(address)
    command = f"echo one; echo two; {sys.executable} -c {shlex.quote(PRINT_ENVIRONMENT)}"
    jobs.submit_or_attach(JobRequest("said", command, {"env_vars": {"TEXT": DOLLARS}}))
    until(lambda: (details := jobs.details("said")) and details.status == "SUCCEEDED", "the end of the job")
    lines = set((jobs.log_text("said") or "").splitlines())
    assert {"one", "two", f"driver {DOLLARS}", f"worker {DOLLARS}"} <= lines
    assert jobs.log_text("never-said") is None
