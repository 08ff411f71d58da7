"""Responses about jobs with types other than Ray's lead to one error sentence."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tradewind.ray_jobs.details import JobDetails, submitted_jobs
from tradewind.ray_jobs.errors import RayUnreachableError

JOB: Final[dict[str, Any]] = {"submission_id": "j", "status": "RUNNING", "start_time": 5, "metadata": {"a": "b"}}
REFUSAL: Final = "^Cluster 'mad' sent invalid jobs, as Ray never does"
WRONG: Final = [
    *([], "x", 7, True, {}),
    *(JOB | {"status": value} for value in (None, 5, [], {}, "")),
    *(JOB | {"submission_id": value} for value in (5, ["j"], {"j": 1})),
    *(JOB | {name: 5} for name in ("message", "entrypoint", "error_type", "driver_node_id")),
    *(JOB | {"start_time": value} for value in ("5", 1e400, float("nan"), True, 10**30, [])),
    *(JOB | {"end_time": value} for value in ("5", -(10**30), {})),
    *(JOB | {"driver_exit_code": value} for value in ("1", [], True)),
    *(JOB | {"metadata": value} for value in ("x", [1], {"a": 1}, {"a": None})),
]


def test_a_job_of_other_types_is_told_in_a_sentence(subtests: pytest.Subtests) -> None:
    for answer in WRONG:
        with subtests.test(repr(answer)), pytest.raises(RayUnreachableError, match=REFUSAL):
            JobDetails.from_json(answer, "Cluster 'mad'")


def test_a_list_of_jobs_that_is_none_is_told_in_a_sentence(subtests: pytest.Subtests) -> None:
    answers: list[Any] = ["x", 7, {"a": 1}, [None], [7], ["x"], [JOB, JOB | {"status": 5}]]
    for answer in answers:
        with subtests.test(repr(answer)), pytest.raises(RayUnreachableError, match=REFUSAL):
            submitted_jobs(answer, "Cluster 'mad'")
