"""Request checks refuse known mistakes before a request is sent, each with its own sentence and type."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tradewind.ray_jobs.errors import BadRequestError, ExposedSecretError
from tradewind.ray_jobs.request import JobRequest, check_request
from tradewind.records.attempts import step_job_id

GOOD = JobRequest(
    "train-llama_1.2-0a1b2c",
    'python -u train.py --lr 3e-4 --config \'{"a": {"b": 1}}\'',
    runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}, "pip": ["scipy==1.14"]},
    metadata={"team": "language"},
    num_cpus=0.5,
    memory_bytes=10**9,
)


def refused(**changes: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        check_request(replace(GOOD, **changes))
    assert isinstance(caught.value, ValueError)
    return caught.value


def test_a_request_without_mistakes_comes_back_as_it_is() -> None:
    assert check_request(GOOD) is GOOD


@pytest.mark.parametrize(
    "bad",
    ["a/b", "a b", "a%20b", "a#b", "a?b", "a{b}", "ä", ".", "..", "-x", "a\nb", "a\n", "x" * 129, "", None],
)
def test_an_id_that_ray_could_not_find_again_is_refused(bad: Any) -> None:
    assert isinstance(refused(submission_id=bad), BadRequestError)


@pytest.mark.parametrize("name", ["tokenize/web (v2) ü", "x" * 500, "-"])
def test_the_ids_that_we_make_are_all_accepted(name: str) -> None:
    check_request(replace(GOOD, submission_id=step_job_id(name, "gs://b/x", "0a1b2c", 12)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (["python", "x.py"], "is a list: give the shell command as one text"),
        (None, "is a NoneType"),
        ("python {{ params.script }}", "still holds a Jinja expression at character 8"),
        ("{% if x %}python{% endif %}", "was not rendered"),
        ("echo \0", "null character"),
    ],
)
def test_an_entrypoint_that_is_no_rendered_command_is_refused(bad: Any, why: str) -> None:
    error = refused(entrypoint=bad)
    assert isinstance(error, BadRequestError)
    pytest.raises(BadRequestError, check_request, replace(GOOD, entrypoint=bad)).match(why)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_cpus": -1.0},
        {"num_cpus": math.nan},
        {"num_gpus": math.inf},
        {"num_gpus": True},
        {"memory_bytes": -1},
        {"memory_bytes": 1.5},
        {"resources": {"licence": -0.5}},
        {"resources": {"licence": "one"}},
    ],
)
def test_an_amount_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    error = refused(**changes)
    assert isinstance(error, BadRequestError)
    assert next(iter(changes)) in str(error)


@pytest.mark.parametrize(("name", "field"), [("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "memory_bytes")])
def test_resource_with_own_field_is_refused_as_custom_resource(name: str, field: str) -> None:
    error = refused(resources={name: 1})
    assert isinstance(error, BadRequestError)
    assert str(error).endswith(f"use {field}.")


@pytest.mark.parametrize("metadata", [{"n": 1}, {1: "n"}, {"n": None}])
def test_metadata_is_text_for_text(metadata: Any) -> None:
    error = refused(metadata=metadata)
    assert isinstance(error, BadRequestError)
    assert "Ray takes only text" in str(error)


@pytest.mark.parametrize(
    ("resources", "selector"),
    [
        ({"TPU": 4}, None),
        ({"TPU": 4}, {"ray.io/accelerator-type": "TPU-V4"}),
        ({"TPU": 4, "TPU-v4-8-head": 0}, {}),
        ({"TPU": 4}, {"ray.io/tpu-pod-type": "!v4-16"}),
        ({"TPU": 4}, {"ray.io/tpu-pod-type": ""}),
        ({"TPU": 4, "my-TPU-head": 1}, {}),
    ],
)
def test_chips_without_their_slice_are_refused(resources: Any, selector: Any) -> None:
    error = refused(resources=resources, label_selector=selector)
    assert isinstance(error, BadRequestError)
    assert "names no slice" in str(error)


@pytest.mark.parametrize(
    ("resources", "selector"),
    [
        ({"TPU": 4, "TPU-v4-8-head": 1}, {}),
        ({"TPU": 4}, {"ray.io/tpu-pod-type": "v4-8"}),
        ({"TPU": 4}, {"ray.io/tpu-slice-name": "in(a, b)"}),
        ({"TPU": 0}, {}),
        ({"licence": 1}, {}),
    ],
)
def test_chips_with_their_slice_pass(resources: Any, selector: Any) -> None:
    check_request(replace(GOOD, resources=resources, label_selector=selector))


SECRET = "hf_" + "aB3dE6gH9" * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime_env": {"env_vars": {"HF_TOKEN": "anything"}}},
        {"runtime_env": {"env_vars": {"HARMLESS": SECRET}}},
        {"runtime_env": {"pip": {"packages": [f"x @ https://user:{SECRET}@host/x.whl"]}}},
        {"runtime_env": {"uv": {"packages": ["x"], "uv_pip_install_options": ["--proxy", "https://u:pw@host/"]}}},
        {"metadata": {"note": f"token {SECRET}"}},
        {"entrypoint": f"python x.py --token {SECRET}"},
        {"entrypoint": "cd /x && HF_TOKEN=anything python x.py"},
        {"entrypoint": "python -m wrapper 'MY_PASSWORD=anything python x.py'"},
    ],
)
def test_secret_refused_with_alternative_and_redacted(changes: dict[str, Any]) -> None:
    error = refused(**changes)
    assert isinstance(error, ExposedSecretError)
    assert "secrets={" in str(error)
    assert SECRET not in str(error) + repr(error) and "anything" not in str(error) and "u:pw" not in str(error)


def test_a_command_may_name_a_variable_that_the_cluster_has() -> None:
    check_request(replace(GOOD, entrypoint='WANDB_API_KEY="$TEAM_KEY" python x.py sort_key=name'))


def test_what_ray_would_misread_in_a_runtime_env_is_refused_too() -> None:
    assert isinstance(refused(runtime_env={"workingdir": "/x"}), BadRequestError)
