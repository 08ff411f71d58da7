"""Google's client with credentials, while Google is unreachable."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tradewind.fleet.cloud.google_api import CloudUnreachableError, execute_request, google_api
from tradewind.fleet.doctor import Health, _clocks


@pytest.fixture
def compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the client of a service account whose token server has an unknown host name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account", "project_id": "my-project", "private_key": pem.decode(),
        "client_email": "me@my-project.iam.gserviceaccount.com", "token_uri": "http://nowhere.invalid/token",
    }  # fmt: skip
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.delenv("TRADEWIND_COMPUTE_ENDPOINT", raising=False)
    return google_api("compute")


def test_network_outage_is_not_reported_as_bad_credentials(compute: Any) -> None:
    with pytest.raises(CloudUnreachableError, match="The machines: Google's sign-in does not answer: look at the netw"):
        execute_request(compute.instances().list(project="p", zone="z"), "The machines", is_write=True)


def test_doctor_reports_clocks_as_unknown_during_outage(compute: Any) -> None:
    assert _clocks(compute, time.time).health is Health.UNKNOWN
