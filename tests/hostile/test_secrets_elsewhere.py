"""Secrets in connections, requirements, options, configs and arguments are refused or reported masked."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from tests.hostile.harness import expect_refusal, expect_success, named
from tests.hostile.test_secrets_in_requests import HEX, HUGGING_FACE, MIXED, PASSWORD
from tradewind.cloud_tpu.client import make_client, tpu_endpoint
from tradewind.cloud_tpu.errors import BadEndpointError
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE, SecretManagerError, read_secret
from tradewind.deployment.ray_connection import RayHook, cluster_of
from tradewind.ray_jobs.dependencies import environment_of
from tradewind.ray_jobs.errors import BadAddressError, BadRequestError, BadTokenError, ExposedSecretError, RayJobsError
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.serialization.callables import Call, ShippedFunction
from tradewind.serialization.spec import StepSpec
from tradewind.tasks.jobs.exposed_secrets import check_call, check_spec, secrets_in_config, uv_options

SECRETS = [PASSWORD, HUGGING_FACE]
refuse = partial(expect_refusal, secrets=SECRETS)

HOSTS = [
    f"http://me:{PASSWORD}@10.0.0.2:8265", f"me:{PASSWORD}@10.0.0.2:8265", f"http://{HUGGING_FACE}@10.0.0.2:8265",
    f"https://:{PASSWORD}@10.0.0.2", f"http://10.0.0.2:8265/?token={PASSWORD}", f"http://10.0.0.2:8265#{PASSWORD}",
    f"http://10.0.0.2:{PASSWORD}", f"10.0.0.2:{PASSWORD}", f"ray://{PASSWORD}:10001", f"{PASSWORD}://10.0.0.2:8265",
    f"http://[{PASSWORD}", f"http://me:{PASSWORD}%40x@10.0.0.2", f"http:///{PASSWORD}", f"http://me\\:{PASSWORD}@h:1",
]  # fmt: skip


def connected(**fields: Any) -> None:
    cluster_of(Connection(conn_id="mine", conn_type="ray", **fields))


def test_host_with_more_than_an_address_is_refused(sandbox: Path) -> None:
    cases = named(HOSTS, lambda host: connected(host=host))
    refuse(cases, sandbox, BadAddressError, mentions=["mine"])


def test_connection_of_another_type_never_sends_its_password(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["http", "postgres", "google_cloud_platform", "ssh", "generic", "aws", "Ray", "kubernetes"]
    for kind in kinds:
        fields = {"conn_type": kind, "host": "http://10.0.0.2:8265", "password": PASSWORD}
        monkeypatch.setenv(f"AIRFLOW_CONN_MINE_{kind.upper()}", json.dumps(fields))
    hooks = [RayHook(f"mine_{kind.lower()}") for kind in kinds]
    cases = named(hooks, RayHook.cluster, RayHook.bucket, RayHook.slice_types, RayHook.get_conn)
    refuse(cases, sandbox, BadAddressError, mentions=["mine", "'ray'"])


TOKENS: list[dict[str, Any]] = [
    {"token_file": PASSWORD}, {"token_file": f"/{HUGGING_FACE}"}, {"token_file": f"/no/such/{PASSWORD}"},
    {"token_file": f"/tmp\0{PASSWORD}"}, {"token_secret": PASSWORD}, {"token_secret": f"projects/p/{PASSWORD}"},
    {"token_secret": f"projects/p/secrets/s/versions/{PASSWORD}/x"}, {"token_secret": f"env:{HUGGING_FACE}"},
    {"token_file": PASSWORD, "token_secret": PASSWORD},
]  # fmt: skip


def test_token_in_wrong_field_is_not_shown(sandbox: Path) -> None:
    cases = named(TOKENS, lambda extra: connected(host="10.0.0.2", extra=json.dumps(extra)))
    refuse(cases, sandbox, BadTokenError, mentions=["mine"])


def test_token_that_no_header_can_carry_is_not_shown(sandbox: Path) -> None:
    tokens = [f"{PASSWORD} x", f"{PASSWORD}\n", f"\x1b[31m{PASSWORD}", f"{PASSWORD}é"]
    cases = named(tokens, lambda token: connected(host="10.0.0.2", password=token))
    refuse(cases, sandbox, RayJobsError, mentions=["mine"])


REQUIREMENTS = [
    f"--index-url=https://me:{PASSWORD}@host.example/simple", f"https://me:{PASSWORD}@host.example/x.whl",
    f"git+https://{HUGGING_FACE}@host.example/x", f"x @@ https://me:{PASSWORD}@host.example", f"x=={PASSWORD} y",
    f"x[{PASSWORD}", f"{PASSWORD}", f"{HUGGING_FACE}", f"x;python_version<'{PASSWORD}", f"-r {PASSWORD}",
    f"x @ {PASSWORD} ; oops", f"token={PASSWORD}", f"x >= {HUGGING_FACE} <",
]  # fmt: skip


def environment_in(groups: str, entries: Any) -> None:
    project = Path("pyproject.toml")
    project.write_text(f'[project]\nname = "mine"\n[dependency-groups]\nspeak = [{groups}]\n')
    environment_of(entries, project.absolute().parent)


def test_invalid_requirement_is_refused_without_being_shown(sandbox: Path) -> None:
    in_call = lambda entry: environment_in('"voice"', [entry])  # noqa: E731
    refuse(named(REQUIREMENTS, in_call, partial(environment_in, '"voice"')), sandbox, BadRequestError)
    # In a project's own file, a word is a package without a version.
    in_file = [entry for entry in REQUIREMENTS if entry not in SECRETS]
    cases = named(in_file, lambda entry: environment_in(json.dumps(entry), ["speak"]))
    refuse(cases, sandbox, BadRequestError)


FOLDERS = [
    f"ftp://me:{PASSWORD}@host.example/x.zip", f"https://me:{PASSWORD}@host.example/folder", f"{PASSWORD}://x",
    f"s3://{PASSWORD}/folder", f"gs://bucket/folder?token={PASSWORD}",
]  # fmt: skip


def test_unsendable_folder_is_refused_without_being_shown(sandbox: Path) -> None:
    cases = named(
        FOLDERS,
        lambda uri: prepare_runtime_env({"working_dir": uri}),
        lambda uri: prepare_runtime_env({"py_modules": [uri]}),
    )
    refuse(cases, sandbox, BadRequestError)


UV_OPTIONS = [
    f"--index-url https://me:{PASSWORD}@host.example/simple", f"--extra-index-url=https://{HUGGING_FACE}@host.example",
    f"--default-index 'https://__token__:{PASSWORD}@host.example/simple'", f"--token {PASSWORD}",
    f"--index-url https://host.example/simple?api_key={PASSWORD}", f"--find-links 'https://me:{PASSWORD}@host.example",
    f"--keyring-provider subprocess --password={PASSWORD}",
]  # fmt: skip


def test_options_of_uv_with_password_are_refused(sandbox: Path) -> None:
    refuse(named(UV_OPTIONS, uv_options), sandbox, BadRequestError, mentions=["uv_options"])


def test_ordinary_options_of_uv_are_accepted(sandbox: Path) -> None:
    ordinary = ["--no-index --find-links /wheels", "--index-url https://host.example/simple", "--keyring-provider off"]
    expect_success(named(["", *ordinary], uv_options), sandbox)


def spec(**fields: Any) -> StepSpec:
    return StepSpec(
        "s", "s-1", "/p/s-1", "m:f", **{"ray_task": None, "config": {}, "resources": {}} | fields, code_travels=False
    )


ENVIRONMENTS: list[dict[str, Any]] = [
    {"environment": {"uv": {"packages": [f"x @ https://me:{PASSWORD}@host.example/x.whl"]}}},
    {"environment": {"uv": {"uv_pip_install_options": [f"--index-url=https://me:{PASSWORD}@host.example"]}}},
    {"ray_task": {"runtime_env": {"env_vars": {"HF_TOKEN": PASSWORD}}}},
    {"ray_task": {"runtime_env": {"env_vars": {"HARMLESS": HUGGING_FACE}}}},
    {"ray_task": {"runtime_env": {"pip": [f"x @ https://me:{PASSWORD}@host.example/x.whl"]}}},
]


def test_step_exposing_secret_in_job_is_refused_before_claim(sandbox: Path) -> None:
    cases = named(ENVIRONMENTS, lambda fields: check_spec(spec(**fields)))
    refuse(cases, sandbox, ExposedSecretError)


CONFIGS: list[tuple[Any, str]] = [
    ({"hub": {"token": HUGGING_FACE}}, "config.hub.token"),
    ({"hub": [{"x": 1}, {"note": f"see {HUGGING_FACE}"}]}, "config.hub.[1].note"),
    ({"db_password": PASSWORD}, "config.db_password"),
    ({"apiKey": PASSWORD}, "config.apiKey"),
    ({"$dataclass": "m:C", "fields": {"client_secret": PASSWORD}}, "config.client_secret"),
    ({"x": {"$lazy": "m:C", "fields": {"url": f"https://me:{PASSWORD}@host.example"}}}, "config.x.url"),
    ({"x": {"$tuple": [HUGGING_FACE]}}, "config.x.[0]"),
    ({"x": {"$namedtuple": "m:C", "items": [1, HUGGING_FACE]}}, "config.x.[1]"),
    ({"x": {"$dict": [[1, HUGGING_FACE]]}}, "config.x.[0]"),
    ({"x": {"$dict": [["$access_token", PASSWORD]]}}, "config.x.[0]"),
    ({"passwords": {"$set": [PASSWORD]}}, "config.passwords.[0]"),
    ({"headers": {"Authorization": "Bearer " + MIXED[:30]}}, "config.headers.Authorization"),
    ({"wandb": {"api_key": HEX[:40]}}, "config.wandb.api_key"),
    ({"x": {"$path": f"https://me:{PASSWORD}@host.example"}}, "config.x"),
]


def test_secret_in_config_is_reported_by_its_path(caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests) -> None:
    for config, path in CONFIGS:
        with subtests.test(path), caplog.at_level(logging.WARNING):
            caplog.clear()
            check_spec(spec(config=config))
            (record,) = caplog.records
            message = record.getMessage()
            assert f"Step 's': {path} looks like a secret" in message and "secrets={NAME:" in message
            assert not [one for one in (*SECRETS, MIXED[:30], HEX[:40]) if one in message]


def test_config_that_only_resembles_secrets_is_accepted() -> None:
    configs = [
        {"eos_token": "<|endoftext|>"}, {"tokenizer": "meta-llama/Llama-2-7b"}, {"key": "text-of-document"},
        {"revision": HEX[:40]}, {"checksum": HEX}, {"max_tokens": 5}, {"token": "</s>"}, {"path": f"gs://b/x-{HEX[:6]}"},
        {"token": "env:CLUSTER_TOKEN"}, {"api_key": "projects/p/secrets/s/versions/3"}, {"password": ""},
        {"prompt": "What is the password of the day?"}, {"token_file": "/run/token"}, {"use_auth_token": True},
        {"token": "[SEPARATOR]"}, {"passwords": "lists/passwords.txt"}, {"api_key_env": "OPENAI_API_KEY"},
        {"auth_token": "${HF_TOKEN}"}, {"private_key": "keys/x.pem"}, {"password_dataset": "rockyou-lines"},
        {"trigger_token": "abracadabra"}, {"class_token": "cls_token_x"}, {"api_key": "********"},
        {"secret": "a sentence about secrets"}, {"vocabulary": ["token", "secret", "password"]},
    ]  # fmt: skip
    assert [config for config in configs if list(secrets_in_config(config))] == []


ARGUMENTS: list[Any] = [
    {"password": PASSWORD}, {"options": {"dbPassword": PASSWORD}}, {"note": HUGGING_FACE},
    {"url": f"http://u:{PASSWORD}@h"},
    {"rows": ["x" * 100] * 100 + [HUGGING_FACE]}, {"text": "x" * 20_000 + " " + HUGGING_FACE},
    {"headers": {"Authorization": "Bearer " + MIXED[:30]}},
    {"config": {"$dataclass": "m:C", "fields": {"token": PASSWORD}}},
]  # fmt: skip


def check_arguments(args: list[Any], kwargs: dict[str, Any]) -> None:
    check_call(Call(ShippedFunction("m:f", None, None, travels=False), args, kwargs, "::marker::", travels=False))


@pytest.mark.parametrize("size", [0, 20_000])
def test_argument_with_secret_is_refused_at_any_call_size(size: int, sandbox: Path) -> None:
    ballast = {"ballast": "x" * size}
    cases = named(
        ARGUMENTS,
        lambda given: check_arguments([], given | ballast),
        lambda given: check_arguments([given], ballast),
    )
    expect_refusal(cases, sandbox, ExposedSecretError, secrets=[*SECRETS, MIXED[:30]], mentions=["argument"])


def test_ordinary_arguments_are_accepted() -> None:
    check_arguments([HEX, "gs://bucket/x"], {"eos_token": "</s>", "token": "env:TOKEN"})


ENDPOINTS = [
    f"https://me:{PASSWORD}@tpu.example", f"https://{HUGGING_FACE}@tpu.example", f"http://{PASSWORD}@127.0.0.1:1",
    f"http://me:{PASSWORD}@127.0.0.1:1", f"https://tpu.example?key={PASSWORD}", f"https://tpu.example#{PASSWORD}",
    f"https://tpu.example/{PASSWORD}", f"{PASSWORD}://tpu.example", PASSWORD, f"https://[{PASSWORD}",
    f"https://tpu.example:{PASSWORD}", f"http://127.0.0.1:{PASSWORD}", f"https://tpu.example:99999/{PASSWORD}",
    f"http://localhost\\@{PASSWORD}", f"https://tpu.example {PASSWORD}", f"http://127.0.0.1:1@{PASSWORD}.example",
]  # fmt: skip


def test_endpoint_beyond_plain_address_is_refused_and_not_shown(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = named(ENDPOINTS, tpu_endpoint, lambda endpoint: make_client(None, endpoint, None, 1))
    refuse(clients, sandbox, BadEndpointError)

    def read(endpoint: str) -> None:
        monkeypatch.setenv(ENDPOINT_VARIABLE, endpoint)
        read_secret("projects/p/secrets/s/versions/1")

    refuse(named(ENDPOINTS, read), sandbox, SecretManagerError, mentions=["https://HOST"])


def test_endpoint_that_is_an_address_is_accepted(sandbox: Path) -> None:
    tpu, local = ["https://tpu.googleapis.com", "https://tpu.example:8443/"], ["127.0.0.1", "[::1]", "localhost"]
    expect_success(named([*tpu, *(f"http://{host}:1" for host in local)], tpu_endpoint), sandbox)
