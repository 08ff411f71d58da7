"""Judge a trained model by its checkpoint and by its export, which must agree, and let it write a sample."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, exists, join, write_json
from tradewind.datasets.tokenizing.tokenizer_files import local_tokenizer
from tradewind.recipes.levanter import parts
from tradewind.recipes.levanter.model_sizes import MODEL_SIZES
from tradewind.recipes.levanter.quiet import quiet_libraries
from tradewind.recipes.levanter.stored_models import ModelAxes, load_checkpointed, load_export, model_axes
from tradewind.recipes.levanter.validation_loss import Score, bytes_of_predicted, bytes_of_tokens, total_nats
from tradewind.recipes.model_argument import check_context
from tradewind.recipes.sampling import SamplingOptions, sample
from tradewind.recipes.train_lm import checkpoints_path, export_path
from tradewind.steps.values.fields import PATH, SOME_TEXT, TEXT, check_fields, number, one_of, whole
from tradewind.storage import file_system_at

if TYPE_CHECKING:
    from levanter.data.text import LmDataConfig

_STEP: Final = re.compile(r"step-(\d+)")
"""Of a training with several exports, the folder of one."""


@dataclass(frozen=True)
class LmEvalConfig:
    """Which model ``evaluate_lm`` judges, on what, and what sample it draws."""

    train_path: str
    """Output of a training."""
    cache_path: str
    """Output of ``build_token_cache``; its validation split is what is predicted."""
    tokenizer_path: str
    """The tokenizer of that cache and that model; byte-level, as ``train_bpe_tokenizer`` makes them."""
    output_path: str
    """Gets ``results.json``."""
    model_size: str = ""
    """As in training."""
    seq_len: int = field(kw_only=True)
    """As in training."""
    batch_size: int = 8
    """Sequences at a time; a multiple of the number of devices. Does not change the result."""
    prompt: str | None = None
    """How the sample begins; ``None`` lets the model begin a text of its own, as it does after an end of text."""
    sample_tokens: int = 200
    """How many tokens the sample has, after the prompt, at most."""
    temperature: float = 0.8
    """Below 1 the sample keeps to what is likely, above 1 it strays."""
    seed: int = 0
    """Of the sample."""
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
            seq_len=whole(2),
            batch_size=whole(1),
            prompt=SOME_TEXT.or_none(),
            sample_tokens=whole(0),
            temperature=number(above=0),
            seed=whole(),
        )
        check_context(self.model, self.seq_len)


def evaluate_lm(config: LmEvalConfig) -> dict[str, Any]:
    """Write and return ``{"checkpoint": {"loss", "bpb"}, "hf": {...}, "tokens", "bytes", "prompt", "sample"}``.

    ``loss`` is in nats per token, ``bpb`` in bits per UTF-8 byte, as ``tradewind.recipes.levanter.validation_loss``
    defines them. Runs in one process. Raises ``ValueError`` for a missing input.
    """
    export = _export_under(config.train_path)
    quiet_libraries()
    parts.keep_compilations(config.output_path)
    parts.check_batch_size(config.batch_size, parts.device_count())
    tokenizer = local_tokenizer(config.tokenizer_path)
    results = _evaluate(config, export, parts.cached_data(config.cache_path, tokenizer), tokenizer)
    write_json(join(config.output_path, "results.json"), results)
    print("\n".join(ending(basename(config.train_path), results)), flush=True)
    return results


def ending(trained: str, results: Mapping[str, Any]) -> list[str]:
    """What came out, for the task's log."""
    checkpoint, export = (
        f"loss {results[name]['loss']:.3f}, {results[name]['bpb']:.3f} bits per byte" for name in ("checkpoint", "hf")
    )
    return [f"evaluated {trained} on {results['tokens']:,} tokens: {checkpoint}", f"  export: {export}"]


def _export_under(train_path: str) -> str:
    """The one export of ``train_lm``, or the last of a training that exports in between, too."""
    if not exists(checkpoints_path(train_path)):
        raise ValueError(f"There are no checkpoints under train_path {train_path}.")
    fs, root = file_system_at(export_path(train_path))
    steps = {int(found[1]): found[0] for name in _names(fs, root) if (found := _STEP.fullmatch(name))}
    folders = [export_path(train_path), *(join(export_path(train_path), steps[step]) for step in sorted(steps)[-1:])]
    for folder in folders:
        if exists(join(folder, "config.json")):
            return folder
    raise ValueError(f"There is no Hugging Face export under train_path {train_path}.")


def _names(fs: Any, root: str) -> list[str]:
    return [basename(name) for name in fs.ls(root, detail=False)] if fs.exists(root) else []


def _evaluate(config: LmEvalConfig, export: str, data: LmDataConfig, tokenizer: str) -> dict[str, Any]:
    from haliax.partitioning import set_mesh
    from levanter.utils.mesh import create_mesh_from_axis_specs

    mesh_config = parts.mesh()
    ici, dcn = mesh_config.axis_shapes(parts.device_count(), 1)
    mesh = create_mesh_from_axis_specs(ici_axes=ici, dcn_axes=dcn)
    model = parts.language_model(config.model, config.model_size, config.seq_len, tokenizer)
    with set_mesh(mesh):
        axes = model_axes(model, len(data.the_tokenizer), mesh_config.resolved_param_mapping)
        scorer = _Scorer(config, data, axes, mesh, mesh_config.resolved_compute_mapping)
        checkpointed = load_checkpointed(axes, checkpoints_path(config.train_path))
        exported = load_export(axes, data.the_tokenizer, export, parts.precision())
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
    """The validation split, ready to be predicted by one model after another."""

    def __init__(self, config: LmEvalConfig, data: LmDataConfig, axes: ModelAxes, mesh: Any, mapping: Any) -> None:
        from levanter.data import DataLoader

        dataset = data.validation_sets(axes.config.max_Pos.resize(config.seq_len))[parts.COMPONENT]
        if not len(dataset.as_sync_dataset()):
            raise ValueError(f"The validation split under cache_path {config.cache_path} is shorter than seq_len.")
        self.batches = DataLoader(dataset, config.batch_size, mesh=mesh, axis_resources=mapping)
        self.mapping = mapping
        tokenizer = data.the_tokenizer
        tokens = parts.all_tokens(data.build_caches("validation")[parts.COMPONENT])
        token_bytes = bytes_of_tokens(tokenizer)
        self.text_bytes = bytes_of_predicted(tokens, config.seq_len, token_bytes, tokenizer.eos_token_id)

    def score(self, model: Any) -> Score:
        """How well one model predicts it."""
        from levanter.utils.tree_utils import inference_mode

        nats, tokens = total_nats(inference_mode(model, True), self.batches, parts.precision(), self.mapping)
        return Score(nats, tokens, self.text_bytes)


def _sample(config: LmEvalConfig, tokenizer: Any, model: Any, axes: ModelAxes) -> str:
    """The prompt and what the model makes of it."""
    prompt = [] if config.prompt is None else tokenizer.encode(config.prompt)
    options = SamplingOptions(config.sample_tokens, config.temperature, config.seed)
    following = sample(model, prompt or [tokenizer.eos_token_id], options, tokenizer.eos_token_id, axes.mapping)
    return str(tokenizer.decode([*prompt, *following]))
