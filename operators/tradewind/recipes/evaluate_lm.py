"""Evaluate a trained model, from its checkpoint and from its export, which must agree, and draw a sample.

Levanter cuts the validation tokens into sequences of ``seq_len`` and predicts all tokens of a sequence but its first.
Over exactly these predicted tokens:

    loss          = total nats / number of tokens
    bits per byte = total nats / ln 2 / total UTF-8 bytes of the text that these tokens spell

``tradewind.recipes.lm.token_bytes`` says what a token spells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, exists, join, write_json
from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.levanter_parts import quiet_libraries
from tradewind.recipes.lm.stored_models import ModelAxes, load_checkpointed, load_export, model_axes
from tradewind.recipes.lm.token_bytes import token_bytes
from tradewind.recipes.model_spec import MODEL_SIZES, check_context
from tradewind.recipes.train_lm import checkpoints_path, export_path
from tradewind.steps.fields import PATH, SOME_TEXT, TEXT, check_fields, integer, number, one_of
from tradewind.steps.needs import needs
from tradewind.storage import file_system_at

if TYPE_CHECKING:
    import numpy as np
    from levanter.data.text import LmDataConfig

_STEP: Final = re.compile(r"step-(\d+)")
"""Folder of one of several exports of a training."""


@dataclass(frozen=True)
class Score:
    """Cost of a text for a model."""

    nats: float
    tokens: int
    text_bytes: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the text."""
        return self.nats / math.log(2) / self.text_bytes


def bytes_of_predicted(spelled: np.ndarray, seq_len: int) -> int:
    """Return the bytes of the predicted tokens of a split, given those of all its tokens in a row.

    An incomplete last sequence is left out.
    """
    sequences = len(spelled) // seq_len
    return int(spelled[: sequences * seq_len].reshape(sequences, seq_len)[:, 1:].sum())


def total_nats(model: Any, batches: Iterable[Any], precision: Any, mapping: Any) -> tuple[float, int]:
    """Sum nats and predicted tokens over ``batches`` of Levanter examples."""
    import haliax as hax
    import jax.numpy as jnp

    @hax.named_jit(axis_resources=mapping)
    def of_batch(model: Any, batch: Any) -> tuple[Any, Any]:
        model = precision.cast_to_compute(model)
        losses = model.compute_next_token_loss(batch, reduction=None, reduction_axis=()).array
        weights = batch.loss_weight.array  # 0 for tokens that are not predicted, and for padding
        return jnp.sum(losses * weights), jnp.sum(weights)

    sums = [of_batch(model, batch) for batch in batches]
    return sum(float(nats) for nats, _ in sums), round(sum(float(tokens) for _, tokens in sums))


@dataclass(frozen=True)
class SamplingOptions:
    """Options of ``sample``."""

    num_tokens: int
    temperature: float
    seed: int


def sample(model: Any, prompt: Sequence[int], options: SamplingOptions, end_of_text: int, mapping: Any) -> list[int]:
    """Draw the tokens that follow ``prompt`` (at least one token), up to and without ``end_of_text``.

    Each token is drawn from ``softmax(logits / temperature)`` given at most the last ``seq_len`` tokens, with one
    forward pass per token: a sample of some hundred tokens needs no key-value cache. ``mapping`` is the sharding of the
    weights.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    draw = _draw(model.Pos, options.temperature, mapping)
    length = model.Pos.size
    tokens = list(prompt)
    key = jax.random.PRNGKey(options.seed)
    for number_of_token in range(options.num_tokens):
        recent = tokens[-length:]
        window = np.zeros(length, dtype=np.int32)
        window[: len(recent)] = recent  # the causal mask hides the padding
        last = jnp.asarray(len(recent) - 1)  # an int would be compiled in, again for every token
        token = int(draw(model, window, last, jax.random.fold_in(key, number_of_token)))
        if token == end_of_text:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def _draw(position: Any, temperature: float, mapping: Any) -> Any:
    """Return a compiled function of model, token window, index of the last token, and key: the next token."""
    import haliax as hax
    import jax
    import jax.numpy as jnp
    from levanter.layers.attention import AttentionMask

    @hax.named_jit(axis_resources=mapping)
    def draw(model: Any, window: Any, last: Any, key: Any) -> Any:
        logits = model(hax.named(window, position), attn_mask=AttentionMask.causal()).array[last]
        return jax.random.categorical(key, logits.astype(jnp.float32) / temperature)

    return draw


@dataclass(frozen=True)
class LmEvalConfig:
    """Model and data of ``evaluate_lm``, and the sample that it draws."""

    train_path: str
    """Output of a training."""
    cache_path: str
    """Output of ``build_token_cache``, whose validation split the model predicts."""
    tokenizer_path: str
    """The tokenizer of that cache and that model; byte-level or of SentencePiece."""
    output_path: str
    """Gets ``results.json``."""
    model_size: str = ""
    """As in training."""
    seq_len: int = field(kw_only=True)
    """As in training."""
    batch_size: int = 8
    """Sequences at a time, a multiple of the number of devices. Does not change the result."""
    prompt: str | None = None
    """Begin of the sample; with ``None`` the model begins a text, as after an end of text."""
    sample_tokens: int = 200
    """Maximum number of tokens after the prompt."""
    temperature: float = 0.8
    """Below 1, the sample prefers likely tokens; above 1, unlikely ones."""
    seed: int = 0
    """Seed of the sample."""
    model: Any = None
    """As in training."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            train_path=PATH,
            cache_path=PATH,
            tokenizer_path=PATH,
            output_path=PATH,
            model_size=one_of(MODEL_SIZES) if self.model is None else TEXT,
            seq_len=integer(2),
            batch_size=integer(1),
            prompt=SOME_TEXT.or_none(),
            sample_tokens=integer(0),
            temperature=number(above=0),
            seed=integer(),
        )
        check_context(self.model, self.seq_len)


@needs("jax", "levanter")
def evaluate_lm(config: LmEvalConfig) -> dict[str, Any]:
    """Write and return ``{"checkpoint": {"loss", "bpb"}, "hf": {...}, "tokens", "bytes", "prompt", "sample"}``.

    ``loss`` is in nats per token, ``bpb`` in bits per UTF-8 byte, as this module
    defines them. Runs in one process.

    Raises:
        ValueError: An input is missing.
    """
    export = _export_under(config.train_path)
    quiet_libraries()
    levanter_parts.keep_compilations(config.output_path)
    levanter_parts.check_batch_size(config.batch_size, levanter_parts.device_count())
    tokenizer = local_tokenizer(config.tokenizer_path)
    results = _evaluate(config, export, levanter_parts.cached_data(config.cache_path, tokenizer), tokenizer)
    write_json(join(config.output_path, "results.json"), results)
    print("\n".join(result_lines(basename(config.train_path), results)), flush=True)
    return results


def result_lines(trained: str, results: Mapping[str, Any]) -> list[str]:
    """Return the result's lines for the task log."""
    checkpoint, export = (
        f"loss {results[name]['loss']:.3f}, {results[name]['bpb']:.3f} bits per byte" for name in ("checkpoint", "hf")
    )
    return [f"evaluated {trained} on {results['tokens']:,} tokens: {checkpoint}", f"  export: {export}"]


def _export_under(train_path: str) -> str:
    if not exists(checkpoints_path(train_path)):
        raise ValueError(f"There are no checkpoints under train_path {train_path}.")
    if (export := newest_export(train_path)) is None:
        raise ValueError(f"There is no Hugging Face export under train_path {train_path}.")
    return export


def newest_export(train_path: str) -> str | None:
    """Return the export of ``train_lm``, or the last one of a training with several; None without one."""
    fs, root = file_system_at(export_path(train_path))
    paths = fs.ls(root, detail=False) if fs.exists(root) else []
    steps = {int(match[1]): match[0] for path in paths if (match := _STEP.fullmatch(basename(path)))}
    folders = [export_path(train_path), *(join(export_path(train_path), steps[step]) for step in sorted(steps)[-1:])]
    return next((folder for folder in folders if exists(join(folder, "config.json"))), None)


def _evaluate(config: LmEvalConfig, export: str, data: LmDataConfig, tokenizer: str) -> dict[str, Any]:
    from haliax.partitioning import set_mesh
    from levanter.utils.mesh import create_mesh_from_axis_specs

    mesh_config = levanter_parts.mesh()
    ici, dcn = mesh_config.axis_shapes(levanter_parts.device_count(), 1)
    mesh = create_mesh_from_axis_specs(ici_axes=ici, dcn_axes=dcn)
    model = levanter_parts.language_model(config.model, config.model_size, config.seq_len, tokenizer)
    with set_mesh(mesh):
        axes = model_axes(model, len(data.the_tokenizer), mesh_config.resolved_param_mapping)
        scorer = _Scorer(config, data, axes, mesh, mesh_config.resolved_compute_mapping)
        checkpointed = load_checkpointed(axes, checkpoints_path(config.train_path))
        exported = load_export(axes, data.the_tokenizer, export, levanter_parts.precision())
        scores = {"checkpoint": scorer.score(checkpointed), "hf": scorer.score(exported)}
        sample = _sample(config, data.the_tokenizer, checkpointed, axes)
    first = scores["checkpoint"]
    return {
        **{name: {"loss": score.loss, "bpb": score.bits_per_byte} for name, score in scores.items()},
        "tokens": first.tokens,
        "bytes": first.text_bytes,
        "prompt": config.prompt,
        "sample": sample,
    }


class _Scorer:
    """The validation split, for several models."""

    def __init__(self, config: LmEvalConfig, data: LmDataConfig, axes: ModelAxes, mesh: Any, mapping: Any) -> None:
        import numpy as np
        from levanter.data import DataLoader

        dataset = data.validation_sets(axes.config.max_Pos.resize(config.seq_len))[levanter_parts.COMPONENT]
        if not len(dataset.as_sync_dataset()):
            raise ValueError(f"The validation split under cache_path {config.cache_path} is shorter than seq_len.")
        self.batches = DataLoader(dataset, config.batch_size, mesh=mesh, axis_resources=mapping)
        self.mapping = mapping
        spelling = token_bytes(data.the_tokenizer)
        if spelling is None:
            raise ValueError(f"tokenizer_path {config.tokenizer_path} is neither byte-level nor of SentencePiece.")
        tokens = levanter_parts.all_tokens(data.build_caches("validation")[levanter_parts.COMPONENT])
        starts = np.concatenate([[0], np.flatnonzero(tokens == spelling.end_of_text) + 1])
        self.text_bytes = bytes_of_predicted(spelling.spelled(tokens, starts), config.seq_len)

    def score(self, model: Any) -> Score:
        """Score one model on the split."""
        from levanter.utils.tree_utils import inference_mode

        nats, tokens = total_nats(inference_mode(model, True), self.batches, levanter_parts.precision(), self.mapping)
        return Score(nats, tokens, self.text_bytes)


def _sample(config: LmEvalConfig, tokenizer: Any, model: Any, axes: ModelAxes) -> str:
    """Return the prompt and its continuation."""
    prompt = [] if config.prompt is None else tokenizer.encode(config.prompt)
    options = SamplingOptions(config.sample_tokens, config.temperature, config.seed)
    following = sample(model, prompt or [tokenizer.eos_token_id], options, tokenizer.eos_token_id, axes.mapping)
    return str(tokenizer.decode([*prompt, *following]))
