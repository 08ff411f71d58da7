"""Tradewind refuses secrets in what it would send, or reports them masked, and never shows them."""

from __future__ import annotations

import json
import logging
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from tests.hostile.harness import Outcome, attack_all, expect_refusal, expect_success, named
from tradewind.cloud_tpu.client import make_client, tpu_endpoint
from tradewind.cloud_tpu.errors import BadEndpointError
from tradewind.cloud_tpu.secret_manager import ENDPOINT_VARIABLE, SecretManagerError, read_secret
from tradewind.deployment.ray_connection import RayHook, cluster_of
from tradewind.ray_jobs.dependencies import environment_of
from tradewind.ray_jobs.errors import BadAddressError, BadRequestError, BadTokenError, ExposedSecretError, RayJobsError
from tradewind.ray_jobs.request import JobRequest, check_entrypoint, check_env_vars, check_request, shell_command
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.serialization.callables import Call, ShippedFunction
from tradewind.serialization.source_slices import FunctionSource
from tradewind.serialization.spec import StepSpec
from tradewind.tasks.jobs.exposed_secrets import check_call, check_spec, secrets_in_config, uv_options

PASSWORD = "hunter2hunter2"
MIXED = "a1B2c3" * 10
HEX = "0123456789abcdef" * 4
HUGGING_FACE = "hf_" + MIXED[:36]
WEB_TOKEN = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0In0" + ".c2lnbmF0dXJl"

TRAIN_OPTIONS = [
    f"+trainer.wandb.api_key={PASSWORD}", f"++secret={PASSWORD}",
    f"--dsn 'host=db.example user=me password={PASSWORD}'",
    f"--dsn 'Server=db.example;User Id=me;Password={PASSWORD};'", f"--password={PASSWORD}", f"--password {PASSWORD}",
    f"--db-password '{PASSWORD}'", f'--api-key="{PASSWORD}"', f"--apiKey {PASSWORD}", f"--hf_token={PASSWORD}",
    f"--token {PASSWORD}", f"-password {PASSWORD}", f"--client-secret={PASSWORD}", f"--secret-access-key={PASSWORD}",
    f"--passphrase {PASSWORD}", f"password={PASSWORD}", f"db.password={PASSWORD}", f"token={PASSWORD}",
    f'\'{{"password": "{PASSWORD}"}}\'', f"\"{{'api_key': '{PASSWORD}'}}\"",
    f'--config \'{{\\"secret_key\\": \\"{PASSWORD}\\"}}\'',
]  # fmt: skip
ASSIGNMENTS = "password", "HF_TOKEN", "env MYAPIKEY", "DB_PWD", "DB_PASS", "PGPASSWORD", "DB_PASSWORD_2", "githubToken"
CURL_OPTIONS = [
    f"-H 'Authorization: {PASSWORD}'", f"-H 'Cookie: {PASSWORD}'", f"-H 'X: Basic {MIXED[:24]}=='", f"-u me:{PASSWORD}",
    f"-ume:{PASSWORD}", f"--user me:{PASSWORD}", f"--user=me:{PASSWORD}", f"-sS -X POST -u 'me:{PASSWORD}'",
    f"--proxy-user me:{PASSWORD}", f"-H 'Authorization: Bearer {PASSWORD}'", f'-H "authorization: bearer {PASSWORD}"',
    f"-H 'Authorization: Basic {PASSWORD}'", f"-H 'X-Api-Key: {PASSWORD}'", f"-H 'PRIVATE-TOKEN: {PASSWORD}'",
]  # fmt: skip
COMMANDS = [
    *(f"python train.py {option}" for option in TRAIN_OPTIONS),
    *(f"{name}={PASSWORD} python train.py" for name in ASSIGNMENTS),
    *(f"curl {option} https://host.example/x" for option in CURL_OPTIONS),
    f"python -c \"import os; os.environ['HF_TOKEN']='{PASSWORD}'\"",
    f'python -c \'import os; os.environ["HF_TOKEN"] = "{PASSWORD}"\'',
    f"python -c \"PASSWORD = '{PASSWORD}'\"",
    f"export my_token={PASSWORD}; python train.py",
    f"(cd x && AWS_SECRET_ACCESS_KEY={PASSWORD} python train.py)",
    f"mysql -u root -p{PASSWORD} db",
    f"mysqldump -p{PASSWORD} db",
    "mysql -pMyPassword1 db",
    "imaginary -pMyPassword1 db",
    f"docker run --env=HF_TOKEN={PASSWORD} x",
    f"mongosh -u me -p {PASSWORD}",
    f"az login --service-principal -u me -p {PASSWORD}",
    f"twine upload -u __token__ -p {PASSWORD} dist/x.whl",
    f"unzip -P {PASSWORD} x.zip",
    f"http -a me:{PASSWORD} host.example",
    f"sshpass -p {PASSWORD} ssh host.example",
    f"docker login -u me -p {PASSWORD} host.example",
    f"redis-cli -a {PASSWORD} ping",
    f"wandb login {HEX[:40]}",
    f"wandb login --relogin {HEX[:40]}",
    f"aws configure set aws_secret_access_key {PASSWORD}",
    f"wget --user=me --password={PASSWORD} https://host.example/x",
    f"echo '//registry.example/:_authToken={PASSWORD}' > .npmrc",
    f"echo 'machine host.example login me password {PASSWORD}' > ~/.netrc",
    f"python fetch.py Bearer {PASSWORD}",
    f"curl https://me:{PASSWORD}@host.example/x",
    f"git clone https://{HUGGING_FACE}@host.example/x",
    f"git clone https://x-access-token:{PASSWORD}@host.example/x",
    f"pip install --index-url https://__token__:{PASSWORD}@host.example/simple x",
    f"curl 'https://host.example/x?token={PASSWORD}'",
    f"curl 'https://host.example/x?a=1&api_key={PASSWORD}'",
    f"echo {HUGGING_FACE} > ~/.cache/token",
    f"echo {WEB_TOKEN}",
    "printf -- '-----BEGIN OPENSSH PRIVATE " + "KEY-----\\n'",
    "printf -- '-----BEGIN PGP PRIVATE " + "KEY BLOCK-----\\n'",
    "curl -X POST https://hooks.slack.com/" + "services/T00000000/B00000000/" + MIXED[:24],
    "curl 'https://bucket.s3.amazonaws.com/x?X-Amz-" + f"Signature={HEX}'",
]
HARMLESS_TRAIN_OPTIONS = [
    "--password-file x", "--password-file /run/secrets/db", "--api-key-env OPENAI --secret-env FOO --password-var DB",
    "--private-key ./id.pem", "--private-key ~/.ssh/id_ed25519", "--gcp-credentials key.json --passwords=pw.txt",
    "--pass 2 --eval-pass 3 --first-token 5",
    "--language-token en --prompt-token USER --special-token '<|im_end|>'",
    "--lr 3e-4 --run-id 123e4567-e89b-12d3-a456-426614174000",
    "--dataset allenai/c4 --model meta-llama/Llama-3.1-8B", "--password=$DB_PASSWORD", '--password "$DB_PASSWORD"',
    "--password ${DB_PASSWORD}", "--token-path ~/.token", "--max-tokens 4096 --tokenizer gpt2",
    "--eos-token '</s>' --pad_token=0", "--token-budget 4096", "data.key=text model.tokenizer=gpt2",
    "sort_key=date partition_key=day", "--key text --keys a b", "--use-auth-token --resume", "--password --resume",
    "--forward-pass 3 --passes=4", f"--run train-lm-{HEX[:6]} --checksum sha256:{HEX}",
    "--secret-name wandb --secret_ref projects/p/secrets/s", "monkey=x compat=1 author=someone bypass=no",
]  # fmt: skip
HARMLESS_COMMANDS = [
    *(f"python train.py {option}" for option in HARMLESS_TRAIN_OPTIONS),
    "echo 'Bearer of news' && echo bearer token missing",
    "echo Basic understanding of things",
    "curl -H \"Authorization: Bearer $TOKEN\" -H 'Cookie: $COOKIE' https://host.example/x",
    "curl -H 'Authorization: ${AUTH}' https://host.example/x",
    "curl -u $USER:$PASSWORD https://host.example/x",
    'curl -u "me:$PASSWORD" https://host.example/x',
    "curl -U --user-agent x https://host.example:8080/x",
    "curl https://host.example:8080/path@2x.png",
    "docker run -p 8080:80 -u 1000:1000 registry.example/x",
    f"docker pull docker://registry.example/x:tag@sha256:{HEX}",
    "mysql -p$PASSWORD db && mysql -p db",
    f"git checkout {HEX[:40]}",
    "git clone git@github.com:org/repo && git clone ssh://git@host.example/repo",
    "TOKENIZERS_PARALLELISM=false python train.py",
    "PWD=/tmp OLDPWD=/ python train.py",
    "HF_TOKEN=$CLUSTER_TOKEN python train.py",
    "HF_TOKEN_PATH=/run/token python train.py",
    f"python eval.py gs://bucket/checkpoints/llama-{HEX[:6]}/step-1000",
    "python serve.py --auth none --auth-mode token",
    "wandb login --relogin",
    "python -c 'import secrets; print(secrets.token_hex(4))'",
    "grep -i password README.md",
]


def check_list(command: str) -> None:
    shell_command(shlex.split(command))


def test_command_with_secret_is_refused(sandbox: Path) -> None:
    secrets = [PASSWORD, HUGGING_FACE, WEB_TOKEN, HEX[:40], MIXED[:24], "MyPassword1", "MYPASSWORD1"]
    cases = named(COMMANDS, check_entrypoint, check_list)
    expect_refusal(cases, sandbox, ExposedSecretError, secrets=secrets)


def test_command_that_only_resembles_secret_is_accepted(sandbox: Path) -> None:
    expect_success(named(HARMLESS_COMMANDS, check_entrypoint, check_list), sandbox)


SECRET_NAMES = [
    "DB_PWD", "DBPASS", "PGPASS", "MASTERKEY", "DB_PASS", "PASS", "MYAPIKEY", "my_api_key", "apiKey", "dbPassword",
    "GITHUBTOKEN", "ACCESS_TOKEN", "TOKEN_2", "API_KEY_PROD", "SSH_PASSPHRASE", "GCP_CREDENTIALS", "SESSION_COOKIE",
    "MY_CREDS", "db.password", "x-api-key",
]  # fmt: skip
SECRET_VALUES = [
    f"host=h user=u password={PASSWORD}", f"Server=h;User Id=u;Password={PASSWORD};", f"redis://:{PASSWORD}@db.example",
    f"postgresql://me:{PASSWORD}@db.example/x", f"Authorization: Bearer {PASSWORD}", f'{{"password": "{PASSWORD}"}}',
    HUGGING_FACE, WEB_TOKEN, "ghp_" + MIXED[:36], "github_pat_" + MIXED[:30], "glpat-" + MIXED[:20],
    "glrt-" + MIXED[:20], "AKIA" + "A2B3" * 4, "ASIA" + "A2B3" * 4, "AIza" + MIXED[:35], "ya29." + MIXED[:40],
    "GOCSPX-" + MIXED[:28], "xoxb-" + "123456-" * 4, "xapp-" + "1-" + MIXED[:30], "sk-proj-" + MIXED[:48],
    "gsk_" + MIXED[:50], "r8_" + MIXED[:37], "sk_live_" + MIXED[:24], "npm_" + MIXED[:36], "pypi-AgE" + MIXED,
    "dckr_pat_" + MIXED[:27], "dapi" + HEX[:32], "dop_v1_" + HEX, "hvs." + MIXED[:30], "shpat_" + HEX[:32],
    "tskey-auth-" + MIXED[:20], "SG." + MIXED[:22] + "." + MIXED[:43], "wandb_v1_" + MIXED[:40],
    "AccountKey=" + MIXED + MIXED[:26] + "==", "-----BEGIN RSA PRIVATE " + "KEY-----\nMII",
]  # fmt: skip
VARIABLES = [
    *((name, PASSWORD) for name in SECRET_NAMES),
    *(("HARMLESS", value) for value in SECRET_VALUES),
    (HUGGING_FACE, "1"),
]
HARMLESS_VARIABLES = [
    ("GOOGLE_APPLICATION_CREDENTIALS", "key.json"), ("GOOGLE_APPLICATION_CREDENTIALS", "./key.json"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/key.json"), ("API_KEY_ENV", "OPENAI_API_KEY"), ("API_KEY", "$OPENAI_API_KEY"),
    ("HF_TOKEN", "${CLUSTER_HF_TOKEN}"), ("DATASET_KEY", "text"), ("METRIC_KEY", "loss"), ("PASS", "2"),
    ("PASSWORD_HASHER", "argon2"), ("SECRET_BACKEND", "x.y.Z"), ("SECRETARY", "me"), ("PASSWORDLESS", "maybe"),
    ("CREDENTIALS_PROVIDER", "google.auth"), ("TOKEN", "[SEP]"), ("IMAGE", f"docker://x:tag@sha256:{HEX}"),
    ("PWD", "work"), ("TOKENIZERS_PARALLELISM", "false"), ("EOS_TOKEN", "</s>"), ("NUM_PASS", "3"),
    ("FORWARD_PASS", "two"), ("HF_TOKEN", ""), ("HF_TOKEN_PATH", "~/.token"), ("USE_TOKEN", "true"),
    ("GIT_COMMIT", HEX[:40]), ("MODEL_SHA256", HEX), ("VERSION", f"train-lm-{HEX[:6]}"), ("COMPASS", "north"),
    ("BYPASS", "no"), ("PRNG_KEY", "42"), ("HARMLESS", "https://host.example:8080/a@b"),
    ("HARMLESS", "redis://db.example:6379/0"), ("HARMLESS", "https://user:***@host.example"),
    ("HARMLESS", "https://user:$PASSWORD@host.example"), ("HARMLESS", "Bearer of news"), ("AUTHOR", "me"),
    ("HARMLESS", '{"eos_token": "</s>", "key": "text"}'), ("HARMLESS", "sk-learn-baseline-with-a-long-name"),
    ("SECRET_NAME", "prod/db"), ("PASSWORD_FILE", "db.txt"), ("API_KEY", "projects/p/secrets/s"),
]  # fmt: skip


def check_variable(variable: tuple[str, str]) -> None:
    check_env_vars(dict([variable]))


def test_variable_with_secret_is_refused(sandbox: Path) -> None:
    variables = dict(zip(named(VARIABLES, check_variable), VARIABLES, strict=True))

    def judge(outcome: Outcome) -> None:
        name, value = variables[outcome.name]
        secrets = [one for one in (value, PASSWORD, MIXED[:20]) if len(one) > 4] + [name] * name.startswith("hf_")
        outcome.must_be_refused(ExposedSecretError, secrets=secrets)

    attack_all(named(VARIABLES, check_variable), sandbox, judge)


def test_variable_that_only_resembles_secret_is_accepted(sandbox: Path) -> None:
    expect_success(named(HARMLESS_VARIABLES, check_variable), sandbox)


REQUESTS: list[dict[str, Any]] = [
    {"metadata": {"password": PASSWORD}},
    {"metadata": {"dbPassword": "x9"}},
    {"metadata": {"note": f"https://me:{PASSWORD}@host.example"}},
    {"metadata": {HUGGING_FACE: "x"}},
    {"metadata": {"note": {"password": PASSWORD}}},
    {"metadata": {PASSWORD + " " + HUGGING_FACE: 5}},
    {"submission_id": f"job/{PASSWORD}"},
    {"submission_id": f"https://me:{PASSWORD}@host.example"},
    {"submission_id": PASSWORD * 20},
    {"submission_id": ""},
    {"entrypoint": "python train.py {{ '" + PASSWORD + "' }}"},
    {"entrypoint": "python train.py {% set x = '" + PASSWORD + "' %}"},
    {"num_cpus": PASSWORD},
    {"resources": {PASSWORD + "/" + HUGGING_FACE: "x"}},
    {"runtime_env": {"env_vars": {f"HF_TOKEN={PASSWORD}": "x"}}},
    {"runtime_env": {"env_vars": {f"TOKEN {PASSWORD}": 5}}},
    {"runtime_env": {"env_vars": [f"HF_TOKEN={PASSWORD}"]}},
    {"runtime_env": {f"pip --index-url=https://me:{PASSWORD}@host.example": []}},
    {"runtime_env": {"pip": [f"x @ https://me:{PASSWORD}@host.example/x.whl"]}},
    {"runtime_env": {"uv": {"packages": ["x"], "uv_pip_install_options": [f"--index-url=https://me:{PASSWORD}@h.example"]}}},
    {"runtime_env": {"pip": {"packages": [f"git+https://{HUGGING_FACE}@host.example/x"]}}},
    {"runtime_env": {"conda": {"dependencies": [{"pip": [f"--extra-index-url https://:{PASSWORD}@host.example"]}]}}},
    {"runtime_env": {"working_dir": f"https://me:{PASSWORD}@host.example/x.zip"}},
    {"runtime_env": {"container": {"run_options": [f"-e WANDB_X={HUGGING_FACE}"]}}},
    {"runtime_env": {"worker_process_setup_hook": HUGGING_FACE}},
    {"runtime_env": {"config": {HUGGING_FACE: 1}}},
    {"runtime_env": {"working_dir": f"https://host.example/x.zip?token={PASSWORD}"}},
    {"runtime_env": {"py_modules": [f"https://host.example/x.whl?private_token={PASSWORD}"]}},
    {"runtime_env": {"pip": [f"x @ https://host.example/x.whl?a=1&api_key={PASSWORD}"]}},
    {"runtime_env": {"container": {"run_options": [f"-e PASSWORD={PASSWORD}"]}}},
    {"runtime_env": {"container": {"run_options": [f"--env=HF_TOKEN={PASSWORD}"]}}},
    {"runtime_env": {"uv": {"packages": ["x"], "uv_pip_install_options": ["--token", PASSWORD]}}},
    {"runtime_env": {"py_executable": f"env HF_TOKEN={PASSWORD} python"}},
]  # fmt: skip
HARMLESS_ENVIRONMENTS: list[dict[str, Any]] = [
    {"pip": ["secretstorage==3.3.3", "secretstorage>=3.3", "x @ https://host.example/x.whl?tag=v1#sha256=" + HEX]},
    {"conda": {"dependencies": ["libsecret=0.20.5", "secretstorage=3.3.*", "secretstorage=3.3.1=py311_0"]}},
    {"py_executable": "env HF_TOKEN=$CLUSTER_TOKEN python", "env_vars": {"EOS_TOKEN": "</s>"}},
    {"uv": {"packages": ["x"], "uv_pip_install_options": ["--keyring-provider", "subprocess", "--token-file", "x"]}},
]  # fmt: skip


def test_request_with_secret_is_refused_without_showing_values(sandbox: Path) -> None:
    def check(fields: dict[str, Any]) -> None:
        check_request(JobRequest(**{"submission_id": "job", "entrypoint": "true"} | fields))

    expect_refusal(named(REQUESTS, check), sandbox, BadRequestError, secrets=[PASSWORD, HUGGING_FACE])
    expect_success(named(HARMLESS_ENVIRONMENTS, lambda env: check({"runtime_env": env})), sandbox)


# ---- secrets in connections, requirements, options, configs and arguments


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


def test_only_options_of_uv_with_password_are_refused(sandbox: Path) -> None:
    refuse(named(UV_OPTIONS, uv_options), sandbox, BadRequestError, mentions=["uv_options"])
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
        ARGUMENTS, lambda given: check_arguments([], given | ballast), lambda given: check_arguments([given], ballast)
    )
    expect_refusal(cases, sandbox, ExposedSecretError, secrets=[*SECRETS, MIXED[:30]], mentions=["argument"])


def test_ordinary_arguments_are_accepted() -> None:
    check_arguments([HEX, "gs://bucket/x"], {"eos_token": "</s>", "token": "env:TOKEN"})


CODE = [
    f'DB_PASSWORD = "{PASSWORD}"', f'db_password: str = "{PASSWORD}"', f'self.api_key = "{PASSWORD}"',
    f'def f(token="{PASSWORD}"): pass', f'def f(*, token: str = "{PASSWORD}"): pass', f'login(token="{PASSWORD}")',
    f'import os\nos.environ["WANDB_API_KEY"] = "{PASSWORD}"', f'os.environ.setdefault("HF_TOKEN", "{PASSWORD}")',
    f'def f():\n    return {{"token": "{PASSWORD}"}}', f'subprocess.run("mysql -p{PASSWORD} db", shell=True)',
    f'subprocess.run(["curl", "--password", "{PASSWORD}"])', f'run("HF_TOKEN={PASSWORD} python x.py")',
    f'url = "https://me:{PASSWORD}@host.example"', f'login("{HUGGING_FACE}")',
]  # fmt: skip
HARMLESS_CODE = [
    "token = tokenizer.encode('a')", 'password = os.environ["PASSWORD"]', 'f(token=None, api_key="$OPENAI_API_KEY_2")',
    'pad_token = "<pad>"', 'eos_token = "</s1>"', 'def f(token: str = ""): pass', 'API_KEY = "WANDB_API_KEY_2"',
    'mask_token = "<|reserved_special_token_0|>"', 'x = {"n_token": "vocab_size", "key": "sasl.password"}',
    'def f():\n    """Log in.\n\n    >>> login(token=abcd1234efgh)\n    """', 'secret = "projects/p1/secrets/s"',
    'api_key = f"{PREFIX}-{name}"', 'token = "env:HF_TOKEN_2"', 'run(f"mysql -p{password} db --password {password}")',
    'secret_url = secrets = "http://127.0.0.1:2"', 'help = "such as --secret SECRET=value or token=TOKEN"',
]  # fmt: skip


def check_code(text: str) -> None:
    source = FunctionSource("f", "mine.py", [(3, text + "\n")], [])
    check_call(Call(ShippedFunction(None, source, None, travels=False), [], {}, "::marker::", travels=False))


def test_secret_in_code_that_travels_is_refused(sandbox: Path) -> None:
    refuse(named(CODE, check_code), sandbox, ExposedSecretError, mentions=["mine.py:"])
    expect_success(named(HARMLESS_CODE, check_code), sandbox)


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
    tpu, local = ["https://tpu.googleapis.com", "https://tpu.example:8443/"], ["127.0.0.1", "[::1]", "localhost"]
    expect_success(named([*tpu, *(f"http://{host}:1" for host in local)], tpu_endpoint), sandbox)
