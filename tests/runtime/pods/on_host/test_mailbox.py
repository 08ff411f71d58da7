"""A mailbox sends a call to a process and returns its result, without Ray and without a store."""

import os
import pickle
import subprocess
import sys
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest
from ray import cloudpickle

from tradewind.runtime.pods.on_host.mailbox import ADDRESS_VARIABLE, Mailbox, answer

pytestmark = pytest.mark.slow


def call_of(function, folders=()):
    return pickle.dumps((cloudpickle.dumps(function), list(folders)))


def process(mailbox, rank=0, start=0):
    env = {**os.environ, **mailbox.env, "TRADEWIND_PROCESS_ID": str(rank), "TRADEWIND_RESTARTS": str(start)}
    return subprocess.Popen(
        [sys.executable, "-m", "tradewind.runtime.pods.on_host.call_function"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def post():
    """Return a function that opens mailboxes and closes them after the test."""
    opened = []

    def open_for(function, folders=()):
        opened.append(Mailbox(call_of(function, folders), "127.0.0.1").__enter__())
        return opened[-1]

    yield open_for
    for mailbox in opened:
        mailbox.__exit__(None, None, None)


def test_results_come_back_in_the_order_of_the_ranks(post):
    factor = 10
    mailbox = post(lambda: factor * int(os.environ["TRADEWIND_PROCESS_ID"]))
    processes = [process(mailbox, rank) for rank in (1, 0)]
    assert [one.wait(120) for one in processes] == [0, 0]
    assert [pickle.loads(one) for one in mailbox.results()] == [0, 10]


def test_an_exception_comes_with_the_traceback_of_the_function(post):
    def breaks():
        raise ValueError("no such layer")

    mailbox = post(breaks)
    one = process(mailbox, rank=1, start=3)
    _, printed = one.communicate(timeout=120)
    assert one.returncode == 1
    found = mailbox.error(3, 1)
    assert (found["type"], found["message"]) == ("ValueError", "no such layer")
    assert "in breaks" in found["traceback"] and "call_function" not in found["traceback"]
    assert found["traceback"] in printed
    assert mailbox.error(3, 0) is mailbox.error(0, 1) is None
    assert mailbox.results() == []


@pytest.mark.parametrize(("words", "code"), [(None, 0), ("enough", 1)])
def test_a_function_may_end_its_process(post, words, code):
    mailbox = post(lambda: sys.exit(words))
    assert process(mailbox).wait(120) == code
    assert [pickle.loads(one) for one in mailbox.results()] == ([None] if code == 0 else [])


def test_a_module_of_the_drivers_folder_is_found(post, tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text("def train():\n    return 'trained'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_training

    mailbox = post(my_training.train, [str(tmp_path)])
    assert process(mailbox).wait(120) == 0
    assert pickle.loads(mailbox.results()[0]) == "trained"


def test_the_last_start_counts(post, monkeypatch):
    mailbox = post(None)
    for name, value in {**mailbox.env, "TRADEWIND_PROCESS_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    for start in (0, 1, 0):  # the last process is of an old start and was frozen until now
        monkeypatch.setenv("TRADEWIND_RESTARTS", str(start))
        answer("result", f"of start {start}")
    assert mailbox.results() == ["of start 1"]


def test_a_stranger_is_not_heard(post):
    ip, _, port = post(None).env[ADDRESS_VARIABLE].rpartition(":")
    with pytest.raises(AuthenticationError):
        Client((ip, int(port)), authkey=b"guess")
