"""The folder of a served model on a worker's disk: complete, copied once per region and once per node.

A model on a disk is served where it is. One of a bucket or of the hub is copied to ``NODE_FOLDER`` of the node. The
workers of a node wait for each other at a lock, which the kernel ends with its process; each keeps a lock on the copy
that it uses, and a copy that none uses makes room for another. A model of the hub, or of a bucket in another region, is
first copied below the cluster's prefix, by the owner of a lease, so that other nodes read it from near.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tradewind.datasets.downloads import LIST_FILE, PROVENANCE_FILE, Copies, Reader, read_store
from tradewind.datasets.files import basename, exists, is_remote, join, parent, state_of, store_fingerprint, write_json
from tradewind.datasets.hub import Hub, HubAccess, check_repo_id
from tradewind.datasets.source_files import DownloadError, SourceFile
from tradewind.plans.prefixes import cluster_prefix
from tradewind.recipes.lm.stored_models import missing_weights
from tradewind.recipes.train_config import export_path
from tradewind.records.lease_store import LeaseHolder, LeaseStore, check_still_held, is_in_use
from tradewind.records.pins import OWN_FOLDER
from tradewind.runtime.driver.secrets import fetch_secrets
from tradewind.runtime.pods.process_env import ON_CPU
from tradewind.serving.config import ServingConfig
from tradewind.steps.amounts import human_size
from tradewind.steps.paths import HUB_PREFIX
from tradewind.storage import Location, file_system_at
from tradewind.storage.bounded_read import LARGE
from tradewind.storage.bucket_regions import bucket_region
from tradewind.text import escape_control_characters, single_line, truncated_repr

NODE_FOLDER: Final = Path(tempfile.gettempdir(), f"tradewind-models-{os.getuid()}")
_WEIGHTS: Final = (".safetensors", ".bin")
_OTHERS: Final = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_MODEL: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{7,40})")
_STEP: Final = re.compile(r"step-(\d+)")
CHECKPOINT: Final = "manifest.ocdbt"
"""File of each checkpoint of Levanter's."""
_SPARE_BYTES: Final = 256 << 20
_MAX_POLL_S: Final = 2.0
_in_use: Final[list[int]] = []
"""Locks on the copies that this process uses, until it ends."""


@dataclass(frozen=True)
class _Model:
    """Files of a model that are elsewhere, and the name of their copies."""

    name: str
    files: Sequence[SourceFile]
    read: Reader

    @property
    def size(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)


def local_model(config: ServingConfig) -> str:
    """Return a local folder with the model in the form of Hugging Face, with its tokenizer.

    Raises:
        ValueError: There is no such model, it is not complete, or the disk is too small for it.
    """
    if config.is_from_hub:
        return _of_hub(config)
    path = (config.model if is_remote(config.model) else str(file_system_at(config.model)[1])).rstrip("/")
    if exists(join(path, CHECKPOINT)):
        return _of_checkpoint(path)
    found = stored_export(path)
    return _on_node(_near(_stored(found))) if is_remote(found) else found


def check_model(model: str) -> None:
    """Refuse a name of the hub's without a commit; makes no request.

    Raises:
        ValueError: The message says what to give.
    """
    if model.startswith(HUB_PREFIX):
        _parsed(model)


def present_model(model: str) -> tuple[str, Sequence[Any]]:
    """Return the export or checkpoint that a path means now, and what tells it from another that takes its place.

    Raises:
        ValueError: There is none that is complete.
    """
    if model.startswith(HUB_PREFIX):
        return model, [model]
    path = (model if is_remote(model) else str(file_system_at(model)[1])).rstrip("/")
    found = path if exists(join(path, CHECKPOINT)) else stored_export(path)
    fs, root = file_system_at(found)
    fs.invalidate_cache()
    files: list[Mapping[str, Any]] = [entry for entry in fs.ls(root, detail=True) if entry["type"] == "file"]
    return found, sorted([basename(file["name"]), file["size"], store_fingerprint(file)] for file in files)


def stored_export(path: str) -> str:
    """Return the folder of the export at ``path``: itself, that of a training, or the newest of its exports.

    Raises:
        ValueError: There is none that is complete.
    """
    folder = path.rstrip("/")
    shown = escape_control_characters(path)
    problem = ""
    for each in _candidates(folder):  # the first is preferred
        if exists(join(each, "config.json")):
            flaw = _flaw(each)
            if flaw is None:
                return each
            problem = problem or f"model={shown}: the export {each} {flaw}"
    if problem:
        raise ValueError(f"{problem}: wait for its end, or export it again.")
    there = "has no export in the form of Hugging Face, hf/config.json" if _is_folder(folder) else "is not there"
    raise ValueError(f"model={shown} {there}.")


def _candidates(folder: str) -> list[str]:
    """Return the folders that may be the export."""
    exports = export_path(folder)
    return [folder, exports, *_steps(exports), *_steps(folder)]


def _steps(folder: str) -> list[str]:
    """Return the exports of single steps, newest first."""
    if not _is_folder(folder):
        return []
    fs, root = file_system_at(folder)
    steps = {int(m[1]): m[0] for name in fs.ls(root, detail=False) if (m := _STEP.fullmatch(basename(name)))}
    return [join(folder, steps[step]) for step in sorted(steps, reverse=True)]


def _is_folder(folder: str) -> bool:
    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    return bool(fs.isdir(root))


def _flaw(folder: str) -> str | None:
    """Say what an export lacks."""
    if missing := missing_weights(folder):
        return f"lacks {escape_control_characters(missing)}"
    if not is_remote(folder) and (cut := next(filter(_is_cut, Path(folder).glob("*.safetensors")), None)):
        return f"has only a part of {cut.name}"
    if not any(exists(join(folder, name)) for name in _TOKENIZERS):
        return f"has no tokenizer ({_TOKENIZERS[0]})"
    return None


def _is_cut(file: Path) -> bool:
    """Whether a file of weights is shorter than its header says: on a disk, an export may be under way."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = opened.read(size) if size <= LARGE else b""
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        end = max((entry["data_offsets"][1] for entry in tensors), default=0)
    except (ValueError, TypeError, LookupError, AttributeError):
        return True
    return bool(file.stat().st_size < 8 + size + end)


def _stored(folder: str) -> _Model:
    """Return the model in a folder of a bucket; its copy's name tells its content."""
    fs, root = file_system_at(folder)
    entries = {basename(entry["name"]): entry["size"] for entry in fs.ls(root, detail=True) if entry["type"] == "file"}
    names = _needed(entries)
    states = [(name, *state_of(join(folder, name))) for name in names]
    digest = hashlib.sha256(repr((folder, states)).encode()).hexdigest()[:16]
    files = [SourceFile(name, join(folder, name), entries[name]) for name in names]
    return _Model(f"{basename(folder)}-{digest}", files, read_store)


def _needed(names: Collection[str]) -> list[str]:
    """Return the files that engines read: weights in one form, and what describes them."""
    form = next((form for form in _WEIGHTS if any(name.endswith(form) for name in names)), _WEIGHTS[0])
    wanted = (name for name in names if "/" not in name and name.endswith((form, *_OTHERS)))
    return sorted(name for name in wanted if name != PROVENANCE_FILE)


def _of_hub(config: ServingConfig) -> str:
    repo, commit = _parsed(config.model)
    name = f"{repo.replace('/', '--')}@{commit}"
    if (folder := _used(name)) is not None:
        return folder
    token = fetch_secrets(config.secrets, "The served model").get("HF_TOKEN")
    access = HubAccess.of_environment()
    hub = Hub(access=HubAccess(access.endpoint, token or access.token, access.login))
    copied = _region_folder(name)
    if copied is not None and exists(join(copied, PROVENANCE_FILE)):
        return _on_node(_named(name, copied))
    try:
        model = _listed(hub, repo, commit, name)
        return _on_node(model if copied is None else _in_region(model, copied))
    except DownloadError as error:
        raise ValueError(f"model={config.model!r}: {error}") from None


def _parsed(model: str) -> tuple[str, str]:
    found = _HUB_MODEL.fullmatch(model.removeprefix(HUB_PREFIX))
    if found is None:
        raise ValueError(
            f"model={truncated_repr(model)}: give hub:ORG/NAME@COMMIT, with 7 to 40 hexadecimal digits of a commit. "
            "A branch or a tag may be another model tomorrow; a model's page shows its commits under 'Files'."
        )
    try:
        check_repo_id(found["repo"])
    except DownloadError as error:
        raise ValueError(f"model={truncated_repr(model)}: {error}") from None
    return found["repo"], found["commit"]


def _listed(hub: Hub, repo: str, commit: str, name: str) -> _Model:
    revision = hub.revision(repo, commit, "model")
    if not revision.commit.startswith(commit):
        raise DownloadError(f"the hub knows {commit} as a branch or a tag, not as a commit: give its commit.")
    files = {file.name: file for file in revision.files}
    model = _Model(name, [files[each] for each in _needed(list(files))], hub.reader().read)
    there = {file.name for file in model.files}
    if "config.json" not in there or not any(each.endswith(_WEIGHTS) for each in there):
        raise DownloadError(f"{repo} is no model in the form of Hugging Face: config.json or its weights are missing.")
    if not there.intersection(_TOKENIZERS):
        raise DownloadError(f"{repo} has no tokenizer ({_TOKENIZERS[0]}).")
    return model


def _region_folder(name: str) -> str | None:
    """Return where this region's copy is, if the cluster has a prefix."""
    prefix = cluster_prefix()
    return None if prefix is None else join(prefix, OWN_FOLDER, "models", name)


def _near(model: _Model) -> _Model:
    """Return the model in this region; it is copied there if it is in another one."""
    folder, prefix = parent(model.files[0].url), cluster_prefix()
    copied = _region_folder(model.name)
    if prefix is None or copied is None or not is_remote(prefix) or _same_region(folder, prefix):
        return model
    return _in_region(model, copied)


def _same_region(path: str, prefix: str) -> bool:
    """Whether both are in buckets of one region, as far as their store says."""
    here, there = Location.of(prefix), Location.of(path)
    if here.scheme != there.scheme or here.scheme != "gs":
        return (here.scheme, here.bucket) == (there.scheme, there.bucket)
    return here.bucket == there.bucket or bucket_region(here.bucket) == bucket_region(there.bucket)


def _in_region(model: _Model, folder: str) -> _Model:
    """Copy the model to ``folder``, or wait until another process has; return the copy."""
    from tradewind.attempts.renewal import make_copy

    store, has_waited = LeaseStore(folder), False
    while True:
        before = store.read()  # first: a copy that another process completes from now on has changed it
        if exists(join(folder, PROVENANCE_FILE)):
            return _named(model.name, folder)
        if before is None or not is_in_use(before):
            make_copy(store, before, {"model": model.name}, partial(_fill_region, model, folder))
            continue
        if not has_waited:
            print(f"{model.name} is being copied to {folder} by another process: waiting.", flush=True)
        has_waited = True
        time.sleep(min(_MAX_POLL_S, before.lease.times.poll_s))


def _fill_region(model: _Model, folder: str, owner: LeaseHolder) -> str:
    print(f"Copying {model.name}, {human_size(model.size)}, to {folder}.", flush=True)
    Copies(folder, model.read, lambda *_: check_still_held(owner)).make(model.files)
    check_still_held(owner)
    write_json(join(folder, PROVENANCE_FILE), {"model": model.name, "links": [file.url for file in model.files]})
    return model.name


def _named(name: str, folder: str) -> _Model:
    """Return the model in a copy of the region, which never changes."""
    fs, root = file_system_at(folder)
    sizes = {basename(entry["name"]): entry["size"] for entry in fs.ls(root, detail=True) if entry["type"] == "file"}
    files = [SourceFile(each, join(folder, each), sizes[each]) for each in _needed(sizes)]
    return _Model(name, files, read_store)


def _of_checkpoint(path: str) -> str:
    """Return this node's export of a checkpoint; config and tokenizer are those of an export of the same training."""
    like = export_beside(path)
    if like is None:
        shown, beside = (escape_control_characters(each) for each in (path, export_path(parent(parent(path)))))
        raise ValueError(
            f"model={shown} is a checkpoint of Levanter's, which has no tokenizer and no config of its model, and no "
            f"export is beside it ({beside}): give an export, which a training writes at its end and after each "
            "hf_save_steps."
        )
    model = _stored(like)
    digest = hashlib.sha256(repr((path, state_of(join(path, CHECKPOINT)), model.name)).encode()).hexdigest()[:16]
    fill = partial(_convert, path, model)
    return _on_node_as(f"{basename(path)}-{digest}", model.size, fill)


def export_beside(checkpoint: str) -> str | None:
    """Return the export of the training that wrote a checkpoint; None if there is none yet."""
    above = parent(checkpoint), parent(parent(checkpoint))
    return next((export for folder in above if (export := export_or_none(folder)) is not None), None)


def export_or_none(folder: str) -> str | None:
    """Return ``stored_export`` of a folder; None instead of an error."""
    try:
        return stored_export(folder)
    except ValueError:
        return None


def _convert(checkpoint: str, like: _Model, part: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    described = [file for file in like.files if file.name.endswith(_OTHERS) and not file.name.endswith(".index.json")]
    with tempfile.TemporaryDirectory(prefix="tradewind-export-") as folder:
        Copies(folder, like.read, lambda *_: None).make(described)
        Path(folder, LIST_FILE).unlink()
        command = [sys.executable, "-m", "tradewind.serving.convert_checkpoint", checkpoint, folder, str(part)]
        done = subprocess.run(command, env=os.environ | ON_CPU, capture_output=True, text=True)
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ValueError(f"model={checkpoint}: the checkpoint cannot be converted: {single_line(why[0])}")


def _on_node(model: _Model) -> str:
    """Return this node's copy of the model; make it unless it is there."""

    def copy(part: Path) -> None:
        Copies(str(part), model.read, lambda *_: None).make(model.files)

    return _on_node_as(model.name, model.size, copy)


def _on_node_as(name: str, size: int, make: Callable[[Path], None]) -> str:
    """Return this node's folder of that name; ``make`` fills a folder that becomes it, unless it is there."""
    while (folder := _used(name)) is None:
        lock = _locked(name, fcntl.LOCK_EX)
        try:
            if not (NODE_FOLDER / name).exists():
                part = NODE_FOLDER / f"{name}.part"
                _make_room(name, size, part)
                print(f"Copying {name}, {human_size(size)}, to {NODE_FOLDER}.", flush=True)
                make(part)
                part.rename(NODE_FOLDER / name)
        finally:
            os.close(lock)
    return folder


def _used(name: str) -> str | None:
    """Return this node's copy and keep it from being removed; None if there is none."""
    if not (NODE_FOLDER / name).exists():
        return None
    lock = _locked(name, fcntl.LOCK_SH)
    if not (NODE_FOLDER / name).exists():  # it made room meanwhile
        os.close(lock)
        return None
    _in_use.append(lock)
    os.utime(NODE_FOLDER / name)
    return str(NODE_FOLDER / name)


def _locked(name: str, kind: int) -> int:
    NODE_FOLDER.mkdir(mode=0o700, exist_ok=True)
    if NODE_FOLDER.lstat().st_uid != os.getuid():
        raise ValueError(
            f"{NODE_FOLDER} is of another user, who could change models in it: set TMPDIR to another folder."
        )
    lock = os.open(NODE_FOLDER / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{name} is being copied to {NODE_FOLDER} by another process: waiting.", flush=True)
        fcntl.flock(lock, kind)
    return lock


def _make_room(name: str, size: int, part: Path) -> None:
    """Remove copies that no process uses, oldest first, until the model fits; refuse it if it never does."""
    there = sum(file.stat().st_size for file in part.iterdir()) if part.exists() else 0
    needed = size - there + _SPARE_BYTES
    others = [each for each in NODE_FOLDER.iterdir() if each.is_dir() and each != part]
    for other in sorted(others, key=lambda each: each.stat().st_mtime):
        if _free_bytes() >= needed:
            return
        _remove_unused(other)
    if _free_bytes() < needed:
        raise ValueError(
            f"The model {name} has {human_size(size)}, and {NODE_FOLDER} has room for "
            f"{human_size(max(0, _free_bytes() - _SPARE_BYTES))}: give the cluster's nodes larger disks, or set TMPDIR."
        )


def _free_bytes() -> int:
    return shutil.disk_usage(NODE_FOLDER).free


def _remove_unused(folder: Path) -> None:
    lock = os.open(NODE_FOLDER / f"{folder.name.removesuffix('.part')}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:
        pass  # a process uses it
    finally:
        os.close(lock)
