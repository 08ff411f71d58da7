"""The judge itself: each kind of harm is seen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.harness import Outcome, attack


def _raise(error: BaseException) -> None:
    raise error


def test_a_refusal_in_a_sentence_passes(sandbox: Path) -> None:
    outcome = attack(lambda: _raise(ValueError("The path is empty.")), sandbox)
    outcome.must_be_refused(ValueError, mentions=["empty"])
    assert outcome.error[0] == "builtins.ValueError"


def test_a_harmless_deed_may_write_where_it_works(sandbox: Path) -> None:
    attack(lambda: Path("file").write_text("mine"), sandbox).must_be_accepted()
    assert (sandbox / "own" / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "deed",
    [
        pytest.param(lambda: "taken", id="accepted"),
        pytest.param(lambda: _raise(KeyError("x")), id="raw exception"),
        pytest.param(lambda: _raise(ValueError("")), id="says nothing"),
        pytest.param(lambda: _raise(ValueError("hunter2 is wrong")), id="secret in the message"),
        pytest.param(lambda: (print("hunter2"), _raise(ValueError("no"))), id="secret printed"),
        pytest.param(lambda: (os.write(2, b"hunter2"), _raise(ValueError("no"))), id="secret written"),
        pytest.param(lambda: _raise(ValueError("x" * 3000)), id="too long"),
        pytest.param(lambda: (Path("../outside/new").touch(), _raise(ValueError("no"))), id="file made"),
        pytest.param(lambda: (Path("../outside/treasure").unlink(), _raise(ValueError("no"))), id="file deleted"),
        pytest.param(lambda: (Path("../outside/treasure").write_text(""), _raise(ValueError("no"))), id="file changed"),
        pytest.param(lambda: os.system("true"), id="shell"),
        pytest.param(lambda: subprocess.run([sys.executable, "-c", ""], check=False), id="program"),
        pytest.param(lambda: socket.create_connection(("127.0.0.1", 9)), id="connection"),
        pytest.param(lambda: os._exit(0), id="died"),
        pytest.param(lambda: bytearray(3 << 30), id="memory"),
    ],
)
def test_harm_is_seen(deed: Callable[[], object], sandbox: Path) -> None:
    outcome = attack(deed, sandbox)
    with pytest.raises(AssertionError):
        outcome.must_be_refused(ValueError, secrets=["hunter2"])


def test_a_deed_that_does_not_end_is_ended(sandbox: Path) -> None:
    outcome: Outcome = attack(lambda: time.sleep(60), sandbox, seconds=0.5)
    assert outcome.kind == "hung"
    with pytest.raises(AssertionError, match="hung"):
        outcome.must_be_harmless()
