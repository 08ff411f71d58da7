"""Arrays that tensorstore reads, of files below the allowed roots only.

Tensorstore opens files by their names, follows links, and another process may replace a file after any check. So on a
disk it gets the files as they were opened and checked here, and no others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
_MAX_CHUNKS: Final = 200
"""Files of an array that are open at a time."""
_DESCRIPTORS: Final = "/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd"
_CACHE: Final = {"cache_pool": {"total_bytes_limit": 8 << 20}, "data_copy_concurrency": {"limit": 1}}


@dataclass(frozen=True)
class Array:
    """One array of one dimension.

    Attributes:
        metadata: Content of its ``zarr.json``.
        chunk: Elements in a file.
    """

    access: Access
    folder: str
    metadata: Mapping[str, Any]
    chunk: int

    def read(self, start: int, stop: int) -> Any:
        """Return the elements from ``start`` to before ``stop``.

        Raises:
            UnreadableError: They are damaged, or no array.
            TooLargeError: They are too many, or in too many files.
        """
        import numpy as np

        with loading():
            import tensorstore
        if stop <= start:
            return np.zeros(0, np.int64)
        chunks = range(start // self.chunk, (stop - 1) // self.chunk + 1)
        if (stop - start) * 8 > _MAX_READ_BYTES or len(chunks) > _MAX_CHUNKS:
            many = f"{stop - start:,} values in {len(chunks):,} files"
            raise TooLargeError(f"{self.folder}: {many} are more than a page reads.")
        with opened_store(self.access, self.folder, (f"c/{number}" for number in chunks)) as store:
            spec = {"driver": "zarr3", "kvstore": store, "context": _CACHE, "metadata": self.metadata}
            try:
                with loading():
                    wait = {"timeout": max(self.access.left_s, 0.1)}
                    opened = tensorstore.open(spec, open=True, read=True, assume_metadata=True).result(**wait)
                return opened[start:stop].read().result(**wait)
            except (ValueError, IndexError, TypeError) as error:
                raise UnreadableError(f"{self.folder} is damaged: {single_line(error)}.") from None


def open_array(access: Access, folder: str) -> Array:
    """Open an array of one dimension in Zarr 3, as Levanter writes its caches.

    Raises:
        UnreadableError: It is none.
        TooLargeError: Its chunks are too large.
    """
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
        return Array(access, folder, fields, int(chunk[0]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"{folder} is no array: {single_line(error)}.") from None


@contextmanager
def opened_store(access: Access, folder: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield tensorstore's spec of a folder; on a disk, of these files in it only, each opened and checked.

    Raises:
        OutsideError: One of them is a link that leads outside.
        ChangedError: One was replaced by such a link meanwhile.
    """
    if access.roots is None or is_remote(folder):
        yield _kvstore_of(folder)
        return
    layers: list[dict[str, Any]] = [{"base": {"driver": "memory"}}]  # the other names, none of which exists
    with ExitStack() as stack:
        for name in names:
            try:
                descriptor = access.open_descriptor(join(folder, name))
            except MissingError:
                continue
            stack.callback(os.close, descriptor)
            base = {"driver": "file", "path": f"{_DESCRIPTORS}/{descriptor}"}
            layers.append({"exact": name, "strip_prefix": len(name.encode()), "base": base})
        yield {"driver": "kvstack", "layers": layers}


def _kvstore_of(folder: str) -> dict[str, Any]:
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
