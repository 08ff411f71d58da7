"""Tokenizers as a few files, identified by content and not by path."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from tradewind.datasets.files import basename, is_remote, join
from tradewind.storage import file_system_at

PREFIX: Final = "tradewind-tokenizer-"
MAIN_FILE: Final = "tokenizer.json"
_ON_THE_HUB: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ENDINGS: Final = (".json", ".jinja", ".model", ".txt")
"""Endings of files that a tokenizer may need; its folder may also hold a model's weights."""
_OF_A_TOKENIZER: Final = ("tokenizer*", "chat_template*", "special_tokens*", "added_tokens*", "vocab*", "merges*")


def local_tokenizer(path: str, field: str = "tokenizer_path") -> str:
    """Return a local folder with the tokenizer at ``path``: ``path`` itself, or a copy named by its content.

    Token caches store the name of the folder, so it must not differ from run to run.

    Raises:
        ValueError: There is no tokenizer. Levanter would look for one on a hub.
    """
    fs, root = file_system_at(path)
    if not fs.exists(join(root, MAIN_FILE)):
        raise ValueError(f"There is no tokenizer under {field} {path}: {MAIN_FILE} is missing.")
    if not is_remote(path):
        return str(root)
    names = [name for name in fs.ls(root, detail=False) if name.endswith(_ENDINGS)]
    return cached_folder({basename(name): fs.cat_file(name) for name in names})


def tokenizer_files(path: str, field: str) -> tuple[str, dict[str, bytes]]:
    """Return the tokenizer's name for caches, and its files; ``path`` is a folder, or a hub name with a local copy.

    Raises:
        ValueError: It is neither; nothing is downloaded.
    """
    name, folder = path, None
    if _ON_THE_HUB.fullmatch(path) and not os.path.exists(path):
        folder = _copy_of_hub(path)
        if folder is None:
            raise ValueError(
                f"{field}={path!r} is no folder, and this host has no copy of a tokenizer of that name; none is "
                "fetched here. Give the path of a step that downloads it: default_download(..., "
                "hf_repo_type_prefix='models')."
            )
    else:
        name = folder = local_tokenizer(path, field)
    files = [file for file in sorted(Path(folder).iterdir()) if any(map(file.match, _OF_A_TOKENIZER))]
    return name, {file.name: file.read_bytes() for file in files if file.is_file()}


def cached_folder(files: Mapping[str, bytes]) -> str:
    """Return a permanent folder with exactly these files; a changed one is not used."""
    folder = Path(tempfile.gettempdir(), f"{PREFIX}{digest_of(files)[:16]}")
    if _holds(folder, files):
        return str(folder)
    new = Path(tempfile.mkdtemp(prefix=PREFIX))
    for name, data in files.items():
        (new / name).write_bytes(data)
    try:
        return str(new.rename(folder))
    except OSError:  # another process was first, or the folder there belongs to another user
        return str(folder if _holds(folder, files) else new)


def digest_of(files: Mapping[str, bytes]) -> str:
    """Hash names and contents of the files."""
    return sha256(repr(sorted(files.items())).encode()).hexdigest()


def _copy_of_hub(name: str) -> str | None:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name, local_files_only=True, allow_patterns=list(_OF_A_TOKENIZER))
    except (OSError, ValueError):  # this host has no copy
        return None
    return str(folder) if Path(folder, MAIN_FILE).exists() else None


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether the folder is this user's and has exactly these files: another one could change the tokenizer."""
    try:
        has_names = folder.lstat().st_uid == os.getuid() and {each.name for each in folder.iterdir()} == set(files)
        return has_names and all((folder / name).read_bytes() == data for name, data in files.items())
    except OSError:
        return False
