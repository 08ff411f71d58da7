"""Secrets in connections, requirements, options, configs and arguments: refused or told of, and never shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from tests.hostile.harness import attack
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

HOSTS = [
    f"http://me:{PASSWORD}@10.0.0.2:8265", f"me:{PASSWORD}@10.0.0.2:8265", f"http://{HUGGING_FACE}@10.0.0.2:8265",
    f"https://:{PASSWORD}@10.0.0.2", f"http://10.0.0.2:8265/?token={PASSWORD}", f"http://10.0.0.2:8265#{PASSWORD}",
    f"http://10.0.0.2:{PASSWORD}", f"10.0.0.2:{PASSWORD}", f"ray://{PASSWORD}:10001", f"{PASSWORD}://10.0.0.2:8265",
    f"http://[{PASSWORD}", f"http://me:{PASSWORD}%40x@10.0.0.2", f"http:///{PASSWORD}", f"http://me\\:{PASSWORD}@h:1",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_with_more_than_an_address_is_refused(host: str, sandbox: Path) -> None:
    connection = Connection(conn_id="mine", conn_type="ray", host=host)
    attack(lambda: cluster_of(connection), sandbox).must_be_refused(BadAddressError, secrets=SECRETS, mentions=["mine"])


@pytest.mark.parametrize(
    "kind", ["http", "postgres", "google_cloud_platform", "ssh", "generic", "aws", "Ray", "kubernetes"]
)
def test_a_connection_of_another_type_sends_its_password_nowhere(
    kind: str, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"conn_type": kind, "host": "http://10.0.0.2:8265", "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(fields))
    for ask in (RayHook("mine").cluster, RayHook("mine").bucket, RayHook("mine").slice_types, RayHook("mine").get_conn):
        attack(ask, sandbox).must_be_refused(BadAddressError, secrets=SECRETS, mentions=["mine", "'ray'"])


TOKENS: list[dict[str, Any]] = [
    {"token_file": PASSWORD}, {"token_file": f"/{HUGGING_FACE}"}, {"token_file": f"/no/such/{PASSWORD}"},
    {"token_file": f"/tmp\0{PASSWORD}"}, {"token_secret": PASSWORD}, {"token_secret": f"projects/p/{PASSWORD}"},
    {"token_secret": f"projects/p/secrets/s/versions/{PASSWORD}/x"}, {"token_secret": f"env:{HUGGING_FACE}"},
    {"token_file": PASSWORD, "token_secret": PASSWORD},
]  # fmt: skip


@pytest.mark.parametrize("extra", TOKENS, ids=range(len(TOKENS)))
def test_a_token_in_the_wrong_field_is_not_shown(extra: dict[str, Any], sandbox: Path) -> None:
    connection = Connection(conn_id="mine", conn_type="ray", host="10.0.0.2", extra=json.dumps(extra))
    attack(lambda: cluster_of(connection), sandbox).must_be_refused(BadTokenError, secrets=SECRETS, mentions=["mine"])


@pytest.mark.parametrize("token", [f"{PASSWORD} x", f"{PASSWORD}\n", f"\x1b[31m{PASSWORD}", f"{PASSWORD}é"])
def test_a_token_that_no_header_can_carry_is_not_shown(token: str, sandbox: Path) -> None:
    connection = Connection(conn_id="mine", conn_type="ray", host="10.0.0.2", password=token)
    attack(lambda: cluster_of(connection), sandbox).must_be_refused(RayJobsError, secrets=SECRETS, mentions=["mine"])


REQUIREMENTS = [
    f"--index-url=https://me:{PASSWORD}@host.example/simple", f"https://me:{PASSWORD}@host.example/x.whl",
    f"git+https://{HUGGING_FACE}@host.example/x", f"x @@ https://me:{PASSWORD}@host.example", f"x=={PASSWORD} y",
    f"x[{PASSWORD}", f"{PASSWORD}", f"{HUGGING_FACE}", f"x;python_version<'{PASSWORD}", f"-r {PASSWORD}",
    f"x @ {PASSWORD} ; oops", f"token={PASSWORD}", f"x >= {HUGGING_FACE} <",
]  # fmt: skip


@pytest.mark.parametrize("entry", REQUIREMENTS)
def test_a_requirement_that_is_none_is_refused_without_being_shown(entry: str, sandbox: Path) -> None:
    project = sandbox / "own" / "pyproject.toml"
    project.write_text('[project]\nname = "mine"\n[dependency-groups]\nspeak = ["voice"]\n')
    attack(lambda: environment_of([entry], project.parent), sandbox).must_be_refused(BadRequestError, secrets=SECRETS)
    attack(lambda: environment_of(entry, project.parent), sandbox).must_be_refused(BadRequestError, secrets=SECRETS)
    if entry in SECRETS:
        return  # in a project's own file, it is a package without a version
    project.write_text(f"[project]\nname = 'mine'\n[dependency-groups]\nspeak = [{json.dumps(entry)}]\n")
    attack(lambda: environment_of(["speak"], project.parent), sandbox).must_be_refused(BadRequestError, secrets=SECRETS)


FOLDERS = [
    f"ftp://me:{PASSWORD}@host.example/x.zip", f"https://me:{PASSWORD}@host.example/folder", f"{PASSWORD}://x",
    f"s3://{PASSWORD}/folder", f"gs://bucket/folder?token={PASSWORD}",
]  # fmt: skip


@pytest.mark.parametrize("uri", FOLDERS)
def test_a_folder_that_cannot_travel_is_refused_without_being_shown(uri: str, sandbox: Path) -> None:
    for runtime_env in ({"working_dir": uri}, {"py_modules": [uri]}):
        attack(lambda given=runtime_env: prepare_runtime_env(given), sandbox).must_be_refused(
            BadRequestError, secrets=SECRETS
        )


UV_OPTIONS = [
    f"--index-url https://me:{PASSWORD}@host.example/simple", f"--extra-index-url=https://{HUGGING_FACE}@host.example",
    f"--default-index 'https://__token__:{PASSWORD}@host.example/simple'", f"--token {PASSWORD}",
    f"--index-url https://host.example/simple?api_key={PASSWORD}", f"--find-links 'https://me:{PASSWORD}@host.example",
    f"--keyring-provider subprocess --password={PASSWORD}",
]  # fmt: skip


@pytest.mark.parametrize("options", UV_OPTIONS)
def test_options_of_uv_with_a_password_are_refused(options: str, sandbox: Path) -> None:
    attack(lambda: uv_options(options), sandbox).must_be_refused(
        BadRequestError, secrets=SECRETS, mentions=["uv_options"]
    )


@pytest.mark.parametrize(
    "options",
    ["", "--no-index --find-links /wheels", "--index-url https://host.example/simple", "--keyring-provider off"],
)
def test_ordinary_options_of_uv_are_taken(options: str, sandbox: Path) -> None:
    attack(lambda: uv_options(options), sandbox).must_be_accepted()


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


@pytest.mark.parametrize("fields", ENVIRONMENTS, ids=range(len(ENVIRONMENTS)))
def test_a_step_whose_job_would_show_a_secret_is_refused_before_it_is_claimed(
    fields: dict[str, Any], sandbox: Path
) -> None:
    attack(lambda: check_spec(spec(**fields)), sandbox).must_be_refused(ExposedSecretError, secrets=SECRETS)


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


@pytest.mark.parametrize(("config", "path"), CONFIGS, ids=[path for _, path in CONFIGS])
def test_a_config_that_holds_a_secret_is_told_of_by_its_path(
    config: Any, path: str, sandbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attack(lambda: check_spec(spec(config=config)), sandbox).must_be_harmless(secrets=[])
    with caplog.at_level(logging.WARNING):
        check_spec(spec(config=config))
    (record,) = caplog.records
    assert f"Step 's': {path} looks like a secret" in record.getMessage() and "secrets={NAME:" in record.getMessage()
    assert not [one for one in (*SECRETS, MIXED[:30], HEX[:40]) if one in record.getMessage()]


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "<|endoftext|>"}, {"tokenizer": "meta-llama/Llama-2-7b"}, {"key": "text-of-document"},
        {"revision": HEX[:40]}, {"checksum": HEX}, {"max_tokens": 5}, {"token": "</s>"}, {"path": f"gs://b/x-{HEX[:6]}"},
        {"token": "env:CLUSTER_TOKEN"}, {"api_key": "projects/p/secrets/s/versions/3"}, {"password": ""},
        {"prompt": "What is the password of the day?"}, {"token_file": "/run/token"}, {"use_auth_token": True},
        {"token": "[SEPARATOR]"}, {"passwords": "lists/passwords.txt"}, {"api_key_env": "OPENAI_API_KEY"},
        {"auth_token": "${HF_TOKEN}"}, {"private_key": "keys/x.pem"}, {"password_dataset": "rockyou-lines"},
        {"trigger_token": "abracadabra"}, {"class_token": "cls_token_x"}, {"api_key": "********"},
        {"secret": "a sentence about secrets"}, {"vocabulary": ["token", "secret", "password"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_config_that_only_sounds_like_it_is_not_told_of(config: Any) -> None:
    assert list(secrets_in_config(config)) == []


ARGUMENTS: list[Any] = [
    {"password": PASSWORD}, {"options": {"dbPassword": PASSWORD}}, {"note": HUGGING_FACE},
    {"url": f"http://u:{PASSWORD}@h"},
    {"rows": ["x" * 100] * 100 + [HUGGING_FACE]}, {"text": "x" * 20_000 + " " + HUGGING_FACE},
    {"headers": {"Authorization": "Bearer " + MIXED[:30]}},
    {"config": {"$dataclass": "m:C", "fields": {"token": PASSWORD}}},
]  # fmt: skip


@pytest.mark.parametrize("size", [0, 20_000])
@pytest.mark.parametrize("kwargs", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_an_argument_with_a_secret_is_refused_whatever_the_size_of_the_call(
    kwargs: dict[str, Any], size: int, sandbox: Path
) -> None:
    function = ShippedFunction("m:f", None, None, travels=False)
    for args, named in (([], kwargs), ([kwargs], {})):
        call = Call(function, args, {**named, "ballast": "x" * size}, "::marker::", travels=False)
        attack(lambda call=call: check_call(call), sandbox).must_be_refused(
            ExposedSecretError, secrets=[*SECRETS, MIXED[:30]], mentions=["argument"]
        )


def test_an_ordinary_call_is_taken(sandbox: Path) -> None:
    function = ShippedFunction("m:f", None, None, travels=False)
    call = Call(
        function, [HEX, "gs://bucket/x"], {"eos_token": "</s>", "token": "env:TOKEN"}, "::marker::", travels=False
    )
    attack(lambda: check_call(call), sandbox).must_be_accepted()


ENDPOINTS = [
    f"https://me:{PASSWORD}@tpu.example", f"https://{HUGGING_FACE}@tpu.example", f"http://{PASSWORD}@127.0.0.1:1",
    f"http://me:{PASSWORD}@127.0.0.1:1", f"https://tpu.example?key={PASSWORD}", f"https://tpu.example#{PASSWORD}",
    f"https://tpu.example/{PASSWORD}", f"{PASSWORD}://tpu.example", PASSWORD, f"https://[{PASSWORD}",
    f"https://tpu.example:{PASSWORD}", f"http://127.0.0.1:{PASSWORD}", f"https://tpu.example:99999/{PASSWORD}",
    f"http://localhost\\@{PASSWORD}", f"https://tpu.example {PASSWORD}", f"http://127.0.0.1:1@{PASSWORD}.example",
]  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_with_more_than_an_address_is_refused_without_being_shown(
    endpoint: str, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack(lambda: tpu_endpoint(endpoint), sandbox).must_be_refused(BadEndpointError, secrets=SECRETS)
    attack(lambda: make_client(None, endpoint, None, 1), sandbox).must_be_refused(BadEndpointError, secrets=SECRETS)
    monkeypatch.setenv(ENDPOINT_VARIABLE, endpoint)
    attack(lambda: read_secret("projects/p/secrets/s/versions/1"), sandbox).must_be_refused(
        SecretManagerError, secrets=SECRETS, mentions=["https://HOST"]
    )


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://tpu.googleapis.com",
        "https://tpu.example:8443/",
        "http://127.0.0.1:1",
        "http://[::1]:1",
        "http://localhost:1",
    ],
)
def test_an_endpoint_that_is_an_address_is_taken(endpoint: str, sandbox: Path) -> None:
    attack(lambda: tpu_endpoint(endpoint), sandbox).must_be_accepted()
