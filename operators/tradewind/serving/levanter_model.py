"""A model of Levanter's from a Hugging Face export, compiled to score sequences and to generate token by token.

Shapes are few and fixed, so few programs are compiled, and what a sequence gets does not depend on the others that are
computed with it: scores come from padded batches of some lengths, prompts are read one at a time in pieces of some
lengths, and each step of generation has a row for each of ``max_seqs`` sequences.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax.partitioning import set_mesh
from levanter.inference.page_table import PageBatchInfo, PageTableSpec
from levanter.layers.attention import AttentionMask
from levanter.utils.mesh import MeshConfig, create_mesh_from_axis_specs
from levanter.utils.tree_utils import inference_mode

from tradewind.recipes.lm.levanter_parts import exported_model, precision, quiet_libraries
from tradewind.recipes.lm.stored_models import refuse_own_code
from tradewind.serving.levanter_requests import MAX_LOGPROBS
from tradewind.storage.bounded_read import SMALL, read_local

_DEFAULT_CONTEXT: Final = 4096
"""Longest sequence by default, if the model's own context is longer."""
_SHORTEST: Final = 128
_BATCH_TOKENS: Final = 4096
_BATCH_ROWS: Final = 16
_PIECES: Final = (32, 512)
"""Tokens of a prompt that are read at a time."""
_PAGE: Final = 64
_HEAD_TOKENS: Final = 256
"""Tokens of a batch of which the scores of the whole vocabulary are in memory at once."""


@dataclass(frozen=True)
class Scores:
    """What the model says of the tokens of a sequence."""

    logprobs: np.ndarray
    """Of each token but the first, given those before it: float32, shape ``[tokens - 1]``."""
    top_ids: np.ndarray
    """The likeliest next tokens after each token: int32, shape ``[tokens, top]``."""
    top_logprobs: np.ndarray


@dataclass(frozen=True)
class Row:
    """A sequence that reads ``tokens``, after ``start`` others, and draws the next one."""

    slot: int
    tokens: Sequence[int]
    start: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class ScoredToken:
    """A token and the likeliest ones in its place, with log probabilities before temperature and ``top_p``."""

    token: int
    logprob: float | None
    """None for the first token of a sequence, in whose place there are no others."""
    top_ids: np.ndarray
    top_logprobs: np.ndarray


class LevanterModel:
    """The model in ``folder``, on all devices of this process.

    Raises:
        ValueError: Levanter has no such model, or it has no such context.
    """

    def __init__(self, folder: str, *, max_seq_len: int | None, max_seqs: int) -> None:
        quiet_libraries()
        config, converter = described(folder)
        if max_seq_len is not None and max_seq_len > config.max_seq_len:
            raise ValueError(f"max_seq_len={max_seq_len} is longer than the model's context of {config.max_seq_len}.")
        self.max_seq_len: int = max_seq_len or min(config.max_seq_len, _DEFAULT_CONTEXT)
        self.max_seqs = max_seqs
        self._mesh, mesh_config = _mesh(config)
        self._mapping: Mapping[str, Any] = mesh_config.resolved_compute_mapping
        with set_mesh(self._mesh):
            model = converter.load_pretrained(
                config.model_type,
                ref=folder,
                config=config,
                axis_mapping=mesh_config.resolved_param_mapping,
                dtype=precision().compute_dtype,
            )
        self._model = inference_mode(model, True)
        self.vocab_size: int = model.Vocab.size
        self._has_cache = hasattr(model, "decode")
        self._read: dict[int, list[int]] = {}
        """Slot → tokens of its sequence, for models of which Levanter does not keep what they have read."""
        self._top = min(MAX_LOGPROBS, self.vocab_size)
        self._pages = _even(math.ceil(self.max_seq_len / _PAGE))
        self._step = eqx.filter_jit(partial(_step, self._top), donate="all-except-first")
        self._reread = eqx.filter_jit(partial(_reread, self._top))
        self._score = eqx.filter_jit(partial(_score, self._top))
        self._cache: Any = None

    @contextmanager
    def _devices(self) -> Iterator[None]:
        with set_mesh(self._mesh), hax.axis_mapping(self._mapping):
            yield

    def bucket(self, length: int) -> int:
        """Return the length that a sequence of ``length`` tokens is padded to."""
        padded = max(_SHORTEST, 1 << (length - 1).bit_length())
        return min(padded, self.max_seq_len)

    def rows_of(self, bucket: int) -> int:
        """Return how many sequences of a bucket are scored at a time."""
        parts = int(self._mesh.shape["data"])
        return max(1, min(_BATCH_ROWS, _BATCH_TOKENS // bucket) // parts) * parts

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scores]:
        """Score at most ``rows_of`` sequences of one bucket."""
        bucket = self.bucket(max(map(len, sequences)))
        tokens = np.zeros((self.rows_of(bucket), bucket), np.int32)
        for row, sequence in zip(tokens, sequences, strict=False):
            row[: len(sequence)] = sequence
        with self._devices():
            logprobs, ids, tops = jax.device_get(self._score(self._model, tokens))
        return [
            Scores(logprobs[n, : len(each) - 1], ids[n, : len(each)], tops[n, : len(each)])
            for n, each in enumerate(sequences)
        ]

    def read_prompt(self, row: Row) -> ScoredToken:
        """Read the tokens of a new sequence, and draw the next one."""
        if not self._has_cache:
            return self.read_next([row])[0]
        done, end = 0, len(row.tokens)
        while True:
            size = next((size for size in _PIECES if end - done <= size), _PIECES[-1])
            piece = row.tokens[done : done + size]
            [drawn] = self._run([Row(row.slot, piece, done, row.temperature, row.top_p, row.seed)], size, 1)
            done += len(piece)
            if done == end:
                return drawn

    def read_next(self, rows: Sequence[Row]) -> list[ScoredToken]:
        """Read one more token of each sequence, and draw the next one."""
        if self._has_cache:
            return self._run(rows, self.max_seqs, self.max_seqs)
        return [self._read_again(row) for row in rows]

    def forget(self) -> None:
        """Give back the memory of what was read: after an error, it is not known."""
        self._cache = None
        self._read.clear()

    def _read_again(self, row: Row) -> ScoredToken:
        """Read a sequence from its begin; alone, so that its padding does not depend on others."""
        read = self._read[row.slot] = [*self._read.get(row.slot, [])[: row.start], *row.tokens]
        tokens = np.zeros((self._mesh.shape["data"], self.bucket(len(read))), np.int32)
        tokens[0, : len(read)] = read
        temperature, top_p = np.array([[row.temperature], [row.top_p]], np.float32)
        seed, last = np.array([row.seed], np.uint32).view(np.int32), np.array([len(read) - 1], np.int32)
        with self._devices():
            drawn = self._reread(self._model, tokens, last, temperature, top_p, seed)
        return _as_drawn(jax.device_get(drawn), 0)

    def _run(self, rows: Sequence[Row], width: int, height: int) -> list[ScoredToken]:
        batch = self._packed(rows, width, height)
        with self._devices():
            if self._cache is None:
                spec = PageTableSpec(self._pages * self.max_seqs, _PAGE)
                make = hax.named_jit(self._model.initial_cache, axis_resources=self._mapping)
                self._cache = make(spec, dtype=precision().compute_dtype)
            cache, self._cache = self._cache, None
            self._cache, drawn = self._step((self._model, *batch), cache)
        arrays = jax.device_get(drawn)
        return [_as_drawn(arrays, n) for n in range(len(rows))]

    def _packed(self, rows: Sequence[Row], width: int, height: int) -> tuple[Any, ...]:
        """Put the new tokens of all sequences in a row, each with the place of its key and value in the cache."""
        tokens, positions, places = (np.zeros(width, np.int32) for _ in range(3))
        lengths, last, seeds, slots = (np.zeros(height, np.int32) for _ in range(4))
        ends = np.zeros(height + 1, np.int32)
        pages = np.zeros((height, self._pages), np.int32)
        temperatures, top_ps = np.zeros(height, np.float32), np.ones(height, np.float32)
        at = 0
        for n, row in enumerate(rows):
            stop = at + len(row.tokens)
            tokens[at:stop] = row.tokens
            positions[at:stop] = np.arange(row.start, row.start + len(row.tokens))
            places[at:stop] = positions[at:stop] + row.slot * self._pages * _PAGE
            pages[n] = np.arange(row.slot * self._pages, (row.slot + 1) * self._pages)
            slots[n], lengths[n], last[n] = row.slot, row.start + len(row.tokens), stop - 1
            seeds[n], temperatures[n], top_ps[n] = np.uint32(row.seed).view(np.int32), row.temperature, row.top_p
            ends[n + 1 :] = at = stop
        info = PageBatchInfo(
            slot_ids=hax.named(jnp.asarray(slots), "seq"),
            page_indices=hax.named(jnp.asarray(pages), ("seq", "page")),
            seq_lens=hax.named(jnp.asarray(lengths), "seq"),
            cu_q_lens=hax.named(jnp.asarray(ends), "seq"),
            num_seqs=jnp.asarray(len(rows), jnp.int32),
            new_token_dests=hax.named(jnp.asarray(places), "position"),
            page_size=_PAGE,
        )
        return tokens, positions, info, last, temperatures, top_ps, seeds


def _step(top: int, given: tuple[Any, ...], cache: Any) -> tuple[Any, tuple[Any, ...]]:
    model, tokens, positions, info, last, temperatures, top_ps, seeds = given
    logits, cache = model.decode(hax.named(tokens, "position"), cache, info, hax.named(positions, "position"))
    logits = logits["position", hax.named(last, "seq")].rearrange(("seq", model.Vocab)).array.astype(jnp.float32)
    return cache, _drawn(top, logits, temperatures, top_ps, seeds, positions[last])


def _reread(
    top: int, model: Any, tokens: Any, last: Any, temperatures: Any, top_ps: Any, seeds: Any
) -> tuple[Any, ...]:
    logits = _states(model, tokens)[:1, last[0]] @ _head(model)
    return _drawn(top, logits.astype(jnp.float32), temperatures, top_ps, seeds, last)


def _drawn(top: int, logits: Any, temperatures: Any, top_ps: Any, seeds: Any, positions: Any) -> tuple[Any, ...]:
    drawn = _draw(logits, temperatures, top_ps, seeds, positions)
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    tops, ids = jax.lax.top_k(logprobs, top)
    return drawn, jnp.take_along_axis(logprobs, drawn[:, None], axis=-1)[:, 0], ids, tops


def _as_drawn(arrays: tuple[Any, ...], n: int) -> ScoredToken:
    tokens, logprobs, ids, tops = arrays
    return ScoredToken(int(tokens[n]), float(logprobs[n]), ids[n], tops[n])


def _draw(logits: Any, temperatures: Any, top_ps: Any, seeds: Any, positions: Any) -> Any:
    """Draw a token of each row: the likeliest if its temperature is 0. A seed and a position always draw the same."""
    scaled = logits / jnp.where(temperatures > 0, temperatures, 1.0)[:, None]

    def nucleus(scaled: Any) -> Any:
        """Keep the likeliest tokens that reach ``top_p`` together."""
        falling = -jnp.sort(-scaled, axis=-1)
        chances = jax.nn.softmax(falling, axis=-1)
        kept = jnp.sum(jnp.cumsum(chances, axis=-1) - chances < top_ps[:, None], axis=-1)
        least = jnp.take_along_axis(falling, kept[:, None] - 1, axis=-1)
        return jnp.where((scaled >= least) | (top_ps[:, None] >= 1), scaled, -jnp.inf)

    scaled = jax.lax.cond(jnp.any(top_ps < 1), nucleus, lambda same: same, scaled)
    keys = jax.vmap(lambda seed, position: jax.random.fold_in(jax.random.key(seed), position))(seeds, positions)
    return jnp.where(temperatures > 0, jax.vmap(jax.random.categorical)(keys, scaled), jnp.argmax(logits, axis=-1))


def _score(top: int, model: Any, tokens: Any) -> tuple[Any, Any, Any]:
    """Return log probabilities of each next token, and the likeliest next tokens with theirs."""
    rows, length = tokens.shape
    states = _states(model, tokens).reshape(rows * length, -1)
    following = jnp.roll(tokens, -1, axis=1).reshape(-1)
    head = _head(model)

    def of_part(part: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        states, following = part
        logprobs = jax.nn.log_softmax((states @ head).astype(jnp.float32), axis=-1)
        tops, ids = jax.lax.top_k(logprobs, top)
        return jnp.take_along_axis(logprobs, following[:, None], axis=-1)[:, 0], ids, tops

    count = rows * length
    padding = -count % _HEAD_TOKENS
    states = jnp.pad(states, ((0, padding), (0, 0))).reshape(-1, _HEAD_TOKENS, states.shape[-1])
    logprobs, ids, tops = jax.lax.map(of_part, (states, jnp.pad(following, (0, padding)).reshape(-1, _HEAD_TOKENS)))
    shaped = (each.reshape(count + padding, -1)[:count].reshape(rows, length, -1) for each in (logprobs, ids, tops))
    logprobs, ids, tops = shaped
    return logprobs[..., 0], ids, tops


def _states(model: Any, tokens: Any) -> Any:
    """Return the activations from which the head predicts the next token: shape ``[rows, length, width]``."""
    given = hax.shard(hax.named(tokens, ("batch", "position")))
    found = model.activations(given, attn_mask=AttentionMask.causal())
    activations = found[0] if isinstance(found, tuple) else found  # some models add a loss of their own
    return activations.rearrange(("batch", "position", model.Embed)).array


def _head(model: Any) -> Any:
    return model.get_lm_head().rearrange((model.Embed, model.Vocab)).array


def described(folder: str) -> tuple[Any, Any]:
    """Return Levanter's config of the model in ``folder``, and what converts its weights."""
    file = os.path.join(folder, "config.json")
    content = read_local(file, SMALL)
    if content.flaw:
        raise ValueError(f"{file}: {content.flaw}")
    described = json.loads(content.text)
    kind = described.get("model_type") if isinstance(described, dict) else None
    try:
        made = exported_model(str(kind))()
    except ValueError as error:
        raise ValueError(f"{file}: {error} The engine vllm may have it.") from None
    refuse_own_code(folder)
    converter = made.hf_checkpoint_converter(ref_checkpoint=folder)
    return converter.config_from_hf_config(converter.hf_config_from_hf_checkpoint(folder)), converter


def _mesh(config: Any) -> tuple[Any, MeshConfig]:
    """Return a mesh that divides the heads among the devices, as far as they go, and batches among the rest."""
    devices = jax.device_count()
    parts = math.gcd(devices, getattr(config, "num_kv_heads", getattr(config, "num_heads", 1)))
    mesh = MeshConfig(
        axes={"data": devices // parts, "model": parts},
        shared_mapping={"kv_head": "model"},
        param_mapping={},
    )
    ici, dcn = mesh.axis_shapes(devices, 1)
    return create_mesh_from_axis_specs(ici_axes=ici, dcn_axes=dcn), mesh


def _even(number: int) -> int:
    """Round up to an even number: Levanter's attention for CPUs reads pages in pairs."""
    return number + number % 2
