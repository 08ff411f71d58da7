"""Hostile requests to the rehearsal's control API, and terminal sequences in records and logs."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import Outcome, attack_all, expect_refusal, named
from tradewind.cli.fleet.access import PrefixedLines
from tradewind.cli.fleet.lifecycle import _echo, agree
from tradewind.cli.main import parser
from tradewind.cli.output import as_line, json_lines, say, write_lines
from tradewind.fleet.access.ssh import SshHost
from tradewind.fleet.lock import _warn
from tradewind.rehearsal.cloud.cloud import RehearsalCloud
from tradewind.rehearsal.cloud.control import BadArgumentError, read_arguments
from tradewind.text import escape_control_characters

NUMBERS = [
    "NaN", "Infinity", "-Infinity", "-1", "1e400", "-0.001", "9" * 400, "9" * 5000, '"5"', "[]", "{}", "true",
]  # fmt: skip
FIELDS: list[tuple[Callable[..., Any], str, dict[str, Any]]] = [
    (RehearsalCloud.preempt, "notice_s", {"name": "a"}),
    (RehearsalCloud.repair, "repair_s", {"name": "a"}),
    (RehearsalCloud.slow_create, "seconds", {}),
    (RehearsalCloud.set_capacity, "count", {"slice_type": "v4-8"}),
    (RehearsalCloud.set_quota, "count", {"slice_type": "v4-8"}),
    (RehearsalCloud.flaky, "count", {}),
    (RehearsalCloud.flaky, "status", {"count": 1}),
    (RehearsalCloud.kill_host, "worker", {"name": "a"}),
    (RehearsalCloud.hang_host, "worker", {"name": "a"}),
]


def bind(action: Callable[..., Any]) -> Callable[..., Any]:
    return action.__get__(object.__new__(RehearsalCloud))  # type: ignore[no-any-return, attr-defined]


@pytest.mark.parametrize(("action", "field", "others"), FIELDS, ids=[f"{a.__name__}-{f}" for a, f, _ in FIELDS])
def test_invalid_number_in_request_is_refused_by_field_name(
    action: Callable[..., Any], field: str, others: dict[str, Any], sandbox: Path
) -> None:
    def read(number: str) -> None:
        body = json.dumps(others)[:-1] + (", " if others else "") + f'"{field}": {number}}}'
        read_arguments(bind(action), body.encode())

    def judge(outcome: Outcome) -> None:
        outcome.must_be_refused(BadArgumentError)
        assert field in outcome.message or "no JSON object" in outcome.message, outcome.message

    attack_all(named(NUMBERS, read), sandbox, judge)


def test_malformed_request_is_refused(sandbox: Path) -> None:
    bodies = [
        b"", b"[]", b"7", b"null", b'"x"', b"{", b"\xff\xfe", b'{"name": 7}', b'{"name": null}', b'{"name": ["a"]}',
        b'{"name": ""}', b'{"name": "a\\u0000"}', b'{"name": "\\u001b[2J"}', b'{"name": "\\ud800"}', b'{"other": 1}',
        b'{"name": "a", "self": 1}', b'{"name": "a", "__class__": 1}', b"[" * 60_000,
        b'{"name": "' + b"a" * 70_000 + b'"}', b'{"name": "' + b"a" * 300 + b'"}', b'{"name": true}',
        b'{"name": {"a": 1}}', b'{"name": "a", "notice_s": "soon"}',
    ]  # fmt: skip
    cases = named(bodies, lambda body: read_arguments(bind(RehearsalCloud.preempt), body))
    expect_refusal(cases, sandbox, BadArgumentError)


CONTROL_TEXTS = [
    "\x1b[2J", "\x1b]0;title\x07", "\x1b[31mred", "\x1b]8;;http://x\x1b\\link", "\x1bc", "\x1b[6n", "\x9b2J", "\x90q",
    "a\rb", "\x08\x08", "\x07", "\x00", "\x7f", "\x0b", "\x0c", "\u202egnp.exe", "\u2066x", "\u2028", "\u200f",
    "\ud800",
]  # fmt: skip


def test_control_characters_are_escaped_on_the_terminal(sandbox: Path) -> None:
    def judge(outcome: Outcome) -> None:
        outcome.must_be_accepted()
        assert "step " in outcome.output and "failed" in outcome.output, outcome.output
        assert all(letter.isprintable() or letter in "\n\t" for letter in outcome.output), ascii(outcome.output)

    texts = [f"step {text} failed" for text in CONTROL_TEXTS]
    attack_all(named(texts, say, lambda text: write_lines(["before", text])), sandbox, judge)
    assert [text for text in CONTROL_TEXTS if not escape_control_characters(text).isprintable()] == []


FORGED = "the step failed\ntradewind: all is well\n\r\ntradewind: Token: "


def test_forged_lines_stay_part_of_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    say(FORGED)
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "tradewind: the step failed" and all(line.startswith("    ") for line in others)


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("names", [["one:0"], ["one:0", "one:1"]], ids=len)
def test_line_with_line_breaks_is_printed_as_one_line(
    names: list[str], is_error: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(["before", FORGED])
    hosts = [SshHost("here", name, "10.0.0.2", "ray", "key", ()) for name in names]
    PrefixedLines(hosts).write(hosts[0], FORGED, is_error)
    _echo(FORGED)
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), *printed.err.splitlines()]
    assert len(lines) == 4 and not [line for line in lines if line.startswith("tradewind:")]
    assert as_line("a\nb") == "a\\nb"


def test_question_and_warning_are_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    agree(argparse.Namespace(yes=False), FORGED)
    _warn(FORGED)
    question, warning = capsys.readouterr().err.split(" [y/N] ")
    assert len(question.splitlines()) == len(warning.splitlines()) == 1


def test_json_and_letters_of_every_language_are_unchanged() -> None:
    assert json.loads("\n".join(json_lines({"a": FORGED, "ü": [1]}))) == {"a": FORGED, "ü": [1]}
    letters = "Größe 3 → 4 █▉ 漢字\tend\n"
    assert escape_control_characters(letters) == letters


def test_invalid_command_line_error_hides_values_and_escapes(sandbox: Path) -> None:
    command_lines = [
        ["jobs", "submit", "--token=hunter2hunter2", "--", "true"],
        ["jobs", "list", "--api-key=hunter2hunter2 x"],
        ["jobs", "submit", "--secret", "hunter2hunter2", "--", "true"],
        ["jobs", "submit", "--metadata", "hunter2hunter2", "--", "true"],
        ["plan", "d", "--param", "hunter2hunter2"],
        ["plan", "d", "\x1b[2J"],
        ["jobs", "\x1b]0;title\x07"],
        ["jobs", "list\ntradewind: all is well"],
    ]

    def judge(outcome: Outcome) -> None:
        outcome.must_be_harmless(secrets=["hunter2"])
        assert "builtins.SystemExit" in outcome.error and "--help' lists the options" in outcome.output, outcome.output
        assert all(letter.isprintable() or letter == "\n" for letter in outcome.output), ascii(outcome.output)
        assert sum(line.startswith("tradewind: ") for line in outcome.output.splitlines()) == 1, outcome.output

    attack_all(named(command_lines, lambda words: parser().parse_args(words)), sandbox, judge)
