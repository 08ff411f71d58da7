"""A stored model that gives the log probability of each token of a sequence, on all devices of all hosts.

All hosts call everything together, with the same arguments, and get the same numbers. A batch has always the same
shape, so one program is compiled for each length of sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import exists, join
from tradewind.datasets.tokenizer_files import is_on_hub, local_tokenizer
from tradewind.evaluation.model_files import from_hub
from tradewind.evaluation.scoring import CHECKPOINT, DEFAULT_SEQ_LEN, EXPORT
from tradewind.recipes.checkpoints.resume import damage
from tradewind.recipes.evaluate_lm import newest_export
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.stored_models import (
    ModelAxes,
    first_line_of,
    load_checkpointed,
    load_export,
    model_axes,
    refuse_own_code,
)
from tradewind.recipes.stored_json import read_object
from tradewind.recipes.train_lm import checkpoints_path
from tradewind.records.parsing import TEXT
from tradewind.steps.paths import HUB_PREFIX
from tradewind.text import truncated_repr

if TYPE_CHECKING:
    import numpy as np

_HUB_FILES: Final = ("*.json", "*.model", "*.jinja", "*.txt")
_HUB_WEIGHTS: Final = "*.safetensors"


@dataclass(frozen=True)
class ModelSource:
    """Where a model is.

    Attributes:
        path: Export, output of a training, checkpoints, or ``hub:ORGANISATION/NAME@COMMIT``.
        tokenizer_path: Its tokenizer; None for the one beside the export.
        model: Levanter's config of a model that has no export.
        model_size: Or its size.
        weights: ``"export"`` or ``"checkpoint"``; None for the export if there is one.
        field: Name of the field of ``path`` in errors.
    """

    path: str
    tokenizer_path: str | None = None
    model: Any = None
    model_size: str = ""
    weights: str | None = None
    field: str = "model_path"

    @cached_property
    def export(self) -> str | None:
        """The folder of the export, of the hub at first without weights; None without one."""
        if self.path.startswith(HUB_PREFIX):
            return from_hub(self.path, self.field, _HUB_FILES)
        return self.path if exists(join(self.path, "config.json")) else newest_export(self.path)

    @cached_property
    def checkpoints(self) -> str | None:
        """The folder that holds a complete checkpoint, or is one; None without any."""
        from levanter.checkpoint import latest_checkpoint_path

        for folder in (checkpoints_path(self.path), self.path):
            if not self.path.startswith(HUB_PREFIX) and exists(folder):
                try:
                    return str(latest_checkpoint_path(folder))
                except FileNotFoundError:
                    continue
        return None

    @property
    def uses_export(self) -> bool:
        """Whether the weights are the export's."""
        return self.weights == EXPORT or (self.weights is None and self.export is not None)

    def check(self) -> None:
        """Raise ``ValueError`` with the field if there is no such model, or too little is known of it."""
        shown = truncated_repr(self.path)
        if self.export is None and self.checkpoints is None:
            raise ValueError(
                f"{self.field}={shown} is no model: give an export, a training, a folder of checkpoints, or "
                "hub:ORGANISATION/NAME@COMMIT."
            )
        if self.weights == EXPORT and self.export is None:
            raise ValueError(f"{self.field}={shown} has no Hugging Face export: give weights='checkpoint'.")
        if self.weights == CHECKPOINT and self.checkpoints is None:
            raise ValueError(f"{self.field}={shown} has no checkpoint: give weights='export'.")
        if not self.uses_export and (wrong := damage(str(self.checkpoints))) is not None:
            raise ValueError(f"{self.field}: the checkpoint {self.checkpoints} is damaged, {wrong}: give another.")
        if self.export is None and self.model is None and not self.model_size:
            raise ValueError(
                f"{self.field}={shown} has a checkpoint and no export: say which model it is, with model_config."
            )
        if self.tokenizer_path is None and self.export is None:
            raise ValueError(f"tokenizer_path=None: {self.field}={shown} has no export, beside which a tokenizer is.")
        self.local_tokenizer()

    def local_tokenizer(self) -> str:
        """Return a local folder with the tokenizer, or its name on the hub."""
        path = self.tokenizer_path or self.export or ""
        if is_on_hub(path):
            return path
        refuse_own_code(path)
        return local_tokenizer(path, "tokenizer_path" if self.tokenizer_path else self.field)

    def model_config(self, tokenizer: str) -> Any:
        """Return Levanter's config of the model: that of the export, if there is one."""
        if self.export is None:
            length = self.model.max_seq_len if self.model is not None else DEFAULT_SEQ_LEN
            return levanter_parts.language_model(self.model, self.model_size, length, tokenizer)
        shown = f"{self.field}={truncated_repr(self.path)}"
        try:
            return _exported_config(self.export, tokenizer)
        except Exception as error:  # libraries raise many types
            raise ValueError(f"{shown}: Levanter cannot read the model ({first_line_of(error)}).") from error


def _exported_config(export: str, tokenizer: str) -> Any:
    """Return Levanter's config of a Hugging Face export, by the type of its model."""
    described = read_object(join(export, "config.json"), {"model_type": TEXT}, ["model_type"]) or {}
    made = levanter_parts.exported_model(described.get("model_type", ""))()
    refuse_own_code(export)
    made = levanter_parts.language_model(made, "", made.max_seq_len, tokenizer)
    found = made.hf_checkpoint_converter().config_from_hf_checkpoint(export)
    return levanter_parts.language_model(found, "", found.max_seq_len, tokenizer)


@dataclass(frozen=True)
class ScoredModel:
    """A loaded model.

    Attributes:
        tokenizer: Levanter's tokenizer.
        max_seq_len: The model's context.
        rows: Sequences of a batch.
        vocab_size: Number of tokens that the model knows.
        model: Levanter's model.
    """

    tokenizer: Any
    max_seq_len: int
    rows: int
    vocab_size: int
    model: Any
    _program: Any

    def log_probs(self, tokens: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """Return the log probability of each token given those before it of its segment: float32, same shape.

        Args:
            tokens: Shape ``[sequences, length]``.
            segments: Number of the text of each token, of the same shape: tokens of other texts are not seen, except
                by the first of each text, which is predicted from the end of the text before.

        Returns:
            Also of the same shape; the first of each sequence is not predicted, and is 0.
        """
        import numpy as np

        sequences = len(tokens)
        found = np.zeros(tokens.shape, np.float32)
        for begin in range(0, sequences, self.rows):
            missing = max(0, begin + self.rows - sequences)
            batch, texts = (
                np.pad(each[begin : begin + self.rows], ((0, missing), (0, 0))).astype(np.int32)
                for each in (tokens, segments)
            )
            nats = np.asarray(self._program(self.model, batch, texts))
            found[begin : begin + self.rows, 1:] = -nats[: self.rows - missing, :-1]
        return found


@contextmanager
def loaded(source: ModelSource, per_device_batch_size: int) -> Iterator[ScoredModel]:
    """Load a model for the ``with`` block; batches have so many sequences for each device of all hosts."""
    from haliax.partitioning import set_mesh
    from levanter.tokenizers import load_tokenizer
    from levanter.utils.mesh import create_mesh_from_axis_specs

    mesh_config = levanter_parts.mesh()
    ici, dcn = mesh_config.axis_shapes(levanter_parts.device_count(), 1)
    folder = source.local_tokenizer()
    tokenizer, config = load_tokenizer(folder), source.model_config(folder)
    with set_mesh(create_mesh_from_axis_specs(ici_axes=ici, dcn_axes=dcn)):
        axes = model_axes(config, len(tokenizer), mesh_config.resolved_param_mapping)
        model = _weights(source, axes, tokenizer)
        rows = per_device_batch_size * levanter_parts.device_count()
        program = _program(model, mesh_config.resolved_compute_mapping)
        yield ScoredModel(tokenizer, config.max_seq_len, rows, model.Vocab.size, model, program)


def _weights(source: ModelSource, axes: ModelAxes, tokenizer: Any) -> Any:
    from levanter.utils.tree_utils import inference_mode

    folder = str(source.export if source.uses_export else source.checkpoints)
    if source.path.startswith(HUB_PREFIX):
        folder = from_hub(source.path, source.field, [*_HUB_FILES, _HUB_WEIGHTS])
    try:
        if source.uses_export:
            model = load_export(axes, tokenizer, folder, levanter_parts.precision())
        else:
            model = load_checkpointed(axes, folder)
    except Exception as error:  # libraries raise many types
        raise ValueError(
            f"{source.field}: the weights in {folder} are not those of its config ({first_line_of(error)})."
        ) from error
    return inference_mode(model, True)


def _program(model: Any, mapping: Any) -> Any:
    """Return a compiled function of model, tokens and segments: nats of each token's successor, on each host."""
    import haliax as hax
    from levanter.layers.attention import AttentionMask
    from levanter.models.lm_model import LmExample

    precision, position = levanter_parts.precision(), model.Pos.name

    @hax.named_jit(axis_resources=mapping, out_axis_resources={})
    def compute(model: Any, tokens: Any, segments: Any) -> Any:
        tokens, segments = (hax.shard(hax.named(each, ("batch", position)), mapping) for each in (tokens, segments))
        example = LmExample(
            tokens=tokens,
            loss_weight=hax.ones(tokens.axes),
            attn_mask=AttentionMask.causal().with_segment_ids(segments),
        )
        nats = precision.cast_to_compute(model).compute_next_token_loss(example, reduction=None, reduction_axis=())
        return nats.rearrange(("batch", position))

    def on_each_host(model: Any, tokens: Any, segments: Any) -> Any:
        return compute(model, tokens, segments).array

    return on_each_host
