"""Parsers of outside text take time proportional to its length, for any content."""

from __future__ import annotations

import importlib
import itertools
import json
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import tradewind
from tests.hostile.harness import attack, expect_refusal, expect_success, named
from tradewind.plans.selection import RegexError, find_matches, linear_regex
from tradewind.ray_jobs.dependencies import PinnedRequirements
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.follow.log_lines import _SHAPES, ProgressBarFilter
from tradewind.ray_jobs.follow.log_reader import JsonLogDecoder
from tradewind.ray_jobs.follow.outcomes import last_exception, last_traceback
from tradewind.ray_jobs.request import check_entrypoint, check_env_vars, check_metadata
from tradewind.ray_jobs.secret_patterns import secret_variable
from tradewind.runtime.pods.budgets import _CHANGING
from tradewind.steps import ExecutorStep, StepConfigError
from tradewind.steps.resumable import check_globs, matches_glob

SHORT = 2 * 1024
LONG = 8 * SHORT
QUICK_S = 0.00025
"""A quadratic parser exceeds this for a text of ``SHORT``, even at 0.25 ns a step and for a token of two letters, at
which it starts SHORT/2 times, for SHORT/2 steps each."""
TOKENS = (
    "{{", "}}", "{%", "{{ }", "sk-", "sk-aA1", "eyJ", "eyJaaaaaaaa-", "eyJaaaaaaaa.", "a.", "a://", "a:b@", "http://a:",
    "glpat-", "xoxb-", "hf_", "-----BEGIN ", "-----BEGIN A ", "A ", "A=", "A='", " TOKEN=$", "\x1b[", "\x1b[0", "0",
    "1.", "0.0.", "1%|", "100%|#", "1/1 [", "1it [0:00, ", "42/100 [", "/", "a/", "[", "━", "peer ", "connection ",
    "tmp/", "ActorUnavailableError", "actor ", 'File "', '  File "', "Traceback (most recent call last):\n", "a: ",
    "\n", "\r", " ", "\t", "\\", '\\"', "\\ud83d", "\\u", '"', "'", "==", "a==1 ", "# via ", ",", "--hash", ";",
    "extra == ", "extra=='a", "-", "_", "a-", "step-", "checkpoints/step-1", "é", "\u2028", "\0",
)  # fmt: skip
SECRET_TOKENS = (
    "eyJ-", "eyJaaaaaaaaa.", "://:", "curl -", "bearer ", '"password": ', "--password ", "wandb login ", "SG.",
    "configure set ", "x", "authorization: ",
)  # fmt: skip
"""Tokens that only the secret patterns match."""


def repeated(token: str, length: int) -> str:
    return (token * (length // len(token) + 1))[:length]


def cpu_s(read: Callable[[str], Any], text: str) -> float:
    began = time.thread_time()
    read(text)
    return time.thread_time() - began


def is_linear(read: Callable[[str], Any], token: str) -> bool:
    """Return whether 8 times the text takes about 8 times as long; quadratic would be 64 times, and 22 is in between.

    CPU time includes what a hypervisor gives to other machines, half of the time on some. The quickest short reading
    would escape that, and a long one never does, so the usual short reading counts.
    """
    if cpu_s(read, repeated(token, SHORT)) < QUICK_S:
        return True
    for _ in range(5):
        short_s = median(cpu_s(read, repeated(token, SHORT)) for _ in range(8))
        if cpu_s(read, repeated(token, LONG)) < 22 * short_s:
            return True
    return False


def fold(text: str) -> list[str]:
    bars = ProgressBarFilter()
    return [out for line in text.splitlines() for out in bars.add(line, 0.0)]


READERS: dict[str, Callable[[str], Any]] = {
    "entrypoint": check_entrypoint,
    "metadata": lambda text: check_metadata({"key": text}),
    "name of a variable": lambda text: check_env_vars({text: "x"}),
    "secret name": lambda text: secret_variable(text.upper(), "value"),
    "progress bar": fold,
    "traceback": lambda text: last_traceback(text.splitlines()),
    "exception": lambda text: last_exception(["Traceback (most recent call last):", *text.splitlines()]),
    "requirements": lambda text: PinnedRequirements(text, Path("lock")),
    "requirement": lambda text: PinnedRequirements(f"a=={text}", Path("lock")).pinned([]),
    "log": lambda text: JsonLogDecoder().text(json.dumps({"logs": text}).encode()),
    "open log": lambda text: JsonLogDecoder().text(b'{"logs": "' + text.encode()),
    "what changes": lambda text: _CHANGING.sub("", text),
    "regex": lambda text: find_matches([r"(\w+)+$", "(a|a)*b", "(.*)*x"], [text]),
    "pattern": linear_regex,
    "glob": lambda text: check_globs([text], "Step 's'"),
}
REFUSALS = (BadRequestError, RegexError, StepConfigError)


@pytest.mark.parametrize("reader", READERS)
def test_parser_takes_linear_time_for_repeated_tokens(reader: str, sandbox: Path) -> None:
    def read(text: str) -> None:
        try:
            READERS[reader](text)
        except REFUSALS as error:
            assert 0 < len(str(error)) < 1000, text[:100]
        except ValueError as error:
            assert reader in ("log", "open log"), (text[:100], error)  # the caller reports this for any response

    def call() -> None:
        for token in TOKENS + SECRET_TOKENS * (reader in ("entrypoint", "metadata")):
            assert is_linear(read, token), token

    attack(call, sandbox, seconds=120).must_be_accepted()
    if reader == "entrypoint":
        attack(lambda: check_entrypoint("echo " + repeated("{{", 7 * LONG)), sandbox).must_be_accepted()


@pytest.mark.parametrize(
    ("pattern", "token"), [(r"\s+x", " "), (r"a*b", "a"), (r"<[^>]*>", "<"), (r"\bx .*-p", "x "), (r"^(a*)(a*)$", "ab")]
)
def test_quadratic_expression_is_detected(pattern: str, token: str) -> None:
    is_quadratic = not is_linear(re.compile(pattern).search, token)
    assert is_quadratic == (token != "ab")


SHORT_TEXTS = frozenset(_SHAPES)
"""Expressions that receive at most 1,000 letters."""


def patterns() -> Iterator[tuple[str, re.Pattern[str], bool]]:
    """Yield each expression that a module compiles on import, and whether code searches with it."""
    for module in pkgutil.walk_packages(tradewind.__path__, "tradewind."):
        if ".drill_dags" in module.name or module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:
            continue
        source = Path(str(loaded.__file__)).read_text()
        for name, value in vars(loaded).items():
            values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
            for number, pattern in enumerate([value] if values is None else values):
                if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str) and pattern not in SHORT_TEXTS:
                    is_searched = re.search(rf"\b{name}\.(search|sub|findall|finditer|split)\(", source) is not None
                    yield f"{module.name}.{name}[{number}]", pattern, is_searched or values is not None


def own_tokens(pattern: str) -> set[str]:
    """Return texts that the expression matches or almost matches."""
    plain = re.sub(r"\\[a-zA-Z]|[\\()\[\]{}?*+|^$]", " ", pattern)
    words = [word for word in plain.split() if len(word) <= 60]
    return {*words, *(a + b for a, b in itertools.pairwise(words)), *(f"{word} " for word in words)}


def test_every_compiled_expression_takes_linear_time(sandbox: Path) -> None:
    expressions = [*patterns()]
    assert len(expressions) > 50

    def call() -> None:
        for name, pattern, is_searched in expressions:
            for token in {*TOKENS, "a", "A", *own_tokens(pattern.pattern)}:
                print(name, repr(token))
                assert is_linear(pattern.fullmatch, token), (name, token)
                assert not is_searched or is_linear(pattern.search, token), (name, token)

    outcome = attack(call, sandbox, seconds=300)
    assert outcome.kind == "returned", f"{outcome.message or 'takes long'}: {outcome.output.splitlines()[-1]}"


def test_glob_of_many_stars_is_refused_or_matches_quickly(sandbox: Path) -> None:
    globs = [
        "*a" * 400, "*a*a*a*a*a*b", "**/" * 300 + "x", "**/*a*a*a*a*b", "*" * 900, "?*" * 400 + "b",
        "[ab]*" * 150 + "c", "*/" * 400 + "x", "**/a/" * 190 + "b", "a*" * 100 + "/**/" + "a*" * 100 + "b",
    ]  # fmt: skip

    def match(glob: str) -> None:
        try:
            ExecutorStep("s", print, {}, resumable=[glob])
        except StepConfigError as error:
            assert "'s'" in str(error) and len(str(error)) < 500
            return
        for path in ("a" * 255, "/".join(["a"] * 500), "/".join(["aaaa"] * 200) + "/c", "a" * 200 + "/" + "a" * 200):
            assert not matches_glob(glob, path) or glob.startswith(("*a", "*/", "?*")) or set(glob) == {"*"}

    expect_success(named(globs, match), sandbox, seconds=30)


def test_invalid_globs_are_refused_by_step(sandbox: Path) -> None:
    wrong: list[Any] = [
        "*", ["/a"], ["../x"], ["a/../../b"], [""], [None], [7], ["a**"], ["**b/x"], ["a\0"], ["\ud800"], ["a\nb"],
        ["a"] * 5000, ["a" * 5000], {"a": 1}, 7, None, [["a"]], [b"a"],
    ]  # fmt: skip
    cases = named(wrong, lambda globs: ExecutorStep("s", print, {}, resumable=globs))
    expect_refusal(cases, sandbox, StepConfigError, mentions=["Step 's'"])
