"""lm-eval against an engine: alone, through the gateway, and through gateway and pool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.evaluation.serving import cluster, engine_port
from benchmarks.harness import ROOT
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.run import evaluate
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import ensure_pool
from tradewind.steps import Cpu

_ENGINE: Final = str(ROOT / "tests" / "serving" / "tiny_engine.py")
_LM_EVAL: Final = str(Path(sys.prefix, "lm-eval"))
_DELAY_S: Final = "0.2"
_AT_ONCE: Final = 16
_TASK: Final = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
"""


def measure_evaluation(rounds: int, documents: int) -> list[dict[str, float]]:
    """Return the seconds of each way, for each round; an evaluation starts with its own lm-eval, as the peer does."""
    from tests.serving.exports import tiny_export

    os.environ["PYTHONPATH"] = os.pathsep.join([_LM_EVAL, str(ROOT), str(ROOT / "operators")])
    sys.path.insert(0, _LM_EVAL)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, cluster() as stack:
        folder = Path(name)
        export = tiny_export(folder / "model")
        _write_task(folder / "tasks", documents)
        command = ("python", _ENGINE, "--port", "{port}", "--delay", _DELAY_S)
        serving = ServingConfig("model_path", "command", command=command, served_name="tiny", resources=Cpu(1))
        pool = ensure_pool(_of_export(serving, export))
        pool.wait_ready()
        alone = f"http://127.0.0.1:{engine_port(stack)}/v1"
        ways = {
            "alone": lambda output: _alone(alone, export, folder / "tasks", output),
            "gateway": lambda output: _evaluate(ServedAddress(alone, "tiny"), export, folder / "tasks", output),
            "pool": lambda output: _evaluate(serving, export, folder / "tasks", output),
        }
        found = []
        for number in range(rounds):
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            taken = {}
            for way in order:
                begun = time.monotonic()
                ways[way](folder / f"{way}-{number}")
                taken[way] = time.monotonic() - begun
            found.append(taken)
        pool.stop()
        return found


def _of_export(serving: ServingConfig, export: Path) -> ServingConfig:
    """Return the config as an evaluation of the export gives it to its pool."""
    from dataclasses import replace

    return replace(serving, model=str(export))


def _write_task(folder: Path, documents: int) -> None:
    folder.mkdir()
    data = folder / "questions.jsonl"
    rows = ({"question": f"Number {n}:", "choices": [" a", " b", " c"], "answer": n % 3} for n in range(documents))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "choices.yaml").write_text(_TASK.format(data=data))


def _alone(address: str, export: Path, tasks: Path, output: Path) -> None:
    options = f"model=tiny,base_url={address}/completions,tokenizer={export},tokenizer_backend=huggingface"
    program = (
        "import lm_eval.evaluator as e, lm_eval.tasks as t, sys; from lm_eval.loggers import EvaluationTracker as T;"
        "m = t.TaskManager(include_defaults=False, include_path=[sys.argv[2]]); r = T(output_path=sys.argv[3]);"
        "f = e.simple_evaluate('local-completions', sys.argv[1], tasks=['choices'], task_manager=m,"
        "evaluation_tracker=r, bootstrap_iters=0); s = f.pop('samples'); r.save_results_aggregated(f, s);"
        "[r.save_results_samples(n, each) for n, each in s.items()]"
    )
    arguments = [f"{options},num_concurrent={_AT_ONCE},max_length=256", str(tasks), str(output)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    subprocess.run(
        [sys.executable, "-c", program, *arguments], env=os.environ | offline, check=True, stderr=subprocess.DEVNULL
    )


def _evaluate(serving: ServingConfig | ServedAddress, export: Path, tasks: Path, output: Path) -> None:
    evals = (EvalTaskConfig("choices"),)
    evaluate(
        EvaluationConfig(
            "lm_evaluation_harness",
            "tiny",
            str(output),
            evals,
            str(export),
            serving=serving,
            task_path=str(tasks),
            num_concurrent=_AT_ONCE,
        )  # fmt: skip
    )
