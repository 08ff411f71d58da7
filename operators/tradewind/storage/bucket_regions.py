"""Where Google Cloud Storage, or the emulator that ``STORAGE_EMULATOR_HOST`` names, has a bucket."""

from __future__ import annotations

from typing import Any


def bucket_region(bucket: str, **options: Any) -> str | None:
    """Its location in small letters; the regions of a dual region joined by ``+``; None if the store tells none.

    ``options`` of the request, such as its timeout, are those of Google's client, and so are the errors.
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
