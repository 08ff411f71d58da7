"""Hostile files below a root, and files beside it that no page may show."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import socket
import struct
import zlib
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import zstandard
from pyarrow import parquet

from tests.hostile.plan_xcoms import GOOD
from tests.support.outputs import make_output
from tradewind.records.attempts import attempt_path
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import LEASE_FILE, lease_path

SECRET: Final = "hunter2hunter2-not-for-any-page"
"""In each file beside the root, in the environment, in a connection and in the configuration."""
AS_BYTES: Final = [*SECRET.encode()]
MAX_CHARS: Final = 1 << 20
DEEP: Final = 100_000


def as_parquet(columns: dict[str, Any], **options: Any) -> bytes:
    """Return a Parquet file of these columns."""
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, **options)
    return file.getvalue()


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG that claims a size."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", len(data)) + b"IDAT" + data


def safetensors(header: Any, size: int | None = None) -> bytes:
    """Return a safetensors file with this header, which claims a size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text


def nested_parquet(depth: int) -> bytes:
    """Return a Parquet file with a list in a list, and so on."""
    kind: Any = pa.int8()
    value: Any = 1
    for _ in range(depth):
        kind, value = pa.list_(kind), [value]
    return as_parquet({"a": pa.array([value], kind)})


_TENSOR: Final = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
_ODD_TEXTS: Final = ("\ud800", "\0", "\x1b[2J", "\u202e", "\u2028", "<script>", "e\u0301", "\ufeff", "'\"`", "${7*7}")
_PARQUET: Final = as_parquet({"a": [1, 2, 3]})

FILES: Final[dict[str, bytes]] = {
    "deep.jsonl": b"[" * DEEP + b"\n" + b'{"a":' * DEEP + b"\n",
    "numbers.jsonl": b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": ' + b"9" * 5000 + b"}\n{"
    + b'"d": -9007199254740993, "a": 1e-999}\n',
    "texts.jsonl": "".join(json.dumps({text: text}) + "\n" for text in _ODD_TEXTS).encode(),
    "columns.jsonl": json.dumps({str(number): number for number in range(50_000)}).encode() + b"\n",
    "keys.jsonl": b"".join(b'{"%d%s": 1}\n' % (number, b"k" * MAX_CHARS) for number in range(12)),
    "long.jsonl": b'{"a": "' + b"x" * (5 << 20) + b'"}\n{"a": 1}\n',
    "empties.jsonl": b"[" + b"[]," * 1_000_000 + b"[]]\n",
    "blank.jsonl": b"\n" * 300_000,
    "binary.jsonl": bytes(range(256)) * 64,
    "utf16.jsonl": '{"a": 1}\n'.encode("utf-16"),
    "bom.jsonl": b"\xef\xbb\xbf",
    "empty.jsonl": b"",
    "scalars.jsonl": b'1\n"x"\nnull\ntrue\n[]\n{}\n',
    "twice.jsonl": b'{"a": 1, "a": 2}\n{"__proto__": 1, "constructor": 2}\n',
    "cut.jsonl": b'{"a": 1}\n{"a":',
    "bomb.jsonl.gz": gzip.compress(b"0" * (48 << 20)),
    "lines.jsonl.gz": gzip.compress(b'{"a":1}\n' * (1 << 20)),
    "cut.jsonl.gz": gzip.compress(os.urandom(4096))[:-20],
    "none.jsonl.gz": b"no gzip",
    "empty.jsonl.gz": b"",
    "twice.txt.gz": gzip.compress(gzip.compress(b"0" * (8 << 20))),
    "padded.txt.gz": gzip.compress(b"x") + b"\0" * 4096 + b"rest",
    "bomb.txt.zst": zstandard.compress(b"0" * (48 << 20)),
    "window.txt.zst": b"\x28\xb5\x2f\xfd\x00\xb8" + b"\0" * 32,
    "none.txt.zst": b"\x28\xb5\x2f\xfd" + b"\xff" * 64,
    "bomb.txt.bz2": bz2.compress(b"0" * (4 << 20)),
    "none.txt.bz2": b"BZh9" + b"\xff" * 64,
    "bomb.parquet": as_parquet({"a": pa.array(["0" * MAX_CHARS] * 64)}),
    "wide.parquet": as_parquet({f"c{number}": [1] for number in range(1500)}),
    "deep.parquet": nested_parquet(60),
    "names.parquet": as_parquet({"": [1], "a\0b": [1], "\x1b[2J": [1], "x" * 5000: [1]}),
    "texts.parquet": as_parquet({"a": ["\0", "\u202e", "\x1b[2J", "<script>"]}),
    "times.parquet": as_parquet({"a": pa.array([-(1 << 62), 1 << 62], pa.timestamp("us"))}),
    "not_utf8.parquet": as_parquet({"a": pa.array([b"\xff\xfe"]).view(pa.string())}),
    "floats.parquet": as_parquet({"a": [float("nan"), float("inf"), -float("inf")]}),
    "no_rows.parquet": as_parquet({"a": pa.array([], pa.int8())}),
    "cut.parquet": _PARQUET[:-10],
    "footer.parquet": _PARQUET[:-8] + b"\xff\xff\xff\xff" + b"PAR1",
    "footer2.parquet": _PARQUET[:-8] + b"\x00\x00\x00\x00" + b"PAR1",
    "damaged.parquet": _PARQUET[:60] + b"\xff" * (len(_PARQUET) - 68) + _PARQUET[-8:],
    "magic.parquet": b"PAR1",
    "quote.csv": b'a,b\n"' + b"x,\n" * 100_000,
    "nul.csv": b"a\0b,c\n\0,\0\n",
    "returns.csv": b"a,b\r1,2\r3,4\r",
    "columns.csv": b",".join(b"%d" % number for number in range(40_000)) + b"\n1\n",
    "header.csv": b"x" * (1 << 19),
    "twice.csv": b"a,a,a (2)\n1,2,3\n",
    "more.csv": b"a\n1,2,3\n",
    "formula.csv": b"a\n=cmd|' /C calc'!A0\n",
    "empty.csv": b"",
    "huge.png": png((1 << 31) - 1, (1 << 31) - 1),
    "bomb.png": png(30_000, 30_000, zlib.compress(b"\0" * (1 << 20))),
    "cut.png": b"\x89PNG\r\n\x1a\n",
    "page.png": b"<html><script>alert(1)</script>",
    "draw.png": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "code.gif": b"GIF89a=1;alert(1)//",
    "loop.jpg": b"\xff\xd8\xff\xe0\x00\x00" * 10_000,
    "filled.jpg": b"\xff\xd8" + b"\xff" * 300_000,
    "cut.webp": b"RIFF\0\0\0\0WEBPVP8X",
    "x.svg": b"<svg onload='alert(1)'/>",
    "x.html": b"<script>alert(1)</script>",
    "x.md": b"[x](javascript:alert(1)) <img src=x onerror=alert(1)> ![](http://169.254.169.254/)",
    "x.xml": b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    "x.yaml": b"a: &a [x,x]\nb: &b [*a,*a]\nc: !!python/object/apply:os.system [id]\n",
    "x.json": b"[" * DEEP,
    "colors.log": b"\x1b]0;title\x07\x1b[2J\r\n" * 1000,
    "x.bin": bytes(range(256)) * 16,
    "length.safetensors": safetensors({}, 1 << 63),
    "short.safetensors": b"\x01",
    "deep.safetensors": safetensors(b"[" * DEEP),
    "list.safetensors": safetensors([]),
    "shape.safetensors": safetensors({"a": {**_TENSOR, "shape": [1 << 62] * 32}}),
    "float.safetensors": safetensors(b'{"a": {"dtype": "F32", "shape": [NaN, 1e999], "data_offsets": [0, 4]}}'),
    "digits.safetensors": safetensors({"a": {**_TENSOR, "shape": ["9" * 5000]}}),
    "offsets.safetensors": safetensors({"a": {**_TENSOR, "data_offsets": [9, -(1 << 70)]}}),
    "kinds.safetensors": safetensors({"\ud800": _TENSOR, "b": {**_TENSOR, "dtype": ["x" * 10_000]}}),
    "more.safetensors": safetensors({"__metadata__": [1]}),
    "more2.safetensors": safetensors({"__metadata__": {"a": "x" * MAX_CHARS, "\x1b[2J": {"b": [1]}}}),
    "names.safetensors": safetensors({f"{number}{'n' * 1500}": _TENSOR for number in range(6000)}),
    "control\x1b[2J.txt": b"x",
    "line\nbreak.txt": b"x",
    "bidi\u202etxt.exe": b"x",
    "e\u0301.txt": b"decomposed",
    "\u00e9.txt": b"composed",
    "\uff0e\uff0e\uff0fetc": b"x",
    "%2e%2e%2fsecret": b"x",
    "%00.txt": b"x",
    "\\..\\secret": b"x",
    "'\"<img src=x onerror=alert(1)>.txt": b"x",
    "n" * 255: b"x",
    " ": b"x",
}  # fmt: skip
"""Name → content."""

TEXT_OF_SECRET: Final[dict[str, bytes]] = {
    "secret": SECRET.encode(),
    "secret.jsonl": json.dumps({"step": 1, "time": 1, "train/loss": 1, SECRET: 2}).encode() + b"\n",
    "secret.csv": f"a\n{SECRET}\n".encode(),
    "secret.parquet": as_parquet({"a": [SECRET]}),
    "secret.png": png(3, 3, SECRET.encode()),
    "progress.json": json.dumps({"stages": [{"stage": 1, "name": SECRET}], "total_stages": 1}).encode(),
    "one-abcdef.json": json.dumps({"steps": [], "user": SECRET, "created_date": "2026"}).encode(),
    "1.json": json.dumps({"number": 1, "job": SECRET, "cluster": SECRET, "by": {}, "spec": {}}).encode(),
    LEASE_FILE: json.dumps({"worker_id": "w", "timestamp": 1.0, "phase": "failed", "attempt": 1,
                            "by": {"script": SECRET}}).encode(),
    INFO_FILE: json.dumps({"name": SECRET, "fn_name": SECRET, "config": {"a": SECRET}, "dependencies": [],
                           "version": {"name": SECRET, "config": {"a": SECRET}, "dependencies": []}}).encode(),
}  # fmt: skip
"""Files beside the root: readable ones of each kind, which a link leads to."""


def write_outside(folder: Path) -> None:
    """Write the files that no page may show."""
    folder.mkdir()
    for name, content in TEXT_OF_SECRET.items():
        (folder / name).write_bytes(content)


def write_files(root: Path, outside: Path) -> list[str]:
    """Write the hostile files, links, pipes and folders; return their paths."""
    for name, content in FILES.items():
        (root / name).write_bytes(content)
    links = {"link": "secret", "link.jsonl": "secret.jsonl", "link.csv": "secret.csv", "link.parquet": "secret.parquet",
             "link.png": "secret.png"}  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(outside / target)
    (root / "folder").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "environ.txt").symlink_to("/proc/self/environ")
    (root / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(root / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(root / "socket.txt"))
    Path(os.fsdecode(os.fsencode(root) + b"/not\xffutf8.txt")).write_bytes(b"x")
    write_caches(root, outside)
    write_outputs(root, outside)
    return [str(entry) for entry in sorted(root.iterdir()) if str(entry).isascii() or _is_text(str(entry))]


def _is_text(path: str) -> bool:
    return path == path.encode(errors="replace").decode()


_LEDGER: Final[dict[str, Any]] = {"total_num_rows": 1, "field_counts": {"input_ids": 31}, "is_finished": True}
_ARRAY: Final[dict[str, Any]] = {
    "zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "int64", "fill_value": 0, "attributes": {},
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}  # fmt: skip


def write_array(folder: Path, values: bytes | Path | None, **changes: Any) -> None:
    """Write an array whose only chunk has these bytes, or is a link."""
    fields = {**_ARRAY, **changes}
    folder.mkdir(parents=True)
    (folder / "zarr.json").write_text(json.dumps(fields))
    chunk = folder / ("0" if fields["chunk_key_encoding"]["name"] == "v2" else "c/0")
    chunk.parent.mkdir(exist_ok=True)
    if isinstance(values, bytes):
        chunk.write_bytes(values)
    elif values is not None:
        chunk.symlink_to(values)


def write_cache(folder: Path, data: bytes | Path | None, ledger: Any = _LEDGER, **changes: Any) -> None:
    """Write a token cache of one document."""
    length = len(AS_BYTES)
    write_array(folder / "input_ids" / "offsets", struct.pack("<qq", 1, length))
    grid = {"name": "regular", "configuration": {"chunk_shape": [length]}}
    short = {"shape": [length], "data_type": "uint8", "codecs": [{"name": "bytes"}], "chunk_grid": grid}
    write_array(folder / "input_ids" / "data", data, **{**short, **changes})
    (folder / "shard_ledger.json").write_text(ledger if isinstance(ledger, str) else json.dumps(ledger))


def write_caches(root: Path, outside: Path) -> None:
    """Write token caches and checkpoints."""
    secret, good = outside / "secret", bytes(31)
    write_cache(root / "cache link", secret)
    write_cache(root / "cache other keys", secret, chunk_key_encoding={"name": "v2"})
    dots = {"name": "default", "configuration": {"separator": "."}}
    write_cache(root / "cache dots", None, chunk_key_encoding=dots)
    (root / "cache dots" / "input_ids" / "data" / "c.0").symlink_to(secret)
    for size in (0, -1, 1 << 62, "1", True, None):
        grid = {"name": "regular", "configuration": {"chunk_shape": [size]}}
        write_cache(root / f"cache chunk {size}", good, chunk_grid=grid)
    write_cache(root / "cache gzip", gzip.compress(b"0" * (32 << 20)), codecs=[{"name": "bytes"}, {"name": "gzip"}])
    write_cache(root / "cache codecs", good, codecs=[{"name": "x"}] * 10_000)
    for number in (-1, 1 << 62, 10**400, True):
        write_cache(root / f"cache rows {str(number)[:20]}", good, {**_LEDGER, "total_num_rows": number})
    write_cache(root / "cache names", good, {**_LEDGER, "field_counts": {"../../outside": 1, "\ud800": 1, "": 1}})
    write_cache(root / "cache deep", good, "[" * DEEP)
    write_cache(root / "cache list", good, "[]")
    for number, name in enumerate([f"{outside}/secret", "../outside", "http://127.0.0.1:9/x", "memory://x", "a/b"]):
        metadata = {"preprocessor_metadata": {"tokenizer": name, "\x1b": SECRET[:3] * 9}}
        write_cache(root / f"cache tokenizer {number}", good, {**_LEDGER, "metadata": metadata})
    (root / "tokenizer").mkdir()
    (root / "tokenizer" / "tokenizer.json").write_text('{"model": {"type": "BPE"}, "x": ' + "[" * 1000)
    metadata = {"preprocessor_metadata": {"tokenizer": f"{root}/tokenizer"}}
    write_cache(root / "cache bad tokenizer", good, {**_LEDGER, "metadata": metadata})
    for name, content in {"none": b"", "garbage": b"\x0c\xdb\x3a\x2a" + b"\xff" * 200}.items():
        (root / f"checkpoint {name}").mkdir()
        (root / f"checkpoint {name}" / "manifest.ocdbt").write_bytes(content)
        (root / f"checkpoint {name}" / "metadata.json").write_text('{"a": NaN, "b": "\\ud800"}')
    (root / "checkpoint link").mkdir()
    (root / "checkpoint link" / "manifest.ocdbt").symlink_to(secret)
    (root / "checkpoint link" / "metadata.json").symlink_to(secret)


_LEASE: Final = {"worker_id": "w", "timestamp": 1.0, "phase": "committed", "attempt": 1}
_VERSION: Final = {"name": "x", "config": {}, "dependencies": []}
_INFO: Final = {"name": "x", "fn_name": "m.f", "config": {}, "dependencies": [], "version": _VERSION}
LEASES: Final[dict[str, str]] = {
    "cut": '{"worker_id": ',
    "deep": "[" * DEEP,
    "later": json.dumps({**_LEASE, "phase": "later"}),
    "nan": json.dumps({**_LEASE, "timestamp": float("nan")}),
    "infinite": '{"worker_id": "w", "timestamp": 1e999, "phase": "committed", "attempt": 1}',
    "far": json.dumps({**_LEASE, "timestamp": 1e300}),
    "before": json.dumps({**_LEASE, "timestamp": -1e300}),
    "digits": '{"worker_id": "w", "timestamp": ' + "9" * 400 + "}",
    "attempt": json.dumps({**_LEASE, "attempt": 10**30}),
    "texts": json.dumps({**_LEASE, "by": {"dag": "\ud800\x1b[2J", "run": "x" * 100_000, "script": "\ud800"}}),
    "by": json.dumps({**_LEASE, "by": {"script": "\ud800", "dag": [1], "run": {}}}),
    "witness": json.dumps({**_LEASE, "witness": "../../outside/secret"}),
}  # fmt: skip
INFOS: Final[dict[str, str]] = {
    "cut": '{"name": ',
    "deep": '{"name": "x", "config": ' + '{"a": ' * 5000 + "1" + "}" * 5001,
    "key": json.dumps({**_INFO, "config": {"k" * MAX_CHARS: {str(number): 1 for number in range(2900)}}}),
    "keys": json.dumps({**_INFO, "config": {"k" * 990 + str(number): "v" * 990 for number in range(4000)}}),
    "version": json.dumps({**_INFO, "version": {**_VERSION, "config": {
        "k" * 990 + str(number): "v" * 990 for number in range(1900)}}}),
    "texts": json.dumps({**_INFO, "name": "\ud800\x1b[2J", "fn_name": "\ud800", "config": {"\ud800": "\ud800"},
                         "version": {**_VERSION, "config": {"\ud800": "\ud800"}}}),
    "numbers": '{"name": "x", "fn_name": "f", "config": {"a": NaN, "b": 1e999, "c": ' + "9" * 4000 + '}, "version": '
    '{"name": "x", "config": {"a": NaN, "b": 1e999}, "dependencies": []}, "dependencies": []}',
    "inputs": json.dumps({**_INFO, "dependencies": ["/etc/passwd", "gs://other/x", "\ud800", "../../outside"] * 2000}),
    "same": json.dumps({**_INFO, "version": {**_VERSION, "dependencies": [{"name": "../x"}, "\ud800"]}}),
}  # fmt: skip
FILES_OF_OUTPUTS: Final[dict[str, tuple[str, str]]] = {
    "metrics numbers": ("metrics.jsonl", '{"step": 1, "a": NaN, "b": 1e999, "time": 1e999}\n{"step": 1e400, "a": 1}\n'
                        + '{"step": ' + "9" * 4000 + ', "loss": 1}\n{"step": 3, "loss": ' + "9" * 400 + "}\n"),
    "metrics deep": ("metrics.jsonl", "[" * DEEP + "\n"),
    "metrics texts": ("metrics.jsonl", '{"step": 1, "\\ud800": 1, "\\u001b[2J": 2, "__proto__": 3, "time": -1e300}\n'),
    "evaluation list": ("record.json", "[]"),
    "evaluation deep": ("record.json", "[" * DEEP),
    "evaluation none": ("record.json", '{"schema": "tradewind.evaluation/1", "tasks": [{"name": "\\ud800"}]}'),
    "progress numbers": (".dataset/progress.json", '{"total_stages": ' + "9" * 4000 + ', "stages": []}'),
    "progress infinite": (".dataset/progress.json", '{"total_stages": 1, "stages": [{"stage": 1, "name": "x", '
                          '"seconds": 1e999}]}'),
    "progress texts": (".dataset/progress.json", json.dumps({"total_stages": 1, "problem": "\ud800\x1b[2J", "stages": [
        {"stage": 1, "name": "\ud800", "counters": {"x" * 200_000: 1, "\ud800": 2}, "stragglers": ["\ud800"]}]})),
}  # fmt: skip
MANIFEST: Final = {"attempt": 1, "files": [{"path": path, "size": 1, "checksum": None} for path in (
    "../../outside/secret", "/etc/passwd", "\ud800", "a\0b", "x" * 5000, "http://127.0.0.1/")]}  # fmt: skip
EXPERIMENTS: Final[dict[str, str]] = {
    "cut": "{",
    "deep": "[" * DEEP,
    "texts": json.dumps({"steps": [{"output_path": "\ud800"}], "user": "\ud800\x1b[2J", "git_commit": "\ud800",
                         "caller_path": "\ud800", "created_date": "\ud800"}),
    "long": json.dumps({"steps": [], "user": "u" * MAX_CHARS, "created_date": "c" * MAX_CHARS}),
    "paths": json.dumps({"steps": [{"output_path": path} for path in
                         ("/etc", "", "::", "http://127.0.0.1/", ".." * 9)]}),
}  # fmt: skip


def write_outputs(root: Path, outside: Path) -> None:
    """Write outputs with hostile records, files of experiments, and links in place of records and their folders."""
    for kind, lease in LEASES.items():
        _output(root, f"lease_{kind}", lease, json.dumps(_INFO))
    for kind, info in INFOS.items():
        _output(root, f"info_{kind}", json.dumps(_LEASE), info)
    for kind, (name, content) in FILES_OF_OUTPUTS.items():
        file = _output(root, kind.replace(" ", "_"), json.dumps(_LEASE), json.dumps(_INFO)) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    manifest = _output(root, "manifest", json.dumps(_LEASE), json.dumps(_INFO))
    (manifest / ".manifest.json").write_text(json.dumps(MANIFEST))
    linked = _output(root, "links", json.dumps(_LEASE), json.dumps(_INFO))
    (linked / "metrics.jsonl").symlink_to(outside / "secret.jsonl")
    (linked / "record.json").symlink_to(outside / "secret")
    (linked / ".dataset").symlink_to(outside)
    attempts = Path(attempt_path(str(linked), 1)).parent
    attempts.parent.mkdir(exist_ok=True)
    attempts.symlink_to(outside)
    records = root / "records-aaaaaa"
    records.mkdir()
    for name in (LEASE_FILE, INFO_FILE):
        (records / name).symlink_to(outside / name)
    (root / "records-bbbbbb").symlink_to(outside)
    odd = Path(os.fsdecode(os.fsencode(root) + b"/odd\xff-aaaaaa"))
    odd.mkdir()
    (odd / LEASE_FILE).write_text(json.dumps(_LEASE))
    make_output(str(root), "good")
    experiments = root / "experiments"
    experiments.mkdir()
    for kind, content in EXPERIMENTS.items():
        (experiments / f"{kind}-abcdef.json").write_text(content)
    (experiments / "link-abcdef.json").symlink_to(outside / "one-abcdef.json")
    (experiments / "odd\x1b[2J\u202e-abcdef.json").write_text("{}")
    Path(os.fsdecode(os.fsencode(experiments) + b"/odd\xff-abcdef.json")).write_text('{"steps": []}')
    (root / "below").mkdir()
    (root / "below" / "experiments").symlink_to(outside)


def _output(root: Path, name: str, lease: str, info: str) -> Path:
    folder = root / f"{name}-aaaaaa"
    folder.mkdir()
    Path(lease_path(str(folder))).write_text(lease)
    (folder / INFO_FILE).write_text(info)
    return folder


def plan_of(path: Any, **changes: Any) -> dict[str, Any]:
    """Return a plan whose only step, of the task ``t``, has this output path."""
    return {**GOOD, "steps": [{**GOOD["steps"][0], "output_path": path, **changes}]}
