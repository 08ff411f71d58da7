"""Tokenizers of the Hugging Face hub, which the first step that needs one copies to the store, for all hosts.

The copy is in ``{prefix}/.tradewind/tokenizers/{owner--name}``. The owner of the lease of that folder copies; other
steps wait. ``provenance.json`` is written last, and names the commit that all later steps read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final

from tradewind.datasets.downloads import PROVENANCE_FILE, Copies, Reader, read_store
from tradewind.datasets.files import join, parent, write_json
from tradewind.datasets.hub import Hub, check_repo_id
from tradewind.datasets.source_files import DownloadError, SourceFile, repeat_if_damaged
from tradewind.datasets.tokenizer_files import MAIN_FILE, TOKENIZER_GLOBS, check_tokenizer
from tradewind.plans.prefixes import cluster_prefix
from tradewind.records.lease_store import LeaseHolder, LeaseStore, check_still_held, is_in_use
from tradewind.records.pins import OWN_FOLDER
from tradewind.serialization.spec import STEP_VARIABLE
from tradewind.storage.bounded_read import LARGE
from tradewind.storage.files import existing_many

_REVISION: Final = "main"
_CONFIG: Final = "tokenizer_config.json"
_MAX_POLL_S: Final = 2.0


def stored_tokenizer(name: str, field: str, output_path: str) -> str:
    """Return the folder with the copy of a hub's tokenizer, and make it if it is missing.

    Raises:
        ValueError: ``field``: neither this host nor the hub has a tokenizer of this name, the hub denies access, or no
            text can be encoded with it.
    """
    folder = join(_prefix(output_path), OWN_FOLDER, "tokenizers", name.replace("/", "--"))
    try:
        check_repo_id(name)  # so no two names have one folder
        _make_or_await(name, folder)
    except DownloadError as error:
        raise ValueError(
            f"{field}={name!r} is no folder, and this host has no copy of a tokenizer of that name ({MAIN_FILE} and "
            f"{_CONFIG}). {error}"
        ) from error
    return folder


def _prefix(output_path: str) -> str:
    """Return the prefix of the run; for a path without its step's version the cluster's, else the folder around it."""
    version = os.environ.get(STEP_VARIABLE)
    if version and output_path.rstrip("/").endswith(f"/{version}"):
        return output_path.rstrip("/").removesuffix(f"/{version}")
    return cluster_prefix() or parent(output_path)


def _make_or_await(name: str, folder: str) -> None:
    from tradewind.attempts.renewal import make_copy

    store, has_waited = LeaseStore(folder), False
    main, provenance = join(folder, MAIN_FILE), join(folder, PROVENANCE_FILE)
    while True:
        before = store.read()  # first: a copy that another process completes from now on has changed it
        found = existing_many([main, provenance])
        if provenance in found:
            if main not in found:
                raise ValueError(f"{folder} has no {MAIN_FILE} any more: remove the folder, and it is copied again.")
            return
        if before is None or not is_in_use(before):
            make_copy(store, before, {"tokenizer": name}, partial(_copy, name, folder))
            continue
        if not has_waited:
            print(f"The tokenizer {name} is being copied to {folder} by another process: waiting.", flush=True)
        has_waited = True
        time.sleep(min(_MAX_POLL_S, before.lease.times.poll_s))


def _copy(name: str, folder: str, owner: LeaseHolder) -> str:
    """Copy the files, from the copy of this host or else from the hub; return the commit."""
    commit, files, read = _on_this_host(name) or _on_the_hub(name)
    main = next(file.url for file in files if file.name == MAIN_FILE)
    print(f"Copying the tokenizer {name} at commit {commit} to {folder}.", flush=True)
    if large := [file.url for file in files if (file.size_bytes or 0) > LARGE]:
        raise DownloadError(f"{large[0]} has more than {LARGE:,} bytes, which no tokenizer has.")
    if sum(file.size_bytes or 0 for file in files) > 4 * LARGE:
        raise DownloadError(
            f"{parent(main)} has more than {4 * LARGE:,} bytes of files of tokenizers: give a repository of one."
        )
    contents = {file.name: repeat_if_damaged(partial(_content, file, read)) for file in files}
    check_tokenizer(contents, f"The tokenizer {name} at {parent(main)}")  # first: all later steps read the copy
    Copies(folder, lambda file: iter([contents[file.name]]), lambda *_: check_still_held(owner)).make(files)
    check_still_held(owner)
    write_json(join(folder, PROVENANCE_FILE), {"tokenizer": name, "version": _REVISION, "commit": commit})
    return commit


def _content(file: SourceFile, read: Reader) -> bytes:
    return b"".join(file.verify(read(file)))


def _on_this_host(name: str) -> tuple[str, Sequence[SourceFile], Any] | None:
    """Return the copy in ``HF_HOME``, if it is whole, without a request."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=list(TOKENIZER_GLOBS)))
    except (OSError, ValueError):  # it has none
        return None
    found = [each for each in sorted(folder.iterdir()) if any(map(each.match, TOKENIZER_GLOBS))]
    files = [each for each in found if each.is_file()]
    if not {MAIN_FILE, _CONFIG} <= {each.name for each in files} or not all(each.exists() for each in found):
        return None  # other programs fetch parts, and a link may lead nowhere
    return folder.name, [SourceFile(each.name, str(each), each.stat().st_size) for each in files], read_store


def _on_the_hub(name: str) -> tuple[str, Sequence[SourceFile], Any]:
    hub = Hub()
    found = hub.revision(name, _REVISION, "model", ["*"])
    files = [file for file in found.files if any(map(PurePath(file.name).match, TOKENIZER_GLOBS))]
    if MAIN_FILE not in {file.name for file in files}:
        raise DownloadError(f"The hub's {name} has no {MAIN_FILE}: give a repository with a fast tokenizer.")
    return found.commit, files, hub.reader().read
