"""Training in one process: outputs, resume after a damaged checkpoint, and early refusals."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.workbench import wait_for
from tests.support.fork_server import PreparedProgram, PreparedPython
from tradewind.datasets.documents import Document, write_documents
from tradewind.recipes.metrics.file import read_metrics, series
from tradewind.runtime.pods.on_host.preemption_notice import NOTICE_VARIABLE, Notice, write_notice
from tradewind.runtime.pods.verdicts import NOTICED

pytestmark = [pytest.mark.slow]

STEPS = 60
TIMEOUT = 600.0
"""Seconds that a training may take on a busy machine."""

PREPARE = """
import sys
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
root = sys.argv[1]
train_bpe_tokenizer(BpeTokenizerConfig(f"{root}/clean/train", f"{root}/tokenizer", vocab_size=300))
build_token_cache(TokenCacheConfig(f"{root}/clean", f"{root}/tokenizer", f"{root}/cache"))
"""
TRAIN = """
import json, os, sys
from tradewind.recipes.train_lm import LmTrainConfig, train_lm
train_lm(LmTrainConfig(**json.loads(sys.argv[1])))
sys.stdout.flush()
os._exit(0)
"""
REFUSE = """
import json, os, sys
from levanter.models.llama import LlamaConfig
from tradewind.recipes.train_lm import LmTrainConfig, train_lm
settings, cases = json.loads(sys.argv[1])
for size, case in cases:
    case = {**case, "model": LlamaConfig(**case["model"])} if isinstance(case.get("model"), dict) else case
    try:
        train_lm.preflight(LmTrainConfig(**{**settings, **case}), *(size if isinstance(size, list) else [size]))
        print("accepted")
    except ValueError as error:
        print(error)
sys.stdout.flush()
os._exit(0)
"""


AVERAGED = """
import json, os, sys
import jax, jax.numpy as jnp
from levanter.checkpoint import latest_checkpoint_path, load_checkpoint
from tradewind.recipes.lm import levanter_parts as parts
from tradewind.recipes.evaluate_lm import LmEvalConfig, evaluate_lm
from tradewind.recipes.lm.levanter_config import levanter_config
from tradewind.recipes.lm.trainer import with_simulated_slices
from tradewind.recipes.lm.stored_models import load_export, model_axes
from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.recipes.train_lm import LmTrainConfig, export_path, train_lm
config = LmTrainConfig(**json.loads(sys.argv[1]))
told = train_lm(config)
made = with_simulated_slices(levanter_config(config, local_tokenizer(config.tokenizer_path)))
with made.trainer.use_device_mesh():
    axes = model_axes(made.model, len(made.data.the_tokenizer), made.trainer.parameter_axis_mapping)
    exported = load_export(axes, made.data.the_tokenizer, export_path(config.output_path), parts.precision())
    path = latest_checkpoint_path(config.output_path + "/checkpoints")
    for name in ("model", "model_averaging/model"):
        stored = load_checkpoint(exported, path, subpath=name, axis_mapping=axes.mapping)
        pairs = zip(jax.tree.leaves(exported), jax.tree.leaves(stored), strict=True)
        told[name] = all(bool((a == b.astype(jnp.bfloat16)).all()) for a, b in pairs)
told["axes"] = made.trainer.device_mesh.shape["replica_dcn"]
fields = (config.output_path, config.cache_path, config.tokenizer_path, config.output_path + "-eval")
judged = evaluate_lm(LmEvalConfig(*fields, config.model_size, seq_len=config.seq_len, batch_size=4, sample_tokens=1))
told |= {"checkpoint": judged["checkpoint"]["loss"], "hf": judged["hf"]["loss"]}
print(json.dumps(told))
sys.stdout.flush()
os._exit(0)
"""


class Workshop:
    """A folder with tokenizer and token cache, and processes that train from them."""

    def __init__(self, root: Path, python: PreparedPython) -> None:
        self.root = root
        self.python = python
        self.devices = 1

    def settings(self, name: str, **more: Any) -> dict[str, Any]:
        return {
            "cache_path": str(self.root / "cache"),
            "tokenizer_path": str(self.root / "tokenizer"),
            "output_path": str(self.root / name),
            "model_size": "tiny",
            "num_train_steps": STEPS,
            "learning_rate": 0.01,
            "seq_len": 32,
            "batch_size": 4,
            "steps_per_eval": 20,
            "max_eval_batches": 1,
            "steps_per_checkpoint": 20,
            "checkpoint_seconds": 1e4,
        } | more

    def start(self, code: str, argument: str) -> PreparedProgram:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={self.devices}"
        return self.python.start(code, argument, env=os.environ | {"HOME": str(self.root), "XLA_FLAGS": flags})

    def run(self, code: str, argument: str, exit_code: int = 0) -> list[str]:
        return printed_by(self.start(code, argument), exit_code)

    def losses(self, name: str) -> tuple[list[int], list[float]]:
        return series(read_metrics(str(self.root / name / "metrics.jsonl")), "train/loss")


def printed_by(process: PreparedProgram, exit_code: int = 0) -> list[str]:
    try:
        out, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == exit_code, errors[-3000:]
    return out.splitlines()


def complete(folder: Path) -> list[int]:
    """Return the steps of the folder's complete checkpoints."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/metadata.json"))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, python: PreparedPython) -> Workshop:
    """Run a training without a kill; its output is ``whole``."""
    root = tmp_path_factory.mktemp("workshop")
    library = Path(sysconfig.get_paths()["stdlib"])
    documents = [Document(path.name, path.read_text()) for path in sorted((library / "asyncio").glob("*.py"))]
    write_documents(str(root / "clean/train"), documents[2:])
    write_documents(str(root / "clean/validation"), documents[:2])
    made = Workshop(root, python)
    made.run(PREPARE, str(made.root))
    made.run(TRAIN, json.dumps(made.settings("whole", tensorboard=True)))
    return made


def test_training_writes_checkpoints_metrics_and_events(workshop: Workshop) -> None:
    assert complete(workshop.root / "whole/checkpoints") == [20, 40, STEPS - 1]
    assert all((workshop.root / f"whole/checkpoints/step-{step}/files.json").exists() for step in (20, 40, STEPS - 1))
    rows = read_metrics(str(workshop.root / "whole/metrics.jsonl"))
    assert all(row["step_seconds"] > 0 for row in rows[1:] if "train/loss" in row)
    assert list((workshop.root / "whole/tensorboard/whole").glob("events.out.tfevents.*"))


def test_a_step_is_saved_when_it_has_been_evaluated(workshop: Workshop) -> None:
    """A killed training resumes after its newest checkpoint, so it would never repeat a later evaluation."""
    rows = [json.loads(line) for line in (workshop.root / "whole/metrics.jsonl").read_text().splitlines()]
    evaluated = {row["step"]: row["time"] for row in rows if "eval/loss" in row}
    assert list(evaluated) == complete(workshop.root / "whole/checkpoints")
    for step, measured in evaluated.items():
        saved = (workshop.root / f"whole/checkpoints/step-{step}").rglob("*")
        assert min(path.stat().st_mtime for path in saved if path.is_file()) > measured - 0.001  # rows have ms


@pytest.mark.long
def test_noticed_training_resumes_before_damaged_checkpoint(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = workshop.root / "temporary"
    settings = json.dumps(workshop.settings("noticed", temporary_checkpoint_path=str(temporary)))
    notice = workshop.root / "notice.json"
    monkeypatch.setenv(NOTICE_VARIABLE, str(notice))
    process = workshop.start(TRAIN, settings)
    try:
        metrics = workshop.root / "noticed/metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 25, process, "steps to interrupt")
        write_notice(str(notice), Notice(time.time() + 30, "maintenance"))
    finally:
        if not notice.exists():
            process.kill()
    printed = printed_by(process, NOTICED)
    (folder,) = temporary.iterdir()
    (saved,) = complete(folder)
    assert saved == json.loads(metrics.read_text().splitlines()[-1])["step"] >= 25
    assert printed[-1] == f"step {saved + 1} is saved, because of a notice: maintenance; this process ends"

    notice.unlink()
    monkeypatch.setenv("TRADEWIND_RESTARTS", "1")
    data = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:-100])
    before = max(step for step in (20, 40) if step < saved)
    printed = workshop.run(TRAIN, settings)
    (removed,) = (line for line in printed if line.startswith("removed the damaged checkpoint"))
    assert f"step-{saved}: {data.relative_to(folder / f'step-{saved}')} has" in removed
    assert f"continues after step {before + 1}/{STEPS}" in printed
    assert any("  restarts 1  goodput " in line for line in printed)
    assert workshop.losses("noticed") == workshop.losses("whole")  # to the last bit
    assert complete(workshop.root / "noticed/checkpoints") == [20, 40, STEPS - 1] and complete(folder) == []


def test_training_killed_before_checkpoint_reuses_same_weights(
    workshop: Workshop,
) -> None:
    given = workshop.root / "given"
    first, newer = (given / f"checkpoints/step-{step}" for step in (20, 40))
    shutil.copytree(workshop.root / "whole/checkpoints/step-20", first)
    settings = json.dumps(workshop.settings("begun", num_train_steps=4, initialize_from=str(given)))
    process, decided = workshop.start(TRAIN, settings), workshop.root / "begun/checkpoints/begin.json"
    wait_for(decided.exists, process, "the decision is written down")
    process.kill()
    process.communicate()
    assert complete(decided.parent) == []
    shutil.copytree(workshop.root / "whole/checkpoints/step-40", newer)
    assert f"  begins with {first}" in workshop.run(TRAIN, settings)


def test_what_cannot_work_is_refused_before_there_is_a_slice(workshop: Workshop) -> None:
    whole, part = str(workshop.root / "whole"), workshop.root / "part/step-40"
    shutil.copytree(f"{whole}/checkpoints/step-40", part)
    next(part.glob("d/*")).unlink()
    cases = {
        "accepted": (
            4,
            {"levanter": {"data.shuffle": False, "optimizer.beta2": 0.95, "trainer.mesh": {"axes": {"model": 2}}}},
        ),
        "accepted on two slices": ([4, 2], {"levanter": {"trainer.mesh": {"dcn_axes": {"replica_dcn": 2}}}}),
        "levanter['trainer.mesh'] does not fit 4 devices: DCN product 2 must equal num_slices 1.": (
            4,
            {"levanter": {"trainer.mesh": {"dcn_axes": {"replica_dcn": 2}}}},
        ),
        "levanter['hf_save_dtype']='bf16' is not one of float32, bfloat16, float16.": (
            4,
            {"levanter": {"hf_save_dtype": "bf16"}},
        ),
        "batch_size=4 is not a positive multiple of the number of devices, 8.": (8, {}),
        "levanter['trainer.z_loss'] is unknown: Levanter's TrainerConfig has no 'z_loss'; did you mean z_loss_weight": (
            4,
            {"levanter": {"trainer.z_loss": 1e-4}},
        ),
        "levanter['trainer.per_device_parallelism']='x' is no int: Couldn't parse 'x' into an int.": (
            4,
            {"levanter": {"trainer.per_device_parallelism": "x"}},
        ),
        "batch_size=4 is not a positive multiple of 8: it is divided into 4 parts, and per_device_parallelism=2 seq": (
            4,
            {"levanter": {"trainer.per_device_parallelism": 2}},
        ),
        "Levanter's optimizer.beta2=inf: give a number.": (4, {"levanter": {"optimizer.beta2": float("inf")}}),
        "model.intermediate_dim=-1: give a whole number": (4, {"model": {"max_seq_len": 64, "intermediate_dim": -1}}),
        "model: Levanter cannot build this LlamaConfig (": (
            4,
            {"model": {"max_seq_len": 64, "gradient_checkpointing": "never"}},
        ),
        "levanter['trainer.seed'] is decided by seed of the config": (
            4,
            {"levanter": {"trainer.seed": 1}},
        ),
        "levanter['optimizer.learning_rate'] is decided by learning_rate of the config: set it there.": (
            4,
            {"levanter": {"optimizer": {"type": "muon", "learning_rate": 1}}},
        ),
        f"{whole} has a checkpoint of step {STEPS - 1}, and this training ends with step 9: give it an output of": (
            4,
            {"output_path": whole, "num_train_steps": 10},
        ),
        f"output_path: the checkpoint {whole}/checkpoints/step-{STEPS - 1} is of another model": (
            4,
            {"output_path": whole, "model_size": "small"},
        ),
        f"initialize_from: the checkpoint {whole}/checkpoints/step-40 is of another model": (
            4,
            {"initialize_from": f"{whole}/checkpoints/step-40", "model_size": "small"},
        ),
        f"initialize_from: the checkpoint {part} is damaged, ": (4, {"initialize_from": str(part)}),
        "accepted without what it began with": (4, {"output_path": whole, "initialize_from": "/nowhere"}),
        "There is no complete checkpoint under initialize_from /nowhere.": (4, {"initialize_from": "/nowhere"}),
        "accepted with an export": (4, {"levanter": {"initialize_from_hf": f"{whole}/hf"}}),
        f"levanter['initialize_from_hf']: the model {whole}/hf is another: ": (
            4,
            {"levanter": {"initialize_from_hf": f"{whole}/hf"}, "model_size": "small"},
        ),
        "levanter['initialize_from_hf']='/nowhere' cannot be read (": (
            4,
            {"levanter": {"initialize_from_hf": "/nowhere"}},
        ),
        "initialize_from and levanter['initialize_from_hf'] both say what to begin with: give one of them.": (
            4,
            {"levanter": {"initialize_from_hf": f"{whole}/hf"}, "initialize_from": whole},
        ),
        "There is no finished token cache for train under cache_path /nowhere.": (4, {"cache_path": "/nowhere"}),
        "There is no tokenizer under tokenizer_path /nowhere": (4, {"tokenizer_path": "/nowhere"}),
        "seq_len=32 is longer than the model's context, max_seq_len=16.": (4, {"model": {"max_seq_len": 16}}),
        "model is a str, which is no config of a language model of Levanter's.": (4, {"model": "llama"}),
    }
    answers = workshop.run(REFUSE, json.dumps([workshop.settings("refused"), list(cases.values())]))
    assert len(answers) == len(cases)
    for answer, expected in zip(answers, cases, strict=True):
        assert expected.startswith(answer) if answer == "accepted" else answer.startswith(expected), answer


@pytest.mark.long
def test_averaged_weights_on_two_slices_exported_and_evaluated(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    levanter = {
        "trainer.mesh": {"dcn_axes": {"replica_dcn": 2}},
        "trainer.model_averaging": {"type": "ema", "beta": 0.5},
        "hf_save_dtype": "bfloat16",
    }
    settings = workshop.settings("averaged", num_train_steps=4, levanter=levanter)
    monkeypatch.setenv("TRADEWIND_NUM_SLICES", "2")
    monkeypatch.setattr(workshop, "devices", 2)
    told = json.loads(workshop.run(AVERAGED, json.dumps(settings))[-1])
    assert told["axes"] == 2
    assert (told["model_averaging/model"], told["model"]) == (True, False)
    assert told["checkpoint"] == pytest.approx(told["hf"], abs=0.01)
    rows = read_metrics(str(workshop.root / "averaged/metrics.jsonl"))
    assert told["eval_loss"] == rows[-1]["eval/ema/loss"] != rows[-1]["eval/loss"]
    (weights,) = (workshop.root / "averaged/hf").glob("*.safetensors")
    assert b'"BF16"' in weights.read_bytes()[:100_000] and b'"F32"' not in weights.read_bytes()[:100_000]
