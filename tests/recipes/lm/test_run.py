"""Trainings of Levanter's own configs: outputs, resume after a kill, and early refusals."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.recipes.lm.model_hub import ModelHub
from tests.recipes.lm.programs import END, MADE, PREFLIGHT, PREPARE, WRITTEN
from tests.recipes.lm.wandb_server import WandbServer
from tests.recipes.workbench import Workbench, stored_array
from tests.support.fork_server import PreparedPython
from tests.support.http_server import serving
from tradewind.recipes.lm.stored_models import AVERAGED

pytestmark = [pytest.mark.slow]

STEPS, LENGTH = 12, 32
KEY, TOKEN = "k" * 40, "hf_nobody_may_see_this"
SETS = {"web", "code"}

TRAIN = MADE + "run_levanter_train_lm(made(sys.argv[2]))" + END
BEGIN = """
import jmp
from aqt.jax.v2 import config as aqt
from haliax.quantization import QuantizationConfig
products, prepare = [], aqt.set_context
aqt.set_context = lambda *given, **more: (products.append(1), prepare(*given, **more))[1]
raw = DatasetComponent(source=UrlDatasetSourceConfig(train_urls=[f"{root}/texts/a.jsonl"]))
run_levanter_train_lm(made(
    "begun", 4, {"components": {"web": DatasetComponent(), "raw": raw}, "train_weights": {"web": 1.0, "raw": 1.0}},
    trainer={
        "train_batch_size": [ScheduleStep(0, 4), ScheduleStep(2, 8)],
        "model_averaging": None,
        "quantization": QuantizationConfig(int8=True),
        "mp": jmp.get_policy("p=bfloat16,c=bfloat16"),
        "tracker": (TensorboardConfig(), WandbConfig(mode="online")),
    },
    initialize_from_checkpoint_path=f"{root}/out/whole", auto_build_caches=True, env_vars={"RUN_ID": "mine"},
    hf_save_steps=None, eval_harness=LmEvalHarnessConfig(task_spec=["x"]),
))
print("layers multiply in int8:", len(products) > 0)
run_levanter_train_lm.preflight(made("r", initialize_from_checkpoint_path=f"{root}/out/begun"), 4)
run_levanter_train_lm(made(
    "averaged", 4, trainer={"model_averaging": EmaModelAveragingConfig(beta=1.0)}, hf_save_steps=None,
    initialize_from_checkpoint_path=f"{root}/out/begun"))
try:
    run_levanter_train_lm.preflight(made("r", trainer={"initialize_from": f"{root}/out/begun"}), 4)
except ValueError as error:
    print(error)
"""
REFUSE = """
import shutil
from pathlib import Path
from haliax.quantization import QuantizationConfig
from levanter.adaptor import LoraAdaptorConfig

def damaged():
    path = Path(shutil.copytree(f"{root}/out/whole/checkpoints/step-6", f"{root}/damaged/step-6"))
    max(path.rglob("d/*"), key=lambda file: file.stat().st_size).unlink()
    return path

def component(**fields):
    return {"components": {"web": DatasetComponent(**fields)}, "train_weights": {"web": 1.0}}

def chats(name, format=CHATS):
    return made("r", data=component(cache_dir=f"{root}/{name}", format=format))

def untold(config):
    object.__setattr__(config.train_config.data, "train_weights", {"web": 1.0, "wiki": 1.0, "code": 0.0})
    return config

url = UrlDatasetSourceConfig(train_urls=["gs://away/a.jsonl"])
cases = {
    "fits": lambda: made("r"),
    "schedule": lambda: made("r", trainer={"train_batch_size": [ScheduleStep(0, 8), ScheduleStep(8, 6)]}),
    "batch": lambda: made("r", trainer={"train_batch_size": 6}),
    "any batch": lambda: made("r", trainer={"train_batch_size": 6, "allow_nondivisible_batch_size": True}),
    "any schedule": lambda: made("r", trainer={
        "train_batch_size": [ScheduleStep(0, 8), ScheduleStep(8, 6)], "allow_nondivisible_batch_size": True}),
    "part of a batch": lambda: made("r", trainer={"train_batch_size": 4, "per_device_parallelism": 2}),
    "chats": lambda: chats("chats"),
    "late answers": lambda: chats("late"),
    "no answers": lambda: chats("unmarked"),
    "no chats": lambda: chats("web"),
    "no template": lambda: chats("chats", ChatLmDatasetFormat()),
    "no such token": lambda: made("r", hf_generation_eos_token_ids=[999]),
    "tasks": lambda: made("r", eval_harness=LmEvalHarnessConfig(task_spec=["x"])),
    "two begins": lambda: made("r", initialize_from_hf="a/b", initialize_from_checkpoint_path=f"{root}/out/whole"),
    "too long": lambda: made("r", train_seq_len=128),
    "no weight": lambda: made("r", data={"train_weights": {"web": 1.0}}),
    "unknown schedule": lambda: made("r", optimizer=AdamConfig(lr_schedule="up")),
    "weights that begin late": lambda: made("r", data={"train_weights": [(8, {"web": 1, "code": 1})]}),
    "batches out of order": lambda: made(
        "r", trainer={"train_batch_size": [ScheduleStep(0, 8), ScheduleStep(8, 4), ScheduleStep(4, 8)]}),
    "no such model": lambda: made("r", model={"gradient_checkpointing": "never"}),
    "no such interval": lambda: made("r", trainer={"checkpointer": CheckpointerConfig(keep=[{"evry": 6}])}),
    "interval of nothing": lambda: made("r", trainer={"checkpointer": CheckpointerConfig(keep=[{"every": 0}])}),
    "no such component": lambda: made("r", data={"num_validation_sequences": {"cod": 4}}),
    "heads that do not fit": lambda: made("r", model={"hidden_dim": 33}),
    "heads that cannot turn": lambda: made("r", model={"hidden_dim": 30}),
    "no export": lambda: made("r", initialize_from_hf="/nowhere"),
    "export": lambda: made("r", initialize_from_hf=f"{root}/out/whole/hf/step-11"),
    "export of another model": lambda: made(
        "r", model={"hidden_dim": 64}, initialize_from_hf=f"{root}/out/whole/hf/step-11"),
    "export with int8": lambda: made(
        "r", initialize_from_hf=f"{root}/out/whole/hf/step-11",
        trainer={"quantization": QuantizationConfig(int8=True)}),
    "checkpoint with an adapter": lambda: made(
        "r", initialize_from_checkpoint_path=f"{root}/out/whole", adapter=LoraAdaptorConfig()),
    "export with an adapter": lambda: made(
        "r", initialize_from_hf=f"{root}/out/whole/hf/step-11", adapter=LoraAdaptorConfig()),
    "no state": lambda: made("r", trainer={"initialize_from": "/nowhere"}),
    "state": lambda: made("r", 24, trainer={"initialize_from": f"{root}/out/whole"}),
    "state of the end": lambda: made("r", trainer={"initialize_from": f"{root}/out/whole"}),
    "no state to go on with": lambda: made("r", trainer={"load_checkpoint_path": "/nowhere"}),
    "no component": lambda: untold(made("r")),
    "no positive weight": lambda: made("r", data={"train_weights": {"web": 0.0, "code": 0.0}}),
    "between blocks": lambda: made("r", data={
        "train_weights": [(0, {"web": 1, "code": 1}), (3, {"web": 1, "code": 0})]}),
    "no tokenizer here": lambda: made("r", data={"tokenizer": "/nowhere"}),
    "no tokenizer there": lambda: made("r", data={"tokenizer": "nobody/nothing"}),
    "no end": lambda: made("r", data={"tokenizer": f"{root}/endless"}),
    "cache to build": lambda: made("r", data=component(cache_dir="/nowhere", source=url)),
    "damaged checkpoint": lambda: made("r", initialize_from_checkpoint_path=damaged()),
    "checkpoint after the end": lambda: made("whole", 6),
    "no checkpoint any more": lambda: made("whole", initialize_from_checkpoint_path="/nowhere"),
    "no checkpoint": lambda: made("r", initialize_from_checkpoint_path="/nowhere"),
    "other model to begin with": lambda: made(
        "r", model={"hidden_dim": 64}, initialize_from_checkpoint_path=f"{root}/out/whole"),
    "other model to go on with": lambda: made("whole", model={"hidden_dim": 64}),
    "part of another model": lambda: made(
        "whole", model={"hidden_dim": 64}, trainer={"allow_partial_checkpoint": True}),
}
train = run_levanter_train_lm
"""
TRAIN_HUB = """
from levanter.utils.mesh import MeshConfig
from tradewind.recipes.lm.trainer import with_simulated_slices

def begun(begin, reference="people/tiny", **more):
    trainer = {
        "tracker": (WandbConfig(mode="online", project="p", tags=["tiny"]), TensorboardConfig()),
        "mesh": MeshConfig(dcn_axes={"replica_dcn": 2}), "per_device_eval_parallelism": 4}
    return made(
        "from-a-hub", 5, {"train_weights": {"web": 1.0, "code": 1.0}}, {"reference_checkpoint": reference},
        trainer=trainer, initialize_from_hf=begin, z_loss_weight=1.0, hf_save_steps=10**9,
        optimizer=AdamConfig(learning_rate=0.0), **more)

for config, *devices in (
    (begun("people/tiny@gone"), 4, 2), (begun("people/nobody"), 4, 2), (begun(True, "people/nobody"), 4, 2),
    (begun("people/tiny@bare"), 4, 2), (begun("people/tiny@halved"), 4, 2), (begun("people/tiny@main"), 4, 2),
    (begun(True), 6, 3),
):
    try:
        run_levanter_train_lm.preflight(config, *devices)
        print("fits")
    except ValueError as error:
        print(error)
print(dict(with_simulated_slices(begun(True).train_config).trainer.device_mesh.shape))
run_levanter_train_lm(begun(True))
"""
TRAIN_MARIN = """
from dataclasses import replace
from levanter.data.text import HfDatasetSourceConfig
config = decoded("of-marins", 4)
data = config.train_config.data
web = replace(data.components["web"], source=HfDatasetSourceConfig(id="owner/absent"))
data = replace(data, auto_build_caches=False, components=data.components | {"web": web})
config = replace(config, train_config=replace(config.train_config, data=data))
run_levanter_train_lm.preflight(config, 4)
run_levanter_train_lm(config)
"""
STAND_STILL = 'run_levanter_train_lm(still("still", 4))'
CONTINUE = """
averaging = find("levanter.optim.model_averaging.EmaModelAveragingConfig")(beta=0.5)
begin = {"initialize_from_checkpoint_path": f"{root}/out/still"}
try:
    run_levanter_train_lm.preflight(still("r", 4, **begin), 4)
except ValueError as error:
    print(error)
run_levanter_train_lm(still(
    "goes-on", 8, {"model_averaging": averaging, "allow_partial_checkpoint": True, "seed": 1}, **begin))
"""
TOKENIZE = """
from pathlib import Path
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import Encoder, decode
from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
from tradewind.marin.legacy.classes import builder
find = builder().find
marin = "marin.processing.tokenize.tokenize"
def decoded(given):
    return decode(json.loads(json.dumps(Encoder(CodeFolder(Path("/nonexistent"))).encode(given, "config"))))
written = find(f"{marin}.TokenizeConfig")(
    [f"{root}/texts"], [f"{root}/texts/*.jsonl"], f"{root}/mine", f"{root}/tokenizer", tags=["mine"],
    format=find("levanter.data.text.TextLmDatasetFormat")(text_key="text"))
tokenize(decoded(written))
with open(f"{root}/talks.jsonl", "w") as file:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]
    file.writelines(json.dumps({"messages": talk}) + "\\n" for _ in range(64))
paths = [f"{root}/talks.jsonl"]
tokenize(TokenizeFilesConfig(paths, paths, f"{root}/talks", f"{root}/tokenizer", format=CHATS))
run_levanter_train_lm(made("of-mine", 40, hf_save_steps=10**6, data={
    "components": {"web": DatasetComponent(), "mine": DatasetComponent(cache_dir=f"{root}/mine"),
                   "talks": DatasetComponent(cache_dir=f"{root}/talks", format=CHATS)},
    "train_weights": {"web": 1.0, "mine": 1.0, "talks": 6.0}}))
import numpy as np
from transformers import AutoTokenizer, FlaxLlamaForCausalLM, GenerationConfig
export = f"{root}/out/of-mine/hf/step-39"
tokenizer, model = AutoTokenizer.from_pretrained(export), FlaxLlamaForCausalLM.from_pretrained(export)
stops = GenerationConfig.from_pretrained(export).eos_token_id
said = tokenizer.apply_chat_template(talk[:1], add_generation_prompt=True)
while len(said) < 16 and said[-1] not in stops:
    seen = np.array([said + [0] * (16 - len(said))])
    said.append(int(model(seen, np.ones_like(seen)).logits[0, len(said) - 1].argmax()))
print("".join(tokenizer.convert_ids_to_tokens(said)), stops)
"""
WEIGHTS = "embeddings/token_embeddings/weight"
WHOLE = f"/out/whole/checkpoints/step-{STEPS - 1}"
HUB_REFUSALS = [
    "train_config.initialize_from_hf='people/tiny@gone' is not on the hub in this revision",
    "train_config.initialize_from_hf='people/nobody' is not on the hub, or is shown to others only",
    "train_config.initialize_from_hf='people/nobody' is not on the hub, or is shown to others only",
    "train_config.initialize_from_hf='people/tiny@bare' lacks model.safetensors and pytorch_model.bin",
    "train_config.initialize_from_hf='people/tiny@halved' lacks model-00002-of-00002.safetensors",
    "train_config.trainer.mesh does not fit 6 devices on 3 slices",
]
REFUSED = {
    "fits": "fits",
    "schedule": "train_config.trainer.train_batch_size[1].value=6 is not a positive multiple of the number of devices",
    "batch": "train_config.trainer.train_batch_size=6 is not a positive multiple of the number of devices, 4.",
    "any batch": "train_config.trainer.train_batch_size=6 is not a positive multiple of the number of devices, 4.",
    "any schedule": "fits",
    "chats": "fits",
    "late answers": "train_config.data.components['web']: in each of its 2 conversations the assistant's words come "
    "after the first 32 tokens, where a sequence ends, so nothing would count in the loss: give a model with a longer",
    "no answers": "train_config.data.components['web']: in none of its 2 conversations does the chat template mark wor",
    "no chats": "train_config.data.components['web']: the token cache at ROOT/web/train is not of chats, as its format",
    "no template": "train_config.data.components['web'].format: No chat template provided and tokenizer has no default",
    "no such token": "train_config.hf_generation_eos_token_ids=[999]: Token ID 999 out of range [0, 258): give numbers",
    "part of a batch": "train_config.trainer.train_batch_size=4 is not a positive multiple of 8: it is divided into 4",
    "tasks": "fits",
    "two begins": "train_config.initialize_from_hf and train_config.initialize_from_checkpoint_path both say",
    "too long": "train_config.train_seq_len=128: give at least 2 and at most the model's max_seq_len, 64.",
    "no weight": "train_config.data.train_weights has no weight for 'code': give it one, or 0 if",
    "unknown schedule": "train_config.optimizer has no learning rate for 12 steps (",
    "weights that begin late": "train_config.data.train_weights has stages from steps [8]: begin the first at step 0,",
    "batches out of order": "train_config.trainer.train_batch_size has stages from steps [0, 8, 4]: begin the first at",
    "no such model": "train_config.model: Levanter cannot build this LlamaConfig (",
    "no such interval": "train_config.trainer.checkpointer.keep[0] has 'evry', which is none of its keys; did you mean "
    "'every'?",
    "interval of nothing": "train_config.trainer.checkpointer.keep[0]['every']=0: give a whole number of at least 1.",
    "no such component": "train_config.data.num_validation_sequences has 'cod', which is none of its keys; did you "
    "mean 'code'?",
    "heads that do not fit": "train_config.model.hidden_dim=33: give a multiple of num_heads, 2.",
    "heads that cannot turn": "train_config.model has heads of 15 numbers, which rotary embeddings rotate in pairs:",
    "no export": "train_config.initialize_from_hf='/nowhere' cannot be read (",
    "export": "fits",
    "export of another model": "train_config.initialize_from_hf: the model ROOT/out/whole/hf/step-11 is another: ",
    "export with int8": "train_config.trainer.quantization does not go with train_config.initialize_from_hf in Lev",
    "checkpoint with an adapter": "train_config.initialize_from_checkpoint_path does not go with train_config.adapt",
    "export with an adapter": "fits",
    "no state": "There is no complete checkpoint under train_config.trainer.initialize_from /nowhere.",
    "state": "fits",
    "state of the end": "train_config.trainer.initialize_from: this training continues the checkpoint ROOT"
    f"{WHOLE} of step {STEPS - 1}, and train_config.trainer.num_train_steps={STEPS} ends it there: ",
    "no state to go on with": "There is no complete checkpoint under train_config.trainer.load_checkpoint_path /nowhe",
    "no component": "train_config.data.train_weights has 'wiki', which is no component: there are web, code.",
    "no positive weight": "train_config.data.train_weights={'web': 0.0, 'code': 0.0}: give weights of at least 0, and",
    "between blocks": "train_config.data.train_weights change at step 3, which is sequence 12 and no multiple of data.",
    "no tokenizer here": "There is no tokenizer under train_config.data.tokenizer /nowhere: tokenizer.json is missing.",
    "no tokenizer there": "train_config.data.tokenizer='nobody/nothing' cannot be loaded (",
    "no end": "train_config.data.tokenizer='ROOT/endless' has no end-of-text token, so texts would run into each other",
    "cache to build": "train_config.data.components['web']: there is no finished token cache for train at "
    "/nowhere/train: run the step that makes it, or set auto_build_caches=True.",
    "damaged checkpoint": "train_config.initialize_from_checkpoint_path: the checkpoint ROOT/damaged/step-6 is dama",
    "no checkpoint any more": "fits",
    "checkpoint after the end": f"ROOT/out/whole has a checkpoint of step {STEPS - 1}, and this training ends with",
    "no checkpoint": "There is no complete checkpoint under train_config.initialize_from_checkpoint_path /nowhere.",
    "other model to begin with": f"train_config.initialize_from_checkpoint_path: the checkpoint ROOT{WHOLE} is of",
    "other model to go on with": f"output_path: the checkpoint ROOT{WHOLE} is of another model: ",
    "part of another model": "fits",
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, python: PreparedPython) -> Workbench:
    """Run a training without a kill; its output is ``whole``, its log the file ``log``."""
    root = tmp_path_factory.mktemp("bench")
    made = Workbench(root, python)
    made.run(PREPARE, str(root))
    (root / "log").write_text("\n".join(made.run(TRAIN, "whole")))
    return made


def test_mixture_with_changing_weights_reports_all_losses(bench: Workbench) -> None:
    result, path = bench.result("whole"), bench.root / "out/whole"
    assert result["run_id"] == "whole"
    assert (result["steps"], result["tokens"], result["devices"]) == (STEPS, STEPS * 4 * LENGTH, 1)
    assert 3 * result["parameters"] * result["tokens"] < result["flops"] < 6 * result["parameters"] * result["tokens"]
    assert result["eval_losses"].keys() == SETS
    assert all(0 < loss < 6 for loss in [result["train_loss"], result["eval_loss"], *result["eval_losses"].values()])
    last = bench.metrics("whole")[-1]
    assert {name: last[f"eval/ema/{name}/loss"] for name in SETS} == result["eval_losses"]
    assert result["eval_loss"] == last["eval/ema/loss"] != last["eval/loss"], "of the averaged weights"
    assert result["checkpoint"] == str(path / f"checkpoints/step-{STEPS - 1}")
    assert result["export"] == str(path / f"hf/step-{STEPS - 1}")
    assert sorted(each.name for each in (path / "hf").iterdir()) == ["step-11", "step-6"]
    assert (path / "checkpoints/step-6/files.json").exists() and not (bench.root / "elsewhere").exists()


def test_log_shows_training_size_mixture_and_results(bench: Workbench) -> None:
    result, printed = bench.result("whole"), (bench.root / "log").read_text().splitlines()
    begin = printed.index(f"trains whole: LlamaConfig with {result['parameters']:,} parameters, on one device")
    assert printed[begin + 1] == "  12 steps, 48 sequences of 32 tokens: 1,536 tokens"
    assert printed[begin + 2].endswith(f" a token, {result['flops']:.3g} in all")
    assert printed[begin + 3 : begin + 5] == ["  mixture: web 75.0%, code 25.0%", "  mixture from step 8: code 100.0%"]
    assert any(line.startswith("W&B is left out: give the step secrets=") for line in printed)
    assert printed[-3].startswith(f"trained whole: 12 steps, loss {result['train_loss']:.3f}, validation loss ")
    assert printed[-2:] == [f"  checkpoint {result['checkpoint']}", f"  export {result['export']}"]


def test_noticed_training_resumes_with_losses_of_uncut_training(bench: Workbench) -> None:
    bench.check_noticed_training(TRAIN, STEPS, "train/loss", "eval/loss", "eval/ema/code/loss")


@pytest.mark.long
def test_training_starts_from_other_weights_and_tokenizes_raw(bench: Workbench) -> None:
    printed = bench.run(MADE + BEGIN + END)
    assert f"  begins with {bench.result('whole')['checkpoint']}" in printed
    assert "train_config.eval_harness is left out: lm-eval is not installed on this cluster." in printed
    result, rows = bench.result("begun"), bench.metrics("begun")
    assert (result["run_id"], result["tokens"], result["export"]) == ("mine", (2 * 4 + 2 * 8) * LENGTH, None)
    assert (bench.root / "raw/train/shard_ledger.json").exists()
    assert list((bench.root / "out/begun/tensorboard").rglob("events.out.tfevents.*"))
    assert result["eval_losses"] == {"web": rows[-1]["eval/web/loss"]}
    assert "layers multiply in int8: True" in printed
    assert rows[0]["step"] == 2, "steps count from 0, as if there had been none"
    assert [steps_taken(bench.result(name)["checkpoint"]) for name in ("begun", "averaged")] == [4, 4]
    begun, averaged = (bench.result(name)["checkpoint"] for name in ("begun", "averaged"))
    weights, trained = (stored_array(each, f"model/{WEIGHTS}") for each in (begun, averaged))
    averages = stored_array(averaged, f"{AVERAGED}/{WEIGHTS}")
    assert np.array_equal(averages, weights) and not np.array_equal(trained, averages), "they begin with the weights"
    assert (weights.dtype.name, trained.dtype.name, averages.dtype.name) == ("bfloat16", "float32", "float32")
    without = f"{bench.root}/out/begun/checkpoints/step-3 has no averaged weights, and train_config.trainer.model_av"
    assert printed[-1].startswith(f"train_config.trainer.initialize_from: the checkpoint {without}")


@pytest.mark.long
def test_hub_model_on_two_slices_keeps_one_wandb_run_after_cut(bench: Workbench, hub: ModelHub) -> None:
    exported = Path(bench.result("whole")["export"])
    files = {file.name: file.read_bytes() for file in exported.iterdir()}
    bare = {name: content for name, content in files.items() if name != "model.safetensors"}
    parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = json.dumps({"weight_map": {"a": parts[0], "b": parts[1]}}).encode()
    halved = {**bare, "model.safetensors.index.json": index, parts[0]: b""}
    hub.tokens.clear()
    hub.branches = {"main": files, "bare": bare, "halved": halved}
    with serving(WandbServer()) as wandb:
        env = {"TRADEWIND_NUM_SLICES": "2", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        env |= {"HF_TOKEN": TOKEN, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": wandb.url}
        printed = bench.run_noticed(MADE + TRAIN_HUB + END, **env)
        again = bench.run(MADE + TRAIN_HUB + END, **env)
    refused = [line for line in printed if line.startswith("train_config.")]
    assert [line.partition(":")[0] for line in refused] == HUB_REFUSALS
    assert {"{'data': 1, 'replica': 1, 'model': 1, 'replica_dcn': 2}", "  begins with people/tiny"} <= set(printed)
    assert "continues after step 3/5" in again
    result = bench.result("from-a-hub")
    assert (result["devices"], result["steps"]) == (2, 5)
    at_the_end, begun = (load_file(Path(path, "model.safetensors")) for path in (result["export"], exported))
    assert at_the_end.keys() == begun.keys() and all(np.array_equal(at_the_end[name], begun[name]) for name in begun)
    assert result["train_loss"] > result["eval_loss"] + 20, "the logarithm of the softmax's sum is pulled to zero"
    assert list((bench.root / "out/from-a-hub/tensorboard").rglob("events.out.tfevents.*"))
    (run,), (rows,) = wandb.runs.values(), wandb.history.values()
    assert (run["name"], run["project"], run["tags"], wandb.made) == ("from-a-hub", "p", ["tiny"], 1)
    assert json.loads(run["config"])["z_loss_weight"] == {"value": 1.0}
    losses = {row["_step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert losses == dict(zip(*bench.losses("from-a-hub"), strict=True))
    assert json.loads(wandb.files["wandb-summary.json"])["eval/loss"] == result["eval_loss"]
    assert wandb.keys == {f"Basic {b64encode(f'api:{KEY}'.encode()).decode()}"} and hub.tokens == {f"Bearer {TOKEN}"}
    folders = [bench.root, *bench.root.parent.glob("home*")]
    written = [path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert not any(secret.encode() in each for secret in (KEY, TOKEN) for each in written)
    assert not any(secret in line for secret in (KEY, TOKEN) for line in (*printed, *again))


def test_marin_config_of_2025_trains(bench: Workbench) -> None:
    assert "  mixture: web 100.0%" in bench.run(WRITTEN + TRAIN_MARIN + END)
    result = bench.result("of-marins")
    assert (result["run_id"], result["steps"], result["export"]) == ("of-marins", 4, None)
    assert result["eval_losses"].keys() == SETS and result["eval_losses"]["web"] < result["eval_losses"]["code"]


@pytest.mark.long
def test_marin_training_continues_at_checkpoint_step_on_own_data(bench: Workbench) -> None:
    """At a learning rate of 0, equal texts have equal losses."""
    bench.run(WRITTEN + STAND_STILL + END)
    printed = bench.run_noticed(WRITTEN + CONTINUE + END)
    begin = bench.root / "out/still/checkpoints/step-3"
    continued = f"this training continues the checkpoint {begin} of step 3, and train_config.trainer.num_train_steps=4"
    assert printed[0].startswith(f"train_config.initialize_from_checkpoint_path: {continued} ends it there: give ")
    assert f"  4 steps, 16 sequences of 32 tokens: {4 * 4 * 32} tokens" in printed
    assert f"  continues at step 5/8 with {begin}" in printed
    gone_on = begin.rename(begin.with_name("step-5"))  # as if that training had also continued meanwhile
    metadata = json.loads((gone_on / "metadata.json").read_text())
    (gone_on / "metadata.json").write_text(json.dumps(metadata | {"step": 5}))
    again = bench.run(WRITTEN + CONTINUE + END)
    assert any(line.startswith("continues after step ") for line in again)
    assert f"  continues at step 5/8 with {begin}" in again
    result = bench.result("goes-on")
    averages, weights = (stored_array(result["checkpoint"], f"{part}/{WEIGHTS}") for part in (AVERAGED, "model"))
    assert np.array_equal(averages, weights), "they begin with the weights of a checkpoint that has none"
    assert (result["steps"], result["tokens"], steps_taken(result["checkpoint"])) == (8, 4 * 4 * 32, 8)
    first, then = (dict(zip(*bench.losses(name), strict=True)) for name in ("still", "goes-on"))
    assert then.keys() == {4, 5, 6, 7} and {step - 4: then[step] for step in (6, 7)} == first != {}


def steps_taken(checkpoint: str) -> int:
    """Return the optimizer's step count, which determines the learning rate."""
    return int(stored_array(checkpoint, "opt_state/count"))


def test_tokenized_files_and_chats_train_and_answer_from_export(bench: Workbench) -> None:
    printed = bench.run(MADE + TOKENIZE + END)
    tokens = 8 * (len("raw text " * 40) + 2)
    assert f"train: 8 documents, {tokens:,} tokens in {bench.root}/mine/train" in printed
    assert "  mixture: web 12.5%, mine 12.5%, talks 75.0%" in printed
    assert bench.result("of-mine")["eval_losses"].keys() == {"web", "mine", "talks"}
    assert "  exports have the chat template and end an answer at '<turn>'" in printed
    assert printed[-1] == "?hi=ok<turn> [256, 257]", "the export asks in the template, and its answer ends"


def test_invalid_settings_refused_with_field_before_allocation(bench: Workbench) -> None:
    printed = bench.run(MADE + REFUSE + PREFLIGHT + END)
    assert printed.count("train_config.eval_harness is left out: lm-eval is not installed on this cluster.") == 1
    bench.check_answers(printed, REFUSED)
