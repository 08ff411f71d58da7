"""A tiny model in Hugging Face's form, written in a second without a training: both Levanter and vLLM serve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

CONTEXT: Final = 256
"""Longest sequence of the model, in tokens; most tokens are a byte."""
END: Final = "<end>"
_TEMPLATE: Final = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_LETTERS: Final = 94
"""The first tokens of the vocabulary are the visible characters of ASCII."""
_WIDTH, _HEADS, _LAYERS, _MLP = 64, 2, 2, 128


def tiny_export(folder: Path, *, chat: bool = True, seed: int = 0, kind: str = "llama") -> Path:
    """Write a Llama with random weights and its tokenizer into ``folder``; return it.

    Its likeliest tokens are characters of ASCII. Other seeds give other answers. Without ``chat`` its tokenizer
    has no chat template. A ``mistral`` has the same weights, but Levanter has no cache for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(folder, chat)
    config = {
        "architectures": [f"{kind.title()}ForCausalLM"],
        "model_type": kind,
        "hidden_size": _WIDTH,
        "intermediate_size": _MLP,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 1,
        "head_dim": _WIDTH // _HEADS,
        "vocab_size": vocabulary,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": vocabulary - 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", vocabulary, seed)
    return folder


def _write_tokenizer(folder: Path, chat: bool) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "Ġth", "the", "Ġthe", "Ġa", "in", END, "<pad>"]
    merges = [("t", "h"), ("Ġ", "th"), ("th", "e"), ("Ġth", "e"), ("Ġ", "a"), ("i", "n")]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token="<pad>", clean_up_tokenization_spaces=False
    )
    if chat:
        wrapped.chat_template = _TEMPLATE
    wrapped.save_pretrained(str(folder))
    return len(pieces)


def _write_weights(file: Path, vocabulary: int, seed: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    head = _WIDTH // _HEADS
    layer = {
        "self_attn.q_proj": (_WIDTH, _WIDTH),
        "self_attn.k_proj": (head, _WIDTH),
        "self_attn.v_proj": (head, _WIDTH),
        "self_attn.o_proj": (_WIDTH, _WIDTH),
        "mlp.gate_proj": (_MLP, _WIDTH),
        "mlp.up_proj": (_MLP, _WIDTH),
        "mlp.down_proj": (_WIDTH, _MLP),
        "input_layernorm": (_WIDTH,),
        "post_attention_layernorm": (_WIDTH,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, _WIDTH)}
    shapes |= {f"model.layers.{n}.{name}.weight": shape for n in range(_LAYERS) for name, shape in layer.items()}
    shapes |= {"model.norm.weight": (_WIDTH,), "lm_head.weight": (vocabulary, _WIDTH)}
    chance = np.random.default_rng(seed)
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else (chance.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights["lm_head.weight"] *= np.where(np.arange(vocabulary) < _LETTERS, 4, 0.4)[:, None].astype(np.float32)
    save_file(weights, str(file), {"format": "pt"})
