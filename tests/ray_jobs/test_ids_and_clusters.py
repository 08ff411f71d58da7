"""Submission IDs name what the job runs; clients check cluster addresses before use."""

from __future__ import annotations

import pytest

from tradewind.ray_jobs.cluster import RayCluster, job_path
from tradewind.ray_jobs.errors import BadAddressError
from tradewind.records.attempts import step_job_id


def test_id_is_readable_and_unique() -> None:
    job = step_job_id("tokenized/Fine Web", "/p/tokenized/Fine Web-abc123", "abc123", 2)
    assert job.startswith("tokenized-fine-web-") and "-abc123-2-" in job
    attempts = [("/p/s-1", 1), ("/q/s-1", 1), ("/p/s-1", 2)]
    assert len({step_job_id("s", path, "1", attempt).rpartition("-")[0] for path, attempt in attempts}) == 3
    assert len({step_job_id("s", "/p/s-1", "1", 1) for _ in range(100)}) == 100


@pytest.mark.parametrize("name", ["", "☃", "-" * 100, "a" * 100])
def test_unusual_step_name_gives_plain_id(name: str) -> None:
    job = step_job_id(name, "/p", "abc123", 1)
    assert job.isascii() and len(job) < 70 and not job.startswith("-")


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (
            ("", "10.0.0.1:8265", "ray://10.0.0.1:10001", "http://", "http://[::1", "http://h:no"),
            "is no dashboard addr",
        ),
        (("http://me:s3cret@h:8265", "ftp://me:s3cret@h", "http://h?s3cret", "http://h#s3cret"), "has a user name"),
    ],
)
def test_address_of_no_dashboard_or_with_secret_is_refused(addresses: tuple[str, ...], why: str) -> None:
    for address in addresses:
        with pytest.raises(BadAddressError, match=f"^Ray cluster 'mine': its address .*{why}") as refused:
            RayCluster("mine", address)
        assert "s3cret" not in str(refused.value)


def test_token_is_sent_as_header_and_never_shown() -> None:
    cluster = RayCluster("mine", "https://ray.example:8265/", token="s3cret")
    assert cluster.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(cluster) + str(cluster)
    assert [job_path(job) for job in ("a", "a#b", "a/../b?c", "..", "", "\udce9")] == [
        f"/api/jobs/{quoted}" for quoted in ("a", "a%23b", "a%2F..%2Fb%3Fc", "%252E", "%252E", "%3F")
    ]
    assert cluster.job_url("j") == "https://ray.example:8265/#/jobs/j"
