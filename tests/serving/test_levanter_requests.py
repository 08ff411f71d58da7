"""Requests of Levanter's server that are refused by name, and text as it grows by tokens; without a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving.exports import tiny_export
from tradewind.serving.levanter_requests import Limits, RequestError, chat, completion, read_body
from tradewind.serving.levanter_text import GrowingText, Spelling

LIMITS = Limits("tiny", context=64, vocabulary=264)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return a tokenizer with a chat template, and one without."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("exports")
    chats = (tiny_export(folder / "chat"), tiny_export(folder / "no chat", chat=False))
    return tuple(AutoTokenizer.from_pretrained(each) for each in chats)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        ({}, "prompt is missing", "prompt"),
        ({"prompt": ""}, "has no tokens", "prompt"),
        ({"prompt": []}, "prompt is missing", "prompt"),
        ({"prompt": [[]]}, "has no tokens", "prompt"),
        ({"prompt": {"text": "a"}}, "prompt is missing", "prompt"),
        ({"prompt": ["a", 1]}, "prompt has 1, which is neither a text nor", "prompt"),
        ({"prompt": [[1, "a"]]}, "which is neither a text nor", "prompt"),
        ({"prompt": [True]}, "which is neither a text nor", "prompt"),
        ({"prompt": [1, 264]}, "the token id 264; the model's are from 0 to 263", "prompt"),
        ({"prompt": [-1]}, "the token id -1", "prompt"),
        ({"prompt": ["a"] * 3000}, "3000 prompts; a request has at most 2048", "prompt"),
        ({"prompt": "a" * 64}, "context length is 64 tokens, and 80 were requested: 64 in the prompt", "prompt"),
        ({"prompt": "a" * 8193}, "context length is 64 tokens, and the prompt has 8193 characters", "prompt"),
        ({"prompt": "a", "max_tokens": 64}, "65 were requested: 1 in the prompt, and max_tokens=64", "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens=0 is no whole number from 1 on", "max_tokens"),
        ({"prompt": "a", "max_tokens": "4"}, "max_tokens='4' is no whole number", "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs=21 is no whole number from 0 to 20", "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs=True is no whole number", "logprobs"),
        ({"prompt": "a", "n": 0}, "n=0 is no whole number from 1 to 128", "n"),
        ({"prompt": "a", "n": 1000}, "n=1000", "n"),
        ({"prompt": ["a"] * 1000, "n": 3}, "n=3 for 1000 prompts: a request has at most 2048 answers", "n"),
        ({"prompt": "a", "temperature": -0.1}, "temperature=-0.1 is no number from 0 to 100", "temperature"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature=nan", "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p=0 is no number above 0 up to 1", "top_p"),
        ({"prompt": "a", "seed": 1.5}, "seed=1.5 is no whole number", "seed"),
        ({"prompt": "a", "stop": ["b", ""]}, "stop=.* is no text and no list", "stop"),
        ({"prompt": "a", "stop": ["b"] * 65}, "stop has more than 64 texts, or one of over 256 characters", "stop"),
        ({"prompt": "a", "stop": "b" * 257}, "stop has more than 64 texts, or one of over 256 characters", "stop"),
        ({"prompt": "a", "stream": "yes"}, "stream='yes' is neither true nor false", "stream"),
        ({"prompt": "a", "best_of": 3}, "best_of=3: this server has no such option", "best_of"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias=.* no such option", "logit_bias"),
        ({"prompt": "a", "model": "other"}, "'other' is not served here: there is 'tiny'", "model"),
    ],
)
def test_bad_completion_is_refused_by_name(
    tokenizers: tuple[Any, Any], body: dict[str, Any], message: str, field: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        completion(body, tokenizers[0], LIMITS)
    assert refused.value.field == field
    assert refused.value.body()["error"]["code"] == (404 if field == "model" else 400)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages is missing"),
        ({"messages": ["hi"]}, "messages is missing"),
        ({"messages": [{"content": "hi"}]}, "a message has a role and a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a message has a role and a text"),
        ({"messages": [{"role": "user", "content": "a" * 8193}]}, "the prompt has 82.. characters"),
        ({"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs needs logprobs=true"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs=21"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools=.*no such option"),
        ({"messages": MESSAGES, "max_completion_tokens": 64}, "context length is 64"),
        ({"messages": [{"role": "user", "content": "a" * 80}]}, "context length is 64"),
    ],
)
def test_bad_chat_is_refused_by_name(tokenizers: tuple[Any, Any], body: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        chat(body, tokenizers[0], LIMITS)


def test_chat_needs_a_template_that_takes_its_messages(tokenizers: tuple[Any, Any]) -> None:
    with pytest.raises(RequestError, match="has no chat template: use /v1/completions"):
        chat({"messages": MESSAGES}, tokenizers[1], LIMITS)
    refusing = type("Tokenizer", (), {"chat_template": "{{ raise_exception('one turn only') }}"})()
    refusing.apply_chat_template = lambda *_, **__: 1 // 0
    with pytest.raises(RequestError, match="template refuses these messages: "):
        chat({"messages": MESSAGES}, refusing, LIMITS)
    asked = chat({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, tokenizers[0], LIMITS)
    assert asked.prompts == chat({"messages": MESSAGES}, tokenizers[0], LIMITS).prompts
    assert asked.max_tokens == 64 - len(asked.prompts[0].tokens), "by default, to the end of the context"


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'"a"', b"\xff", b"[" * 100_000, b'{"prompt": "\\ud800"}'])
def test_body_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="The body of the request is no JSON"):
        read_body(data)


def test_unknown_and_neutral_fields_are_ignored(tokenizers: tuple[Any, Any]) -> None:
    neutral = {"best_of": 1, "presence_penalty": 0.0, "logit_bias": None, "user": "me", "x": [1], "stop": None}
    body = json.loads(json.dumps({"prompt": "a", **neutral}))
    assert completion(body, tokenizers[0], LIMITS) == completion({"prompt": "a"}, tokenizers[0], LIMITS)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("the thin cat", (), "the thin cat"),
        ("naïve — 🐈 in the hat", (), "naïve — 🐈 in the hat"),
        ("the thin cat", ("in ",), "the th"),
        ("the thin cat", ("cat", "thin"), "the "),
        ("the thin cat", ("t",), ""),
        ("aab aac", ("aac",), "aab "),
        ("one 🐈 two", ("🐈",), "one "),
        ("ends with st", ("sto",), "ends with st"),
    ],
)
def test_text_grows_to_a_stop_and_sends_none_of_it(
    tokenizers: tuple[Any, Any], text: str, stops: tuple[str, ...], expected: str
) -> None:
    growing = GrowingText(tokenizers[0], tokenizers[0].encode("before it"), stops)
    sent = []
    for token in tokenizers[0].encode(text):
        growing.add(token)
        sent.append(growing.take())
        assert expected.startswith("".join(sent))
        if growing.is_stopped:
            break
    assert "".join([*sent, growing.take_rest()]) == expected
    assert growing.is_stopped == (expected != text)


def test_spelling_tells_every_token_apart(tokenizers: tuple[Any, Any]) -> None:
    spelling = Spelling(tokenizers[0])
    assert len({spelling.of(token) for token in range(264)}) == 264
    assert [spelling.of(token) for token in tokenizers[0].encode(" the<end>")] == [" the", "<end>"]
    broken = GrowingText(tokenizers[0], [], ())
    for token in tokenizers[0].encode("é")[:1]:
        broken.add(token)
    assert (broken.take(), broken.take_rest()) == ("", "\ufffd")
