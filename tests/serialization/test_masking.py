"""Masking hides a secret value in each encoding and split, and leaves other texts unchanged."""

from __future__ import annotations

import base64
import html
import json
import random
import shlex
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from tradewind.serialization import masking
from tradewind.serialization.masking import Masker, StreamMasker
from tradewind.serialization.shipping import result_line, result_marker

VALUES = {
    "plain": "s3cr3t-value-of-the-test",
    "signs": "s3cr3t/+ value&x=\"q'<>$`\\",
    "not ASCII": "naïve-pässwörd-ключ",
    "lines": "line1-abcdef\nline2-ghijkl\n",
    "seven letters": "hunter2",
    "four letters": "p@ss",
}
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "a URL's path": quote,
    "a URL's parameter": lambda value: quote(value, safe=""),
    "a form": quote_plus,
    "a URL in small letters": lambda value: quote(value, safe="").lower() if value.islower() else quote(value, safe=""),
    "a URL in a URL": lambda value: quote(quote(value, safe=""), safe=""),
    "JSON": lambda value: json.dumps({"key": value}),
    "JSON with other letters": lambda value: json.dumps([value], ensure_ascii=False),
    "JSON in JSON": lambda value: json.dumps(json.dumps(value)),
    "JSON of JavaScript": lambda value: json.dumps(value).replace("/", "\\/"),
    "Python": repr,
    "Python in a list": lambda value: repr([value, "'", '"']),
    "Python's bytes": lambda value: repr(value.encode()),
    "a shell's word": shlex.quote,
    "HTML": html.escape,
    "hexadecimal": lambda value: value.encode().hex(),
    "Base64": lambda value: base64.b64encode(value.encode()).decode(),
    "Base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "Base64 of a line": lambda value: base64.b64encode(value.encode() + b"\n").decode(),
    "Base64 behind one letter": lambda value: base64.b64encode(b"u" + value.encode()).decode(),
    "Base64 behind two letters": lambda value: base64.b64encode(b"u:" + value.encode() + b"x").decode(),
}


def in_pieces(masker: Masker, data: bytes, dice: random.Random, max_size: int = 5) -> bytes:
    stream, out, at = StreamMasker(masker), b"", 0
    while at < len(data):
        size = dice.randint(1, max_size)
        out += stream.feed(data[at : at + size])
        at += size
    return out + stream.end()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", VALUES)
def test_value_is_masked_in_every_form(what: str, form: str) -> None:
    value = VALUES[what]
    written = FORMS[form](value)
    masker, text = Masker([value]), f"before {written} after"
    shown = masker.text(text)
    assert written not in shown and value not in shown and "***" in shown
    assert shown.startswith("before ") and shown.endswith(" after")
    assert in_pieces(masker, text.encode(), random.Random(form)) == shown.encode()


def test_nested_and_overlapping_secrets_are_masked_whole() -> None:
    masker = Masker(["long-secret", "long-secret-value", "a"])
    assert masker.text("a long-secret-value, long-secret") == "*** ***, ***"
    assert Masker(["AAAABBBB", "BBBBCCCC"]).text("xAAAABBBBCCCCy") == "x***y"
    assert Masker(["abcabc"]).text("xabcabcabcy abcab") == "x***y abcab"


def test_secret_of_at_most_3_characters_is_masked_only_as_word() -> None:
    assert Masker(["a"]).text("a banana, x=a\\na %20a \x1b[31ma") == "*** banana, x=***\\n*** %20*** \x1b[31m***"
    assert Masker(["ab"]).text("cab abc ab") == "cab abc ***"
    assert Masker(["true"]).text("x=true") == "x=***"


def test_blank_value_masks_nothing() -> None:
    assert Masker(["", " ", "\n"]).text("two words\n") == "two words\n"


def test_private_key_is_masked_line_by_line() -> None:
    lines = [base64.b64encode(random.Random(line).randbytes(48)).decode() for line in range(20)]
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])
    masker = Masker([key])
    assert masker.text(f"it is\n{key}") == "it is\n***"
    assert masker.text("\n".join(f"{number}: {line}" for number, line in enumerate(lines))).count("***") == 20
    assert masker.text("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"
    encoded = base64.encodebytes(key.encode()).decode()
    assert not [line for line in encoded.splitlines() if len(line) > 20 and line in masker.text(encoded)]


def test_password_inside_value_is_masked_and_other_words_stay() -> None:
    account = {"type": "service_account", "user": "ada@example.com", "private_key": "k3y-of-the-account"}
    masker = Masker([json.dumps(account), "postgresql://reader:pa55word-of-it@db.example/name"])
    text = "service_account ada@example.com k3y-of-the-account pa55word-of-it db.example"
    assert masker.text(text) == "service_account ada@example.com *** *** db.example"


@pytest.mark.slow
def test_few_or_many_forms_in_any_pieces_mask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(11)
    for _ in range(2000):
        values = ["".join(dice.choices("ab", k=dice.randint(1, 9))) for _ in range(dice.randint(1, 3))]
        data = "".join(dice.choices("ab =", k=dice.randint(0, 60))).encode()
        few = Masker(values)
        with monkeypatch.context() as patch:
            patch.setattr(masking, "_FEW", 0)
            many = Masker(values)
        shown = {few.data(data), many.data(data), in_pieces(few, data, dice), in_pieces(many, data, dice)}
        assert len(shown) == 1, (values, data)


@pytest.mark.slow
def test_endless_secret_is_not_held_in_memory() -> None:
    stream = StreamMasker(Masker(["a" * 20]))
    shown = b"".join(stream.feed(b"a" * 1000) for _ in range(100))
    assert shown + stream.feed(b".") == b"***."
    assert len(stream._held) == 0


def test_line_without_secret_prefix_is_emitted_at_once() -> None:
    stream = StreamMasker(Masker(["secret-value"]))
    assert stream.feed(b"step 1\n") == b"step 1\n"
    assert stream.feed(b"key=secr") == b"key="
    assert stream.feed(b"etary\n") == b"secretary\n"


def test_binary_data_passes_unchanged() -> None:
    noise = random.Random(1).randbytes(5000)
    masker = Masker(["secret-value"])
    assert in_pieces(masker, noise + b"secret-value" + noise, random.Random(2), 100) == noise + b"***" + noise


def test_value_added_later_is_masked_from_then_on() -> None:
    masker = Masker()
    stream = StreamMasker(masker)
    assert stream.feed(b"one two ") == b"one two "
    masker.add_secret(["two-of-them"])
    assert stream.feed(b"two-of-them") + stream.end() == b"***"


def test_exempt_text_is_not_masked() -> None:
    masker = Masker(["nothing"], exempt=["nothing lives on."])
    for text in ("nothing lives on.\n", "nothing lives on. nothing", "nothing lives"):
        expected = text.replace("nothing", "***") if "on." not in text else text.replace(" nothing", " ***")
        assert masker.text(text) == expected
        assert in_pieces(masker, text.encode(), random.Random(3)) == expected.encode()


def test_result_keeps_its_shape() -> None:
    result = {"a": ["x secret-value", 7, None, True, 12345678.5], "secret-value": {"n": 87654321}}
    expected = {"a": ["x ***", 7, None, True, 12345678.5], "***": {"n": "***"}}
    assert Masker(["secret-value", "87654321"]).plain(result) == expected


def test_variables_that_an_environment_names_are_masked() -> None:
    environment = {"KEY": "value-one", "OTHER": "value-two", "TRADEWIND_MASKED": "KEY,MISSING"}
    assert Masker.of_environment(environment).text("value-one value-two") == "*** value-two"


@pytest.mark.slow
def test_key_of_a_thousand_lines_does_not_delay_a_log() -> None:
    dice = random.Random(13)
    key = "\n".join(base64.b64encode(dice.randbytes(48)).decode() for _ in range(1000))
    stream = StreamMasker(Masker([key]))
    line = b"step 100 loss 3.14 key " + key.splitlines()[500].encode() + b"\n"
    begun = time.process_time()
    shown = b"".join(stream.feed(line * 600) for _ in range(10)) + stream.end()
    assert time.process_time() - begun < 20  # an earlier version took a minute for each of the ten
    assert shown.count(b"key ***\n") == 6000


WRITTEN_TWICE: dict[str, Callable[[str], str]] = {
    "JSON in Python": lambda value: repr(json.dumps(value)),
    "Python in JSON": lambda value: json.dumps({"error": repr(value)}),
    "JSON in a shell's word": lambda value: shlex.quote(json.dumps(value)),
    "a shell's word in a shell's word": lambda value: shlex.quote(shlex.quote(value)),
    "a path in a parameter": lambda value: quote(quote(value)),
    "JSON in a URL": lambda value: quote(json.dumps(value)),
    "Python in HTML": lambda value: html.escape(repr(value)),
    "ASCII alone": ascii,
    "capital letters": str.upper,
    "small letters": str.lower,
    "letters the other way": str.swapcase,
}


@pytest.mark.parametrize("form", WRITTEN_TWICE)
@pytest.mark.parametrize("what", ["plain", "signs", "not ASCII"])
def test_doubly_encoded_value_is_redacted(what: str, form: str) -> None:
    written = WRITTEN_TWICE[form](VALUES[what])
    shown = Masker([VALUES[what]]).text(f"before {written} after")
    assert "***" in shown and shown.startswith("before ") and shown.endswith(" after")
    assert not [part for part in ("s3cr3t", "S3CR3T", "sswörd", "SSWÖRD") if part in shown]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_value_in_utf_16_is_masked(encoding: str) -> None:
    data = f"key={VALUES['plain']};".encode(encoding)
    shown = Masker([VALUES["plain"]]).data(data)
    assert b"***" in shown and not [at for at in range(len(data) - 8) if data[at : at + 8] in shown and at > 10]


@pytest.mark.parametrize(("value", "text"), [("é", "鎖"), ("\x8e\x96ab", "鎖ab")])
def test_value_equal_to_part_of_a_letter_is_no_error(value: str, text: str) -> None:
    assert "***" in Masker([value]).text(text)


@pytest.mark.parametrize(
    ("secret", "result"),
    [
        ("1234", {"n": 12345, "text": "x1234"}),
        ("1", {"n": 1, "m": [1.5, 1]}),
        ("true", {"is": True, "not": False}),
        ("null", [None, "null"]),
        ("1, 2", [1, 2]),
        ('a": "b', {"a": "b"}),
        ("x\\", {"a": 'x"', "b": "y"}),
        ("result", {"result": "the result"}),
    ],
)
def test_redacted_result_is_valid_json_and_unchanged_by_stream(secret: str, result: object) -> None:
    masker = Masker([secret], exempt=[result_marker("job")])
    line = result_line(result, result_marker("job"), masker)
    assert in_pieces(masker, line.encode(), random.Random(secret)).decode() == line
    shown = json.loads(line.removeprefix(result_marker("job")))
    assert "***" in json.dumps(shown) and masker.json(json.dumps(shown)) == json.dumps(shown)
