"""Computations of model configs while steps are built: sizes, costs, norms and attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from tradewind.marin.legacy.flops import lm_flops_per_token

Config = Any
"""A model config of the legacy API, or of a user's class that inherits from one."""


def check_heads(config: Config) -> None:
    """Refuse heads that cannot be shared evenly among the key-value heads."""
    if config.num_heads % config.num_kv_heads:
        raise AssertionError(f"num_heads={config.num_heads} not divisible by num_kv_heads={config.num_kv_heads}.")


def _attention_params(config: Config, head_size: int) -> int:
    """Count the weights of queries, keys, values and output projection of one layer."""
    return int(2 * config.hidden_dim * head_size * (config.num_heads + config.num_kv_heads))


def _flops(glu: bool, **fields: str) -> Callable[[Config, int], float]:
    """Return the method ``flops_per_token``; ``fields`` name the config's fields for other arguments of the sum."""

    def flops_per_token(config: Config, vocab_size: int) -> float:
        given = {
            "hidden_dim": config.hidden_dim, "intermediate_dim": config.intermediate_dim, "seq_len": config.seq_len,
            "num_layers": config.num_layers, "num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads,
        }  # fmt: skip
        others = {name: getattr(config, field) for name, field in fields.items()}
        return lm_flops_per_token(**given | others, vocab_size=vocab_size, glu=glu)

    return flops_per_token


def _gpt2_flops(config: Config, vocab_size: int) -> float:
    return lm_flops_per_token(
        hidden_dim=config.hidden_dim, intermediate_dim=config.hidden_dim * config.mlp_scale,
        num_layers=config.num_layers, num_kv_heads=config.num_heads, num_heads=config.num_heads,
        seq_len=config.seq_len, vocab_size=vocab_size, glu=False,
    )  # fmt: skip


def _no_flops(config: Config, vocab_size: int) -> None:
    return None


def _params(config: Config, vocab_size: int, head_size: int, norms: int) -> int:
    layer = _attention_params(config, head_size) + config.hidden_dim * (3 * config.intermediate_dim + norms)
    ends = 2 if getattr(config, "input_embedding_norm", False) else 1
    heads = 1 if getattr(config, "tie_word_embeddings", False) else 2
    return int(config.num_layers * layer + ends * config.hidden_dim + heads * vocab_size * config.hidden_dim)


def _llama_params(config: Config, vocab_size: int) -> int:
    return _params(config, vocab_size, config.actual_head_size, 4 if config.hybrid_norm else 2)


def _olmo_params(config: Config, vocab_size: int) -> int:
    return _params(config, vocab_size, config.hidden_dim // config.num_heads, 4)


def _mixtral_params(config: Config, vocab_size: int) -> int:
    experts = config.n_routed_experts + config.n_shared_experts
    layer = _attention_params(config, config.hidden_dim // config.num_heads) + config.hidden_dim * (
        config.n_routed_experts + 3 * experts * config.intermediate_dim + 2
    )
    return int(config.num_layers * layer + config.hidden_dim + 2 * vocab_size * config.hidden_dim)


def _head_size(config: Config) -> int:
    return int(config.hidden_dim // config.num_heads) if config.head_dim is None else int(config.head_dim)


def _rms_norm(config: Config) -> Any:
    made = config.__legacy__("levanter.layers.normalization.RmsNormConfig")
    return made(use_weight=config.use_layer_norm_weight, use_bias=config.use_bias, eps=config.layer_norm_epsilon)


def _gemma_norm(config: Config) -> Any:
    made = config.__legacy__("levanter.models.gemma.GemmaNormConfig")
    return made(eps=config.layer_norm_epsilon, use_weight=True, use_bias=False)


def attention_of(config: Config, **others: Any) -> Any:
    """Return the attention config of a model config; ``others`` override its fields."""
    given = {
        "Embed": config.Embed, "num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads,
        "use_bias": getattr(config, "use_bias", False), "upcast_attn": config.upcast_attn,
        "attn_backend": config.attn_backend, "flash_attention_block_size": config.flash_attention_block_size,
        "rope": config.rope,
    }  # fmt: skip
    return config.__legacy__("levanter.layers.attention.AttentionConfig")(**{**given, **others})


def _llama_attention(config: Config) -> Any:
    norm = config.norm_config if config.use_qk_norm else None
    return attention_of(config, head_dim=config.head_dim, qk_norm=norm)


def _gemma_attention(config: Config, **others: Any) -> Any:
    norm = config.norm_config if getattr(config, "use_qk_norm", False) else None
    return attention_of(config, qk_norm=norm, **others)


def _hyena_mlp(config: Config) -> Any:
    return config.__legacy__("haliax.axis.Axis")("mlp", config.Embed.size * config.mlp_scale)


def _check_mixtral(config: Config) -> None:
    check_heads(config)
    if config.num_experts_per_tok > config.n_routed_experts:
        raise AssertionError(
            f"num_experts_per_tok={config.num_experts_per_tok} greater than by "
            f"n_routed_experts={config.n_routed_experts}."
        )


def _check_hyena(config: Config) -> None:
    if config.hidden_dim % config.num_heads:
        raise ValueError(f"hidden_dim {config.hidden_dim} must be divisible by num_heads {config.num_heads}")
    if config.seq_len % config.num_blocks:
        raise ValueError(f"seq_len {config.seq_len} must be divisible by num_blocks {config.num_blocks}")


METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "levanter.models.lm_model.LmConfig": {
        "flops_per_token": _no_flops, "total_trainable_params": lambda config: None,
    },
    "levanter.models.llama.LlamaConfig": {
        "__post_init__": check_heads, "flops_per_token": _flops(True), "total_trainable_params": _llama_params,
        "attention_config": _llama_attention, "norm_config": property(_rms_norm),
        "actual_head_size": property(_head_size),
    },
    "levanter.models.qwen.QwenConfig": {
        "__post_init__": check_heads, "flops_per_token": _flops(True),
        "attention_config": lambda config: attention_of(config, use_bias=True, use_output_bias=False),
    },
    "levanter.models.qwen.Qwen3Config": {
        "attention_config": lambda config: dataclasses.replace(_llama_attention(config), qk_norm=config.norm_config),
    },
    "levanter.models.olmo.Olmo2Config": {
        "__post_init__": check_heads, "flops_per_token": _flops(True), "total_trainable_params": _olmo_params,
        "attention_config": lambda config: attention_of(
            config, use_bias=config.attention_bias, qk_norm=config.norm_config
        ),
        "norm_config": property(_rms_norm),
    },
    "levanter.models.mistral.MistralConfig": {
        "flops_per_token": _flops(False, num_kv_heads="num_heads"), "attention_config": attention_of,
    },
    "levanter.models.mixtral.MixtralConfig": {
        "__post_init__": _check_mixtral, "total_trainable_params": _mixtral_params, "attention_config": attention_of,
        "flops_per_token": _flops(
            True, num_experts="n_routed_experts", num_shared_experts="n_shared_experts",
            num_experts_per_tok="num_experts_per_tok",
        ),
    },
    "levanter.models.gemma.GemmaConfig": {
        "__post_init__": check_heads, "flops_per_token": _flops(False), "attention_config": _gemma_attention,
        "norm_config": property(_gemma_norm),
    },
    "levanter.models.gemma.Gemma2Config": {
        "attention_config": lambda config: _gemma_attention(config, logits_soft_cap=config.attn_logit_softcapping),
    },
    "levanter.models.gemma.Gemma3Config": {
        "attention_config": lambda config: attention_of(config, qk_norm=config.norm_config),
    },
    "levanter.models.gpt2.Gpt2Config": {"flops_per_token": _gpt2_flops},
    "levanter.models.gpt2_hyena.Gpt2HyenaConfig": {
        "flops_per_token": _no_flops, "Pos": property(lambda config: config.hyena.Pos),
        "KeyPos": property(lambda config: config.hyena.KeyPos), "Embed": property(lambda config: config.hyena.Embed),
        "Mlp": property(_hyena_mlp),
    },
    "levanter.models.hyena.HyenaConfig": {"__post_init__": _check_hyena},
    "levanter.layers.attention.AttentionConfig": {"__post_init__": check_heads},
}  # fmt: skip
