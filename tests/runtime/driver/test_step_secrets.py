"""A step's function gets its secrets, and no file or log contains them."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.runtime.driven import claim_step, run_attempt
from tests.runtime.driver.secret_value import KEY, VALUE
from tradewind.records.attempts import Attempt, AttemptOutcome
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager
from tradewind.steps import ExecutorStep, this_output_path, versioned

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Config:
    output_path: Any
    mode: Any = None


def uses_its_secret(config: Config) -> str:
    assert os.environ["KEY"] == VALUE
    return "read"


def raises_its_secret(config: Config) -> None:
    raise ValueError(f"GET https://api.example?key={os.environ['KEY']}")


def prints_its_secret_in_pieces(config: Config) -> dict[str, Any]:
    value = os.environ["KEY"].encode()
    for descriptor in (1, 2):
        for at in range(len(value)):
            os.write(descriptor, value[at : at + 1])
            time.sleep(0.002)
        os.write(descriptor, b"\xff\x00" + value + b"\n")
    logging.getLogger().error("https://api.example/?key=%s", quote(os.environ["KEY"], safe=""))
    print("Authorization: Basic", base64.b64encode(b"user:" + value).decode())
    subprocess.run(["printenv", "KEY"], check=True)
    del os.environ["KEY"]
    return {"saved": value.decode(), value.decode(): ["with", value.decode()], "shard": 7}


def prints_its_short_secret(config: Config) -> str:
    print(f"the key is {os.environ['KEY']}, key={os.environ['KEY']}; a banana")
    raise ValueError(f"bad key: {os.environ['KEY']}")


def names_a_file_by_its_secret(config: Config) -> None:
    Path(config.output_path, f"of-{os.environ['KEY']}.txt").write_text("x")


def drive(fn: Any, store: Path) -> tuple[int, str, Attempt]:
    config = Config(this_output_path(), versioned(fn.__name__))
    return run_attempt(claim_step(ExecutorStep("s", fn, config, secrets={"KEY": KEY}), store))


def everything_in(folder: Path) -> str:
    return "\n".join(f"{path}\n{path.read_text()}" for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("fn", "outcome", "message"),
    [
        (uses_its_secret, AttemptOutcome.SUCCEEDED, None),
        (raises_its_secret, AttemptOutcome.FAILED, "GET https://api.example?key=***"),
    ],
)
def test_step_function_gets_secret_and_no_file_contains_it(
    tmp_path: Path, manager: LocalSecretManager, fn: Any, outcome: AttemptOutcome, message: str | None
) -> None:
    manager.put(KEY, VALUE)
    _, text, ended = drive(fn, tmp_path)
    assert (ended.outcome, ended.error and ended.error.message) == (outcome, message), text
    written = everything_in(tmp_path)
    assert KEY in written and VALUE not in written + text


def test_function_output_logs_and_result_redact_every_form(tmp_path: Path, manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    code, text, ended = drive(prints_its_secret_in_pieces, tmp_path)
    assert (code, ended.outcome) == (0, AttemptOutcome.SUCCEEDED), text
    (log,) = tmp_path.rglob("driver.log")
    assert log.read_text() in text and text.count("***") == 2 * 2 + 3
    everything = everything_in(tmp_path) + text
    for form in (VALUE, quote(VALUE), base64.b64encode(b"user:" + VALUE.encode()).decode()[8:-4]):
        assert form not in everything
    (result,) = tmp_path.rglob(".artifact.json")
    assert json.loads(result.read_text()) == {"saved": "***", "***": ["with", "***"], "shard": 7}


@pytest.mark.parametrize("value", ["hunter2", "p@ss", "x9", "a"])
def test_short_secret_is_redacted_only_as_whole_word(tmp_path: Path, manager: LocalSecretManager, value: str) -> None:
    manager.put(KEY, value)
    code, text, ended = drive(prints_its_short_secret, tmp_path)
    assert code == 1 and ended.error is not None and ended.error.message == "bad key: ***"
    assert "the key is ***, key=***; " in text and "banana" in text
    assert "bad key: ***" in ended.error.traceback


def test_output_with_secret_in_file_names_is_not_committed(tmp_path: Path, manager: LocalSecretManager) -> None:
    manager.put(KEY, VALUE)
    code, text, ended = drive(names_a_file_by_its_secret, tmp_path)
    assert (code, ended.outcome) == (1, AttemptOutcome.FAILED), text
    assert ended.error is not None and "'of-***.txt'" in ended.error.message
    assert VALUE not in "".join(path.read_text() for path in tmp_path.rglob("*.json")) + text


def test_step_with_unavailable_secret_fails_before_function(tmp_path: Path, manager: LocalSecretManager) -> None:
    code, text, ended = drive(uses_its_secret, tmp_path)
    assert (code, ended.outcome) == (1, AttemptOutcome.FAILED)
    assert ended.error is not None and ended.error.type == "SecretError"
    assert ended.error.message.startswith(f"Step 's': secret KEY cannot be read from {KEY}/versions/latest: there is")
    assert ended.error.message in text
