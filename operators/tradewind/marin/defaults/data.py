"""Marin's defaults for data: downloads, tokenization and validation sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from tradewind.datasets.documents import SUFFIX
from tradewind.datasets.downloads import download_hf
from tradewind.datasets.tokenization import tokenize
from tradewind.datasets.uncheatable_eval import UncheatableEvalConfig, download_uncheatable_eval
from tradewind.marin.defaults.models import llama3_tokenizer
from tradewind.marin.legacy.classes import builder
from tradewind.marin.names.data_configs import add_validation_sets_to_mixture, lm_data_config
from tradewind.marin.names.steps import MarinStep, unversioned
from tradewind.marin.names.tokenizing import HfDatasetSpec, HfTokenizeConfig, TokenizeConfig
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, InputName, ensure_versioned, this_output_path, versioned
from tradewind.text import truncated_repr

__all__ = [
    "default_download",
    "default_tokenize",
    "default_validation_sets",
    "make_uncheatable_eval_step",
    "paloma_step",
    "paloma_tokenized",
    "tokenizer_of",
    "training_data",
    "uncheatable_eval_tokenized",
]

_TEXT: Final = builder().find("levanter.data.text.TextLmDatasetFormat")()
_PALOMA: Final = {
    "4chan": "4chan_meta_sep",
    **{
        name: name
        for name in (
            "c4_100_domains", "c4_en", "dolma-v1_5", "dolma_100_programing_languages", "dolma_100_subreddits",
            "falcon-refinedweb", "gab", "m2d2_s2orc_unsplit", "m2d2_wikipedia_unsplit", "manosphere_meta_sep", "mc4",
            "ptb", "redpajama", "twitterAAE_HELM_fixed", "wikitext_103",
        )
    },
}  # fmt: skip
"""Set → its folder in the hub repository, https://huggingface.co/datasets/allenai/paloma."""
_PALOMA_REVISION: Final = "65cd6fc"
_UNCHEATABLE: Final = (
    "wikipedia_english", "github_python", "github_cpp", "bbc_news", "arxiv_physics", "arxiv_computer_science",
    "ao3_english",
)  # fmt: skip
"""The English and code sets of https://github.com/Jellyfish042/uncheatable_eval."""


@naming_step
def default_download(
    name: str, hf_dataset_id: str, revision: str, override_output_path: str | None = None, **options: Any
) -> InputName:
    """Return the output of a step that downloads a repository from the Hugging Face hub.

    Args:
        name: The step's name, its only versioned value.
        hf_dataset_id: ``owner/name``.
        revision: A commit, long or short.
        override_output_path: As in ``ExecutorStep``.
        options: Fields of Marin's ``DownloadConfig``, such as ``hf_urls_glob``.
    """
    config = builder().find("marin.download.huggingface.download.DownloadConfig")(
        hf_dataset_id=hf_dataset_id,
        revision=revision,
        gcs_output_path=this_output_path(),
        wait_for_completion=True,
        **options,
    )
    about = f"Files of {hf_dataset_id} at {revision}, from the Hugging Face hub."
    return MarinStep(
        name, download_hf, config, description=about, override_output_path=override_output_path
    ).as_input_name()


@naming_step
def default_tokenize(
    name: str,
    dataset: InputName | ExecutorStep | str | HfDatasetSpec,
    tokenizer: InputName | str,
    options: Any = None,
    format: Any = _TEXT,
    *,
    sample_count: int | None = None,
    is_validation: bool = False,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ExecutorStep:
    """Return a step ``tokenized/{name}`` that builds Levanter's token cache of texts.

    Args:
        name: The data set's name.
        dataset: A step, a path, or a hub data set: ``HfDatasetSpec``, or ``owner/name`` as text.
        tokenizer: Its name, its folder or the output of a step; a versioned value.
        options: Levanter's ``CacheOptions``.
        format: Format of the texts: ``TextLmDatasetFormat``, ``ChatLmDatasetFormat``.
        sample_count: Number of documents of each file; None for all. A versioned value.
        is_validation: Whether the texts are for validation; hub data sets declare it themselves.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``HF_TOKEN`` for a private or gated data set or tokenizer.
    """
    common: dict[str, Any] = {
        "cache_path": this_output_path(),
        "tokenizer": tokenizer if isinstance(tokenizer, InputName) else ensure_versioned(tokenizer),
        "format": format,
    }
    config: Any
    if isinstance(dataset, HfDatasetSpec):
        config = HfTokenizeConfig(id=dataset.id, name=dataset.name, revision=dataset.revision, **common)
    elif isinstance(dataset, str) and dataset.count("/") == 1 and not dataset.startswith("/"):
        config = HfTokenizeConfig(id=dataset, **common)
    else:
        texts: Any = {"train_paths": [], "validation_paths": []}
        texts["validation_paths" if is_validation else "train_paths"] = [dataset]
        config = TokenizeConfig(**texts, **common)
    if options is not None:
        config = dataclasses.replace(config, cache_options=options)
    if sample_count is not None:
        config = dataclasses.replace(config, sample_count=ensure_versioned(sample_count))
    about = f"Levanter's token cache, made with the tokenizer {truncated_repr(tokenizer)}."
    return MarinStep(
        f"tokenized/{name}", tokenize, config, description=about, cluster=cluster, secrets=dict(secrets or {})
    )


@lru_cache(maxsize=8)
def default_validation_sets(tokenizer: str) -> Mapping[str, ExecutorStep]:
    """Return the validation sets of Marin's trainings: Paloma and recent texts from Uncheatable Eval."""
    return {**paloma_tokenized(tokenizer=tokenizer), **uncheatable_eval_tokenized(tokenizer)}


def paloma_tokenized(
    *, tokenizer: str = llama3_tokenizer, paloma_raw: InputName | ExecutorStep | None = None
) -> dict[str, ExecutorStep]:
    """Return the sets of Paloma, each as a tokenizing step.

    ``paloma_raw`` is the location of its files, if it is not Marin's.
    """
    folder = paloma_raw or paloma_step("raw/paloma").with_output_path("raw/paloma-fc6827").cd(_PALOMA_REVISION)
    sets = {name: folder / f"{path}/val/val*.jsonl.gz" for name, path in sorted(_PALOMA.items())}
    return _validation("paloma", sets, tokenizer)


def paloma_step(name: str) -> MarinStep:
    """Return a step that downloads Paloma; it needs ``secrets={"HF_TOKEN": ...}`` of a user with access."""
    config = builder().find("marin.download.huggingface.download.DownloadConfig")(
        hf_dataset_id=versioned("allenai/paloma"),
        revision=versioned(_PALOMA_REVISION),
        gcs_output_path=this_output_path(),
        wait_for_completion=True,
    )
    return MarinStep(name, download_hf, config, description="The evaluation sets of Paloma, from the hub.")


def make_uncheatable_eval_step(
    *,
    name: str = "raw/uncheatable-eval/latest",
    repo_owner: str = "ziqing-huang",
    repo_name: str = "uncheatable_eval",
    data_path: str = "data",
    branch: str = "master",
    max_concurrent_downloads: int = 8,
    request_timeout: int = 120,
    github_token: str | None = None,
    skip_existing: bool = True,
) -> MarinStep:
    """Return a step that downloads the newest texts of Uncheatable Eval from a repository on GitHub.

    Args:
        name: The step's name.
        repo_owner, repo_name, data_path, branch: Where the files are; they count in the version.
        max_concurrent_downloads, request_timeout, skip_existing: No effect.
        github_token: Refused, since a config is stored: a public repository needs none.

    Raises:
        ValueError: A token is given.
    """
    if github_token is not None:
        raise ValueError(
            "github_token (not shown) would be stored with the step: leave it out for a public repository."
        )
    config = UncheatableEvalConfig(
        output_path=this_output_path(),
        repo_owner=ensure_versioned(repo_owner),
        repo_name=ensure_versioned(repo_name),
        data_path=ensure_versioned(data_path),
        branch=ensure_versioned(branch),
    )
    about = "The newest texts of Uncheatable Eval, from GitHub."
    return MarinStep(name, download_uncheatable_eval, config, description=about)


def uncheatable_eval_tokenized(tokenizer: str) -> dict[str, ExecutorStep]:
    """Return texts newer than most models, English and code, each set as a tokenizing step."""
    raw = make_uncheatable_eval_step()
    sets = {name: raw / f"{name}_*{SUFFIX}" for name in _UNCHEATABLE}
    return _validation("uncheatable_eval", sets, tokenizer)


def _validation(group: str, sets: Mapping[str, InputName], tokenizer: str) -> dict[str, ExecutorStep]:
    names = {f"{group}/{name}": texts for name, texts in sets.items()}
    return {name: default_tokenize(name, texts, tokenizer, is_validation=True) for name, texts in names.items()}


def training_data(tokenized: Any, use_default_validation: bool) -> Any:
    """Return the data of a training: a tokenizing step or a mixture, optionally with default validation.

    Raises:
        ValueError: ``tokenized`` names no tokenizer.
    """
    is_one = isinstance(tokenized, (str, InputName, ExecutorStep))
    tokenizer = tokenizer_of(tokenized) if is_one or use_default_validation else None
    return with_validation(tokenized, default_validation_sets(tokenizer) if use_default_validation else {})


def with_validation(tokenized: Any, sets: Mapping[str, ExecutorStep]) -> Any:
    """Return a tokenizing step as a mixture, or a mixture, with validation sets."""
    if isinstance(tokenized, (InputName, ExecutorStep)):
        step = tokenized.step if isinstance(tokenized, InputName) else tokenized
        return lm_data_config(step, permutation_type="linear", validation_sets=sets)
    return add_validation_sets_to_mixture(tokenized, sets) if sets else tokenized


def tokenizer_of(tokenized: Any) -> Any:
    """Return the tokenizer of a tokenizing step or of a mixture.

    Raises:
        ValueError: It is neither.
    """
    step = tokenized.step if isinstance(tokenized, InputName) else tokenized
    config: Any = step.config if isinstance(step, ExecutorStep) else step
    if not hasattr(config, "tokenizer"):
        raise ValueError(
            f"tokenized is {truncated_repr(tokenized)}, which names no tokenizer: give a step of default_tokenize, or "
            "a mixture of such steps."
        )
    return unversioned(config.tokenizer)
