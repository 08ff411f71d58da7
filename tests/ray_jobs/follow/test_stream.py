"""A streaming decoder gives the same text as decoding the whole log."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tradewind.ray_jobs.follow.log_reader import JsonLogDecoder

ANY_TEXT = st.text(st.characters(), max_size=60)  # includes lone surrogates and control characters


def decoded(body: bytes, size: int) -> tuple[str, JsonLogDecoder]:
    decoder = JsonLogDecoder()
    return "".join(decoder.text(body[start : start + size]) for start in range(0, len(body), size)), decoder


@given(ANY_TEXT, st.integers(1, 40), st.booleans())
@example("\ud83d\ud83d\ude00\\", 1, True)
@example('\\"\\\\" \U0001f600\ud83d', 3, True)
def test_the_text_is_what_a_json_parser_finds(text: str, size: int, ascii_only: bool) -> None:
    if not ascii_only:
        text = text.encode("utf-8", "replace").decode()  # a body in UTF-8 cannot hold a lone surrogate
    body = json.dumps({"logs": text}, ensure_ascii=ascii_only).encode()
    found, decoder = decoded(body, size)
    assert found == json.loads(body)["logs"]
    assert decoder.has_ended


@given(ANY_TEXT, st.integers(1, 40))
def test_a_body_that_is_cut_short_shows(text: str, size: int) -> None:
    body = json.dumps({"logs": text}).encode()
    found, decoder = decoded(body[:-2], size)
    assert not decoder.has_ended
    assert json.loads(body)["logs"].startswith(found)


def test_little_is_held_back() -> None:
    decoder = JsonLogDecoder()
    decoder.text(b'{"logs": "')
    assert len(decoder.text(b"\\u00e9" * 10_000 + b"\\u00")) == 10_000
    assert decoder.text(b"e9") == "é"


@pytest.mark.parametrize("body", ["<html>" + "x" * 200, json.dumps({"detail": "x" * 200})])
def test_another_answer_is_no_log(body: str) -> None:
    with pytest.raises(ValueError, match="no log in a response"):
        decoded(body.encode(), 50)
