"""Addresses that a crawl requests or refuses, and the rules of robots.txt as RFC 9309 has them."""

from __future__ import annotations

import ipaddress
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.recipes.data.crawling.addresses import AddressError, check_ip, parse_address
from tradewind.recipes.data.crawling.robots import parse_robots

SPELLINGS = [
    ("http://Example.COM", "http://example.com/"),
    ("HTTPS://example.com:443/a#b", "https://example.com/a"),
    ("  http://example.com:80/a?b=c\n", "http://example.com/a?b=c"),
    ("http://example.com./", "http://example.com/"),
    ("http://example.com?q", "http://example.com/?q"),
    ("http://example.com:8080/", "http://example.com:8080/"),
    ("http://bücher.example/ü?ü=ö", "http://xn--bcher-kva.example/%C3%BC?%C3%BC=%C3%B6"),
    ("http://ex.org/%7ea/%2e%2E/b c%zz", "http://ex.org/b%20c%25zz"),
    ("http://ex.org/a/./b/../../../c/..", "http://ex.org/"),
    ("http://ex.org/a//b", "http://ex.org/a//b"),
    ("http://[2606:4700::0001]/", "http://[2606:4700::1]/"),
    ("http://8.8.8.8/", "http://8.8.8.8/"),
    ("http://exam_ple.com/", "http://exam_ple.com/"),
    ("http://ｅxample.com/", "http://example.com/"),
]
REFUSED = [
    ("", "invalid"), (None, "invalid"), (7, "invalid"), ("example.com/a", "scheme"), ("//example.com/", "scheme"),
    ("ftp://example.com/", "scheme"), ("file:///etc/passwd", "scheme"), ("gopher://x/_", "scheme"),
    ("javascript:alert(1)", "scheme"), ("data:text/html,x", "scheme"), ("http://", "invalid"),
    ("http:///a", "invalid"), ("http://[1.2.3.4]/", "invalid"), ("http://a@example.com/", "userinfo"),
    ("http://a:b@example.com/", "userinfo"), ("http://@example.com/", "userinfo"),
    ("http://example.com:99999/", "invalid"), ("http://example.com:x/", "invalid"), ("http://exa mple.com/", "invalid"),
    ("http://example.com\\@127.0.0.1/", "invalid"), ("http://example.com/\r\nHost: x", "invalid"),
    ("http://exam\tple.com/", "invalid"), ("http://example.com/\x00", "invalid"), ("http://a..b/", "invalid"),
    ("http://-a.com/", "invalid"), (f"http://{'a' * 64}.com/", "invalid"), ("http://ex%61mple.com/", "invalid"),
    ("http://2130706433/", "invalid"), ("http://0x7f000001/", "invalid"), ("http://0x7f.1/", "invalid"),
    ("http://127.1/", "invalid"), ("http://0177.0.0.1/", "invalid"), ("http://127.0.0.01/", "invalid"),
    ("http://1.2.3.4.5/", "invalid"), ("http://example.0x1/", "invalid"), ("http://①②⑦.0.0.1.5/", "invalid"),
    ("http://[::1%25lo]/", "invalid"), ("http://[fe80::1%lo]/", "invalid"), ("http://[::1/", "invalid"),
    ("http://[v1.x]/", "invalid"), ("http://\ud800.com/", "invalid"), ("http://ex.org/\ud800", "invalid"),
    ("http://ex.org/" + "a" * 9000, "invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "shown"), SPELLINGS)
def test_address_has_one_spelling(given: str, shown: str) -> None:
    assert str(parse_address(given)) == shown
    assert str(parse_address(shown)) == shown


def test_host_with_www_is_the_same_host() -> None:
    addresses = ["http://www.a.org/", "https://A.org:8443/b", "http://b.org/", "http://127.0.0.1/"]
    assert [parse_address(each).group for each in addresses] == ["a.org", "a.org", "b.org", "127.0.0.1"]


@pytest.mark.parametrize(("given", "reason"), REFUSED, ids=lambda value: ascii(value)[:40])
def test_address_is_refused_with_its_reason(given: object, reason: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(given)
    assert caught.value.reason == reason


@given(st.text(alphabet=st.sampled_from("htps:/@\\.[]%0127xaé ?#\u2024\ud800"), max_size=40))
def test_any_text_is_an_address_of_one_spelling_or_refused(text: str) -> None:
    for each in (text, f"http://{text}", f"http://example.com/{text}"):
        try:
            address = parse_address(each)
        except AddressError:
            continue
        assert parse_address(str(address)) == address
        assert str(address).isascii()


PRIVATE = [
    "127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:7f00:1", "64:ff9b::7f00:1",
    "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "2001:10::1",
    "2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1",
    "ff02::1", "4000::1",
]  # fmt: skip


@pytest.mark.parametrize("ip", PRIVATE)
def test_network_that_is_not_public_needs_permission(ip: str) -> None:
    with pytest.raises(AddressError, match="not public") as caught:
        check_ip(ip, [])
    assert caught.value.reason == "private_network"
    assert check_ip(ip, [ipaddress.ip_network(ip)])


@pytest.mark.parametrize("ip", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_public_network_is_requested(ip: str) -> None:
    assert str(check_ip(ip, [])) == ip


SIMPLE = """
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""
"""Section 5.1 of RFC 9309."""
ALLOWED = [
    (SIMPLE, "otherbot", "/a.gif /a.gifs:yes /example/ /example:yes /publications/:yes"),
    (SIMPLE, "foobot", "/ /example/page.html:yes /example/allowed.gif:yes /x"),
    (SIMPLE, "barbot bazbot", "/example/page.html /example/page.htm:yes /a.gif:yes"),
    (SIMPLE, "quxbot", "/:yes /example/:yes /a.gif:yes"),
    ("User-Agent: foobot\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif", "foobot",
     "/example/page/:yes /example/page/x.gif:yes /example/page/disallowed.gif"),  # section 5.2
    ("user-agent: a\ndisallow: /foo\ndisallow: /bar\n\nuser-agent: b\ndisallow: /\n\nuser-agent: a\ndisallow: /baz",
     "a", "/foo /bar /baz /:yes"),  # section 2.2.1
    ("user-agent: a\ndisallow: /path/file-with-a-%2A.html\ndisallow: /path/foo-%24", "a",
     "/path/file-with-a-*.html /path/foo-$ /path/file-with-a-x.html:yes"),  # section 2.2.3
    ("user-agent: a\ndisallow: /foo/bar?baz=https://foo.bar\ndisallow: /foo/bar/ツ\ndisallow: /x/%62%61%7A", "a",
     "/foo/bar?baz=https%3A%2F%2Ffoo.bar /foo/bar?baz=https://foo.bar /foo/bar/%E3%83%84 /foo/bar/ツ /x/baz /x/%62az"),
    ("user-agent: a\ndisallow: /a*b$\ndisallow: /*/c", "a", "/ab /axb /axbx:yes /a/c /x/y/c/d /c:yes"),
    ("user-agent: a\ndisallow: /x$y\ndisallow: /q$*", "a", "/x$y /x:yes /q$ /q:yes"),
    ("user-agent: a\ndisallow: /p\nallow: /p", "a", "/p:yes"),
    ("user-agent: a\nallow: /p*\ndisallow: /p/q", "a", "/p/x:yes /p/q"),
    ("user-agent: a\ndisallow:\nuser-agent: *\ndisallow: /", "a", "/:yes"),
    ("user-agent: a\nuser-agent: b\ncrawl-delay: 3\nsitemap: /s\nuser-agent: c\ndisallow: /", "a b c", "/"),
    ("disallow: /\nuser-agent: a\nallow: /x", "a", "/:yes"),
    ("\ufeffUSER-AGENT : A/2.0 # me\r\nDISALLOW : / # all\rAllow: /x", "a", "/ /x:yes /robots.txt:yes"),
    ("user-agent: *\ndisallow: /\nuser-agent: ab\nallow: /", "a", "/ /robots.txt:yes"),
    ("user-agent: *x\ndisallow: /y\nuser-agent:\ndisallow: /", "a", "/y"),
    ("<html>no rules: at all</html>\n\x00\xff", "a", "/:yes"),
    ("user-agent: a\ndisallow: x\ndisallow: *", "a", "/"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "crawlers", "targets"), ALLOWED)
def test_robots_rules_are_those_of_the_standard(text: str, crawlers: str, targets: str) -> None:
    for crawler in crawlers.split():
        rules = parse_robots(text.encode(), crawler.title())
        for target in targets.split(" "):
            path = target.removesuffix(":yes")
            assert rules.allows(path) is target.endswith(":yes"), (crawler, path)


@pytest.mark.parametrize(
    ("lines", "delay_s"),
    [("crawl-delay: 2.5", 2.5), ("crawl-delay: x\ncrawl-delay: 4", 4), ("crawl-delay: -1", None), ("", None),
     ("crawl-delay: 1e9", None), ("crawl-delay: nan", None)],
)  # fmt: skip
def test_crawl_delay_is_a_number(lines: str, delay_s: float | None) -> None:
    assert parse_robots(f"user-agent: *\n{lines}\n".encode(), "a").delay_s == delay_s


def test_rules_after_500_kib_do_not_count() -> None:
    text = b"user-agent: *\n" + b"#" * 512_000 + b"\ndisallow: /"
    assert parse_robots(text, "a").allows("/")


@given(
    st.lists(st.sampled_from(["user-agent: a", "user-agent: *", "disallow: /", "allow: /*a$", "\r", "#", "%", "\xff"]))
)
def test_any_file_of_robots_gives_rules(lines: list[str]) -> None:
    parse_robots("\n".join(lines).encode("latin-1"), "a").allows("/a?b=%zz")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["user-agent: a{}", "user-agent: a", "disallow: /*x*{}$", "disallow: /{}", "disallow: *"]
)
def test_robots_take_linear_time(line: str) -> None:
    lines = "\n".join(line.format(number) for number in range(500_000 // len(line)))
    started = time.thread_time()
    parse_robots(f"user-agent: a\n{lines}\ndisallow: /{'*a' * 9999}".encode(), "a").allows("/" + "x" * 8000)
    assert time.thread_time() - started < 20  # 1 where nothing else runs; minutes if it were quadratic
