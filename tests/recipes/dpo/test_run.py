"""Direct preference optimization from lines of pairs to a model: output, resume and refused settings."""

from __future__ import annotations

import json
import math
import shutil
import signal

import numpy as np
import pytest

from tests.recipes.lm.programs import END, PREFLIGHT
from tests.recipes.workbench import Workbench, stored_array
from tests.support.fork_server import PreparedPython
from tradewind.recipes.lm.stored_models import AVERAGED

pytestmark = [pytest.mark.slow]

STEPS, LENGTH = 8, 48
PAIRS, CUT = 40, 8
MEASURES = ("train/loss", "train/dpo_chosen_reward", "eval/pairs/loss", "eval/pairs/dpo_rejected_reward")
WEIGHTS = "embeddings/token_embeddings/weight"

PREPARE = """
import json, os, sys
import haliax as hax
import jax
from levanter.checkpoint import save_checkpoint
from levanter.data.text import PreferenceChatLmDatasetFormat
from levanter.models.llama import LlamaConfig
from levanter.tokenizers import load_tokenizer
from levanter.trainer import TrainerConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
from tradewind.recipes.lm.stored_models import ModelAxes, write_export
from transformers import PreTrainedTokenizerFast
root = sys.argv[1]
MARKED = "{% for m in messages %}{% if m.role == 'user' %}?{{ m.content }}{% else %}" \\
    "{% generation %}={{ m.content }}<end>{% endgeneration %}{% endif %}{% endfor %}"
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
for name, template in (("tokenizer", MARKED), ("unmarked", UNMARKED), ("bare", None)):
    made = Tokenizer(models.BPE({each: number for number, each in enumerate([*letters, "<end>"])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    kept = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    kept.chat_template = template
    kept.save_pretrained(f"{root}/{name}")
for split, pairs in (("train", 40), ("validation", 4)):
    with open(f"{root}/{split}.jsonl", "w") as file:
        for number in range(pairs):
            question = {"role": "user", "content": f"{number} and 1?"}
            sides = {"chosen": f"{number + 1}, of course", "rejected": "who knows"}
            file.write(json.dumps({
                side: [question, {"role": "assistant", "content": said}] for side, said in sides.items()}) + "\\n")
counts = tokenize(TokenizeFilesConfig(
    [f"{root}/train.jsonl"], [f"{root}/validation.jsonl"], f"{root}/pairs", f"{root}/tokenizer",
    format=PreferenceChatLmDatasetFormat()))
assert (counts["train_documents"], counts["validation_documents"]) == (40, 4), counts
os.mkdir(f"{root}/undivided")
os.symlink(f"{root}/pairs/train", f"{root}/undivided/train")
for name, width in (("base", 32), ("other", 16)):
    axes = ModelAxes(LlamaConfig(
        max_seq_len=64, hidden_dim=width, intermediate_dim=64, num_layers=1, num_heads=2, num_kv_heads=2,
        tokenizer=f"{root}/tokenizer", reference_checkpoint=f"{root}/tokenizer"), hax.Axis("vocab", 257), {})
    model = axes.config.build(axes.vocab, key=jax.random.PRNGKey(1))
    save_checkpoint({"model": model}, 3, f"{root}/{name}/checkpoints/step-3")
    save_checkpoint({"model": {"policy": model}}, 3, f"{root}/out/of-{name}/checkpoints/step-3")
    with TrainerConfig().use_device_mesh():
        write_export(axes, model, load_tokenizer(f"{root}/tokenizer"), f"{root}/{name}/hf")
"""
MADE = """
import dataclasses, json, os, sys
from datetime import timedelta
from levanter.adaptor import LoraAdaptorConfig
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.data.text import DatasetComponent, PreferenceChatLmDatasetFormat, PreferenceLmDataConfig
from levanter.dpo import ReferenceEvalCacheConfig
from levanter.main.train_dpo import AdapterBaseReferenceConfig, SeparateReferenceConfig, TrainDpoConfig
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig
from levanter.trainer import TrainerConfig
from tradewind.recipes.dpo.run import LevanterTrainConfig, run_levanter_train_dpo
root = sys.argv[1]

def component(**fields):
    return DatasetComponent(**{"cache_dir": f"{root}/pairs", "format": PreferenceChatLmDatasetFormat()} | fields)

def made(name, steps=8, data={}, model={}, trainer={}, **more):
    data = PreferenceLmDataConfig(**{
        "tokenizer": f"{root}/tokenizer", "auto_build_caches": False, "mixture_block_size": 8,
        "components": {"pairs": component()}} | data)
    model = LlamaConfig(**{
        "max_seq_len": 64, "hidden_dim": 32, "intermediate_dim": 64, "num_layers": 1, "num_heads": 2,
        "num_kv_heads": 2, "gradient_checkpointing": False} | model)
    trainer = TrainerConfig(**{
        "num_train_steps": steps, "train_batch_size": 4, "steps_per_eval": 4,
        "checkpointer": CheckpointerConfig(base_path="elsewhere", save_interval=timedelta(hours=1), keep=[]),
        "watch": WatchConfig(watch_targets=[])} | trainer)
    config = TrainDpoConfig(**{
        "data": data, "model": model, "trainer": trainer, "train_seq_len": 48, "validation_split_fraction": 0.2,
        "hf_save_steps": 10**6, "optimizer": AdamConfig(learning_rate=1e-3, warmup=0.1),
        "initialize_from_checkpoint_path": f"{root}/base",
        "reference": SeparateReferenceConfig(f"{root}/base", is_hf=False)} | more)
    return LevanterTrainConfig(config, f"{root}/out/{name}")
"""
TRAIN = MADE + "run_levanter_train_dpo(made(sys.argv[2]))" + END
KILLED = """
import signal
from levanter.optim.model_averaging import EmaModelAveragingConfig
from levanter.tracker import TrackerConfig
from levanter.tracker.tracker import NoopTracker

class Killing(NoopTracker):
    def log(self, metrics, *, step, commit=None):
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

class KillingConfig(TrackerConfig):
    def init(self, run_id):
        return Killing()

checkpointer = CheckpointerConfig(base_path="elsewhere", save_interval=timedelta(hours=1), keep=[{"every": 3}])
averaging = EmaModelAveragingConfig(beta=1.0)
run_levanter_train_dpo(made("killed", trainer={
    "tracker": (KillingConfig(),), "checkpointer": checkpointer, "model_averaging": averaging}))
"""
TRAIN_WITH_HELPERS = """
import json, os, sys
from pathlib import Path
from tradewind import Cpu, lazy
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.marin.defaults import SimpleDPOConfig, default_dpo, default_tokenize
from tradewind.marin.legacy.classes import builder
from tradewind.steps import resolve
root, find = sys.argv[1], builder().find
pairs = default_tokenize(
    "helpers", f"{root}/train.jsonl", f"{root}/tokenizer",
    format=lazy("levanter.data.text:PreferenceChatLmDatasetFormat"))
pairs.config.validation_paths.append(f"{root}/validation.jsonl")
model = find("levanter.models.llama.LlamaConfig")(
    seq_len=64, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, num_kv_heads=2)
step = default_dpo("helped", pairs, model, SimpleDPOConfig(
    Cpu(), 4, 4, 1e-3, model_name_or_path=f"{root}/base/hf", validation_split_fraction=None, steps_per_hf_export=-1,
    reference_eval_cache=lazy("levanter.dpo:ReferenceEvalCacheConfig", mode="build_or_load")))
resolved = resolve([step], f"{root}/store")
for each in resolved.steps:
    spec = step_spec(each, CodeFolder(Path("/nonexistent")))
    function, config = spec.load_function(), spec.load_config()
    if hasattr(function, "preflight"):
        function.preflight(config, 4)
    function(config)
Path(root, "helped").symlink_to(resolved.of(step).output_path)
"""
LOAD = """
import sys
import haliax as hax
import jax
from levanter.models.llama import LlamaConfig
from levanter.trainer import TrainerConfig
from tradewind.recipes.lm.stored_models import ModelAxes, load_checkpointed
root = sys.argv[1]
axes = ModelAxes(LlamaConfig(
    max_seq_len=64, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, num_kv_heads=2,
    tokenizer=f"{root}/tokenizer", reference_checkpoint=f"{root}/tokenizer"), hax.Axis("vocab", 257), {})
with TrainerConfig().use_device_mesh():
    one, other = (load_checkpointed(axes, f"{root}/{path}/checkpoints") for path in ("base", "out/of-base"))
print(jax.tree.all(jax.tree.map(lambda left, right: (left == right).all(), one, other)))
"""
REFUSE = """
def compared_with(path, is_hf=False):
    return made("r", reference=SeparateReferenceConfig(path and f"{root}/{path}", is_hf=is_hf))

def of_tokenizer(name):
    return made("r", data={"tokenizer": f"{root}/{name}"})

undivided = {"components": {"pairs": component(cache_dir=f"{root}/undivided")}}
two = {"components": {"a": component(), "b": component()}, "train_weights": {"a": 1.0, "b": 1.0}}
cases = {
    "fits": lambda: made("r"),
    "fits with an adapter": lambda: made("r", reference=AdapterBaseReferenceConfig(), adapter=LoraAdaptorConfig()),
    "fits one of two": lambda: made("r", data=two | {"train_weights": {"a": 1.0, "b": 0.0}}),
    "fits without a validation split": lambda: made("r", data=undivided),
    "no validation split": lambda: made("r", data=undivided, validation_split_fraction=None),
    "no weights": lambda: made("r", initialize_from_checkpoint_path=None),
    "two weights": lambda: made("r", initialize_from_hf=f"{root}/base/hf"),
    "state to begin with": lambda: made(
        "r", initialize_from_checkpoint_path=None, trainer={"initialize_from": f"{root}/base"}),
    "no reference": lambda: compared_with(""),
    "no reference there": lambda: compared_with("nowhere"),
    "no export there": lambda: compared_with("nowhere", True),
    "other reference": lambda: compared_with("other"),
    "other export": lambda: compared_with("other/hf", True),
    "other weights": lambda: made("r", initialize_from_checkpoint_path=f"{root}/other"),
    "fits to go on": lambda: made("of-base"),
    "other model to go on with": lambda: made("of-other"),
    "no adapter": lambda: made("r", reference=AdapterBaseReferenceConfig()),
    "too long a pair": lambda: made("r", train_seq_len=20),
    "no generation marks": lambda: of_tokenizer("unmarked"),
    "no template": lambda: of_tokenizer("bare"),
    "two components": lambda: made("r", data=two),
    "beta": lambda: made("r", beta=0.0),
    "fraction": lambda: made("r", validation_split_fraction=1.0),
}
train = run_levanter_train_dpo
"""
REFUSED = {
    "fits": "fits",
    "fits to go on": "fits",
    "fits with an adapter": "fits",
    "fits one of two": "fits",
    "fits without a validation split": "fits",
    "no validation split": "train_config.data.components['pairs']: there is no finished token cache for validation at ",
    "no weights": "train_config.initialize_from_hf and train_config.initialize_from_checkpoint_path are missing: give",
    "two weights": "train_config.initialize_from_hf and train_config.initialize_from_checkpoint_path both say what to",
    "state to begin with": "train_config.trainer.initialize_from is the whole state of a training, which DPO does",
    "no reference": "train_config.reference.model_path is missing: give the reference model, usually",
    "no reference there": "There is no complete checkpoint under train_config.reference.model_path ROOT/nowhere.",
    "no export there": "train_config.reference.model_path='ROOT/nowhere' cannot be read (",
    "other reference": "train_config.reference.model_path: the checkpoint ROOT/other/checkpoints/step-3 is of another",
    "other export": "train_config.reference.model_path: the model ROOT/other/hf is another: embeddings/",
    "other weights": "train_config.initialize_from_checkpoint_path: the checkpoint ROOT/other/checkpoints/step-3 is of",
    "other model to go on with": "output_path: the checkpoint ROOT/out/of-other/checkpoints/step-3 is of another "
    "model: policy/embeddings/",
    "no adapter": "train_config.reference is a AdapterBaseReferenceConfig, and train_config.adapter is none: give a",
    "too long a pair": "train_config.data.components['pairs']: pair 10 of train has 25 chosen tokens, and sequences",
    "no generation marks": "train_config.data.components['pairs'].format: Chat template must contain {%generation%}",
    "no template": "train_config.data.components['pairs'].format: No chat template provided and tokenizer has no",
    "two components": "train_config.data.train_weights has weights for a, b: DPO trains on one component, so put all",
    "beta": "train_config.beta=0.0: give a number above 0, such as 0.1.",
    "fraction": "train_config.validation_split_fraction=1.0: give at least 0 and less than 1, or None to validate on",
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, python: PreparedPython) -> Workbench:
    """Write tokenized pairs and the initial models."""
    made = Workbench(tmp_path_factory.mktemp("bench"), python)
    made.run(PREPARE)
    return made


@pytest.fixture(scope="module")
def printed(bench: Workbench) -> list[str]:
    """Run a training without a kill; return its log. Its output is ``whole``."""
    return bench.run(TRAIN, "whole")


def test_invalid_settings_refused_with_field_before_allocation(bench: Workbench) -> None:
    bench.check_answers(bench.run(MADE + REFUSE + PREFLIGHT + END), REFUSED)


def test_evaluation_loads_model_from_dpo_checkpoint(bench: Workbench) -> None:
    assert bench.run(LOAD) == ["True"]


def test_tokenized_pairs_teach_preference(bench: Workbench, printed: list[str]) -> None:
    result, rows = bench.result("whole"), bench.metrics("whole")
    assert rows[0]["train/dpo_loss"] == pytest.approx(math.log(2), abs=1e-4), "it begins with the reference itself"
    assert 0 < result["train_loss"] < math.log(2) and 0 < result["eval_loss"] < math.log(2)
    assert result["eval_losses"] == {"pairs": result["eval_loss"]}
    assert result["accuracy"] == result["train_accuracy"] == 1.0
    assert result["margin"] == rows[-1]["eval/pairs/dpo_chosen_reward"] - rows[-1]["eval/pairs/dpo_rejected_reward"] > 0
    assert (result["steps"], result["tokens"]) == (STEPS, STEPS * 4 * 2 * LENGTH)
    assert 4 * result["parameters"] * result["tokens"] < result["flops"] < 8 * result["parameters"] * result["tokens"]
    path = bench.root / "out/whole"
    assert result["checkpoint"] == str(path / f"checkpoints/step-{STEPS - 1}")
    assert result["export"] == str(path / f"hf/step-{STEPS - 1}") and (path / f"hf/step-{STEPS - 1}").is_dir()
    assert json.loads((path / f"hf/step-{STEPS - 1}/generation_config.json").read_text()) == {"eos_token_id": [256]}
    assert "  exports have the chat template and end an answer at '<end>'" in printed
    assert not (bench.root / "elsewhere").exists()


def test_log_shows_pairs_reference_and_results(bench: Workbench, printed: list[str]) -> None:
    result = bench.result("whole")
    begin = printed.index(f"trains whole: LlamaConfig with {result['parameters']:,} parameters, on one device")
    assert printed[begin + 1] == "  8 steps, 32 pairs of sequences of 48 tokens: 3,072 tokens"
    base = bench.root / "base/checkpoints/step-3"
    assert printed[begin + 3 : begin + 6] == [
        f"  {PAIRS - CUT} pairs to train on, {CUT} cut off for validation",
        f"  beta 0.1, reference {base}",
        f"  begins with {base}",
    ]
    assert f"step {STEPS}/{STEPS}  validation loss {result['eval_loss']:.3f} (pairs)" in printed
    assert printed[-5] == (
        f"trained whole: 8 steps, loss {result['train_loss']:.3f}, validation loss {result['eval_loss']:.3f} "
        f"(pairs {result['eval_loss']:.3f})"
    )
    margin = f"{result['margin']:.3f}"
    assert printed[-3] == f"  validation: 100.0% of the pairs preferred as chosen, margin of rewards {margin}"


def test_noticed_training_resumes_with_losses_of_uncut_training(bench: Workbench, printed: list[str]) -> None:
    bench.check_noticed_training(TRAIN, STEPS, *MEASURES)


@pytest.mark.long
def test_killed_training_resumes_with_losses_of_unkilled_one(bench: Workbench, printed: list[str]) -> None:
    bench.run(MADE + KILLED + END, exit_code=-signal.SIGKILL)
    taken, newer = (bench.root / f"base/checkpoints/step-{step}" for step in (3, 9))
    shutil.copytree(taken, newer)  # as if the reference's training had continued meanwhile
    metadata = json.loads((taken / "metadata.json").read_text())
    (newer / "metadata.json").write_text(json.dumps(metadata | {"step": 9}))
    again = bench.run(TRAIN, "killed")
    shutil.rmtree(newer)
    assert any(line.startswith("continues after step ") for line in again)
    assert f"  beta 0.1, reference {taken}" in again, "the one that the first steps were compared with"
    for measure in MEASURES:
        assert bench.losses("killed", measure) == bench.losses("whole", measure) != ([], [])
    exports = [bench.root / "out" / name / f"hf/step-{STEPS - 1}/model.safetensors" for name in ("killed", "whole")]
    assert exports[0].read_bytes() == exports[1].read_bytes()
    base, first = (bench.root / name / "checkpoints/step-3" for name in ("base", "out/killed"))
    weights, averages = stored_array(base, f"model/{WEIGHTS}"), stored_array(first, f"{AVERAGED}/policy/{WEIGHTS}")
    assert np.array_equal(averages, weights), "the averages begin with the weights"


@pytest.mark.long
def test_marin_helpers_train_dpo_from_export_with_validation(bench: Workbench) -> None:
    printed = bench.run(TRAIN_WITH_HELPERS + END)
    assert f"  beta 0.1, reference {bench.root}/base/hf" in printed and f"  begins with {bench.root}/base/hf" in printed
    assert f"  {PAIRS} pairs to train on, 0 cut off for validation" in printed
    result = json.loads((bench.root / "helped/result.json").read_text())
    assert (result["steps"], result["export"], list(result["eval_losses"])) == (4, None, ["helpers"])
    assert result["eval_loss"] < math.log(2)
    assert [each.parts[-4] for each in (bench.root / "store").rglob("reference_logprobs/*/shard_ledger.json")] == [
        (bench.root / "helped").resolve().name
    ], "nothing is written into another step's output"
