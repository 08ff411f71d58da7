"""Let a model go on with a text: seeded sampling with a temperature, one forward pass per token.

There is no key-value cache: a sample is a few hundred tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw: how many tokens, how boldly, and from which seed."""

    num_tokens: int
    temperature: float
    seed: int


def sample(model: Any, prompt: Sequence[int], options: SamplingOptions, end_of_text: int, mapping: Any) -> list[int]:
    """The tokens that follow ``prompt`` (at least one token); ends early at ``end_of_text``, which is left out.

    Each token is drawn from ``softmax(logits / temperature)`` given at most the last ``seq_len`` tokens. ``mapping``
    says how the weights are sharded.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    draw = _draw(model.Pos, options.temperature, mapping)
    length = model.Pos.size
    tokens = list(prompt)
    key = jax.random.PRNGKey(options.seed)
    for number in range(options.num_tokens):
        recent = tokens[-length:]
        window = np.zeros(length, dtype=np.int32)
        window[: len(recent)] = recent  # what follows is hidden from the last token by the causal mask
        last = jnp.asarray(len(recent) - 1)  # a plain number would be compiled in, anew for every token
        token = int(draw(model, window, last, jax.random.fold_in(key, number)))
        if token == end_of_text:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def _draw(position: Any, temperature: float, mapping: Any) -> Any:
    """A compiled function of model, window of tokens, index of the last one, and key: the next token."""
    import haliax as hax
    import jax
    import jax.numpy as jnp
    from levanter.layers.attention import AttentionMask

    @hax.named_jit(axis_resources=mapping)
    def draw(model: Any, window: Any, last: Any, key: Any) -> Any:
        logits = model(hax.named(window, position), attn_mask=AttentionMask.causal()).array[last]
        return jax.random.categorical(key, logits.astype(jnp.float32) / temperature)

    return draw
