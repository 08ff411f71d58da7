"""Tokenizers as a few files, identified by content and not by path."""

from __future__ import annotations

import json
import os
import re
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final

from tradewind.datasets.files import basename, is_remote, join
from tradewind.datasets.token_rows import IS_POINTER, POINTER
from tradewind.storage import file_system_at
from tradewind.storage.bounded_read import LARGE
from tradewind.text import escape_control_characters, single_line

PREFIX: Final = "tradewind-tokenizer-"
MAIN_FILE: Final = "tokenizer.json"
_ON_THE_HUB: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ENDINGS: Final = (".json", ".jinja", ".model", ".txt")
"""Endings of files that a tokenizer may need; its folder may also hold a model's weights."""
_CHARSMAP: Final = re.compile(rb'"precompiled_charsmap"\s*:\s*"([\w+/=]{8}[^"]*)"')
"""Rules of a normalizer, as base64 that begins with the size of a part in four bytes."""
TOKENIZER_GLOBS: Final = ("tokenizer*", "chat_template*", "special_tokens*", "added_tokens*", "vocab*", "merges*")


def local_tokenizer(path: str, field: str = "tokenizer_path") -> str:
    """Return a local folder with the tokenizer at ``path``: ``path`` itself, or a copy named by its content.

    Token caches store the name of the folder, so it must not differ from run to run.

    Raises:
        ValueError: There is no tokenizer, or a file of it is too large. Levanter would look for one on a hub.
    """
    fs, root = file_system_at(path)
    if not fs.exists(join(root, MAIN_FILE)):
        shown = escape_control_characters(path)
        raise ValueError(f"There is no tokenizer under {field} {shown}: {MAIN_FILE} is missing.")
    if not is_remote(path):
        return str(root)
    names = [name for name in fs.ls(root, detail=False) if name.endswith(_ENDINGS)]
    return cached_folder({basename(name): _read(fs.open(name), join(path, basename(name)), field) for name in names})


def tokenizer_files(path: str, field: str, output_path: str) -> tuple[str, dict[str, bytes]]:
    """Return the tokenizer's name for caches, and its files.

    Args:
        path: A folder, or a name on the Hugging Face hub.
        field: Name of the field in errors.
        output_path: Output of the step, below the prefix that gets a copy of a tokenizer of the hub.

    Raises:
        ValueError: It is neither, or no tokenizer that texts can be encoded with.
    """
    if is_on_hub(path):
        from tradewind.datasets.hub_tokenizers import stored_tokenizer

        copy = stored_tokenizer(path, field, output_path)
        name, folder, where = path, local_tokenizer(copy, field), f"{path!r} (remove {copy} to copy it again)"
    else:
        name = folder = local_tokenizer(path, field)
        where = repr(path)
    found = [each for each in sorted(Path(folder).iterdir()) if any(map(each.match, TOKENIZER_GLOBS))]
    if odd := [each.name for each in found if each.name.endswith(_ENDINGS) and not each.is_file()]:
        raise ValueError(f"{field}={path!r}: {odd[0]} is no regular file.")
    files = {each.name: _read(each.open("rb"), str(each), field) for each in found if each.is_file()}
    check_tokenizer(files, f"{field}={where}")
    return name, files


def is_on_hub(path: str) -> bool:
    """Whether ``path`` is no path but the name of a repository."""
    return _ON_THE_HUB.fullmatch(path) is not None and not os.path.exists(path)


def _read(opened: IO[bytes], path: str, field: str) -> bytes:
    with opened as file:
        content = file.read(LARGE + 1)
    if len(content) > LARGE:
        raise ValueError(f"{field}: {path} has more than {LARGE:,} bytes, which no tokenizer has.")
    return content


def check_tokenizer(files: Mapping[str, bytes], where: str) -> Any:
    """Return the tokenizer in these files, without padding.

    Raises:
        ValueError: No library could load them, or texts would become other tokens than their own.
    """
    from tokenizers import Tokenizer

    for name, content in files.items():
        if content.startswith(POINTER):
            raise ValueError(f"{where}: {name} {IS_POINTER}")
        if name.endswith(".json") and name != MAIN_FILE:
            try:
                value, why = json.loads(content), ""
            except (ValueError, RecursionError) as error:
                value, why = None, f" ({single_line(error)})"
            if not isinstance(value, dict):
                raise ValueError(f"{where}: {name} is no JSON object{why}: fetch it again.")
    for charsmap in _CHARSMAP.finditer(files[MAIN_FILE]):
        size = int.from_bytes(b64decode(charsmap[1][:8])[:4], "little")
        if size > len(charsmap[1]):  # the library would abort the process
            raise ValueError(f"{where}: {MAIN_FILE} has a precompiled_charsmap of {size:,} bytes: fetch it again.")
    try:
        tokenizer = Tokenizer.from_buffer(files[MAIN_FILE])
        padding = tokenizer.padding or {}
        tokenizer.no_padding()
        tokenizer.encode("")
    except BaseException as error:  # the library has no type of its own, and a panic of it is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{where}: {MAIN_FILE} is no tokenizer ({single_line(error)}): fetch it again.") from error
    if padding.get("length") is not None or padding.get("pad_to_multiple_of") is not None:
        raise ValueError(
            f"{where}: {MAIN_FILE} fills each text up with padding, which would be trained on: remove its 'padding'."
        )
    return tokenizer


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


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether the folder is this user's and has exactly these files: another one could change the tokenizer."""
    try:
        has_names = folder.lstat().st_uid == os.getuid() and {each.name for each in folder.iterdir()} == set(files)
        return has_names and all((folder / name).read_bytes() == data for name, data in files.items())
    except OSError:
        return False
