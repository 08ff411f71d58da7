"""Training in one process: outputs, resume after a damaged checkpoint, and early refusals."""

from __future__ import annotations

import json
import shutil
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.workbench import Workbench, lines_of, wait_for
from tests.support.fork_server import PreparedPython
from tradewind.datasets.documents import Document, write_documents
from tradewind.runtime.pods.on_host.preemption_notice import NOTICE_VARIABLE, Notice, write_notice
from tradewind.runtime.pods.verdicts import NOTICED

pytestmark = [pytest.mark.slow]

STEPS = 60

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
train_lm(LmTrainConfig(**json.loads(sys.argv[2])))
sys.stdout.flush()
os._exit(0)
"""
REFUSE = """
import json, os, sys
from levanter.models.llama import LlamaConfig
from tradewind.recipes.train_lm import LmTrainConfig, train_lm
settings, cases = map(json.loads, sys.argv[2:])
for case in cases:
    devices = case.pop("devices", [4])
    if isinstance(case.get("model"), dict):
        case["model"] = LlamaConfig(**case["model"])
    try:
        train_lm.preflight(LmTrainConfig(**{**settings, **case}), *devices)
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
config = LmTrainConfig(**json.loads(sys.argv[2]))
result = train_lm(config)
made = with_simulated_slices(levanter_config(config, local_tokenizer(config.tokenizer_path)))
with made.trainer.use_device_mesh():
    axes = model_axes(made.model, len(made.data.the_tokenizer), made.trainer.parameter_axis_mapping)
    exported = load_export(axes, made.data.the_tokenizer, export_path(config.output_path), parts.precision())
    path = latest_checkpoint_path(config.output_path + "/checkpoints")
    for name in ("model", "model_averaging/model"):
        stored = load_checkpoint(exported, path, subpath=name, axis_mapping=axes.mapping)
        pairs = zip(jax.tree.leaves(exported), jax.tree.leaves(stored), strict=True)
        result[name] = all(bool((a == b.astype(jnp.bfloat16)).all()) for a, b in pairs)
result["axes"] = made.trainer.device_mesh.shape["replica_dcn"]
fields = (config.output_path, config.cache_path, config.tokenizer_path, config.output_path + "-eval")
judged = evaluate_lm(LmEvalConfig(*fields, config.model_size, seq_len=config.seq_len, batch_size=4, sample_tokens=1))
result |= {"checkpoint": judged["checkpoint"]["loss"], "hf": judged["hf"]["loss"]}
print(json.dumps(result))
sys.stdout.flush()
os._exit(0)
"""


def settings(bench: Workbench, name: str, **changes: Any) -> str:
    """Return the settings of a training as JSON."""
    return json.dumps(
        {
            "cache_path": str(bench.root / "cache"),
            "tokenizer_path": str(bench.root / "tokenizer"),
            "output_path": str(bench.out / name),
            "model_size": "tiny",
            "num_train_steps": STEPS,
            "learning_rate": 0.01,
            "seq_len": 32,
            "batch_size": 4,
            "steps_per_eval": 20,
            "max_eval_batches": 1,
            "steps_per_checkpoint": 20,
            "checkpoint_seconds": 1e4,
        }
        | changes
    )


def complete(folder: Path) -> list[int]:
    """Return the steps of the folder's complete checkpoints."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/metadata.json"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, python: PreparedPython) -> Workbench:
    """Run a training without a kill; its output is ``whole``."""
    root = tmp_path_factory.mktemp("bench")
    library = Path(sysconfig.get_paths()["stdlib"])
    documents = [Document(path.name, path.read_text()) for path in sorted((library / "asyncio").glob("*.py"))]
    write_documents(str(root / "clean/train"), documents[2:])
    write_documents(str(root / "clean/validation"), documents[:2])
    bench = Workbench(root, python)
    bench.run(PREPARE)
    bench.run(TRAIN, settings(bench, "whole", tensorboard=True))
    return bench


def test_training_writes_checkpoints_metrics_and_events(bench: Workbench) -> None:
    checkpoints = bench.out / "whole/checkpoints"
    assert complete(checkpoints) == [20, 40, STEPS - 1]
    assert all((checkpoints / f"step-{step}/files.json").exists() for step in complete(checkpoints))
    assert all(row["step_seconds"] > 0 for row in bench.metrics("whole")[1:] if "train/loss" in row)
    assert list((bench.out / "whole/tensorboard/whole").glob("events.out.tfevents.*"))


def test_checkpoint_is_written_after_evaluation(bench: Workbench) -> None:
    """A killed training resumes after its newest checkpoint, so it would never repeat a later evaluation."""
    rows = [json.loads(line) for line in (bench.out / "whole/metrics.jsonl").read_text().splitlines()]
    evaluated = {row["step"]: row["time"] for row in rows if "eval/loss" in row}
    assert list(evaluated) == complete(bench.out / "whole/checkpoints")
    for step, measured in evaluated.items():
        saved = (bench.out / f"whole/checkpoints/step-{step}").rglob("*")
        assert min(path.stat().st_mtime for path in saved if path.is_file()) > measured - 0.001  # rows have ms


@pytest.mark.long
def test_noticed_training_resumes_before_damaged_checkpoint(bench: Workbench) -> None:
    temporary, notice = bench.root / "temporary", bench.root / "notice.json"
    given = settings(bench, "noticed", temporary_checkpoint_path=str(temporary))
    process = bench.start(TRAIN, given, **{NOTICE_VARIABLE: str(notice)})
    try:
        metrics = bench.out / "noticed/metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 25, process, "steps to interrupt")
        write_notice(str(notice), Notice(time.time() + 30, "maintenance"))
    finally:
        if not notice.exists():
            process.kill()
    printed = lines_of(process, NOTICED)
    (folder,) = temporary.iterdir()
    (saved,) = complete(folder)
    assert saved == json.loads(metrics.read_text().splitlines()[-1])["step"] >= 25
    assert printed[-1] == f"step {saved + 1} is saved, because of a notice: maintenance; this process ends"

    notice.unlink()
    data = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:-100])
    before = max(step for step in (20, 40) if step < saved)
    printed = bench.run(TRAIN, given, TRADEWIND_RESTARTS="1")
    (removed,) = (line for line in printed if line.startswith("removed the damaged checkpoint"))
    assert f"step-{saved}: {data.relative_to(folder / f'step-{saved}')} has" in removed
    assert f"continues after step {before + 1}/{STEPS}" in printed
    assert any("  restarts 1  goodput " in line for line in printed)
    assert bench.losses("noticed") == bench.losses("whole")  # to the last bit
    assert complete(bench.out / "noticed/checkpoints") == [20, 40, STEPS - 1] and complete(folder) == []


def test_training_killed_before_checkpoint_reuses_same_weights(bench: Workbench) -> None:
    given = bench.root / "given"
    first, newer = (given / f"checkpoints/step-{step}" for step in (20, 40))
    shutil.copytree(bench.out / "whole/checkpoints/step-20", first)
    begun = settings(bench, "begun", num_train_steps=4, initialize_from=str(given))
    process, decided = bench.start(TRAIN, begun), bench.out / "begun/checkpoints/begin.json"
    wait_for(decided.exists, process, "its choice is stored")
    process.kill()
    process.communicate()
    assert complete(decided.parent) == []
    shutil.copytree(bench.out / "whole/checkpoints/step-40", newer)
    assert f"  begins with {first}" in bench.run(TRAIN, begun)


def test_invalid_settings_refused_before_allocation(bench: Workbench) -> None:
    whole, part = str(bench.out / "whole"), bench.root / "part/step-40"
    shutil.copytree(f"{whole}/checkpoints/step-40", part)
    next(part.glob("d/*")).unlink()
    checkpoint, two_slices = f"{whole}/checkpoints/step-40", {"dcn_axes": {"replica_dcn": 2}}
    of_levanter: dict[str, Any] = {
        "accepted": {"data.shuffle": False, "optimizer.beta2": 0.95, "trainer.mesh": {"axes": {"model": 2}}},
        "levanter['trainer.mesh'] does not fit 4 devices: DCN product 2 must equal": {"trainer.mesh": two_slices},
        "levanter['hf_save_dtype']='bf16' is not one of float32, bfloat16, float16.": {"hf_save_dtype": "bf16"},
        "levanter['trainer.z_loss'] is unknown: Levanter's TrainerConfig has no 'z_loss'; did you mean z_loss_weight": {
            "trainer.z_loss": 1e-4
        },
        "levanter['trainer.per_device_parallelism']='x' is no int": {"trainer.per_device_parallelism": "x"},
        "batch_size=4 is not a positive multiple of 8: it is divided into 4": {"trainer.per_device_parallelism": 2},
        "Levanter's optimizer.beta2=inf: give a number.": {"optimizer.beta2": float("inf")},
        "levanter['hf_generation_eos_token_ids']=[999]: Token ID 999 out": {"hf_generation_eos_token_ids": [999]},
        "levanter['trainer.seed'] is decided by seed of the config": {"trainer.seed": 1},
        "levanter['optimizer.learning_rate'] is decided by learning_rate of the config: set it there.": {
            "optimizer": {"type": "muon", "learning_rate": 1}
        },
        "accepted with an export": {"initialize_from_hf": f"{whole}/hf"},
        "levanter['initialize_from_hf']='/nowhere' cannot be read (": {"initialize_from_hf": "/nowhere"},
    }
    export = {"levanter": {"initialize_from_hf": f"{whole}/hf"}}
    cases: dict[str, Any] = {sentence: {"levanter": fields} for sentence, fields in of_levanter.items()} | {
        "accepted on two slices": {"levanter": {"trainer.mesh": two_slices}, "devices": [4, 2]},
        "batch_size=4 is not a positive multiple of the number of devices, 8.": {"devices": [8]},
        "model.intermediate_dim=-1: give a whole number": {"model": {"max_seq_len": 64, "intermediate_dim": -1}},
        "model: Levanter cannot build this LlamaConfig (": {
            "model": {"max_seq_len": 64, "gradient_checkpointing": "never"}
        },
        f"{whole} has a checkpoint of step {STEPS - 1}, and this training ends with step 9: give it an output of": {
            "output_path": whole,
            "num_train_steps": 10,
        },
        f"output_path: the checkpoint {whole}/checkpoints/step-{STEPS - 1} is of another model": {
            "output_path": whole,
            "model_size": "small",
        },
        f"initialize_from: the checkpoint {checkpoint} is of another model": {
            "initialize_from": checkpoint,
            "model_size": "small",
        },
        f"initialize_from: the checkpoint {part} is damaged, ": {"initialize_from": str(part)},
        "accepted without what it began with": {"output_path": whole, "initialize_from": "/nowhere"},
        "There is no complete checkpoint under initialize_from /nowhere.": {"initialize_from": "/nowhere"},
        f"levanter['initialize_from_hf']: the model {whole}/hf is another: ": export | {"model_size": "small"},
        "initialize_from and levanter['initialize_from_hf'] both say what to": export | {"initialize_from": whole},
        "There is no finished token cache for train under cache_path /nowhere.": {"cache_path": "/nowhere"},
        "There is no tokenizer under tokenizer_path /nowhere": {"tokenizer_path": "/nowhere"},
        "seq_len=32 is longer than the model's context, max_seq_len=16.": {"model": {"max_seq_len": 16}},
        "model is a str, which is no config of a language model of Levanter's.": {"model": "llama"},
    }
    answers = bench.run(REFUSE, settings(bench, "refused"), json.dumps(list(cases.values())))
    assert len(answers) == len(cases)
    for answer, expected in zip(answers, cases, strict=True):
        assert expected.startswith(answer) if answer == "accepted" else answer.startswith(expected), answer


@pytest.mark.long
def test_averaged_weights_on_two_slices_exported_and_evaluated(bench: Workbench) -> None:
    levanter = {
        "trainer.mesh": {"dcn_axes": {"replica_dcn": 2}},
        "trainer.model_averaging": {"type": "ema", "beta": 0.5},
        "hf_save_dtype": "bfloat16",
    }
    given = settings(bench, "averaged", num_train_steps=4, levanter=levanter)
    env = {"TRADEWIND_NUM_SLICES": "2", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    result = json.loads(bench.run(AVERAGED, given, **env)[-1])
    assert result["axes"] == 2
    assert (result["model_averaging/model"], result["model"]) == (True, False)
    assert result["checkpoint"] == pytest.approx(result["hf"], abs=0.01)
    last = bench.metrics("averaged")[-1]
    assert result["eval_loss"] == last["eval/ema/loss"] != last["eval/loss"]
    (weights,) = (bench.out / "averaged/hf").glob("*.safetensors")
    assert b'"BF16"' in weights.read_bytes()[:100_000] and b'"F32"' not in weights.read_bytes()[:100_000]
