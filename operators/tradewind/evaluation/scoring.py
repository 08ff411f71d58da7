"""What the steps share that ask a loaded model for log probabilities of named sets: config, step, early checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import atomic_writer, join
from tradewind.datasets.tokenizer_files import is_on_hub
from tradewind.recipes.model_spec import MODEL_SIZES
from tradewind.recipes.steps import recipe_step
from tradewind.steps import ExecutorStep
from tradewind.steps.fields import PATH, SOME_TEXT, TEXT, FieldRule, check_fields, integer, one_of
from tradewind.steps.paths import HUB_PREFIX

if TYPE_CHECKING:
    from tradewind.evaluation.scored_model import ModelSource, ScoredModel

SETS: Final = "sets"
"""Folder of what is kept of each set."""
EXPORT: Final = "export"
CHECKPOINT: Final = "checkpoint"
WEIGHTS: Final = one_of((EXPORT, CHECKPOINT)).or_none()
MAX_SETS: Final = 1000
DEFAULT_SEQ_LEN: Final = 4096
"""Longest sequence by default, if the model's own context is longer."""
_PATHS: Final = ("tokenizer_path", "comparison_path")


def is_set_name(value: Any) -> bool:
    """Whether a set's name can be a file below the output, such as ``paloma/c4_en``."""
    if not isinstance(value, str) or not value.isprintable() or len(value.encode(errors="replace")) > 200:
        return False
    return all(part and not part.startswith(".") and "\\" not in part for part in value.split("/"))


_BY_NAME: Final = FieldRule(
    f"a mapping of at most {MAX_SETS:,} names, which are paths below the output, to token caches or documents, such as "
    "{'wiki': tokens}",
    lambda value: isinstance(value, Mapping) and 0 < len(value) <= MAX_SETS and all(map(is_set_name, value)),
)


@dataclass(frozen=True)
class ScoringConfig:
    """Model and sets of a step."""

    model_path: str
    """Export, training, checkpoints, or ``hub:ORGANISATION/NAME@COMMIT``."""
    sets: Mapping[str, str]
    """Name → token cache, of which the validation split is read, or files of documents as ``tokenize_files`` takes
    them; a file ``.txt`` is one document."""
    output_path: str
    tokenizer_path: str | None = None
    """The tokenizer of the model and of the token caches; None for the one beside the export."""
    weights: str | None = None
    """``"export"`` or ``"checkpoint"`` of a training that has both; None for the export."""
    model_size: str = ""
    """As in training, for a checkpoint without an export."""
    text_key: str = "text"
    """Key of a document's text."""
    per_device_batch_size: int = 4
    """Sequences at a time on each device. Does not change the result."""
    model: Any = None
    """As in training, for a checkpoint without an export."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            model_path=PATH,
            output_path=PATH,
            tokenizer_path=PATH.or_none(),
            weights=WEIGHTS,
            model_size=one_of(("", *MODEL_SIZES)) if self.model is None else TEXT,
            text_key=SOME_TEXT,
            per_device_batch_size=integer(1),
        )
        check_sets(self.sets)

    def source(self) -> ModelSource:
        """Return where the model is."""
        from tradewind.evaluation.scored_model import ModelSource

        return ModelSource(self.model_path, self.tokenizer_path, self.model, self.model_size, self.weights)


def check_sets(sets: Any) -> None:
    """Raise ``ValueError`` for names that are no paths, or are below each other, and for sets that are no inputs."""
    _BY_NAME.check("sets", sets)
    for name, path in sets.items():
        PATH.check(f"sets[{name!r}]", path)
        if any(other.startswith(f"{name}/") for other in sets):
            raise ValueError(f"sets has {name!r} and names below it: give it another name, such as {name + '/all'!r}.")


def scoring_step(
    name: str, make: str, function: Callable[..., Any], config: type[ScoringConfig], about: str, **given: Any
) -> ExecutorStep:
    """Make a step.

    Args:
        name: Name of the step.
        make: Name of the function that a user called.
        function: Function of the step.
        config: Class of its config.
        about: What it does.
        given: ``model``, ``sets`` and options, of which ``model_config`` is the config's ``model``.
    """
    check_sets(given["sets"])
    if isinstance(given["model"], str) and given["model"].startswith(HUB_PREFIX):
        from tradewind.serving.weights import check_model

        check_model(given["model"])
    inputs: dict[str, tuple[str, Any]] = {"model_path": ("model", given["model"]), "sets": (SETS, given["sets"])}
    inputs |= {key: (key, given[key]) for key in _PATHS if given.get(key) is not None}
    if given.get("model_config") is not None:
        inputs["model"] = ("model_config", given["model_config"])
    options = {key: value for key, value in given.items() if key not in ("model", SETS, "model_config", *_PATHS)}
    recipe = (make, function, config, about, ("per_device_batch_size",), (f"{SETS}/**",))
    return recipe_step(name, recipe, inputs, options)


def check_inputs(config: ScoringConfig, devices: int = 0, num_slices: int = 1) -> None:
    """Check all that can be known before a slice is reserved.

    Raises:
        ValueError: With the field: the model or a set is not there, or there are several slices.
    """
    from tradewind.evaluation.token_sets import check_set

    if num_slices > 1:
        raise ValueError(f"resources has {num_slices} slices, and the model is loaded on the hosts of one: give one.")
    config.source().check()
    for name, path in config.sets.items():
        check_set(name, path)


def length_of(model: ScoredModel, seq_len: int | None) -> int:
    """Return the length of sequences; raises ``ValueError`` for one that is longer than the model's context."""
    if seq_len is not None and seq_len > model.max_seq_len:
        raise ValueError(f"seq_len={seq_len} is longer than the model's context, {model.max_seq_len:,} tokens.")
    return min(model.max_seq_len, DEFAULT_SEQ_LEN) if seq_len is None else seq_len


def check_vocabulary(name: str, tokens: Any, model: ScoredModel) -> None:
    """Raise ``ValueError`` for tokens that the model does not know: JAX would read others in their place."""
    if (largest := int(tokens.max())) >= model.vocab_size or int(tokens.min()) < 0:
        raise ValueError(
            f"sets[{name!r}] has token {largest:,}, and the model knows {model.vocab_size:,}: the set was made with "
            "another tokenizer."
        )


def check_finite(name: str, log_probs: Any) -> None:
    """Raise ``ValueError`` if a model gives no numbers, as one whose training diverged."""
    import numpy as np

    if not np.isfinite(log_probs).all():
        raise ValueError(f"sets[{name!r}]: the model's log probabilities are no numbers: its weights are broken.")


def is_first_host() -> bool:
    """Whether this process writes."""
    import jax

    return bool(jax.process_index() == 0)


def write_columns(path: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write the columns of a set as Parquet; those of unknown numbers are of integers, too."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"document": pa.string(), "text": pa.string(), **dict.fromkeys(("nats", "log_prob"), pa.float64())}
    arrays = {name: pa.array(values, kinds.get(name, pa.int64())) for name, values in columns.items()}
    with atomic_writer(path) as file:
        parquet.write_table(pa.table(arrays), file, compression="zstd")


def marins_model(path: str, is_hf: bool) -> str:
    """Return the path of a model, of which Marin writes one on the hub without a prefix."""
    return f"{HUB_PREFIX}{path}" if is_hf and is_on_hub(path) else path


def marins_sets(datasets: Any) -> dict[str, str]:
    """Return name → token cache of a mixture for evaluation; raises ``ValueError`` for a set without a cache."""
    found = {}
    for name, component in datasets.components.items():
        if not component.cache_dir and not datasets.cache_dir:
            raise ValueError(f"datasets: the set {name!r} has no token cache: give the step that makes it.")
        found[name] = component.cache_dir or join(datasets.cache_dir, name)
    return found
