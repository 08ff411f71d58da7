"""Read jobs and packages from a head's GCS, in a separate process.

Ray's Jobs API reports neither the resources of a job's entrypoint nor the contents of a package. Both are read from the
GCS, as Ray's own processes do. The process gets the token in its environment, because Ray's client requires it there;
no Airflow component may have it in its own environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tradewind.ray_jobs.job_backup import SavedJob, SkippedJob, jobs_to_back_up

_JOB_KEY: Final = "_ray_internal_job_info_"
_JOBS: Final = "read.json"
_TIMEOUT_S: Final = 600.0
_CALL_TIMEOUT_S: Final = 60.0
_MAX_REASON_CHARS: Final = 300


class GcsReadError(RuntimeError):
    """The head's GCS could not be read."""


@dataclass(frozen=True)
class HeadJobs:
    """Unmanaged jobs stored in the head's GCS.

    Attributes:
        packages: Files of their packages.
        skipped: Jobs that cannot be saved.
    """

    jobs: Sequence[SavedJob]
    packages: Mapping[str, Path]
    skipped: Sequence[SkippedJob] = ()


def read_head(address: str, token: str | None, folder: Path) -> HeadJobs:
    """Return the jobs of a head that need a backup; write the files of their packages to ``folder``.

    Args:
        address: Of the head's GCS, ``HOST:PORT``.
        folder: An existing, empty folder that only its owner can access.

    Raises:
        GcsReadError: The head does not answer, or refuses the token.
    """
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    command = [sys.executable, "-m", __name__, address, str(folder)]
    try:
        done = subprocess.run(
            command, env={**env, **auth}, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise GcsReadError(f"The head's GCS at {address} was not read within {_TIMEOUT_S:.0f} s.") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1][:_MAX_REASON_CHARS] if lines else f"the reader ended with {done.returncode}"
        raise GcsReadError(f"The head's GCS at {address} cannot be read: {why}")
    found = json.loads((folder / _JOBS).read_text())
    jobs = [SavedJob.from_json(fields) for fields in found["jobs"]]
    packages = {uri: folder / str(number) for number, uri in enumerate(_uris(jobs))}
    return HeadJobs(jobs, packages, [SkippedJob(**fields) for fields in found["skipped"]])


def main(address: str, folder: Path) -> None:
    """Entry point of the process."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # its types do not name it

    os.umask(0o077)
    client: Any = GcsClient(address=address)
    keys = client.internal_kv_keys(_JOB_KEY.encode(), b"job", timeout=_CALL_TIMEOUT_S)
    texts = {key: client.internal_kv_get(key, b"job", timeout=_CALL_TIMEOUT_S) for key in keys}
    found, skipped = jobs_to_back_up(
        {key.decode(errors="replace").removeprefix(_JOB_KEY): info_in(text) for key, text in texts.items() if text}
    )
    jobs = []
    for job in found:
        lost = [
            uri for uri in job.packages if not client.internal_kv_exists(uri.encode(), None, timeout=_CALL_TIMEOUT_S)
        ]
        jobs.append(replace(job, missing=tuple(lost)))
    for number, uri in enumerate(_uris(jobs)):
        (folder / str(number)).write_bytes(client.internal_kv_get(uri.encode(), None, timeout=_CALL_TIMEOUT_S))
    written = {"jobs": [job.to_json() for job in jobs], "skipped": [asdict(job) for job in skipped]}
    (folder / _JOBS).write_text(json.dumps(written))


def _uris(jobs: Sequence[SavedJob]) -> list[str]:
    return sorted({uri for job in jobs for uri in job.packages if uri not in job.missing})


def info_in(text: bytes) -> Any:
    """Return the head's record of a job; None if it cannot be parsed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
