"""Hostile parts of requests for pages: paths, numbers, cursors, texts, queries, ids and headers."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote


def paths_outside(root: str, outside: str, server: str) -> list[str]:
    """Return paths that lead out of ``root``, name no file of it, or ask for a connection to ``server``."""
    secret = f"{outside}/secret"
    return [
        "", ".", "..", "/", "//", "~", "etc/passwd", "/etc/passwd", "/proc/self/environ", secret, f" {secret}",
        f"/proc/self/root{secret}", "/proc/self/cwd/../outside/secret", "/dev/fd/0", "/dev/stdin", "/dev/tcp/x",
        f"{root}/..", f"{root}/../outside/secret", f"{root}/./../outside/secret", f"{root}//..//outside/secret",
        f"{root}x/secret", f"{root} /../outside", f"{root}/up", f"{root}/up/outside/secret", f"{root}/folder",
        *(f"{root}/folder/secret{end}" for end in ("", ".jsonl", ".csv", ".png")),
        *(f"{root}/{name}" for name in ("loop", "loop/x", "pipe.jsonl", "environ.txt", "zero.txt", "socket.txt")),
        *(f"{root}/{name}" for name in ("link/", "link/.", "e\u0301.txt/", "*", "[a-z]*", "**/secret", "${HOME}")),
        f"{root}/%2e%2e/outside/secret", quote(secret, safe=""), quote(quote(secret, safe=""), safe=""),
        f"{root}/..%2foutside%2fsecret", f"{root}/..%252foutside", f"{root}/..%c0%afoutside",
        f"{root}/..\\outside\\secret", f"{root}/\uff0e\uff0e/outside/secret", f"{root}/\u2024\u2024/outside",
        f"{root}/.\u200b./outside/secret", f"{root}/..\0/outside", f"{root}/a.jsonl\0.png", f"{secret}\0{root}",
        f"{root}\n/../outside/secret", f"{root}/" + "a/" * 2000, f"{root}/" + "../" * 1300, "x" * 4096,
        f"{root}/" + "\u00e9" * 255, f"{root}::http://{server}/x", "$AIRFLOW_HOME/airflow.cfg", "{{ var.value.x }}",
        *(f"{scheme}{secret}" for scheme in ("file://", "file:", "local://", "FILE://", "file://localhost", "file:///")),
        *(f"{scheme}://{server}/x" for scheme in ("http", "https", "ftp", "sftp", "smb", "hdfs", "ws", "git")),
        f"file://{root}/../outside/secret", f"ssh://me@{server}/x", f"github://o:r@{server}/x", f"//{server}/x",
        f"\\\\{server}\\x", "gs://me:hunter2@bucket/x", "gs://bucket/x", "gs://", "gs:///x", "gs:bucket", "gcs://b/../x",
        "s3://bucket/x", "s3a://bucket/x.parquet", "s3://169.254.169.254/latest", "memory://x", "memory:///", "data:,x",
        f"reference://::http://{server}/x", f"simplecache::http://{server}/x", f"zip://x::{root}/link", f"tar://x::{root}",
        "blockcache::gs://bucket/x", "dask://x", "cached://x", "dir://x", "az://c/x", "hf://datasets/x",
        "libarchive://x", "javascript:alert(1)", "CON", "C:\\",
    ]  # fmt: skip


NUMBERS: Final = (
    "-1", "0", "nan", "inf", "-inf", "1e999", "0x10", "9" * 400, "1_0", "\u0663", "", " 1", "1;2", "1.5", "\0", "[]",
    "null", "-9223372036854775809", "9007199254740993",
)  # fmt: skip
CURSORS: Final = (
    "~", ":", "~1", "1:1", "9" * 16, "~" + "9" * 17, "-1", "1:0", "0:" + "9" * 15, "\u0663", "1\n", "\0", "../..",
    "1000", "1" * 1000, "~0:0", "1:1:1", "%00", "AAAA", "0@x", "@",
)  # fmt: skip
TEXTS: Final = (
    "\0", "\u202e", "../", "a/b", "*", "%", "'", '"', "x" * 1000, "x" * 5_000, "a:b", ":", "=", "a=", "value:",
    "\x1b[2J", "__proto__", "(a+)+$", "{{7*7}}", "' OR 1=1 --",
)  # fmt: skip
QUERIES: Final = (
    "path", "path=", "path=a&path=b", "path[]=x", "path=%ff", "path=%ed%a0%80", "path=%", "%00=x", "a" * 60_000,
    "&" * 10_000, "path=" + "%2e%2e%2f" * 500, "columns=a&" * 201 + "path=/x", "path=+/etc",
)  # fmt: skip
IDS: Final = (
    "..", "%2e%2e", "%2e%2e%2f%2e%2e", "%252e%252e", "~", "*", "%00", "%0a", "%1b[2J", "%e2%80%ae", "%ff", "%ed%a0%80",
    "x" * 3000, "'%20OR%201=1", "%22", "d%2ft", "e%cc%81", "-1", "null", "%5c", "a%3fb", ";x",
)  # fmt: skip
STATIC: Final = (
    "sources.sha256", "..%2fapi%2fapp.py", "%2e%2e/web/package.json", ".", "%00.js", "/etc/passwd", "x" * 300 + ".js",
    "../main.js", "main.js/../../api/app.py",
)  # fmt: skip
UNSIGNED: Final = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJBRE1JTiJ9."
"""A token of an administrator that nobody has signed."""
LOGINS: Final = (
    {"X-Forwarded-User": "admin"}, {"X-Remote-User": "admin"}, {"X-Original-URL": "/api/data/roots"},
    {"Authorization": "Bearer"}, {"Authorization": "Bearer null"}, {"Authorization": "Basic YWRtaW46YWRtaW4="},
    {"Authorization": "Bearer " + "a" * 60_000}, {"Authorization": "Bearer a.b.c"}, {"Cookie": "_token=admin"},
    {"Authorization": f"Bearer {UNSIGNED}"}, {"Cookie": f"_token={UNSIGNED}"},
)  # fmt: skip
"""Headers that log nobody in."""


def odd_headers(server: str) -> list[dict[str, str]]:
    """Return headers that change nothing about what is answered."""
    return [
        {"Range": "bytes=0-"}, {"Range": "bytes=-1,-1,-1"}, {"Host": server}, {"X-Forwarded-Host": server},
        {"Accept": "text/html"}, {"Accept-Encoding": "x" * 5000}, {"If-Modified-Since": "x"}, {"Origin": "null"},
        {"Forwarded": f"for={server}"}, {"Content-Length": "5"}, {"X-HTTP-Method-Override": "DELETE"},
    ]  # fmt: skip


def fleets(secret: str) -> list[str]:
    """Return contents of a fleet file that cannot be used, some with a secret in fields that it does not have."""
    return [
        f"password: {secret}", f"password: {secret}\n  - bad", f"clusters:\n  a: {{token: {secret}}}\n",
        "&a [*a]", "a: &a [x]\nb: [*a, *a]\n", "!!python/object/apply:os.system [id]", "[" * 100_000, "\0",
        "clusters: {'../x': {}}", "clusters: [1]", "x" * (2 << 20), 'clusters:\n  "\\ud800": {}\n', "",
        "clusters: {a: {zone: [1]}}",
    ]  # fmt: skip
