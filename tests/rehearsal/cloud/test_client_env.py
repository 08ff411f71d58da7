"""In a rehearsal's environment, no client reaches Google's own APIs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tradewind
from tradewind.cloud_tpu.endpoints import ENDPOINT_VARIABLES
from tradewind.fleet.cloud.google_api import google_api
from tradewind.rehearsal.cloud.cloud import client_env

ENV = client_env("rehearsed", apis="http://127.0.0.1:1", storage="http://127.0.0.1:2", secrets="http://127.0.0.1:3")


def test_all_client_endpoints_point_to_this_machine() -> None:
    package = Path(tradewind.__file__).parent
    named = {name for file in package.rglob("*.py") for name in re.findall(r"TRADEWIND_\w+_ENDPOINT", file.read_text())}
    assert len(named) >= 5 and named == set(ENDPOINT_VARIABLES.values())
    for name in (*named, "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
        assert ENV[name].startswith("http://127.0.0.1:"), name
    assert ENV["TRADEWIND_SECRET_MANAGER_ENDPOINT"].endswith(":3") and ENV["TRADEWIND_TPU_ENDPOINT"].endswith(":1")


@pytest.mark.parametrize("api", ENDPOINT_VARIABLES)
def test_each_client_needs_no_credentials_there(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    assert google_api(api)._baseUrl.startswith("http://127.0.0.1:")
