"""Read one version of a secret from Google's Secret Manager, with Google's client.

No text and no exception of this module holds a value. ``TRADEWIND_SECRET_MANAGER_ENDPOINT`` names another endpoint: a
private one (``https://...``), or the rehearsal's on this machine, which alone gets no credentials.
"""

from __future__ import annotations

import os
from typing import Any

from tradewind.cloud_tpu.endpoints import parse_endpoint

ENDPOINT_VARIABLE = "TRADEWIND_SECRET_MANAGER_ENDPOINT"


class SecretManagerError(Exception):
    """A secret cannot be read; the text is the end of a sentence, such as "it does not exist"."""


class SecretManagerUnreachableError(SecretManagerError):
    """Secret Manager does not answer, so the secret's state is unknown: retrying may help."""


def read_secret(version: str) -> str:
    """Return the value of ``projects/P/secrets/S/versions/V``.

    Raises:
        SecretManagerUnreachableError: Secret Manager does not answer, after the client's own retries.
        SecretManagerError: The secret does not exist, is not accessible, arrived damaged, or the client is missing.
    """
    client = _client()
    payload = _access(client, version)
    import google_crc32c

    if "data_crc32c" not in payload or google_crc32c.value(payload.data) != payload.data_crc32c:
        raise SecretManagerError("its checksum does not match the received data; try again")
    try:
        text = bytes(payload.data).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SecretManagerError("it contains bytes that no environment variable can hold: store text") from None
    return text


def _client() -> Any:
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.secretmanager_v1 import SecretManagerServiceClient
        from google.cloud.secretmanager_v1.services.secret_manager_service.transports import (
            SecretManagerServiceRestTransport,
        )
    except ImportError:
        raise SecretManagerError(
            "google-cloud-secret-manager is not installed there: install airflow-provider-tradewind[gcp]"
        ) from None
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    try:
        if endpoint is None:  # REST: gRPC conflicts with processes that are started later
            return SecretManagerServiceClient(transport="rest")
        if (parsed := parse_endpoint(endpoint)) is None:
            raise SecretManagerError(f"{ENDPOINT_VARIABLE} must be https://HOST (http only on the loopback)")
        scheme, host, is_here = parsed
        credentials: Any = AnonymousCredentials() if is_here else None
        transport = SecretManagerServiceRestTransport(host=host, credentials=credentials, url_scheme=scheme)
        return SecretManagerServiceClient(transport=transport)
    except SecretManagerError:
        raise
    except Exception as error:
        raise SecretManagerError(
            f"there are no Google credentials there ({type(error).__name__}): give the machine a service account"
        ) from None


def _access(client: Any, version: str) -> Any:
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    try:
        return client.access_secret_version(name=version).payload
    except exceptions.NotFound:
        reason = "there is no such secret or version"
    except (exceptions.Forbidden, exceptions.Unauthorized):
        reason = "access is denied: grant its service account roles/secretmanager.secretAccessor"
    except exceptions.BadRequest:
        reason = "this version is disabled, destroyed or misnamed"
    except (exceptions.GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        raise SecretManagerUnreachableError(f"Secret Manager does not answer ({type(error).__name__})") from None
    except Exception as error:  # of the parser of its answer
        reason = f"Secret Manager's answer cannot be read ({type(error).__name__})"
    raise SecretManagerError(reason)
