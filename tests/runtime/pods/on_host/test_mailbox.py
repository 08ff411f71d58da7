"""A mailbox sends a call to a process and returns its result, without Ray and without a store."""

import os
import pickle
import subprocess
import sys
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from tradewind.runtime.pods.functions import pickle_call
from tradewind.runtime.pods.on_host.mailbox import ADDRESS_VARIABLE, Mailbox, answer

pytestmark = pytest.mark.slow


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

    def open_for(function=None):
        opened.append(Mailbox(pickle_call(function) if function else b"", "127.0.0.1").__enter__())
        return opened[-1]

    yield open_for
    for mailbox in opened:
        mailbox.__exit__(None, None, None)


def test_results_are_in_order_of_ranks(post):
    factor = 10
    mailbox = post(lambda: factor * int(os.environ["TRADEWIND_PROCESS_ID"]))
    processes = [process(mailbox, rank) for rank in (1, 0)]
    assert [one.wait(120) for one in processes] == [0, 0]
    assert [pickle.loads(one) for one in mailbox.results()] == [0, 10]


def test_exception_has_traceback_of_function(post):
    def breaks():
        raise ValueError("no such layer")

    mailbox = post(breaks)
    one = process(mailbox, rank=1, start=3)
    _, printed = one.communicate(timeout=120)
    assert one.returncode == 1
    error = mailbox.error(3, 1)
    assert (error["type"], error["message"]) == ("ValueError", "no such layer")
    assert "in breaks" in error["traceback"] and "call_function" not in error["traceback"]
    assert error["traceback"] in printed
    assert mailbox.error(3, 0) is mailbox.error(0, 1) is None
    assert mailbox.results() == []


@pytest.mark.parametrize(("status", "code"), [(None, 0), ("enough", 1)])
def test_function_may_exit_its_process(post, status, code):
    mailbox = post(lambda: sys.exit(status))
    assert process(mailbox).wait(120) == code
    assert [pickle.loads(one) for one in mailbox.results()] == ([None] if code == 0 else [])


def test_module_in_folder_of_driver_is_imported(post, tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text("def train():\n    return 'trained'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_training

    mailbox = post(my_training.train)
    assert process(mailbox).wait(120) == 0
    assert pickle.loads(mailbox.results()[0]) == "trained"


def test_result_of_last_start_counts(post, monkeypatch):
    mailbox = post()
    for name, value in {**mailbox.env, "TRADEWIND_PROCESS_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    for start in (0, 1, 0):  # the last process is of an old start and was frozen until now
        monkeypatch.setenv("TRADEWIND_RESTARTS", str(start))
        answer("result", f"of start {start}")
    assert mailbox.results() == ["of start 1"]


def test_client_without_key_is_refused(post):
    ip, _, port = post().env[ADDRESS_VARIABLE].rpartition(":")
    with pytest.raises(AuthenticationError):
        Client((ip, int(port)), authkey=b"guess")
