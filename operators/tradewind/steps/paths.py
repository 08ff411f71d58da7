"""Output paths: ``{prefix}/{name}-{hash}``, joined as POSIX paths for any store."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlparse

OWN_FOLDERS: Final = frozenset({".tradewind", ".attempts"})
"""Tradewind's own folders below a prefix or an output."""


HUB_PREFIX: Final = "hub:"
"""Begin of a name on the Hugging Face hub, which a config may have instead of a path."""


def is_absolute(path: str) -> bool:
    """Whether ``path`` is a URL or starts at the root, and so is independent of a prefix."""
    if path.startswith("/"):
        return True
    try:
        return bool(urlparse(path).scheme)
    except ValueError:  # an invalid URL
        return True


def below(prefix: str, path: str) -> str:
    """Join ``path`` to ``prefix``; an absolute path stays unchanged."""
    return path if is_absolute(path) else posixpath.join(prefix, path)


def version_name(name: str, version_hash: str) -> str:
    """Return a step and its version as shown to users; also the end of its output path."""
    return f"{name}-{version_hash}"


def computed_output_path(prefix: str, name: str, version_hash: str) -> str:
    """Return a step's output path, unless the step overrides it."""
    return posixpath.join(prefix, version_name(name, version_hash))


def self_and_parents(path: str) -> Iterator[str]:
    """Return ``path`` without trailing slashes, then each of its parents."""
    path = path.rstrip("/")
    while path:
        yield path
        path, _, _ = path.rpartition("/")
        path = path.rstrip("/")
