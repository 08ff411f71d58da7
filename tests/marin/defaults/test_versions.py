"""Helper steps get the versions and paths that Marin's own executor gave them in November 2025."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, names, put, run
from tradewind import lazy, run_param
from tradewind.marin.defaults import (
    AnnealConfig,
    Author,
    SimpleDPOConfig,
    SimpleSFTConfig,
    SimpleTrainConfig,
    SpeedrunConfig,
    default_anneal,
    default_download,
    default_dpo,
    default_sft,
    default_speedrun,
    default_tokenize,
    default_train,
    default_validation_sets,
    fineweb_edu_subcache,
    llama,
    simulated_epoching_train,
)
from tradewind.marin.legacy import modules
from tradewind.marin.names.data_configs import lm_mixture_data_config
from tradewind.marin.names.resources import CpuOnlyConfig, TpuPodConfig
from tradewind.recipes.lm.tokens import tokenize_files
from tradewind.steps import Cpu, ExecutorStep, Hosts, TpuSlice, resolve, versioned

LLAMA_3 = "meta-llama/Meta-Llama-3.1-8B"
SMALL = llama("llama_30m")
TRAINING = SimpleTrainConfig(TpuPodConfig("v4-32", 2), 512, 1000, 3e-3, weight_decay=0.1)
TEXTS = default_tokenize("corpus", "gs://bucket/texts/*.jsonl.gz", LLAMA_3)


def path_of(step: ExecutorStep) -> str:
    return resolve([step], "gs://marin").of(step).output_path.removeprefix("gs://marin/")


def trained(**changed: Any) -> ExecutorStep:
    config = dataclasses.replace(TRAINING, **changed)
    return default_train("run", TEXTS, SMALL, config, use_default_validation=False)


def tuned(*, model: Any = SMALL, **given: Any) -> ExecutorStep:
    return default_sft("sft", TEXTS, model, SimpleSFTConfig(Cpu(), **given))


def taught(*, model: Any = SMALL, **given: Any) -> ExecutorStep:
    return default_dpo("dpo", TEXTS, model, SimpleDPOConfig(TpuPodConfig("v4-8"), seed=3, **given))


def levanter(step: ExecutorStep) -> Any:
    return step.config.train_config


def test_anneal_has_the_published_path() -> None:
    raw = default_download("raw/finemath", "HuggingFaceTB/finemath", "8f233cf").cd("finemath-3plus")
    finemath = default_tokenize("finemath_3_plus", raw, LLAMA_3).with_output_path("tokenized/finemath_3_plus-a26b0f/")
    raw = default_download("raw/dolmino-mix-1124", "allenai/dolmino-mix-1124", "bb54cab", "raw/dolmino-mix-1124-157960")
    dolmino = default_tokenize("dolmino/dclm", raw.cd("bb54cab").cd("data/dclm/**/*.json.zst"), LLAMA_3)
    config = dataclasses.replace(dolmino.config, validation_paths=versioned([]))
    dolmino = dataclasses.replace(dolmino, config=config).with_output_path("tokenized/dolmino/dclm-6c18eb")
    mixture = lm_mixture_data_config(
        {"finemath": finemath, "dolmino": dolmino}, {"finemath": 0.3, "dolmino": 0.7}, permutation_type="linear"
    )
    step = default_anneal("llama-8b-anneal-finemath-dclm", AnnealConfig(mixture))
    assert path_of(step) == "checkpoints/llama-8b-anneal-finemath-dclm-366fd5"
    assert step.resources == TpuSlice("v4-128", 2)
    assert levanter(step).trainer.num_train_steps == 671_921
    assert levanter(step).optimizer.learning_rate == pytest.approx(671_920.93 * 1e-3 / 11_920.93)
    assert [task.task for task in levanter(step).eval_harness.task_spec] == ["mmlu", "mmlu"]


def test_speedrun_has_the_published_path() -> None:
    """Marin has published this path; the model does not count in it, as in Marin."""
    training = SimpleTrainConfig(TpuPodConfig("v5p-32"), 128, 4960, 3e-3)
    speedrun = SpeedrunConfig(Author("A", "B"), "About it.", llama("llama_150m"), training, fineweb_edu_subcache())
    trained, results = default_speedrun("hacktx_130m_stdattn_parallel_4096", speedrun)
    assert path_of(trained) == "checkpoints/speedrun/hacktx_130m_stdattn_parallel_4096-12314d"
    assert (levanter(trained).data_seed, levanter(trained).eval_harness) == (42, None)
    experiment = resolve([results], "gs://marin")
    assert experiment.of(results).config.output_path == f"{experiment.of(trained).output_path}/speedrun_results.json"
    assert results.name == "speedrun/hacktx_130m_stdattn_parallel_4096-speedrun_results"


def test_validation_sets_have_the_published_paths() -> None:
    sets = default_validation_sets(LLAMA_3)
    assert len(sets) == 16 + 7
    assert path_of(sets["paloma/4chan"]) == "tokenized/paloma/4chan-496ad5"
    github = resolve([sets["uncheatable_eval/github_python"]], "gs://marin")
    assert [step.output_path for step in github.steps] == [
        "gs://marin/raw/uncheatable-eval/latest-364401",
        "gs://marin/tokenized/uncheatable_eval/github_python-00e7de",
    ]


def test_training_step_has_description_and_config_resources() -> None:
    step, size = trained(), SMALL.total_trainable_params(128_000)
    length = "for 1,000 steps, 524,288,000 tokens"
    assert step.description == f"Trains a LlamaConfig of {size:,} parameters {length}."
    assert step.name == "checkpoints/run" and "checkpoints/**" in step.resumable
    assert list(levanter(step).data.configs) == ["corpus"]
    for given, expected in (
        (TpuPodConfig("v4-32", 2), TpuSlice("v4-32", 2)),
        (versioned(TpuPodConfig("v4-32")), TpuSlice("v4-32")),
        (Cpu(2), Cpu(2)),
        (CpuOnlyConfig(num_cpus=3), Cpu(3)),
        (Hosts(2, gpus=8), Hosts(2, gpus=8)),
    ):
        assert trained(resources=given).resources == expected


def test_the_fields_of_a_short_config_reach_levanters() -> None:
    step = trained(
        warmup=0.2, ema_beta=0.99, int8=True, steps_per_hf_export=-1, steps_per_eval=7, steps_per_export=50,
        initialize_from_checkpoint_path="gs://b/step-3", reset_data_loader_on_init=False,
    )  # fmt: skip
    config, trainer = levanter(step), levanter(step).trainer
    assert (config.optimizer.warmup, config.optimizer.weight_decay, config.optimizer.beta2) == (0.2, 0.1, 0.95)
    assert (trainer.model_averaging.beta, trainer.quantization.int8, trainer.steps_per_eval) == (0.99, True, 7)
    assert (config.hf_save_steps, trainer.checkpointer.keep) == (None, [{"every": 50}])
    assert (trainer.initialize_from, config.initialize_from_checkpoint_path) == ("gs://b/step-3", None)
    again = levanter(trained(initialize_from_checkpoint_path="gs://b/step-3"))
    assert (again.trainer.initialize_from, again.initialize_from_checkpoint_path) == (None, "gs://b/step-3")
    optimizer = modules()["levanter.optim"].MuonConfig()
    assert levanter(trained(optimizer_config=optimizer)).optimizer is optimizer


def test_simulated_epochs_set_target_and_experiment_budgets() -> None:
    step = simulated_epoching_train("run", TEXTS, SMALL, TRAINING, 10**12, use_default_validation=False)
    data = levanter(step).data
    assert (data.target_budget, data.experiment_budget) == (10**12, 512 * 1000 * 1024)
    assert list(data.configs) == ["corpus"]
    short = lazy("levanter.models.llama:LlamaConfig", max_seq_len=versioned(64))
    step = simulated_epoching_train("run", TEXTS, short, TRAINING, 10**12, use_default_validation=False)
    assert levanter(step).data.experiment_budget == 512 * 1000 * 64


def test_fine_tuning_starts_from_given_weights() -> None:
    given: dict[str, Any] = {"cooldown": 0.5, "seed": 3}
    of_hub = levanter(tuned(model_name_or_path="a/b", **given))
    of_ours = levanter(tuned(initialize_from_checkpoint_path="gs://b/step-3", **given))
    assert (of_hub.initialize_from_hf, of_hub.initialize_from_checkpoint_path) == ("a/b", None)
    assert (of_ours.initialize_from_hf, of_ours.initialize_from_checkpoint_path) == (False, "gs://b/step-3")
    assert (of_hub.optimizer.decay, of_hub.data_seed, of_hub.hf_save_steps) == (0.5, 3, 500)
    assert of_hub.trainer.tracker.tags == ["sft"]
    assert of_hub.eval_harness is None


def test_versioned_fields_count_with_lazy_model() -> None:
    model = lazy("levanter.models.qwen:QwenConfig", max_seq_len=64, hidden_dim=versioned(32))
    given: dict[str, Any] = {
        "learning_rate": versioned(3e-3),
        "num_train_steps": versioned(10),
        "train_batch_size": versioned(4),
        "initialize_from_checkpoint_path": "gs://b/step-3",
    }
    steps = tuned(model=model, **given), taught(model=model, **given)
    assert [step.description for step in steps] == [
        "Trains a QwenConfig for 10 steps.",
        "Teaches a QwenConfig preferences for 10 steps.",
    ]
    for step in steps:
        counted = resolve([step], "/p").of(step).version["config"]
        assert {field: value for field, value in counted.items() if ".data." not in field} == {
            "train_config.model.hidden_dim": 32,
            "train_config.optimizer.learning_rate": 3e-3,
            "train_config.trainer.num_train_steps": 10,
            "train_config.trainer.train_batch_size": 4,
        }
    given["num_train_steps"] = run_param("steps")
    assert tuned(model=versioned(SMALL), **given).description == "Trains a LlamaConfig."


def test_dpo_reference_defaults_to_initial_model_of_training() -> None:
    def config(**given: Any) -> Any:
        step = taught(**given)
        assert (step.name, step.resources) == ("checkpoints/dpo", TpuSlice("v4-8"))
        assert "checkpoints/**" in step.resumable
        return levanter(step).kwargs

    of_hub, of_ours = config(model_name_or_path="a/b"), config(initialize_from_checkpoint_path="gs://b/step-3")
    assert (of_hub["initialize_from_hf"], of_hub["initialize_from_checkpoint_path"]) == ("a/b", None)
    assert (of_ours["initialize_from_hf"], of_ours["initialize_from_checkpoint_path"]) == (False, "gs://b/step-3")
    assert of_hub["reference"].kwargs == {"model_path": "a/b", "is_hf": True}
    assert of_ours["reference"].kwargs == {"model_path": "gs://b/step-3", "is_hf": False}
    other = config(initialize_from_checkpoint_path="gs://b/step-3", reference_model_path="c/d", wandb_project="mine")
    assert other["reference"].kwargs == {"model_path": "c/d", "is_hf": True}
    both = {"model_name_or_path": "a/b", "initialize_from_checkpoint_path": "gs://b/step-3"}
    assert config(**both, initialize_from_hf=True)["reference"].kwargs == {"model_path": "a/b", "is_hf": True}
    assert config(**both, reference_model_path="a/b")["initialize_from_checkpoint_path"] == "gs://b/step-3"
    assert (other["trainer"].tracker.project, other["trainer"].tracker.tags) == ("mine", ["dpo"])
    assert (of_hub["beta"], of_hub["data_seed"], of_hub["hf_save_steps"]) == (0.1, 3, 500)
    assert of_hub["optimizer"].max_grad_norm == 1
    assert "adapter" not in of_hub and config(model_name_or_path="a/b", adapter="lora")["adapter"] == "lora"


def test_name_too_long_for_wandb_keeps_its_end() -> None:
    made = default_train("a" * 70 + "-lr0.1", TEXTS, SMALL, TRAINING, use_default_validation=False)
    assert made.name == f"checkpoints/{'a' * 58}-lr0.1"


def test_each_training_takes_a_cluster_and_secrets() -> None:
    placed: dict[str, Any] = {"cluster": "far", "secrets": {"HF_TOKEN": "projects/p/secrets/hf"}}
    begin = SimpleSFTConfig(Cpu(), model_name_or_path="a/b"), SimpleDPOConfig(Cpu(), model_name_or_path="a/b")
    for step in (
        default_train("a", TEXTS, SMALL, TRAINING, (), False, **placed),
        simulated_epoching_train("a", TEXTS, SMALL, TRAINING, 10**12, (), False, **placed),
        default_sft("a", TEXTS, SMALL, begin[0], **placed),
        default_dpo("a", TEXTS, SMALL, begin[1], **placed),
        default_anneal("a", AnnealConfig(TEXTS, use_default_validation=False), **placed),
    ):
        assert (step.cluster, step.secrets) == (placed["cluster"], placed["secrets"])


LAZY = "levanter.models.llama:LlamaConfig"
NO_TOKENIZER = "which names no tokenizer: give a step of default_tokenize, or a mixture of such steps."
NO_DEVICE = "which names no device: give TpuSlice, Hosts, Gpu or Cpu, or Marin's TpuPodConfig, GpuConfig or"
NO_WEIGHTS = "model_name_or_path and initialize_from_checkpoint_path are missing: give the initial weights."
RELATIVE = "a relative path: give InputName.hardcoded('{}') for one below the prefix, or the absolute path."
REFUSED: dict[str, tuple[Any, str]] = {
    "two kinds of weights": (
        lambda: trained(initialize_from_checkpoint_path="a/step-1", initialize_from_hf="b/c"),
        "initialize_from_checkpoint_path and initialize_from_hf both name initial weights: give one of them.",
    ),
    "a speedrun without data": (
        lambda: SpeedrunConfig(Author("A", "B"), "About it.", SMALL, TRAINING),
        "tokenized_dataset is missing, and no experiments/speedrun/prebuilt_caches.py has the default: give",
    ),
    "both forms": (
        lambda: default_train("run", TEXTS, SMALL, TRAINING, batch_size=3),
        "default_train(batch_size=...) is given beside train_config: set it there.",
    ),
    "no tokenizer": (
        lambda: default_train("run", "gs://bucket/tokens", SMALL, TRAINING),
        f"tokenized is 'gs://bucket/tokens', {NO_TOKENIZER}",
    ),
    "another step's tokens": (
        lambda: default_train("run", tokenize_files("chats", ["gs://b/*.jsonl"], LLAMA_3), SMALL, TRAINING, (), False),
        "Step 'chats' is not of default_tokenize, so its config does not name texts and format of its token cache",
    ),
    "the name of a size": (
        lambda: default_train("run", TEXTS, "tiny", TRAINING),
        "model_config is 'tiny', which is no model: give one such as llama('llama_150m') or lazy('levanter.models.",
    ),
    "a step for a model": (
        lambda: taught(model=TEXTS, model_name_or_path="a/b"),
        "model_config is ExecutorStep('tokenized/corpus'), which is no model: give one such as llama(",
    ),
    "a model of unknown length for simulated epochs": (
        lambda: simulated_epoching_train("run", TEXTS, lazy(LAZY), TRAINING, 10**12),
        f"model_config is lazy('{LAZY}', ), which has no max_seq_len, so its tokens cannot",
    ),
    "a slice in words": (lambda: trained(resources="v4-16"), f"resources is 'v4-16', {NO_DEVICE}"),
    "no place for preferences": (
        lambda: default_dpo("d", TEXTS, SMALL, SimpleDPOConfig(None, model_name_or_path="a/b")),
        f"resources is None, {NO_DEVICE}",
    ),
    "no model": (lambda: llama("llama_9b"), "llama_9b is no model of Marin: there are llama_nano, llama_30m, "),
    "hub without a name": (
        lambda: tuned(initialize_from_hf=True),
        "initialize_from_hf is True and model_name_or_path is missing: give the initial weights.",
    ),
    "no checkpoint": (
        lambda: tuned(initialize_from_hf=False),
        "initialize_from_hf is False and initialize_from_checkpoint_path is missing: give the initial checkpoint.",
    ),
    "no weights for a fine-tuning": (tuned, NO_WEIGHTS),
    "no weights for preferences": (taught, NO_WEIGHTS),
    "a length that nothing reads": (
        lambda: taught(model_name_or_path="a/b", max_seq_len=512),
        "max_seq_len=512 is not used, as in Marin: give train_seq_len, or a model with that context.",
    ),
    "a length that is not the model's": (
        lambda: tuned(model_name_or_path="a/b", max_seq_len=512),
        "max_seq_len=512 is not used: the model's context of 1024 decides. Give a model with the wanted",
    ),
    "a length that is not a lazy model's": (
        lambda: tuned(model=lazy(LAZY, max_seq_len=64), model_name_or_path="a/b", max_seq_len=512),
        "max_seq_len=512 is not used: the model's context of 64 decides. Give a model with the wanted",
    ),
    "two kinds of weights for preferences": (
        lambda: taught(model_name_or_path="a/b", initialize_from_checkpoint_path="c/step-1", initialize_from_hf=False),
        "model_name_or_path and initialize_from_checkpoint_path are both given, and the training starts from the",
    ),
    "sequences that are too long for preferences": (
        lambda: taught(model_name_or_path="a/b", train_seq_len=1_000_000),
        "train_config.train_seq_len=1000000 is longer than the model's context, max_seq_len=",
    ),
    "new tokens": (
        lambda: tuned(model_name_or_path="a/b", reinit_tokens=True),
        "reinit_tokens is no option of a training with Levanter: leave it out.",
    ),
    "a relative path to begin with": (
        lambda: trained(initialize_from_checkpoint_path="a/step-1"),
        f"initialize_from_checkpoint_path is 'a/step-1', {RELATIVE.format('a/step-1')}",
    ),
    "a relative path to fine-tune": (
        lambda: tuned(initialize_from_checkpoint_path=versioned("a")),
        f"initialize_from_checkpoint_path is 'a', {RELATIVE.format('a')}",
    ),
    "a relative path of preferences": (
        lambda: taught(initialize_from_checkpoint_path="a"),
        f"initialize_from_checkpoint_path is 'a', {RELATIVE.format('a')}",
    ),
    "a relative path to compare with": (
        lambda: taught(model_name_or_path="a/b", reference_model_path="a", reference_is_hf=False),
        f"reference_model_path is 'a', {RELATIVE.format('a')}",
    ),
    "no step in the path": (
        lambda: default_anneal("a", AnnealConfig(None, "gs://b/step-3/weights")),
        "initialize_from_checkpoint_path is 'gs://b/step-3/weights': give the path of a checkpoint that ends with its",
    ),
    "a step for a checkpoint's path": (
        lambda: default_anneal("a", AnnealConfig(None, trained())),
        "initialize_from_checkpoint_path is ExecutorStep('checkpoints/run'): give the path of a checkpoint that ends",
    ),
}

OF_NO_STEP = ("a speedrun without data", "no model")


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_training_is_refused_at_parse(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(ValueError) as error:
        make()
    step = "" if case in OF_NO_STEP else "Step '[a-z]+': "
    assert re.match(step + re.escape(message), str(error.value)), error.value


EXPERIMENT = """
from experiments.defaults import default_tokenize, default_train
from experiments.llama import llama3_tokenizer, llama_30m
from experiments.simple_train_config import SimpleTrainConfig
from experiments.speedrun.prebuilt_caches import fineweb_edu_subcache_10M
from marin.execution.executor import executor_main
from marin.resources import TpuPodConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun

corpus = default_tokenize("corpus", "gs://bucket/texts/*.jsonl.gz", llama3_tokenizer)
config = SimpleTrainConfig(TpuPodConfig("v4-32", 2), 512, 1000, 3e-3, weight_decay=0.1)
if __name__ == "__main__":
    executor_main([default_train("run", corpus, llama_30m, config, use_default_validation=False)])
    speedrun = SpeedrunConfig(Author("A", "B"), "About it.", llama_30m, config, fineweb_edu_subcache_10M)
    executor_main(default_speedrun("run", speedrun))
"""


def test_marin_defaults_stand_in_until_checkout_has_its_own(tmp_path: Path) -> None:
    put(tmp_path / "experiments/a.py", EXPERIMENT)
    call, of_speedrun = run(tmp_path, "a").calls
    assert [step.name for step in of_speedrun.steps] == ["checkpoints/speedrun/run", "speedrun/run-speedrun_results"]
    assert [step.output_path for step in resolve(call.steps, "gs://marin").steps] == [
        step.output_path for step in resolve([trained()], "gs://marin").steps
    ]
    own = "def default_train(*given, **named): return ExecutorStep('his own', None, None)\n"
    put(tmp_path / "experiments/defaults.py", f"{EXECUTOR}def default_tokenize(*given): pass\n{own}")
    assert names(run(tmp_path, "a"))[0] == ["his own"]
