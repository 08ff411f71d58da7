"""Location of a bucket in Google Cloud Storage, or in the emulator at ``STORAGE_EMULATOR_HOST``."""

from __future__ import annotations

from typing import Any


def bucket_region(bucket: str, **options: Any) -> str | None:
    """Return the lower-case location; the regions of a dual region joined by ``+``; None if unknown.

    ``options`` of the request, such as its timeout, and the errors are those of Google's client.
    """
    found = _client().get_bucket(bucket, **options)
    location = "+".join(found.data_locations or []) or found.location
    return str(location).lower() if location else None


def _client() -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client  # type: ignore[import-untyped]

    try:
        return Client(project=None)
    except DefaultCredentialsError:
        return Client.create_anonymous_client()
