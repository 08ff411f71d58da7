"""Output paths: ``{prefix}/{name}-{hash}``, joined as POSIX paths whatever the store."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from urllib.parse import urlparse


def is_absolute(path: str) -> bool:
    """Whether ``path`` is a URL or starts at the root, and so does not depend on a prefix."""
    if path.startswith("/"):
        return True
    try:
        return bool(urlparse(path).scheme)
    except ValueError:  # a URL, but none that is right
        return True


def below(prefix: str, path: str) -> str:
    """``path`` below ``prefix``; an absolute path stays as it is."""
    return path if is_absolute(path) else posixpath.join(prefix, path)


def version_name(name: str, version_hash: str) -> str:
    """A step and its version as people refer to them; also the end of its output path."""
    return f"{name}-{version_hash}"


def computed_output_path(prefix: str, name: str, version_hash: str) -> str:
    """Where a step's output lies unless its step overrides it."""
    return posixpath.join(prefix, version_name(name, version_hash))


def self_and_parents(path: str) -> Iterator[str]:
    """``path`` without trailing slashes, then each path that contains it."""
    path = path.rstrip("/")
    while path:
        yield path
        path, _, _ = path.rpartition("/")
        path = path.rstrip("/")
