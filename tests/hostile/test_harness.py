"""The harness detects each kind of harm, names the case and continues with the next."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.hostile.harness import Call, Outcome, attack, attack_all


def _raise(error: BaseException) -> None:
    raise error


def _refuse() -> None:
    _raise(ValueError("no"))


def _must_be_refused(outcome: Outcome) -> None:
    outcome.must_be_refused(ValueError, secrets=["hunter2"])


TREASURE = Path("../outside/treasure")
HARM: dict[str, tuple[Call, str]] = {
    "accepted": (lambda: "taken", "accepted: 'taken'"),
    "raw exception": (lambda: _raise(KeyError("x")), "builtins.KeyError"),
    "silence": (lambda: _raise(ValueError("")), "says nothing"),
    "secret in the message": (lambda: _raise(ValueError("hunter2 is wrong")), "shows the secret"),
    "secret printed": (lambda: (print("hunter2"), _refuse()), "shows the secret"),
    "secret written": (lambda: (os.write(2, b"hunter2"), _refuse()), "shows the secret"),
    "long message": (lambda: _raise(ValueError("x" * 3000)), "3000 characters"),
    "file made": (lambda: (Path("../outside/new").touch(), _refuse()), "changed outside: ('outside/new',)"),
    "file changed": (lambda: (TREASURE.write_text(""), _refuse()), "changed outside: ('outside/treasure',)"),
    "file deleted": (lambda: (TREASURE.unlink(), _refuse()), "changed outside: ('outside/treasure',)"),
    "shell": (lambda: os.system("true"), "tried: ('os.system',)"),
    "program": (lambda: subprocess.run([sys.executable, "-c", ""], check=False), "tried: ('subprocess.Popen',)"),
    "connection": (lambda: socket.create_connection(("127.0.0.1", 9)), "tried: ('socket.connect',)"),
    "death": (lambda: os._exit(0), "it died"),
    "crash": (lambda: os.kill(os.getpid(), signal.SIGKILL), "it died"),
    "memory": (lambda: bytearray(3 << 30), "builtins.MemoryError"),
    "hang": (lambda: time.sleep(600), "it hung"),
}


def test_refusal_and_success_pass(sandbox: Path) -> None:
    outcome = attack(lambda: _raise(ValueError("The path is empty.")), sandbox)
    outcome.must_be_refused(ValueError, mentions=["empty"])
    assert outcome.error[0] == "builtins.ValueError"
    attack(lambda: Path("file").write_text("mine"), sandbox).must_be_accepted("4")
    assert (sandbox / "own" / "file").read_text() == "mine"


def test_harm_is_detected_and_named_between_good_cases(sandbox: Path) -> None:
    cases: dict[str, Call] = {}
    for name, (call, _) in HARM.items():
        cases |= {f"before {name}": _refuse, name: call}
    with pytest.raises(AssertionError) as failure:
        attack_all({**cases, "after": _refuse}, sandbox, _must_be_refused, seconds=5.0)
    heading, *lines = str(failure.value).splitlines()
    assert heading == f"{len(HARM)} of {len(cases) + 1} cases:"
    for name, (_, reason) in HARM.items():
        assert any(line.startswith(f"{name}: {reason}") for line in lines), (name, lines)
    assert not [line for line in lines if line.startswith(("before", "after"))]


def test_harness_child_is_reused_until_a_case_leaves_a_thread(sandbox: Path) -> None:
    def leave_a_thread() -> int:
        threading.Thread(target=time.sleep, args=[600]).start()
        return os.getpid()

    children: list[str] = []
    cases: dict[str, Call] = {"1": os.getpid, "2": leave_a_thread, "3": os.getpid}
    attack_all(cases, sandbox, lambda outcome: children.append(outcome.value))
    assert children[0] == children[1] != children[2]
