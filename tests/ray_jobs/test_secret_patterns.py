"""Secret patterns match by name or value, and pass values that only resemble secrets."""

from __future__ import annotations

import pytest

from tradewind.ray_jobs.secret_patterns import detect_secret, secret_variable

HEX40 = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "WANDB_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "DB_PASSWORD",
        "PASSWORD_OF_DB", "GITHUB_PAT", "KEY", "TOKEN", "hf_token", "SSH_PRIVATE_KEY", "GCP_CREDENTIALS",
        "CLIENT_SECRET", "HF_AUTH", "SIGNING_KEY",
    ],
)  # fmt: skip
def test_secret_name_is_refused_with_any_value(name: str) -> None:
    assert secret_variable(name, "abc") == "by its name"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"), ("TOKENIZER", "gpt2"), ("MY_TOKENIZER_KEY", "x"), ("PYTHONHASHSEED", "0"),
        ("MAX_TOKENS", "512"), ("EOS_TOKEN", "</s>"), ("PARTITION_KEY", "date"), ("PRNG_KEY", "42"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/gcp/key.json"), ("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("USE_AUTH", "true"), ("HF_TOKEN", ""), ("MONKEY", "x"),
        ("PATH", "/bin"),
        ("WANDB_GIT_COMMIT", HEX40), ("GIT_COMMIT", HEX40), ("TRADEWIND_SECRETS", '{"A": "env:A"}'),
        ("HUB", "http://[::1]:80/a@b"), ("HUB", "http://h:80/a@b"), ("HUB", "https://h:$PORT/a@b"), ("DSN", "odbc"),
        ("AWS_SECRET_NAME", "prod/db"), ("COMPAT", "1.0"), ("AUTHOR", "someone"), ("KEYBOARD", "us"),
    ],
)  # fmt: skip
def test_name_that_only_resembles_secret_is_accepted(name: str, value: str) -> None:
    assert secret_variable(name, value) is None


KNOWN = {
    "a Hugging Face token": "hf_" + "a1B2c3" * 6,
    "a GitHub token": "ghp_" + "a1B2c3" * 6,
    "a GitLab token": "glpat-" + "a1B2c3d4e5" * 2,
    "an API key of a model provider": "sk-proj-" + "a1B2c3" * 6,
    "an AWS access key": "AKIA" + "A1B2" * 4,
    "a Google API key": "AIza" + "a1B2c3d" * 5,
    "a Google access token": "ya29." + "a1B2c3" * 6,
    "a Slack token": "xoxb-" + "123456-" * 4,
    "a signed web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\nMII",
    "a W&B key": "wandb_v1_" + "a1B2c3" * 6,
    "a URL with a password": "https://user:pa/ss@host/simple",
}


@pytest.mark.parametrize("what", KNOWN)
def test_known_token_form_is_detected_anywhere_in_text(what: str) -> None:
    assert detect_secret(KNOWN[what]) == what
    assert detect_secret(f"--x={KNOWN[what]} --y") == what
    assert secret_variable("SENTRY_DSN", "https://key@o1.ingest.sentry.io/1") == "a DSN with a key"
    assert secret_variable("HARMLESS", KNOWN[what]) == f"its value has the form of {what}"


def test_forty_hex_digits_are_secret_only_for_wandb() -> None:
    assert secret_variable("WANDB_X", HEX40) == "its value has the form of a W&B key"
    assert secret_variable("MODEL_REVISION", HEX40) is None


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/checkpoints/task-analysis-of-long-things-0a1b2c", "https://host:8265/api", "disk-usage-report",
        "python -m train --run sk-learn-baseline-with-a-long-name", "my_hf_model_" + "a" * 40,
        "git@github.com:org/repo",
        "https://${USER}:${PASSWORD}@host/simple", "sha256:" + HEX40, "key=value", "AKIA", "redis://host:6379/0",
    ],
)  # fmt: skip
def test_ordinary_text_has_no_form_of_secret(text: str) -> None:
    assert detect_secret(text) is None
