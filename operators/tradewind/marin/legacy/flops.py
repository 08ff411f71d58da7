"""Cost arithmetic: floating-point operations of a token, and of a device per second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


def lm_flops_per_token(
    hidden_dim: int,
    intermediate_dim: int,
    num_layers: int,
    num_kv_heads: int,
    num_heads: int,
    seq_len: int,
    vocab_size: int,
    glu: bool,
    num_experts: int = 1,
    num_shared_experts: int = 0,
    num_experts_per_tok: int = 1,
) -> float:
    """Floating-point operations of one token's forward pass through a transformer with full attention.

    The sums follow Levanter's order, so the result is the same float.
    """
    of_head = hidden_dim / num_heads
    matrices = 3 if glu else 2
    feed_forward = 2 * matrices * hidden_dim * intermediate_dim * (num_experts_per_tok + num_shared_experts)
    if num_experts > 1:
        feed_forward += 2 * hidden_dim * num_experts
    into_heads = 2 * hidden_dim * (num_heads * of_head + 2 * num_kv_heads * of_head)
    out_of_heads = 2 * hidden_dim * hidden_dim
    scores = 2 * seq_len**2 * num_heads * of_head
    masked = 3 * seq_len * seq_len * num_heads
    mixed = 2 * seq_len * seq_len * of_head * num_heads
    of_attention = (scores + masked + mixed) / seq_len
    return num_layers * (feed_forward + into_heads + out_of_heads + of_attention) + 2 * hidden_dim * vocab_size


def _hopper(half: float, fp8: float, fp64: float, tf32: float) -> dict[str, float]:
    halves = dict.fromkeys(("fp16", "amp_fp16", "bf16", "amp_bf16"), half)
    eighths = dict.fromkeys(("fp8", "amp_fp8", "int8"), fp8)
    return {"fp64": fp64, "fp32": fp64, "tf32": tf32, **halves, **eighths}


def _halves(flops: float, *names: str) -> dict[str, float]:
    return dict.fromkeys(names or ("fp16", "amp_fp16", "bf16", "amp_bf16"), flops)


DEVICE_AVAILABLE_FLOPS: Final[Mapping[str, Mapping[str, float]]] = {
    "h100-sxm": _hopper(989.5e12, 1979e12, 67e12, 494.5e12),
    "h200-sxm": _hopper(989.5e12, 1979e12, 67e12, 494.5e12),
    "h100-pcie": _hopper(756.5e12, 1513e12, 51e12, 378e12),
    "a100": {"fp64": 19.5e12, "fp32": 19.5e12, "tf32": 156e12, **_halves(312e12)},
    "a10": {"fp32": 31.2e12, "tf32": 62.5e12, **_halves(125e12)},
    "a40": {"fp32": 37.4e12, "tf32": 74.8e12, **_halves(149.7e12)},
    "v100-sxm": {"fp64": 7.8e12, "fp32": 15.7e12, **_halves(125e12, "fp16", "amp_fp16")},
    "v100-pcie": {"fp64": 7e12, "fp32": 14e12, **_halves(112e12, "fp16", "amp_fp16")},
    "v100s-pcie": {"fp64": 8.2e12, "fp32": 16.4e12, **_halves(130e12, "fp16", "amp_fp16")},
    "t4": {"fp32": 8.1e12, **_halves(65e12, "fp16", "amp_fp16"), "int8": 130e12, "int4": 260e12},
    "trn1": {"fp32": 23.75e12, "tf32": 23.75e12, **_halves(95e12), "int8": 190e12},
    "a6000": {"fp32": 19.35e12, "tf32": 154.85e12, **_halves(154.85e12, "fp16", "bf16")},
    "tpu v3": {"bf16": 61.5e12},
    "tpu v4": {"bf16": 275e12, "int8": 275e12},
    "tpu v5 lite": {"bf16": 197e12, "int8": 393e12},
    "tpu v5": {"bf16": 459e12},
    "tpu v6 lite": {"bf16": 918e12, "int8": 1836e12},
}
"""Peak floating-point operations per second of one JAX device, from the makers' data sheets."""

NAMES: Final[Mapping[str, Any]] = {
    "levanter.utils.flop_utils.lm_flops_per_token": lm_flops_per_token,
    "levanter.utils.flop_utils.DEVICE_AVAILABLE_FLOPS": DEVICE_AVAILABLE_FLOPS,
}
