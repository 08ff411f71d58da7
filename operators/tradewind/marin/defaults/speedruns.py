"""Marin's defaults for speedruns: their common training data, and the two steps of a speedrun."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.datasets.downloads import HubDownloadConfig, download_hf
from tradewind.marin.defaults.data import paloma_step, paloma_tokenized, tokenizer_of, with_validation
from tradewind.marin.defaults.training import default_train
from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.speedruns import Author, SpeedrunConfig, SpeedrunResultsConfig
from tradewind.marin.names.steps import MarinStep
from tradewind.marin.names.tokenizing import TokenizeConfigBase
from tradewind.recipes.speedruns.results import report_marins_speedrun
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, ensure_versioned, output_path_of, this_output_path

__all__ = [
    "Author",
    "SpeedrunConfig",
    "default_speedrun",
    "download_pretokenized_cache",
    "fineweb_edu_subcache",
    "speedrun_paloma_tokenized",
]

_TEXT: Final = builder().find("levanter.data.text.TextLmDatasetFormat")()
_MARIN_TOKENIZER: Final = "stanford-crfm/marin-tokenizer"
_WANDB: Final = ("marin-community", "marin")
"""Entity and project."""
_SEED: Final = 42
"""Seed of the data of every speedrun."""


@dataclass(frozen=True)
class PretokenizedCacheConfig(TokenizeConfigBase):
    """A token cache on the Hugging Face hub; the versioned fields have Marin's names."""

    cache_path: str
    tokenizer: str
    hf_repo_id: str
    hf_revision: str | None = None
    format: Any = _TEXT
    cache_options: Any = None
    tags: list[str] = field(default_factory=list)

    def as_lm_dataset_source_config(self, actual_output_path: Any, *, include_raw_paths: bool = True) -> Any:
        return builder().find("levanter.data.text.UrlDatasetSourceConfig")(
            tags=self.tags,
            train_urls=["dummy.jsonl"],  # not read: Levanter requires one although the cache is complete
            validation_urls=[],
            cache_dir=actual_output_path,
            format=self.format,
        )


def download_token_cache(config: PretokenizedCacheConfig) -> dict[str, Any]:
    """Download the repository. Returns and raises what ``download_hf`` does."""
    return download_hf(HubDownloadConfig(config.hf_repo_id, config.hf_revision or "main", config.cache_path))


def download_pretokenized_cache(
    name: str, hf_repo_id: str, tokenizer: str, hf_revision: str | None = None, tags: Sequence[str] = ()
) -> ExecutorStep:
    """Return a step ``tokenized/subcache/{name}`` that downloads a token cache, for trainings like a tokenizing step.

    Args:
        name: The data set's name.
        hf_repo_id: ``owner/name`` of a hub data set that is a Levanter token cache.
        tokenizer: Its tokenizer.
        hf_revision: A commit; by default the newest when the step runs.
        tags: Tags of the validation losses.
    """
    config = PretokenizedCacheConfig(
        cache_path=this_output_path(),
        tokenizer=ensure_versioned(tokenizer),
        hf_repo_id=ensure_versioned(hf_repo_id),
        hf_revision=ensure_versioned(hf_revision),
        tags=list(tags),
    )
    about = f"The token cache {hf_repo_id}, from the Hugging Face hub."
    return MarinStep(f"tokenized/subcache/{name}", download_token_cache, config, description=about, resumable=("**",))


def fineweb_edu_subcache(size: str = "10B") -> ExecutorStep:
    """Return the training data of speedruns, a part of FineWeb-Edu: ``10B`` tokens, or ``10M`` for a trial."""
    repository = f"marin-community/fineweb-edu-pretokenized-{size}"
    return download_pretokenized_cache(f"fineweb-edu-{size}", repository, _MARIN_TOKENIZER)


def speedrun_paloma_tokenized(tokenizer: str) -> dict[str, ExecutorStep]:
    """Return the validation sets of speedruns: Paloma, downloaded for them."""
    return paloma_tokenized(tokenizer=tokenizer, paloma_raw=paloma_step("raw/paloma-speedrun"))


@naming_step
def default_speedrun(
    name: str, config: SpeedrunConfig, tags: Sequence[str] | None = None, override_output_path: str | None = None
) -> list[ExecutorStep]:
    """Return the training of a speedrun, and the step that writes its ``speedrun_results.json``.

    Args:
        name: The run's name; the steps are ``checkpoints/speedrun/{name}`` and ``speedrun/{name}-speedrun_results``.
        config: Author, model, length and data.
        tags: For the run at W&B.
        override_output_path: The training's output path.
    """
    config.print_run_info()
    sets = speedrun_paloma_tokenized(tokenizer_of(config.tokenized_dataset))
    trained = default_train(
        f"speedrun/{name}",
        with_validation(config.tokenized_dataset, sets),
        config.model_config,
        dataclasses.replace(config.train_config, data_seed=_SEED),
        ["speedrun", *(tags or ())],
        use_default_validation=False,
        eval_harness_tasks=(),
        override_output_path=override_output_path,
    )
    inputs = SpeedrunResultsConfig(
        wandb_run_id=override_output_path.split("/")[-1] if override_output_path else trained,
        wandb_entity=_WANDB[0],
        wandb_project=_WANDB[1],
        speedrun_config=config,
        output_path=output_path_of(trained, "speedrun_results.json"),
    )
    about = f"Cost and losses of the speedrun {name}."
    results = MarinStep(f"speedrun/{name}-speedrun_results", report_marins_speedrun, inputs, description=about)
    return [trained, results]
