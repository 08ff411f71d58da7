"""Light configs, written and decoded by a process with the real Levanter, become the real configs.

All tests here share that process, because it takes seconds to import Levanter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.marin.changes import FILE, changes, installed_sources
from tests.marin.checkouts import EXECUTOR, put, run, write_checkout
from tests.marin.comparing import CHANGES, GONE, NOW, differences
from tests.marin.legacy.rebuilding import Rebuilt
from tests.marin.shown import shown
from tests.marin.written import plain, varied, written
from tradewind.marin.legacy import modules
from tradewind.marin.legacy.classes import builder
from tradewind.marin.legacy.table import module_rows
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import resolve

pytestmark = pytest.mark.slow
RECORDS = Path(__file__).parent / "legacy"
VERSIONS = json.loads((RECORDS / "oracle_versions.json").read_text())
SIZES = json.loads((RECORDS / "real_classes.json").read_text())["sizes"]
VOCAB = 128256
"""Equal to the constant of the cluster side."""
ABSTRACT = {
    "levanter.data.audio.AudioTaskConfig", "levanter.data.text.LmDatasetSourceConfigBase",
    "levanter.layers.normalization.LayerNormConfigBase", "levanter.layers.rotary.RotaryEmbeddingsConfig",
    "levanter.models.lm_model.LmConfig", "levanter.optim.config.HessianOptConfig",
    "levanter.optim.config.OptimizerConfig",
}  # fmt: skip
"""Abstract base classes."""
OTHERWISE = {"levanter.data.text.SupervisedLmDatasetFormat"}
"""Classes that still exist under their name, with another meaning."""
UNCHANGED = frozenset({*GONE, "shuffle", "data"})
"""Fields that the test of all classes does not vary: configs refuse other values, or other tests cover them."""


def names() -> list[str]:
    """Return all dataclasses of the legacy libraries that a test can make of plain values."""
    found = [
        f"{module}.{name}"
        for module, row in module_rows().items()
        if module.startswith(("levanter.", "haliax."))
        for name, described in row.classes.items()
        if described.dataclass is not None
    ]
    return [name for name in found if name not in ABSTRACT and plain(name) is not None]


NONE_BY_DEFAULT = {f"levanter.data.text.{name}" for name in ("SingleDatasetLMConfigBase", "UrlSingleDatasetLMConfig")}
"""Classes that mean no data by default."""
GONE_CLASSES = [name for name in names() if name in OTHERWISE | (set(CHANGES["gone"]) - set(NOW) - NONE_BY_DEFAULT)]
TRANSLATED = [name for name in names() if name not in GONE_CLASSES]
USERS_FILE = (
    EXECUTOR
    + """
from dataclasses import dataclass, replace
from levanter.data.text import LMDatasetSourceConfig, LMMixtureDatasetConfig, UrlDatasetSourceConfig
from levanter.distributed import RayConfig
from levanter.infra.ray_tpu import TPUConfig, run_on_pod_resumable
from levanter.models.llama import LlamaConfig
from levanter.trainer import TrainerConfig
from levanter.utils.types import BlockFoldable
from levanter.models.lm_model import LmConfig
from levanter.optim import AdamConfig

@dataclass(frozen=True)
class WideConfig(LlamaConfig):
    width: int = 2
    seq_len: int = 64
    def flops_per_token(self, vocab_size, context_length=None):
        return 7.0

@dataclass(frozen=True)
class OwnConfig(LmConfig):
    seq_len: int = 32
    @property
    def model_type(self): return object
    @property
    def Embed(self): return None

@AdamConfig.register_subclass("warm")
@dataclass(frozen=True)
class WarmConfig(AdamConfig):
    heat: float = 0.5

MODEL = LlamaConfig(seq_len=64, num_layers=2, cross_entropy_block_size=7)
LONGER = replace(MODEL, seq_len=128)
MIXTURE = LMMixtureDatasetConfig(cache_dir=None, configs={"a": UrlDatasetSourceConfig(cache_dir="c")}, shuffle=True)
OTHER = replace(MIXTURE, configs={"b": UrlDatasetSourceConfig(cache_dir="d")}, train_weights={"b": 1.0})
TRAINER = TrainerConfig(replica_dcn_axis_size=-1, ray=RayConfig(auto_start_cluster=False), profiler=True)

def unused(layers: BlockFoldable[int], source: LMDatasetSourceConfig) -> None:
    run_on_pod_resumable(None)

def work(config): ...

def made(model=MODEL):
    flops = MODEL.flops_per_token(100) == MODEL.flops_per_token(100, 64)
    sources = {**MIXTURE.configs, **OTHER.configs}
    return {"length": model.seq_len, "longer": LONGER.max_seq_len, "flops": flops, "mixture": MIXTURE,
            "sources": {name: source.cache_dir for name, source in sources.items()}, "trainer": TRAINER}

if __name__ == "__main__":
    config = {"wide": WideConfig(width=5), "own": OwnConfig(cross_entropy_block_size=9), "warm": WarmConfig(heat=2.5)}
    config["made"] = made
    executor_main([ExecutorStep("s", work, config)])
"""
)
M = modules()
MIXTURE = {"tokenizer": "gpt2", "cache_dir": None, "train_weights": {"a": 1.0}}


def source(**given: Any) -> Any:
    return M["levanter.data.text"].UrlDatasetSourceConfig(**given)


def mixture(**given: Any) -> Any:
    text = M["levanter.data.text"]
    one = source(tags=["t"], cache_dir="gs://b/a", train_urls=["gs://b/*.gz"], format=text.ChatLmDatasetFormat())
    return text.LMMixtureDatasetConfig(**{**MIXTURE, "configs": {"a": one, "b": source(cache_dir="gs://b/b")}, **given})


def trainer(**given: Any) -> Any:
    return M["levanter.trainer"].TrainerConfig(**given)


CASES: dict[str, Any] = {
    "no permutation": mixture(shuffle=True),
    "feistel": mixture(shuffle=True, permutation_type="feistel"),
    "eras": mixture(shuffle=1000),
    "eras of none": mixture(shuffle=0),
    "ignored token": mixture(ignore_token_id=5),
    "ignored none": mixture(ignore_token_id=None),
    "staged": mixture(train_weights=[(0, {"a": 1.0}), (8, {"a": 0.5, "b": 0.5})], num_validation_sequences={"a": 4}),
    "chat": M["levanter.data.text"].ChatLmDatasetFormat(pack=False),
    "single turn": M["levanter.data.text"].ChatLmDatasetFormat(single_turn=True),
    "single": M["levanter.data.text"].UrlSingleDatasetLMConfig(train_urls=["gs://b/a"]),
    "epochs": M["levanter.main.train_lm"].TrainLmConfig(epoch=2),
    "as Marin trains": trainer(
        replica_dcn_axis_size=-1, axis_resources={"token": ("replica", "data"), "batch": "data", "far": "replica"},
        mp=M["jmp"].get_policy("p=f32,c=bfloat16"),
    ),
    "sharded": trainer(
        tensor_parallel_axes=["mlp", "kv_head"], fsdp_axis=["embed", "vocab"], model_axis_size=4,
        replica_ici_axis_size=2, replica_dcn_axis_size=3, batch_axis="rows", parameter_axis_resources={"x": "model"},
    ),
    "unsharded": trainer(fsdp_axis=None),
    "profiled": trainer(profiler=True, profiler_start_step=3, profiler_num_steps=9, profiler_perfetto_link=True),
    "without Levanter's Ray": trainer(ray=M["levanter.distributed"].RayConfig(auto_start_cluster=False)),
    "hyena": M["levanter.models.gpt2_hyena"].Gpt2HyenaConfig(
        hyena=M["levanter.models.hyena"].HyenaConfig(seq_len=512)
    ),
    "whisper": M["levanter.models.whisper"].WhisperConfig(max_length=99),
    "in blocks": M["levanter.models.llama"].LlamaConfig(cross_entropy_block_size=32000),
    "shards": M["levanter.store.cache"].CacheOptions(num_shard_groups=256, batch_size=64),
    "resources": M["marin.resources"].TpuPodConfig("v4-128"),
    "speedrun": M["marin.speedrun.speedrun"].SpeedrunConfig(
        author=M["marin.speedrun.speedrun"].Author("A", "B"), description="c", train_config={},
        model_config=M["levanter.models.llama"].LlamaConfig(), tokenized_dataset=None,
    ),
    "tokenizing": M["marin.processing.tokenize.tokenize"].TokenizeConfig(["gs://b/x"], [], "gs://c", "gpt2"),
}  # fmt: skip


def oracle_configs() -> dict[str, Any]:
    """Return the configs of recorded steps, as their functions receive them."""
    rebuilt = Rebuilt(VERSIONS)
    steps = [rebuilt.step(key) for key in VERSIONS]
    plan = resolve(steps, "gs://bucket")
    return {
        f"{rebuilt.kinds[key]} {key}": plan.of(step).config
        for key, step in zip(VERSIONS, steps, strict=True)
        if rebuilt.kinds[key] not in ("other", "SpeedrunResultsConfig")  # rebuilding invents its training config
    }


@pytest.fixture(scope="module")
def lights() -> dict[str, Any]:
    """Return all light configs of this file by name."""
    sized = {
        f"sized {name} {number}": builder().find(name)(**row["given"])
        for name, rows in SIZES.items()
        for number, row in enumerate(rows)
    }
    classes = {name: plain(name) for name in names()}
    others = {f"{name} varied": varied(config, UNCHANGED) for name, config in classes.items()}
    return {**classes, **others, **sized, **CASES, **oracle_configs()}


@pytest.fixture(scope="module")
def cluster(lights: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Run the cluster side; return its ``answers`` by name and forbidden ``imported`` modules."""
    root = tmp_path_factory.mktemp("checkout")
    put(root / "experiments/own.py", USERS_FILE)
    (step,) = resolve(run(write_checkout(root), "own").calls[0].steps, str(root / "out")).steps
    configs = {name: written(config) for name, config in lights.items()}
    configs["users"] = step_spec(step, CodeFolder(root)).config
    libraries = root / "libraries"
    executor = EXECUTOR.partition("import ")[2].replace(", ", " = ").strip()
    put(libraries / "marin/execution/executor.py", f"{executor} = None\n")
    command = [sys.executable, "-m", "tests.marin.cluster", str(root), str(libraries)]
    done = subprocess.run(command, input=json.dumps(configs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    decoded: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return decoded


@pytest.fixture(scope="module")
def answers(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(cluster["answers"])


def fields(answers: Mapping[str, Any], name: str) -> dict[str, Any]:
    assert "value" in answers[name], answers[name]
    return dict(answers[name]["value"]["fields"])


def test_committed_changes_match_installed_levanter() -> None:
    assert json.loads(FILE.read_text()) == changes(installed_sources())


def test_every_removed_field_has_a_rule() -> None:
    gone = {name for change in CHANGES["changed"].values() for name in change.get("gone", ())}
    supervised = {"input_field", "output_field", "separate_with", "pack", "mask_inputs"}
    assert gone - supervised == set(GONE) - {"configs", "ignore_token_id"}


def test_neither_airflow_nor_the_loader_is_imported_on_a_cluster(cluster: Mapping[str, Any]) -> None:
    assert cluster["imported"] == []


def wrong(answers: Mapping[str, Any], lights: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the configs that failed to decode or have other values, with the reasons."""
    found = {}
    for name in names:
        if "value" not in answers[name]:
            found[name] = answers[name]
        elif different := list(differences(shown(lights[name]), answers[name]["value"])):
            found[name] = different
    return found


def test_legacy_config_translates_to_installed_class_with_values(
    answers: Mapping[str, Any], lights: Mapping[str, Any]
) -> None:
    assert wrong(answers, lights, TRANSLATED) == {}
    assert wrong(answers, lights, [f"{name} varied" for name in TRANSLATED if name not in NONE_BY_DEFAULT]) == {}


def test_other_values_than_the_defaults_were_tried(lights: Mapping[str, Any]) -> None:
    tried = [name for name in TRANSLATED if lights[f"{name} varied"] != lights[name]]
    assert len(tried) > 60 and {"levanter.optim.config.AdamConfig", "levanter.trainer.TrainerConfig"} <= set(tried)


def test_removed_class_is_refused_with_both_versions(answers: Mapping[str, Any]) -> None:
    assert GONE_CLASSES
    for name in GONE_CLASSES:
        error = answers[name]["error"]
        assert error.startswith(f"TranslationError: config is a {name} of levanter 1.2.dev1644, and levanter 0.2.")


def test_case_is_translated_or_refused_with_its_field(answers: Mapping[str, Any], lights: Mapping[str, Any]) -> None:
    refused = {
        "eras": "config.shuffle is 1000", "ignored token": "config.ignore_token_id is 5",
        "single turn": "config.single_turn is True", "single": "config is a levanter.data.text.UrlSingle",
        "epochs": "config.epoch is 2, a value for levanter.main.train_lm.TrainLmConfig of levanter 1.2.dev1644, and "
        "levanter 0.2.",
    }  # fmt: skip
    for name, why in refused.items():
        assert answers[name].get("error", name).startswith(f"TranslationError: {why}"), (name, answers[name])
    assert wrong(answers, lights, CASES.keys() - refused.keys()) == {}


HAS_TODAY: dict[str, dict[str, Any]] = {
    "no permutation": {"shuffle": True, "permutation_type": "linear"},
    "feistel": {"permutation_type": "feistel"},
    "eras of none": {"shuffle": False},
    "staged": {
        "shuffle_before_trainval_split": False, "train_weights": [[0, {"a": 1.0}], [8, {"a": 0.5, "b": 0.5}]],
    },
    "chat": {"pack": False, "system_prompt": None, "chat_template_kwargs": None},
    "whisper": {"max_seq_len": 99, "max_length": 99},
}  # fmt: skip
MESHES: dict[str, dict[str, Any]] = {
    "as Marin trains": {
        "axes": {"data": -1, "replica": 1, "model": 1}, "dcn_axes": {"replica_dcn": -1}, "batch_axis_name": "batch",
        "shared_mapping": {"token": ["replica_dcn", "replica", "data"], "far": ["replica_dcn", "replica"]},
        "compute_mapping": {}, "param_mapping": {"embed": "data"},
    },
    "sharded": {
        "axes": {"data": -1, "replica": 2, "model": 4}, "dcn_axes": {"replica_dcn": 3}, "batch_axis_name": "rows",
        "shared_mapping": {"mlp": "model", "kv_head": "model"}, "compute_mapping": {},
        "param_mapping": {"x": "model", "embed": "data", "vocab": "data"},
    },
}  # fmt: skip


def test_converted_case_has_the_fields_of_today(answers: Mapping[str, Any]) -> None:
    for name, expected in HAS_TODAY.items():
        today = fields(answers, name)
        assert (name, {key: today[key] for key in expected}) == (name, expected)
    hyena = fields(answers, "hyena")
    assert hyena["max_seq_len"] == hyena["hyena"]["fields"]["max_seq_len"] == 512


def test_axes_of_devices_are_a_mesh_today(answers: Mapping[str, Any]) -> None:
    assert {name: fields(answers, name)["mesh"]["fields"] for name in MESHES} == MESHES
    assert fields(answers, "unsharded")["mesh"]["fields"]["param_mapping"] == {}


def test_models_cost_and_weigh_what_the_light_ones_do(answers: Mapping[str, Any], lights: Mapping[str, Any]) -> None:
    rows = {f"sized {name} {number}": row for name, each in SIZES.items() for number, row in enumerate(each)}
    assert wrong(answers, lights, rows) == {}
    for name, row in rows.items():
        for method in ("flops_per_token", "total_trainable_params"):
            if row[method] != "TypeError":  # the legacy class could not compute it then
                assert (name, answers[name][method]) == (name, repr(getattr(lights[name], method)(VOCAB)))


def test_configs_of_recorded_steps_are_read_back(answers: Mapping[str, Any], lights: Mapping[str, Any]) -> None:
    recorded = [name for name in lights if name.rpartition(" ")[2] in VERSIONS]
    assert {name.split()[0] for name in recorded} == {
        "TrainLmOnPodConfig", "TokenizeConfig", "HfTokenizeConfig", "EvaluationConfig", "EvalLmConfig",
        "VizLmConfig", "DownloadConfig", "ExtractionConfig",
    }  # fmt: skip
    assert wrong(answers, lights, recorded) == {}


def test_a_users_class_inherits_from_the_real_one_on_a_cluster(answers: Mapping[str, Any]) -> None:
    assert "value" in answers["users"], answers["users"]
    for key, kind, expected in (
        ("wide", "WideConfig", {"width": 5, "seq_len": 64, "max_seq_len": 64}),
        ("own", "OwnConfig", {"seq_len": 32, "max_seq_len": 32}),
        ("warm", "WarmConfig", {"heat": 2.5, "learning_rate": 6e-4}),
    ):
        value = answers["users"]["value"][key]
        assert value["class"] == f"experiments.own.{kind}"
        assert {name: value["fields"][name] for name in expected} == expected


def test_user_file_may_use_legacy_config_fields_on_import(answers: Mapping[str, Any]) -> None:
    made = answers["users"]["value"]["made"]
    assert (made["length"], made["longer"], made["flops"]) == (64, 128, True)
    assert made["sources"] == {"a": "c", "b": "d"}
    assert (made["mixture"]["fields"]["permutation_type"], made["mixture"]["fields"]["shuffle"]) == ("linear", True)
    trainer = made["trainer"]["fields"]
    assert trainer["profiler"]["fields"]["num_steps"] == 100 and trainer["mesh"]["fields"]["shared_mapping"] == {}
    assert trainer["mp"]["fields"]["param_dtype"] == "float32"
