"""Arrays that tensorstore reads, of files below the allowed roots only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from tradewind.browsing.access import Access
from tradewind.browsing.memory import loading
from tradewind.browsing.refusals import MissingError, TooLargeError, UnreadableError
from tradewind.datasets.files import is_remote, join
from tradewind.storage import Location
from tradewind.text import single_line

_MAX_METADATA_BYTES: Final = 1 << 20
_MAX_READ_BYTES: Final = 16 << 20
"""Inner chunk of an array, which is unpacked whole however little of it is asked for."""
_CACHE: Final = {"cache_pool": {"total_bytes_limit": 8 << 20}, "data_copy_concurrency": {"limit": 1}}


@dataclass(frozen=True)
class Array:
    """One array of one dimension.

    Attributes:
        chunk: Elements in a file.
    """

    access: Access
    folder: str
    opened: Any
    chunk: int

    def read(self, start: int, stop: int) -> Any:
        """Return the elements from ``start`` to before ``stop``.

        Raises:
            UnreadableError: They are damaged.
        """
        import numpy as np

        if stop <= start:
            return np.zeros(0, np.int64)
        if (stop - start) * 8 > _MAX_READ_BYTES:
            raise TooLargeError(f"{self.folder}: {stop - start:,} values are more than a page reads.")
        for number in range(start // self.chunk, (stop - 1) // self.chunk + 1):
            self.access.check(join(self.folder, "c", str(number)))
        try:
            return self.opened[start:stop].read().result(timeout=max(self.access.left_s, 0.1))
        except (ValueError, IndexError) as error:
            raise UnreadableError(f"{self.folder} is damaged: {single_line(error)}.") from None


def open_array(access: Access, folder: str) -> Array:
    """Open an array of one dimension in Zarr 3, as Levanter writes its caches.

    Raises:
        UnreadableError: It is none.
        TooLargeError: Its chunks are too large.
    """
    with loading():
        import tensorstore
    with access.open(join(folder, "zarr.json")) as file:
        data = file.read(_MAX_METADATA_BYTES)
    try:
        fields = json.loads(data)
        chunk = fields["chunk_grid"]["configuration"]["chunk_shape"]
        inner = next((each["configuration"] for each in fields["codecs"] if each["name"] == "sharding_indexed"), None)
        smallest = inner["chunk_shape"] if inner else chunk
        keys = fields["chunk_key_encoding"]
        if keys["name"] != "default" or keys.get("configuration", {}).get("separator", "/") != "/":
            # The names that ``read`` checks would not be those that tensorstore opens.
            raise UnreadableError(f"{folder} names its chunks otherwise than Levanter does.")
        if len(chunk) != 1 or chunk[0] < 1:
            raise UnreadableError(f"{folder} is no array of one dimension.")
        if smallest[0] * 8 > _MAX_READ_BYTES:
            raise TooLargeError(f"{folder} has chunks of {smallest[0]:,} values, which a page does not unpack.")
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore_of(folder),
            "context": _CACHE,
            "metadata": {"chunk_key_encoding": keys},  # it fails if the file has changed since
        }
        with loading():
            opened = tensorstore.open(spec, open=True, read=True).result(timeout=max(access.left_s, 0.1))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"{folder} is no array: {single_line(error)}.") from None
    return Array(access, folder, opened, int(chunk[0]))


def kvstore_of(folder: str) -> dict[str, Any]:
    """Return tensorstore's spec of a folder.

    Raises:
        MissingError: Tensorstore has no driver for its store.
    """
    location = Location.of(folder)
    name = location.name.strip("/") + "/"
    if not is_remote(folder):
        return {"driver": "file", "path": os.path.abspath(location.name) + "/"}
    if location.scheme == "gs":
        return {"driver": "gcs", "bucket": location.bucket, "path": name}
    if location.scheme == "s3":
        spec = {"driver": "s3", "bucket": location.bucket, "path": name}
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return spec | ({"endpoint": endpoint, "aws_region": "us-east-1"} if endpoint else {})
    raise MissingError(f"Arrays at {folder} cannot be read: its store has no array driver.")
