"""Pages of texts: everything from outside is escaped, and there is no script."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from tradewind.evaluation.token_sets import TokenSet
from tradewind.evaluation.visualize import page

SHOWN = ["<script>alert(1)</script>", '" onmouseover="x', "a&b", " ", "\n\t\x1b", "\u202eevil", "�", "naïve"]
PIECES = dict(enumerate(SHOWN))
TEXTS = TokenSet(np.array([0, 1, 2, 3, 4, 5, 6, 7, 99]), np.array([0, 4]), ["</h2><img src=x>", "b"])
FIRST = np.array([0, -0.1, -1.3, -12, -500, -np.inf, np.nan, -2, -3], np.float32)


class Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_shows_hostile_texts_as_text() -> None:
    for scores in ([FIRST], [FIRST, FIRST + 1]):
        shown = page("<set>", TEXTS, scores, PIECES)
        parsed = Parsed(shown)
        assert set(parsed.tags) == {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "span"}
        assert parsed.attributes == {"lang", "charset", "class", "title"}
        for piece in ("<set>", "</h2><img src=x>", *SHOWN[:3], "naïve", "⏎⇥�\n", "�evil", "·"):
            assert piece in parsed.text
        assert "\u202e" not in shown and "\x1b" not in shown


def test_tokens_are_classed_by_nats_or_by_their_difference() -> None:
    assert re.findall(r'<span class="(k\d)" title="[^"]', page("a", TEXTS, [FIRST], PIECES)) == [
        "k0", "k0", "k1", "k9", "k9", "k9", "k9", "k1", "k2",
    ]  # fmt: skip
    second = FIRST + np.array([0, 0.1, 1.3, -5, 300, 0, 0, -100, 0], np.float32)
    assert re.findall(r'<span class="([bw]\d)"', page("a", TEXTS, [FIRST, second], PIECES)) == [
        "w0", "b0", "b1", "w4", "b9", "w9", "w9", "w9", "w0",
    ]  # fmt: skip
