"""The forward pass of ``tiny_export`` in NumPy, with which engines are compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def log_probabilities(folder: Path, tokens: list[int]) -> np.ndarray:
    """Return the log probability of each next token after each of ``tokens``: shape ``[tokens, vocabulary]``."""
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
    size, heads, epsilon = config["head_dim"], config["num_attention_heads"], config["rms_norm_eps"]
    count = len(tokens)
    angles = np.arange(count)[:, None] / config["rope_theta"] ** (np.arange(0, size, 2) / size)
    cos, sin = (np.concatenate([turn(angles)] * 2, axis=1) for turn in (np.cos, np.sin))

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * weights[f"{name}.weight"]

    def rotated(x: np.ndarray) -> np.ndarray:
        return x * cos + np.concatenate([-x[:, size // 2 :], x[:, : size // 2]], axis=1) * sin

    x = weights["model.embed_tokens.weight"][tokens]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        weight = {name.split(".")[-2]: w.T for name, w in weights.items() if name.startswith(f"{layer}.")}
        y = normed(x, f"{layer}.input_layernorm")
        keys, values = rotated(y @ weight["k_proj"]), y @ weight["v_proj"]  # one head for all queries
        read = []
        for query in np.split(y @ weight["q_proj"], heads, axis=1):
            scores = np.where(np.tri(count, dtype=bool), rotated(query) @ keys.T / size**0.5, -np.inf)
            chances = np.exp(scores - scores.max(axis=1, keepdims=True))
            read.append(chances / chances.sum(axis=1, keepdims=True) @ values)
        x = x + np.concatenate(read, axis=1) @ weight["o_proj"]
        y = normed(x, f"{layer}.post_attention_layernorm")
        gate = y @ weight["gate_proj"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ weight["up_proj"])) @ weight["down_proj"]
    logits = normed(x, "model.norm") @ weights["lm_head.weight"].T
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
