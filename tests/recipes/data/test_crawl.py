"""Crawls of a site on loopback: outcomes, pace, hostile servers, and what another attempt requests again."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastwarc.stream_io import BrotliWriter, GzipWriter, ZstdWriter

from tests.recipes.data.crawl_site import Answer, Site, moved, page, robots, serving_site
from tests.recipes.data.steps import check_snapshot, run
from tests.support.waiting import until
from tradewind._version import __version__
from tradewind.datasets import Dataset, create_backend
from tradewind.recipes.data import crawl, html_to_text
from tradewind.steps import ExecutorStep, resolve

AGENT = "our-crawler/1.0 (+https://example.com/crawler)"
HOSTS = 50
LOOPBACK = ["127.0.1.0/24"]
ONE, TWO, THREE, FOUR = (f"127.0.1.{number}" for number in (1, 2, 3, 4))


@pytest.fixture(scope="module")
def served() -> Iterator[Site]:
    with serving_site(HOSTS) as site:
        yield site


@pytest.fixture
def site(served: Site) -> Site:
    for each in (served.answers, served.requests, served.overlaps):
        each.clear()
    return served


def step_of(site: Site, urls: list[Any], folder: Path, **options: Any) -> ExecutorStep:
    file = folder / "addresses.jsonl"
    text = "".join(json.dumps({"url": url}) + "\n" for url in urls)
    if not file.exists():  # a later attempt has the same inputs
        file.write_text(text)
    assert file.read_text() == text
    given = {"delay": 0.001, "allow_ports": [site.port], "allow_networks": LOOPBACK, "timeout": 30.0, **options}
    return crawl("pages", str(file), user_agent=AGENT, **given)


def crawled(site: Site, urls: list[Any], folder: Path, **options: Any) -> Path:
    return run(step_of(site, urls, folder, **options), folder / "out")


def outcomes(output: Path) -> dict[str, dict[str, Any]]:
    files = sorted((output / "outcomes").glob("*.jsonl.gz"))
    rows = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    return {row["url"]: row for row in rows}


def reasons(output: Path) -> dict[str, str]:
    return {url: row["reason"] for url, row in outcomes(output).items()}


def records(output: Path, *kinds: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = create_backend("sync").execute(
        Dataset.from_files(f"{output}/warc/*/*.warc.gz").load_warc(kinds or ["response"])
    )
    return rows


def without_end(start: bytes, more: bytes, pause_s: float = 0.0) -> Callable[[asyncio.StreamWriter], Any]:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while not writer.is_closing():
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return write


def packed(body: bytes, coding: str = "gzip") -> bytes:
    file = io.BytesIO()
    writers = {"br": BrotliWriter, "zstd": ZstdWriter, "deflate": partial(GzipWriter, zlib=True)}
    with writers.get(coding, GzipWriter)(file) as writer:
        writer.write(body)
    return page(file.getvalue(), Content_Encoding=coding)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
MANY = 10_000_000
SERVERS: list[tuple[str, Answer, str, str]] = [
    ("plain", page(), "fetched", ""),
    ("empty", page(b""), "fetched", ""),
    ("no type", page(kind=""), "fetched", ""),
    ("type with charset", page(kind="Text/HTML; charset=x"), "fetched", ""),
    ("chunked", HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n<p>\r\n2\r\nhi\r\n0\r\n\r\n", "fetched", ""),
    ("until close", HEAD + b"Connection: close\r\n\r\n<p>hi", "fetched", ""),
    ("gzip", packed(b"<p>hi"), "fetched", ""),
    ("deflate", packed(b"<p>hi", "deflate"), "fetched", ""),
    ("not found", page(status="404 Not Found"), "status", "404"),
    ("server error", page(status="500 Oh"), "status", "500"),
    ("image", page(kind="image/png"), "content_type", "image/png"),
    ("large by header", page(b"a" * 2000, Content_Length=2000), "too_large", "more than 1,000 bytes"),
    ("large by body", HEAD + b"Connection: close\r\n\r\n" + b"a" * 2000, "too_large", "more than 1,000"),
    ("endless body", without_end(HEAD + b"\r\n", b"a" * 65_536), "too_large", "more than 1,000"),
    ("gzip bomb", packed(b"a" * MANY), "too_large", "more than 1,000"),
    ("gzip bomb in members", page(gzip.compress(b"a" * 600) * 2, Content_Encoding="gzip"), "too_large", "more than"),
    ("deflate bomb", packed(b"a" * MANY, "deflate"), "too_large", "more than 1,000"),
    ("br bomb", packed(b"a" * MANY, "br"), "too_large", "more than 1,000"),
    ("zstd bomb", packed(b"a" * MANY, "zstd"), "too_large", "more than 1,000"),
    ("more than its length", HEAD + b"Content-Length: 3\r\nConnection: close\r\n\r\n<p>more", "malformed", ""),
    ("cut gzip", page(gzip.compress(os.urandom(200))[:-30], Content_Encoding="gzip"), "malformed", "cut"),
    ("endless headers", without_end(HEAD, b"X-A: " + b"b" * 200 + b"\r\n"), "malformed", ""),
    ("endless header", without_end(HEAD + b"X-A: ", b"b" * 5000), "malformed", ""),
    ("no http", b"SSH-2.0-OpenSSH\r\n\r\n", "malformed", ""),
    ("cut by length", HEAD + b"Content-Length: 900\r\nConnection: close\r\n\r\n<p>", "connection", ""),
    ("length that is none", HEAD + b"Content-Length: -5\r\n\r\n", "malformed", ""),
    ("two lengths", HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<p>x", "malformed", ""),
    ("nothing", b"", "timeout", ""),
    ("slow drip", without_end(HEAD + b"Content-Length: 900\r\n\r\n", b"a", 0.05), "timeout", "more than 1 s"),
    ("slow head", without_end(HEAD, b"X", 0.05), "timeout", "more than 1 s"),
    ("endless early hints", without_end(b"HTTP/1.1 103 Hi\r\n\r\n", b"HTTP/1.1 103 Hi\r\n\r\n", 0.05), "timeout", ""),
    ("to a file", moved("file:///etc/passwd"), "scheme", "only http"),
    ("to a metadata server", moved("http://169.254.169.254/"), "private_network", "169.254.169.254"),
    ("to a number", moved("http://2130706433/"), "invalid", "number"),
    ("to a port", moved(f"http://{ONE}:22/"), "port", "22"),
    ("to a user", moved(f"http://a:b@{ONE}/"), "userinfo", ""),
    ("to nothing", page(b"", "302 Found"), "invalid", ""),
    ("to two places", moved("/a\r\nLocation: file:///"), "status", "404"),
    ("to bytes", HEAD.replace(b"200", b"302") + b"Location: /\xff\r\nContent-Length: 0\r\n\r\n", "status", "404"),
    ("packed chunks", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "malformed", "packed"),
    ("terminal", HEAD.replace(b"OK", b"\x1b[31m") + b"Content-Length: 0\r\nX: \x1b[31m\r\n\r\n", "fetched", ""),
    ("to itself", moved("/page"), "redirects", "loop"),
    ("busy for long", page(status="503 No", Retry_After=900), "busy", "503"),
]  # fmt: skip
"""What a host answers for /page, with its outcome, and a part of the problem."""


@pytest.mark.slow
def test_each_kind_of_server_has_its_outcome(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts = {f"127.0.1.{number}": server for number, server in enumerate(SERVERS, 1)}
    site.answers = {f"{host}/page": answer for host, (_, answer, _, _) in hosts.items()}
    site.answers["/robots.txt"] = robots("user-agent: *\ndisallow: /secret")
    options = {"max_page_bytes": 1000, "hosts_at_once": HOSTS, "allow_ports": [80, site.port]}
    wrong = {}
    site.answers["/good"] = page()
    good = site.url(f"127.0.1.{HOSTS}", "/good")
    for timeout in (30.0, 1.0):
        chosen = {host: server for host, server in hosts.items() if (server[2] == "timeout") == (timeout == 1)}
        folder = tmp_path / f"{timeout}"
        folder.mkdir()
        found = outcomes(
            crawled(site, [good, *(site.url(host, "/page") for host in chosen)], folder, timeout=timeout, **options)
        )
        for host, (name, _, reason, problem) in chosen.items():
            row = found[site.url(host, "/page")]
            if row["reason"] != reason or problem not in (row["problem"] or ""):
                wrong[name] = (row["reason"], row["problem"])
    assert not wrong
    assert not caplog.records and not capfd.readouterr().err, "no server writes into the log"


def test_crawl_is_as_in_the_snapshot(site: Site, tmp_path: Path) -> None:
    site.answers = {
        f"{ONE}/a": moved(f"http://{TWO}:{site.port}/b"), f"{TWO}/b": page(), f"{ONE}/c": page(b"", "404 Not Found"),
        "/robots.txt": robots("user-agent: *\ndisallow: /d"), f"{ONE}/e": page(kind="image/png"),
    }  # fmt: skip
    output = crawled(site, [*(site.url(ONE, f"/{path}") for path in "acde"), "ftp://a.org/", "x"], tmp_path)
    folder = tmp_path / "shown"
    folder.mkdir()
    found = [json.dumps(row) for row in outcomes(output).values()]
    kinds = ["warcinfo", "request", "response", "metadata"]
    written = [f"{row['record_type']} {row['url']} {row['payload'].decode()}\n" for row in records(output, *kinds)]
    for name, lines in {"outcomes": sorted(found), "warc": written}.items():
        text = "\n".join(lines).replace("\r", "").replace(str(site.port), "PORT").replace(__version__, "VERSION")
        (folder / name).write_text(re.sub(r"[0-9-]{10}T[0-9:.]+Z", "DATE", text))
    (folder / "stats.json").write_text((output / "stats.json").read_text())
    check_snapshot("crawl", folder, tmp_path)


def test_pages_are_as_they_were_received(site: Site, tmp_path: Path) -> None:
    body, large = gzip.compress(b"<p>hi"), os.urandom(300_000)
    site.answers["/large"] = page(large)
    site.answers["/gzip"] = page(body, Content_Encoding="gzip", X_Own="ü", Set_Cookie="a=b")
    site.answers["/chunked"] = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n<p>\r\n2\r\nhi\r\n0\r\n\r\n"
    output = crawled(site, [site.url(ONE, path) for path in ("/gzip", "/chunked", "/large")], tmp_path)
    assert sorted((row["url"], row["payload"]) for row in records(output)) == [
        (site.url(ONE, "/chunked"), b"<p>hi"), (site.url(ONE, "/gzip"), b"<p>hi"), (site.url(ONE, "/large"), large),
    ]  # fmt: skip
    text = b"".join(gzip.decompress(file.read_bytes()) for file in output.glob("warc/*/*.gz"))
    assert site.answers["/gzip"] in text
    assert [text.count(row["record_id"].encode()) for row in records(output)] == [
        3,
        3,
        3,
    ]  # request and outcome name it
    assert b"X-Crawl-Transfer-Encoding: chunked\r\n\r\n<p>hi" in text
    sent = next(request.head for request in site.requests if request.path == "/gzip")
    assert sent in text
    [info] = records(output, "warcinfo")
    assert f"http-header-user-agent: {AGENT}".encode() in info["payload"]
    assert {row["record_type"] for row in records(output, "request", "metadata")} == {"request", "metadata"}


def test_text_of_crawled_pages_is_extracted(site: Site, tmp_path: Path) -> None:
    site.answers["/a"] = page(f"<body><p>{'Some words of a page. ' * 9}</p></body>".encode())
    step = html_to_text("texts", step_of(site, [site.url(ONE, "/a"), site.url(ONE, "/none")], tmp_path))
    [row] = [
        json.loads(line)
        for file in run(step, tmp_path / "out").glob("*.jsonl.gz")
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]
    assert row["url"] == site.url(ONE, "/a") and "Some words of a page." in row["text"]


@pytest.mark.parametrize(
    ("rows", "problem"), [("", "holds no address"), ('{"link": "x"}\n', "has no column 'url'"), ("{\n", "malformed")]
)
def test_list_without_addresses_is_refused(rows: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text(rows)
    with pytest.raises(ValueError, match=problem):
        run(crawl("pages", str(tmp_path / "list.jsonl"), user_agent=AGENT), tmp_path / "out")


@pytest.mark.slow
def test_requests_of_a_host_keep_their_distance(site: Site, tmp_path: Path) -> None:
    site.answers = {f"/{number}": page() for number in range(5)} | {"/0": moved("/5"), "/5": page()}
    site.answers[f"{TWO}/robots.txt"] = robots("user-agent: our-crawler\ncrawl-delay: 0.2")
    site.answers[f"{THREE}/robots.txt"] = robots("user-agent: *\ncrawl-delay: 40")
    urls = [site.url(host, f"/{number}") for host in (ONE, TWO, THREE) for number in range(5)]
    found = outcomes(crawled(site, urls, tmp_path, delay=0.1, addresses_per_shard=2))
    assert Counter(row["reason"] for row in found.values()) == {"fetched": 10, "crawl_delay": 5}
    assert site.overlaps == [] and site.paths(THREE) == []
    for host, delay_s in ((ONE, 0.1), (TWO, 0.2)):
        begun = [request.begun for request in site.requests if request.host == host]
        assert len(begun) == 6 + 3, "pages, and robots.txt in each round"
        pauses = [after - before for before, after in pairwise(begun)]
        assert min(pauses) >= 0.1 and sum(pause >= delay_s for pause in pauses) >= 8 - 2


@pytest.mark.slow
def test_shard_without_time_leaves_addresses_to_the_next_round(site: Site, tmp_path: Path) -> None:
    site.answers = {f"/{number}": page() for number in range(3)}
    urls = [site.url(host, f"/{number}") for host in (ONE, TWO) for number in range(3)]
    output = crawled(site, urls, tmp_path, minutes_per_shard=1e-9, hosts_at_once=1)
    assert set(reasons(output).values()) == {"fetched"}
    assert len(list(output.glob("warc/*"))) == 6 and max(Counter(site.paths()).values()) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (robots("user-agent: our-crawler\ndisallow: /"), "robots"),
        (robots("user-agent: our-crawler\nallow: /\nuser-agent: *\ndisallow: /"), "fetched"),
        (page(gzip.compress(b"user-agent: *\ndisallow: /"), Content_Encoding="gzip"), "robots"),
        (page(b"user-agent: *\ndisallow: /\n" + b"#" * 600_000), "robots"),
        (without_end(HEAD + b"\r\nuser-agent: *\ndisallow: /\n", b"#" * 9999), "robots"),
        (page(status="404 Not Found"), "fetched"), (page(status="403 No"), "fetched"),
        (page(status="500 Oh"), "robots_unavailable"), (page(status="429 No", Retry_After=900), "busy"),
        (HEAD + b"Content-Length: 9\r\nConnection: close\r\n\r\n", "connection"), (b"no http", "malformed"),
        (moved("/moved.txt"), "robots"), (moved(f"http://{TWO}:PORT/moved.txt"), "robots"),
        (moved("/robots.txt"), "fetched"), (moved("http://127.0.0.1/"), "robots_unavailable"),
        (packed(b"#" * 9_000_000), "robots_unavailable"),
    ],
)  # fmt: skip
def test_robots_are_asked_first_and_decide(site: Site, answer: Any, reason: str, tmp_path: Path) -> None:
    answer = answer.replace(b"PORT", str(site.port).encode()) if isinstance(answer, bytes) else answer
    site.answers = {f"{ONE}/robots.txt": answer, "/moved.txt": robots("user-agent: *\ndisallow: /"), "/page": page()}
    urls = [site.url(host, "/page") for host in (ONE, FOUR)]
    assert reasons(crawled(site, urls, tmp_path)) == {urls[0]: reason, urls[1]: "fetched"}
    assert next(request for request in site.requests if request.host == ONE).path == "/robots.txt"
    assert (f"{ONE}/page" in site.paths()) is (reason == "fetched")


def test_redirects_are_checked_like_new_addresses(site: Site, tmp_path: Path) -> None:
    two, three = f"http://{TWO}:{site.port}", f"http://{THREE}:{site.port}"
    site.answers = {
        f"{ONE}/a": moved("/b"), f"{ONE}/b": moved(f"{two}/c", 308), f"{TWO}/c": moved(f"{three}/d"),
        f"{THREE}/d": page(), f"{ONE}/x": moved(f"{two}/secret"), f"{ONE}/y": moved(f"{two}/y"),
        f"{TWO}/y": moved(f"http://{ONE}:{site.port}/y"), f"{ONE}/z": moved("/secret"), f"{THREE}/d2": moved("/d"),
        "/robots.txt": robots("user-agent: *\ndisallow: /secret"),
    }  # fmt: skip
    urls = [site.url(ONE, path) for path in ("/a", "/x", "/y", "/z")] + [
        site.url(THREE, path) for path in ("/d", "/d2")
    ]
    output = crawled(site, urls, tmp_path, max_redirects=3)
    found = outcomes(output)
    assert [found[url]["reason"] for url in urls] == ["fetched", "robots", "redirects", "robots", "fetched", "fetched"]
    assert found[urls[0]]["final_url"] == f"{three}/d" and found[urls[0]]["redirects"] == 3
    assert not [path for path in site.paths() if path.endswith("/secret")]
    assert site.overlaps == []
    assert json.loads((output / "stats.json").read_text()) == {
        "addresses": 6, "outcomes": {"fetched": 3, "redirects": 1, "robots": 2},
    }  # fmt: skip


@pytest.mark.slow
def test_busy_host_gets_its_pause_and_broken_one_is_left(site: Site, tmp_path: Path) -> None:
    async def busy_once(writer: asyncio.StreamWriter) -> None:
        again = site.paths(ONE).count(f"{ONE}/0") > 1
        writer.write(page(Connection="close") if again else page(status="429 Wait", Retry_After=1, Connection="close"))
        await writer.drain()

    site.answers = {f"{ONE}/0": busy_once, f"{ONE}/1": page()}

    async def ever_longer(writer: asyncio.StreamWriter) -> None:
        again = site.paths(FOUR).count(f"{FOUR}/0") > 1
        writer.write(page(status="503 No", Retry_After=300 if again else 1, Connection="close"))
        await writer.drain()

    site.answers |= {f"{TWO}/{number}": page(status="503 No", Retry_After=0) for number in range(3)}
    site.answers[f"{FOUR}/0"] = ever_longer  # more than five minutes together
    site.answers |= {f"{THREE}/{number}": b"HTTP/1.1 200 OK\r\nConnection: close\r\nX" for number in range(9)}
    counts = {ONE: 2, TWO: 3, THREE: 9, FOUR: 1}
    urls = [site.url(host, f"/{number}") for host, count in counts.items() for number in range(count)]
    found = reasons(crawled(site, urls, tmp_path, delay=0.1))
    expected = {"fetched": 2, "busy": 3, "connection": 5, "unreachable": 4}
    assert [found[url] for url in urls] == [
        *(reason for reason, count in expected.items() for _ in range(count)),
        "busy",
    ]
    assert [len(site.paths(host)) for host in counts] == [3, 3, 6, 2]  # one also on the connection of robots.txt
    begun = [request.begun for request in site.requests if request.host == ONE and request.path != "/robots.txt"]
    assert begun[1] - begun[0] >= 1
    begun = [request.begun for request in site.requests if request.host == THREE]
    assert all(after - before >= 0.1 for before, after in pairwise(begun))


def test_names_are_connected_where_they_were_checked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    places = {"good.test": [ONE], "rebound.test": [ONE, "127.0.2.1"], "both.test": [ONE, "127.0.2.1"]}
    resolved = socket.getaddrinfo

    def resolve_name(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host not in places and host != "none.test":
            return resolved(host, port, *args, **options)
        if host == "none.test":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        asked[host] += 1
        found = places[host] if host != "rebound.test" else [places[host][min(asked[host], 2) - 1]]
        return [entry for each in found for entry in resolved(each, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    site.answers["/page"] = page(Connection="close")
    site.answers["/robots.txt"] = page(status="404 Not Found", Connection="close")
    urls = [site.url(name, "/page") for name in ("good.test", "rebound.test", "both.test", "none.test")]
    found = reasons(crawled(site, urls, tmp_path))
    assert [found[url] for url in urls] in (
        ["fetched", "private_network", "private_network", "dns"],
        ["fetched", "fetched", "private_network", "dns"],  # connected to what was checked before
    )


def test_environment_and_cookies_are_not_sent(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:9/{name}")
    (tmp_path / ".netrc").write_text(f"machine {ONE} login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    site.answers = {"/a": page(Set_Cookie="id=1; Path=/"), "/b": page()}
    urls = [site.url(ONE, "/a"), site.url(ONE, "/b")]
    assert set(reasons(crawled(site, urls, tmp_path)).values()) == {"fetched"}
    for request in site.requests:
        names = {line.partition(b":")[0].lower() for line in request.head.splitlines()[1:] if line}
        assert names == {b"host", b"user-agent", b"accept", b"accept-encoding"}
        assert f"User-Agent: {AGENT}".encode() in request.head


GIVEN: list[tuple[Any, str]] = [
    ("ftp://example.com/", "scheme"), ("http://10.0.0.1:PORT/", "private_network"), (None, "invalid"), (7, "invalid"),
    ("http://a:b@example.com/", "userinfo"), ("http://[::ffff:127.0.1.1]:PORT/", "private_network"),
    ("\ud800", "invalid"), ("http://127.0.1.1/", "port"), ("x" * 9000, "invalid"),
    ("https://127.0.1.2:PORT/", "connection"),
]  # fmt: skip


def test_every_address_has_one_outcome(site: Site, tmp_path: Path) -> None:
    site.answers["/page"] = page()
    given = [url.replace("PORT", str(site.port)) if isinstance(url, str) else url for url, _ in GIVEN]
    twice = [site.url(ONE, "/page"), f"HTTP://{ONE}:{site.port}/a/../page#x", site.url(ONE, "/page")]
    output = crawled(site, given + twice, tmp_path)
    files = sorted((output / "outcomes").glob("*.jsonl.gz"))
    rows = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert Counter(row["reason"] for row in rows) == Counter(reason for _, reason in GIVEN) + Counter(fetched=3)
    assert len({tuple(row) for row in rows}) == 1
    assert site.paths() == [f"{ONE}/page"]


@pytest.mark.parametrize("name", ["list.txt", "list.txt.gz", "list.parquet"])
def test_addresses_are_read_from_text_and_parquet(site: Site, name: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    site.answers = {"/a": page(), "/%FC?%FC": page()}
    urls = [site.url(ONE, "/a"), site.url(ONE, "/%fc?%FC")]
    file = tmp_path / "in" / name
    file.parent.mkdir()
    if name.endswith("parquet"):
        parquet.write_table(pa.table({"link": urls}), file)
    else:
        text = "\r\n".join(["\ufeff" + urls[0], "", " ", urls[1]]).encode().replace(b"%FC", b"\xfc")
        file.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    step = crawl(
        "pages", str(file.parent), user_agent=AGENT, url_column="link", delay=0.001,
        allow_ports=[site.port], allow_networks=LOOPBACK,
    )  # fmt: skip
    assert set(reasons(run(step, tmp_path / "out")).values()) == {"fetched"}


@pytest.mark.slow
def test_interrupted_crawl_requests_only_unfinished_shards_again(site: Site, tmp_path: Path) -> None:
    async def interrupt(writer: asyncio.StreamWriter) -> None:
        if site.paths(TWO).count(f"{TWO}/5") == 1:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        writer.write(page(Connection="close"))

    site.answers = {f"/{number}": page() for number in range(6)} | {f"{TWO}/5": interrupt}
    urls = [site.url(host, f"/{number}") for host in (ONE, TWO) for number in range(6)]
    with pytest.raises(KeyboardInterrupt):
        crawled(site, urls, tmp_path, addresses_per_shard=2)
    before = list(site.paths())
    output = crawled(site, urls, tmp_path, addresses_per_shard=2, delay=0.002)
    again = Counter(site.paths()) - Counter(dict.fromkeys(before, 1))
    assert set(reasons(output).values()) == {"fetched"} and len(records(output)) == 12
    assert max(Counter(site.paths()).values()) == 2
    assert f"{TWO}/5" in again and {path[-2:] for path in again if path in before} <= {"/4", "/5"}, again
    count = len(site.requests)
    assert len(outcomes(crawled(site, urls, tmp_path, addresses_per_shard=2))) == 12
    assert len(site.requests) == count, "a third run requests nothing"


def test_crawl_without_any_page_fails_and_requests_again(site: Site, tmp_path: Path) -> None:
    urls = [site.url(host, "/page") for host in (ONE, TWO)]
    with pytest.raises(ValueError, match="of 2 none has a page: status 2"):
        crawled(site, urls, tmp_path)
    site.answers["/page"] = page()  # the network is back
    assert list(reasons(crawled(site, urls, tmp_path)).values()) == ["fetched"] * 2


def test_host_that_is_given_up_stays_so_in_later_rounds(site: Site, tmp_path: Path) -> None:
    site.answers = {f"{ONE}/{number}": page(status="503 No", Retry_After=3600) for number in range(9)}
    site.answers |= {f"{TWO}/{number}": page() for number in range(9)}
    urls = [site.url(host, f"/{number}") for host in (ONE, TWO) for number in range(9)]
    found = reasons(crawled(site, urls, tmp_path, addresses_per_shard=3))
    assert [found[url] for url in urls] == ["busy"] * 9 + ["fetched"] * 9
    assert site.paths(ONE) == [f"{ONE}/0"] and len(site.paths(TWO)) == 9


SCRIPT = """
import sys
from tests.recipes.data.test_crawl import Site, step_of
from tradewind.datasets import create_backend, set_flow_backend
from tradewind.steps import resolve
from pathlib import Path
folder, port, *urls = sys.argv[1:]
step = resolve([step_of(Site(int(port)), urls, Path(folder), addresses_per_shard=2)], folder + "/out").steps[0]
set_flow_backend(create_backend("threadpool", max_parallelism=2))
step.step.fn(step.config)
"""


@pytest.mark.slow
@pytest.mark.long
def test_killed_driver_repeats_no_whole_shard(site: Site, tmp_path: Path) -> None:
    held = asyncio.Event()

    async def hold(writer: asyncio.StreamWriter) -> None:
        if site.paths(TWO).count(f"{TWO}/3") == 1:
            await held.wait()
        writer.write(page(Connection="close"))

    site.answers = {f"/{number}": page() for number in range(6)} | {f"{TWO}/3": hold}
    urls = [site.url(host, f"/{number}") for host in (ONE, TWO, THREE) for number in range(6)]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(site.port), *urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        until(lambda: f"{TWO}/3" in site.paths() or driver.poll() is not None, "a request that is held")
        whole = list((tmp_path / "out").glob("*/warc/0000/*.warc.gz"))  # of a round that is done
        driver.kill()
        told = driver.communicate()[0]
    assert driver.returncode == -signal.SIGKILL, told
    kept = {row["url"] for file in whole for row in create_backend("sync").execute(
        Dataset.from_files(str(file)).load_warc())}  # fmt: skip
    output = crawled(site, urls, tmp_path, addresses_per_shard=2)
    assert set(reasons(output).values()) == {"fetched"} and len(records(output)) == len(urls)
    times = Counter(f"http://{path.replace('/', f':{site.port}/', 1)}" for path in site.paths())
    assert kept and all(times[url] == 1 for url in kept)
    assert not list(output.rglob("*.part"))


def test_version_counts_what_decides_about_pages(tmp_path: Path) -> None:
    def version(**options: Any) -> str:
        step = crawl("pages", "gs://bucket/urls", **{"user_agent": AGENT, **options})
        return resolve([step], "gs://bucket").of(step).output_path

    same = [
        {"delay": 2.0},
        {"hosts_at_once": 3},
        {"minutes_per_shard": 3},
        {"addresses_per_shard": 7},
        {"memory": "4GB"},
    ]
    other = [
        {"max_page_bytes": "1MB"}, {"max_redirects": 1}, {"content_types": []}, {"timeout": 9.0}, {"max_delay": 2.0},
        {"allow_ports": [80]}, {"allow_networks": ["10.0.0.0/8"]}, {"user_agent": "b (a@b.org)"}, {"url_column": "u"},
    ]  # fmt: skip
    assert len({version(**options) for options in [{}, *same]}) == 1
    assert len({version(**options) for options in [{}, *other]}) == len(other) + 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"user_agent": "bot"}, "user_agent='bot': give the crawler's name, and a page or an e-mail"),
        ({"user_agent": "bot/1.0 (none)"}, "user_agent="), ({"user_agent": "bot2 (a@b.org)"}, "user_agent="),
        ({"user_agent": "bot (a@b.org)\r\nHost: x"}, "user_agent="), ({"user_agent": None}, "user_agent=None"),
        ({"delay": 0}, "delay=0: give a number above 0"), ({"delay": "1s"}, "delay='1s'"),
        ({"timeout": float("inf")}, "timeout=inf"), ({"max_page_bytes": "40MB"}, "max_page_bytes=40000000"),
        ({"max_page_bytes": 0}, "max_page_bytes=0"), ({"max_redirects": -1}, "max_redirects=-1"),
        ({"content_types": "text/html"}, "content_types="), ({"allow_ports": [0]}, "allow_ports="),
        ({"allow_ports": []}, "allow_ports="), ({"allow_networks": ["10.0.0.1/8"]}, "allow_networks="),
        ({"allow_networks": "10.0.0.0/8"}, "allow_networks="), ({"addresses_per_shard": 0}, "addresses_per_shard=0"),
        ({"hosts_at_once": 500}, "memory='1GB': hosts_at_once pages of max_page_bytes need 10 GB"),
        ({"speed": 3}, "speed"), ({"url_column": ""}, "url_column=''"),
    ],
)  # fmt: skip
def test_wrong_option_is_refused_by_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        crawl("pages", "gs://bucket/urls", **{"user_agent": AGENT, **options})
    assert problem in str(caught.value)
