"""The page of the clusters accepts browsers only under its own address, and contains no actions."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tradewind.fleet.access.dashboards import DashboardTile, served_page, tiles_page

UP = DashboardTile("here", "us-central2", "http://here.localhost:4000", None, "2.60.0", 1, 2, 3)
DOWN = DashboardTile("away", "us-east5", "http://away.localhost:4001", 'it has no head: <b onload="x">')


@pytest.fixture
def page() -> Iterator[str]:
    with served_page(lambda: [UP, DOWN]) as address:
        yield address


def ask(address: str, *hosts: str, path: str = "/") -> tuple[int, str, http.client.HTTPMessage]:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.netloc, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_tiles_link_answering_clusters_and_explain_others() -> None:
    text = tiles_page([UP, DOWN])
    assert '<a href="http://here.localhost:4000" target="_blank" rel="noopener noreferrer"><h2>here</h2>' in text
    assert "us-central2, Ray 2.60.0</p><p>1 slice with 2 hosts</p><p>3 jobs running</p></a>" in text
    assert "<article><h2>away</h2>" in text and "away.localhost" not in text
    assert "Does not answer: it has no head: &lt;b onload=&quot;x&quot;&gt;" in text
    assert "<script" not in text and "<form" not in text


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_page_is_served_under_its_own_address_and_loads_nothing(page: str, name: str) -> None:
    status, text, headers = ask(page, f"{name}:{urlsplit(page).port}")
    assert status == 200 and "<h2>here</h2>" in text
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example:{}", "127.0.0.1", "here.localhost:{}", "127.0.0.1.evil.example:{}", ""])
def test_request_with_another_host_name_gets_nothing(page: str, host: str) -> None:
    status, text, _ = ask(page, host.format(urlsplit(page).port))
    assert status == 421 and "here" not in text


def test_request_with_wrong_host_headers_or_path_is_refused(page: str) -> None:
    own = urlsplit(page).netloc
    assert ask(page, own, "evil.example")[0] == ask(page, "evil.example", own)[0] == ask(page)[0] == 421
    assert ask(page, own, path="/other")[0] == 404
