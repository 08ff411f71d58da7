"""Request checks refuse known mistakes before a request is sent, each with its own sentence and type."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import PurePath
from typing import Any

import pytest

from tradewind.ray_jobs.errors import BadRequestError, ExposedSecretError
from tradewind.ray_jobs.request import JobRequest, check_request, shell_command
from tradewind.records.attempts import step_job_id

GOOD = JobRequest(
    "train-llama_1.2-0a1b2c",
    'python -u train.py --lr 3e-4 --config \'{"a": {"b": 1}}\'',
    runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}, "pip": ["scipy==1.14"]},
    metadata={"team": "language"},
    num_cpus=0.5,
    memory_bytes=10**9,
)
SECRET = "hf_" + "aB3dE6gH9" * 4
BAD_IDS = ["a/b", "a b", "a%20b", "a#b", "a?b", "a{b}", "ä", ".", "..", "-x", "a\nb", "a\n", "x" * 129, "", None]


def refused(**changes: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        check_request(replace(GOOD, **changes))
    assert isinstance(caught.value, ValueError)
    return caught.value


def test_valid_request_is_returned_unchanged() -> None:
    assert check_request(GOOD) is GOOD


@pytest.mark.parametrize(
    "changes",
    [
        *({"submission_id": step_job_id(name, "gs://b/x", "0a1b2c", 12)} for name in ("web (v2) ü", "x" * 500, "-")),
        {"entrypoint": 'WANDB_API_KEY="$TEAM_KEY" python x.py sort_key=name'},  # names a variable of the cluster
        {"resources": {"TPU": 4, "TPU-v4-8-head": 1}, "label_selector": {}},
        {"resources": {"TPU": 4}, "label_selector": {"ray.io/tpu-pod-type": "v4-8"}},
        {"resources": {"TPU": 4}, "label_selector": {"ray.io/tpu-slice-name": "in(a, b)"}},
        {"resources": {"TPU": 0}},
        {"resources": {"licence": 1}},
    ],
)
def test_valid_variant_is_accepted(changes: dict[str, Any]) -> None:
    check_request(replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        *(({"submission_id": bad}, "submission id") for bad in BAD_IDS),
        ({"entrypoint": ""}, "is empty"),
        ({"entrypoint": " \n"}, "is empty"),
        ({"entrypoint": {"python": "x.py"}}, "is a dict: give the shell command as one text"),
        ({"entrypoint": "python {{ params.script }}"}, "still holds a Jinja expression at character 8"),
        ({"entrypoint": "{% if x %}python{% endif %}"}, "was not rendered"),
        ({"entrypoint": "echo \0"}, "holds a NUL"),
        ({"entrypoint": "echo \udce9"}, "is not UTF-8"),
        ({"entrypoint": "x" * (128 << 10)}, "131,072 characters, and no shell takes as many"),
        ({"metadata": {"n": "\udce9"}}, "'n' is not UTF-8"),
        ({"num_cpus": -1.0}, "num_cpus"),
        ({"num_cpus": math.nan}, "num_cpus"),
        ({"num_gpus": math.inf}, "num_gpus"),
        ({"num_gpus": True}, "num_gpus"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": 1.5}, "memory_bytes"),
        ({"resources": {"licence": -0.5}}, "resources"),
        ({"resources": {"licence": "one"}}, "resources"),
        ({"resources": {"CPU": 1}}, "use num_cpus."),
        ({"resources": {"GPU": 1}}, "use num_gpus."),
        ({"resources": {"memory": 1}}, "use memory_bytes."),
        ({"metadata": {"n": 1}}, "Ray takes only text"),
        ({"metadata": {1: "n"}}, "Ray takes only text"),
        ({"metadata": {"n": None}}, "Ray takes only text"),
        ({"resources": {"TPU": 4}}, "names no slice"),
        ({"resources": {"TPU": 4, "TPU-v4-8-head": 0}}, "names no slice"),
        ({"resources": {"TPU": 4, "my-TPU-head": 1}}, "names no slice"),
        ({"resources": {"TPU": 4}, "label_selector": {"ray.io/accelerator-type": "TPU-V4"}}, "names no slice"),
        ({"resources": {"TPU": 4}, "label_selector": {"ray.io/tpu-pod-type": "!v4-16"}}, "names no slice"),
        ({"resources": {"TPU": 4}, "label_selector": {"ray.io/tpu-pod-type": ""}}, "names no slice"),
        ({"runtime_env": {"workingdir": "/x"}}, "runtime_env has no field 'workingdir'"),
    ],
)
def test_invalid_request_is_refused_with_reason(changes: dict[str, Any], why: str) -> None:
    assert why in str(refused(**changes))


def test_list_becomes_a_command_with_quoted_items() -> None:
    items = ["echo", "a b; $HOME", "", 42, 0.5, True, PurePath("/x y"), date(2026, 1, 2)]
    assert shell_command(items) == "echo 'a b; $HOME' '' 42 0.5 True '/x y' 2026-01-02"
    assert shell_command("echo $HOME") == "echo $HOME"


@pytest.mark.parametrize(
    ("entrypoint", "why"),
    [
        (["echo", None], "Item 2 of the entrypoint is None: "),
        (["echo", 1, {"a": SECRET}], "Item 3 of the entrypoint is a dict: "),
        ([b"echo"], "Item 1 of the entrypoint is a bytes: "),
        (["echo", ["a"]], "Item 2 of the entrypoint is a list: "),
        ([" ", "x"], "Item 1 of the entrypoint is empty"),
        ([], "The entrypoint is empty"),
        (None, "The entrypoint is a NoneType"),
        (["echo", "{{ ds }}"], "still holds a Jinja expression"),
        (["env", "HF_TOKEN=it's me", "true"], "sets HF_TOKEN"),
        (["x", "--password", "two words"], "sets --password"),
    ],
)
def test_list_that_is_no_command_is_refused_by_item(entrypoint: Any, why: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        shell_command(entrypoint)
    assert why in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime_env": {"env_vars": {"HF_TOKEN": "anything"}}},
        {"runtime_env": {"env_vars": {"HARMLESS": SECRET}}},
        {"runtime_env": {"pip": {"packages": [f"x @ https://user:{SECRET}@host/x.whl"]}}},
        {"runtime_env": {"env_vars": {"SENTRY": "https://u:anything/x@host"}}},
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
