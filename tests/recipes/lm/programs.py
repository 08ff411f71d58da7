"""Programs that train from Levanter's own configs.

Each starts with ``MADE`` or ``WRITTEN`` and ends with ``END``; ``PREFLIGHT`` checks ``cases`` of ``train``.
"""

from __future__ import annotations

PREPARE = """
import json, os, sys
import numpy as np
from levanter.store.cache import SerialCacheWriter
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
root = sys.argv[1]
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
special = {"eos_token": "<end>", "additional_special_tokens": ["<turn>"]}
for name, special in (("tokenizer", special), ("endless", {})):
    made = Tokenizer(models.BPE({each: number for number, each in enumerate([*letters, "<end>", "<turn>"])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(f"{root}/{name}")
for seed, name in enumerate(("web", "code")):
    for split, texts in (("train", 40), ("validation", 8)):
        chance = np.random.default_rng([seed, texts])
        with SerialCacheWriter(f"{root}/{name}/{split}", {"input_ids": np.zeros(0, np.int32)}) as writer:
            ids = [chance.integers(40 * seed, 40 * seed + 40, 64).astype(np.int32) for _ in range(texts)]
            writer.write_batch([{"input_ids": each} for each in ids])
for name, words in (("late", range(40, 50)), ("unmarked", ()), ("chats", (3, 40))):
    for split in ("train", "validation"):
        kinds = {"input_ids": np.zeros(0, np.int32), "assistant_masks": np.zeros(0, np.int32)}
        mask = np.zeros(64, np.int32)
        mask[list(words)] = 1
        with SerialCacheWriter(f"{root}/{name}/{split}", kinds) as writer:
            of_others = [{"input_ids": mask + 1, "assistant_masks": 0 * mask}] * (200 if name == "chats" else 1)
            writer.write_batch([*of_others, {"input_ids": mask + 1, "assistant_masks": mask}])
os.makedirs(f"{root}/texts")
with open(f"{root}/texts/a.jsonl", "w") as file:
    file.writelines(json.dumps({"text": "raw text " * 40}) + "\\n" for _ in range(8))
"""
MADE = """
import dataclasses, json, math, os, sys
from datetime import timedelta
from levanter.checkpoint import CheckpointerConfig
from levanter.data.text import ChatLmDatasetFormat, DatasetComponent, LmDataConfig, UrlDatasetSourceConfig
from levanter.eval_harness import LmEvalHarnessConfig
from levanter.main.train_lm import TrainLmConfig
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig
from levanter.optim.model_averaging import EmaModelAveragingConfig
from levanter.schedule import ScheduleStep
from levanter.tracker.tensorboard import TensorboardConfig
from levanter.tracker.wandb import WandbConfig
from levanter.trainer import TrainerConfig
from levanter.callbacks.watch import WatchConfig
from tradewind.recipes.lm.run import LevanterTrainConfig, run_levanter_train_lm
root = sys.argv[1]
CHATS = ChatLmDatasetFormat(chat_template="{% for m in messages %}{% if m.role == 'user' %}?{{ m.content }}{% else %}="
    "{% generation %}{{ m.content }}<turn>{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}")

def made(name, steps=12, data={}, model={}, trainer={}, **more):
    run = {key: more.pop(key) for key in ("env_vars", "auto_build_caches", "allow_out_of_region") if key in more}
    data = LmDataConfig(**{
        "tokenizer": f"{root}/tokenizer", "cache_dir": root, "auto_build_caches": False, "mixture_block_size": 16,
        "components": {"web": DatasetComponent(), "code": DatasetComponent()},
        "train_weights": [(0, {"web": 3.0, "code": 1.0}), (8, {"web": 0.0, "code": 1.0})]} | data)
    model = LlamaConfig(**{
        "max_seq_len": 64, "hidden_dim": 32, "intermediate_dim": 64, "num_layers": 1, "num_heads": 2,
        "num_kv_heads": 2, "gradient_checkpointing": False} | model)
    trainer = TrainerConfig(**{
        "num_train_steps": steps, "train_batch_size": 4, "steps_per_eval": 6, "max_eval_batches": 1,
        "checkpointer": CheckpointerConfig(
            base_path="elsewhere", save_interval=timedelta(hours=1), keep=[{"every": 6}]),
        "watch": WatchConfig(watch_targets=[]), "model_averaging": EmaModelAveragingConfig(beta=0.5)} | trainer)
    config = TrainLmConfig(**{
        "data": data, "model": model, "trainer": trainer, "train_seq_len": 32, "z_loss_weight": 1e-4,
        "hf_save_steps": 6, "optimizer": AdamConfig(learning_rate=1e-2, warmup=0.1)} | more)
    return LevanterTrainConfig(config, f"{root}/out/{name}", **run)
"""
WRITTEN = """
import json, os, sys
from pathlib import Path
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import Encoder, decode
from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.resources import CpuOnlyConfig
from tradewind.recipes.lm.run import run_levanter_train_lm
root, find = sys.argv[1], builder().find
source, text = find("levanter.data.text.UrlDatasetSourceConfig"), find("levanter.data.text.TextLmDatasetFormat")()

def decoded(name, steps, trainer={}, **more):
    written = find("marin.training.training.TrainLmOnPodConfig")(
        train_config=find("levanter.main.train_lm.TrainLmConfig")(
            data=find("levanter.data.text.LMMixtureDatasetConfig")(
                cache_dir=None, tokenizer=f"{root}/tokenizer", shuffle=True, permutation_type="feistel",
                configs={each: source(train_urls=["/gone.jsonl"], cache_dir=f"{root}/{each}", format=text)
                         for each in ("web", "code")},
                train_weights={"web": 1.0, "code": 0.0}),
            model=find("levanter.models.llama.LlamaConfig")(
                seq_len=32, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, num_kv_heads=2),
            trainer=find("levanter.trainer.TrainerConfig")(
                tracker=find("levanter.tracker.wandb.WandbConfig")(project="marin"), train_batch_size=4,
                num_train_steps=steps, replica_dcn_axis_size=-1, **trainer),
            hf_save_steps=None, **more),
        resources=CpuOnlyConfig(), output_path=f"{root}/out/{name}")
    return decode(json.loads(json.dumps(Encoder(CodeFolder(Path("/nonexistent"))).encode(written, "config"))))

def still(name, steps, trainer={}, **more):
    more["data_seed"] = 0
    return decoded(name, steps, trainer, optimizer=find("levanter.optim.config.AdamConfig")(learning_rate=0.0), **more)
"""
PREFLIGHT = """
for name, case in cases.items():
    try:
        train.preflight(case(), 4)
        print(json.dumps([name, "fits"]))
    except ValueError as error:
        print(json.dumps([name, str(error)]))
"""
END = """
sys.stdout.flush()
os._exit(0)
"""
