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


def shown(error: BaseException) -> str:
    """Return all text of an error that a log could show, with causes and contexts."""
    texts, one = ["".join(traceback.format_exception(error))], error.__context__
    while one:
        texts += [repr(one), str(one), repr(one.args)]
        one = one.__context__
    return "\n".join(texts)


@pytest.mark.parametrize("token", [WRONG, None])
def test_a_token_that_is_not_right_is_told_without_showing_it(address: str, token: str | None) -> None:
    with pytest.raises(RayAuthenticationError, match="refuses the token: .* connection 'mine'") as caught:
        RayJobs(RayCluster("mine", address, token=token))
    assert WRONG not in shown(caught.value)


def test_a_token_that_changes_later_is_told_by_every_call(address: str) -> None:
    jobs = RayJobs(RayCluster("mine", address, token=TOKEN))
    jobs.cluster = RayCluster("mine", address, token=WRONG)
    calls = [jobs.jobs, jobs.version, lambda: jobs.details("x"), lambda: jobs.log_text("x")]
    for call in [*calls, lambda: jobs.submit_or_attach(JobRequest("x", "true"))]:
        with pytest.raises(RayAuthenticationError) as caught:
            call()
        assert WRONG not in shown(caught.value)


def test_the_right_token_is_sent_although_a_netrc_names_another(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert RayJobs(RayCluster("mine", address, token=TOKEN)).details("unknown") is None


def test_a_cluster_that_is_too_old_is_refused(address: str) -> None:
    with pytest.raises(RayVersionError, match=r"runs Ray 2\.\d+\.\d+, which is too old: update .* to Ray 99\.1"):
        RayJobs(RayCluster("mine", address, token=TOKEN), oldest_ray="99.1")


def test_https_works_with_the_certificate_as_ca_bundle(secure: tuple[str, Path]) -> None:
    url, certificate = secure
    assert RayJobs(RayCluster("mine", url, token=TOKEN, verify=str(certificate))).version()
    assert RayJobs(RayCluster("mine", url, token=TOKEN, verify=False)).version()


def test_a_certificate_that_nobody_vouches_for_is_told(secure: tuple[str, Path]) -> None:
    with pytest.raises(RayTlsError, match="certificate is self-signed: name it as 'CA bundle'") as caught:
        RayJobs(RayCluster("mine", secure[0], token=TOKEN))
    assert TOKEN not in shown(caught.value)


def test_https_to_a_head_that_speaks_http_is_told(address: str) -> None:
    with pytest.raises(RayTlsError, match="does not speak TLS: write http:// instead of https://") as caught:
        RayJobs(RayCluster("mine", address.replace("http:", "https:"), token=TOKEN))
    assert TOKEN not in shown(caught.value)


def test_http_to_a_server_that_speaks_tls_is_told(secure: tuple[str, Path]) -> None:
    with pytest.raises(RayTlsError, match="speaks TLS: write https:// instead of http://") as caught:
        RayJobs(RayCluster("mine", secure[0].replace("https:", "http:"), token=TOKEN))
    assert TOKEN not in shown(caught.value)


def test_a_ca_bundle_that_is_not_there_is_told(secure: tuple[str, Path]) -> None:
    with pytest.raises(RayTlsError, match="CA bundle '/nowhere/ca.pem' cannot be read"):
        RayJobs(RayCluster("mine", secure[0], token=TOKEN, verify="/nowhere/ca.pem"))


def test_a_file_that_is_no_ca_bundle_is_told(secure: tuple[str, Path], tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("this is no certificate")
    with pytest.raises(RayTlsError, match="cannot be read"):
        RayJobs(RayCluster("mine", secure[0], token=TOKEN, verify=str(bundle)))


def test_a_host_that_does_not_answer_is_told() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RayUnreachableError, match="does not answer") as caught:
        RayJobs(RayCluster("far", url, token=TOKEN))
    assert TOKEN not in shown(caught.value)


def test_a_refused_job_is_told_with_the_reason(address: str) -> None:
    jobs = RayJobs(RayCluster("mine", address, token=TOKEN))
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


def test_a_log_is_read_whole_and_an_unknown_one_is_none(address: str) -> None:
    """The lines also show that Ray expands no variable in the values that a user gave."""
    jobs = RayJobs(RayCluster("mine", address, token=TOKEN))
    command = f"echo one; echo two; {sys.executable} -c {shlex.quote(PRINT_ENVIRONMENT)}"
    jobs.submit_or_attach(JobRequest("said", command, {"env_vars": {"TEXT": DOLLARS}}))

    def status() -> str:
        details = jobs.details("said")
        return details.status if details and details.has_ended else ""

    assert until(status, "the end of the job") == "SUCCEEDED"
    lines = set((jobs.log_text("said") or "").splitlines())
    assert {"one", "two", f"driver {DOLLARS}", f"worker {DOLLARS}"} <= lines
    assert jobs.log_text("never-said") is None
