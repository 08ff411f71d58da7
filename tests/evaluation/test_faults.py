"""An evaluation whose server, or whose own process, is killed in the middle: the same scores, nothing asked twice."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evaluation.conftest import Engine, lm_eval_config
from tests.support.waiting import until
from tradewind.evaluation import run
from tradewind.evaluation.config import ServedAddress
from tradewind.evaluation.harnesses import harness_of
from tradewind.evaluation.results import Status, read_record
from tradewind.evaluation.run import evaluate
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.steps import AttemptLostError

_PROGRAM = """
import sys
from pathlib import Path
from tests.evaluation.conftest import lm_eval_config
from tradewind.evaluation.run import evaluate
address, export, output = sys.argv[1:]
evaluate(lm_eval_config(address, Path(export), Path(output)))
"""


@pytest.mark.slow
@pytest.mark.long
def test_killed_server_and_killed_evaluation_change_nothing(export: Path, tmp_path: Path, importable: None) -> None:
    """SIGKILL of the server, then of the evaluation: each request is answered once, and the scores are the same."""
    engine = Engine(tmp_path, ("--delay", "0.2"))
    engine.start()
    output, log = tmp_path / "out", tmp_path / "evaluation.log"
    with log.open("w") as lines:
        command = [sys.executable, "-c", _PROGRAM, engine.address, str(export), str(output)]
        evaluation = subprocess.Popen(command, stdout=lines, stderr=lines, start_new_session=True)
    until(lambda: len(engine.requests("answered")) > 10, "the first answers", log.read_text)
    engine.kill()
    until(lambda: "paused until it is back" in log.read_text(), "the pause", log.read_text)
    before = len(engine.requests("answered"))
    engine.start()
    until(lambda: len(engine.requests("answered")) > before + 10, "more answers", log.read_text)
    assert "answers again, after" in log.read_text()
    os.kill(evaluation.pid, signal.SIGKILL)
    evaluation.wait()
    until(lambda: not _in_flight(engine), "the last answers")
    answered = len(engine.requests("answered"))
    result = evaluate(lm_eval_config(engine.address, export, output))
    record = read_record(str(output))
    assert record.requests == 66
    assert answered - record.cached <= 4, "more than those on their way to the killed evaluation are lost"
    assert len(engine.requests("answered")) - answered == 66 - record.cached
    assert result["scores"] == evaluate(lm_eval_config(engine.address, export, tmp_path / "undisturbed"))["scores"]
    engine.kill()


def _in_flight(engine: Engine) -> int:
    own = [json.loads(line) for line in engine.log.read_text().splitlines()]
    events = [each["event"] for each in own if engine.process is not None and each["pid"] == engine.process.pid]
    return events.count("begun") - events.count("answered")


def test_stopped_evaluation_says_what_it_keeps(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = lm_eval_config("http://127.0.0.1:1/v1", export, tmp_path / "out")
    evaluation = run._Evaluation(config, harness_of(config.evaluator))
    with pytest.raises(SystemExit), evaluation._gateway(ServedAddress("http://127.0.0.1:1/v1", "m"), "model", []):
        sys.exit(1)
    assert capsys.readouterr().out.startswith("Stopped. 0 answers of the model are kept")


@pytest.mark.slow
@pytest.mark.long
def test_evaluation_without_server_is_lost_and_resumes(
    engine: Engine, export: Path, tmp_path: Path, importable: None
) -> None:
    """The server stays away: the attempt is lost, not failed, and the next goes on with its answers."""
    output = tmp_path / "out"
    config = lm_eval_config(engine.address, export, output, EvalTaskConfig("words"), EvalTaskConfig("refused"))
    first = dataclasses.replace(config, evals=config.evals[:1])
    evaluate(first)
    engine.kill()
    lost = dataclasses.replace(config, recovery_timeout_s=1.0)
    with pytest.raises(AttemptLostError, match="has not answered for .* The next attempt continues with the 0 answers"):
        evaluate(lost)
    record = read_record(str(output))
    assert {name: task.status for name, task in record.tasks.items()} == dict.fromkeys(
        ("words", "refused"), Status.INFRASTRUCTURE_LOST
    )
    assert record.status is Status.INFRASTRUCTURE_LOST
    engine.start()
    assert evaluate(first)["status"] == "succeeded"
    with_error = dataclasses.replace(config, evals=config.evals[1:], apply_chat_template=True)
    for _ in range(2):
        assert evaluate(with_error)["status"] == "incomplete"
        assert len(engine.requests("answered")) == 12 + 5, "a next attempt asks again for the error only"
