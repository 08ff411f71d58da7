"""Marin's helpers for use without a checkout, such as ``default_train``; versions of November 2025."""

from __future__ import annotations

from tradewind.marin.defaults.configs import AnnealConfig, SimpleDPOConfig, SimpleSFTConfig, SimpleTrainConfig
from tradewind.marin.defaults.data import default_download, default_tokenize, default_validation_sets
from tradewind.marin.defaults.models import llama
from tradewind.marin.defaults.speedruns import Author, SpeedrunConfig, default_speedrun, fineweb_edu_subcache
from tradewind.marin.defaults.training import (
    default_anneal,
    default_dpo,
    default_sft,
    default_train,
    simulated_epoching_train,
)
from tradewind.marin.names.data_configs import mixture_for_evaluation
from tradewind.marin.names.log_probs import default_lm_log_probs

__all__ = [
    "AnnealConfig",
    "Author",
    "SimpleDPOConfig",
    "SimpleSFTConfig",
    "SimpleTrainConfig",
    "SpeedrunConfig",
    "default_anneal",
    "default_download",
    "default_dpo",
    "default_lm_log_probs",
    "default_sft",
    "default_speedrun",
    "default_tokenize",
    "default_train",
    "default_validation_sets",
    "fineweb_edu_subcache",
    "llama",
    "mixture_for_evaluation",
    "simulated_epoching_train",
]
