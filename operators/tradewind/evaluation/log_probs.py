"""Perplexity and bits per byte of a model on named sets of texts, on a CPU or on all hosts of a slice.

The output has, for each set, its numbers (``sets/NAME.json``) and a row for each text (``sets/NAME.parquet``), and last
of all ``log_probs.json`` with everything. An attempt after a loss keeps the sets that are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import atomic_writer, join, parent, remove_unfinished, write_json, write_text
from tradewind.datasets.tokenizer_files import is_on_hub
from tradewind.recipes.model_spec import MODEL_SIZES
from tradewind.recipes.steps import naming_step, recipe_step
from tradewind.recipes.stored_json import read_object
from tradewind.records.parsing import COUNT
from tradewind.serving.config import HUB_PREFIX
from tradewind.steps import ExecutorStep
from tradewind.steps.fields import PATH, SOME_TEXT, TEXT, FieldRule, check_fields, integer, one_of
from tradewind.steps.needs import needs
from tradewind.text import as_markdown, truncated_repr

if TYPE_CHECKING:
    from tradewind.evaluation.perplexity import Documents
    from tradewind.evaluation.scored_model import ModelSource, ScoredModel

RESULT_FILE: Final = "log_probs.json"
SCHEMA: Final = "tradewind.log_probs/1"
SETS: Final = "sets"
RESUMABLE: Final = (f"{SETS}/**",)
MAX_SETS: Final = 1000
DEFAULT_SEQ_LEN: Final = 4096
"""Longest sequence by default, if the model's own context is longer."""
UNCOUNTED: Final = ("per_device_batch_size",)
WEIGHTS: Final = ("export", "checkpoint")
_ABOUT: Final = "Perplexity and bits per byte of a model on named sets of texts."


def is_set_name(value: Any) -> bool:
    """Whether a set's name can be a file below the output, such as ``paloma/c4_en``."""
    if not isinstance(value, str) or not value.isprintable() or len(value.encode()) > 200:
        return False
    return all(part and not part.startswith(".") and "\\" not in part for part in value.split("/"))


BY_NAME: Final = FieldRule(
    "a mapping of names to token caches or documents, such as {'wiki': tokens}; a name is a path below the output",
    lambda value: isinstance(value, Mapping) and 0 < len(value) <= MAX_SETS and all(map(is_set_name, value)),
)


@dataclass(frozen=True)
class LogProbsConfig:
    """Config of ``measure_log_probs``."""

    model_path: str
    """Export, training, checkpoints, or ``hub:ORGANISATION/NAME@REVISION``."""
    sets: Mapping[str, str]
    """Name → token cache, of which the validation split is read, or documents as ``tokenize_files`` takes them."""
    output_path: str
    """Gets ``sets/``, ``summary.md`` and, last of all, ``log_probs.json``."""
    tokenizer_path: str | None = None
    """The tokenizer of the model and of the token caches; None for the one beside the export."""
    weights: str | None = None
    """``"export"`` or ``"checkpoint"`` of a training that has both; None for the export."""
    model_size: str = ""
    """As in training, for a checkpoint without an export."""
    seq_len: int | None = None
    """Tokens of a sequence; None for the model's context, at most 4,096."""
    max_sequences: int | None = None
    """Sequences of each set at most, from its beginning; None for all."""
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
            sets=BY_NAME,
            output_path=PATH,
            tokenizer_path=PATH.or_none(),
            weights=one_of(WEIGHTS).or_none(),
            model_size=one_of(("", *MODEL_SIZES)) if self.model is None else TEXT,
            seq_len=integer(2).or_none(),
            max_sequences=integer(1).or_none(),
            text_key=SOME_TEXT,
            per_device_batch_size=integer(1),
        )
        for name, path in self.sets.items():
            PATH.check(f"sets[{name!r}]", path)
        nested = next((name for name in self.sets if any(other.startswith(f"{name}/") for other in self.sets)), None)
        if nested is not None:
            raise ValueError(f"sets has {nested!r} and names below it: give each another folder or name.")

    def source(self) -> ModelSource:
        """Return where the model is."""
        from tradewind.evaluation.scored_model import ModelSource

        return ModelSource(self.model_path, self.tokenizer_path, self.model, self.model_size, self.weights)


@naming_step
def evaluate_log_probs(name: str, model: Any, sets: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that measures perplexity and bits per byte of a model on named sets of texts.

    Args:
        name: Name of the step.
        model: A training, an export, a checkpoint, or ``hub:ORGANISATION/NAME@REVISION``.
        sets: Name → token cache or documents: steps, or paths.
        options: Of ``ExecutorStep``, such as ``resources``, and of ``LogProbsConfig``; ``model_config`` is Levanter's
            config of a checkpoint without an export. How many sequences are computed at a time does not count.

    Raises:
        ValueError: A set is no input, its name is no path, or an option is a field of neither or invalid.
    """
    BY_NAME.check("sets", sets)
    return scoring_step(name, ("evaluate_log_probs", measure_log_probs, LogProbsConfig, _ABOUT), model, sets, options)


def scoring_step(name: str, recipe: tuple[Any, ...], model: Any, sets: Any, options: Mapping[str, Any]) -> ExecutorStep:
    """Make a step of a recipe whose config has a model and ``sets``."""
    inputs: dict[str, tuple[str, Any]] = {"model_path": ("model", model), "sets": ("sets", sets)}
    paths = {key: options[key] for key in ("tokenizer_path", "comparison_path") if options.get(key) is not None}
    inputs |= {key: (key, path) for key, path in paths.items()}
    if options.get("model_config") is not None:
        inputs["model"] = ("model_config", options["model_config"])
    others = {key: value for key, value in options.items() if key not in paths and key != "model_config"}
    return recipe_step(name, (*recipe, UNCOUNTED, RESUMABLE), inputs, others)


@needs("jax", "levanter", "pyarrow")
def measure_log_probs(config: LogProbsConfig) -> dict[str, Any]:
    """Measure each set that is not done yet; write and return the numbers of all under ``sets``.

    Raises:
        ValueError: The model or a set cannot be read, or they do not fit each other.
    """
    from tradewind.recipes.lm import levanter_parts

    levanter_parts.quiet_libraries()
    source = config.source()
    check_inputs(source, config.sets)
    levanter_parts.keep_compilations(config.output_path)
    done = {name: numbers for name in config.sets if (numbers := _kept(config.output_path, name)) is not None}
    if missing := [name for name in config.sets if name not in done]:
        done |= _measure_missing(config, source, missing)
    sets = {name: done[name] for name in config.sets}
    weights = WEIGHTS[0] if source.uses_export else WEIGHTS[1]
    result = {"schema": SCHEMA, "model": {"path": config.model_path, "weights": weights}, "sets": sets}
    if is_first_host():
        write_text(join(config.output_path, "summary.md"), summary(sets))
        write_json(join(config.output_path, RESULT_FILE), result)
    return result


def preflight(config: LogProbsConfig, devices: int) -> None:
    """Check all that can be known before a slice is reserved; raises ``ValueError`` with the field."""
    check_inputs(config.source(), config.sets)


measure_log_probs.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved


def evaluate_lm_log_probs(config: Any) -> dict[str, Any]:
    """Measure what Marin's ``EvalLmConfig`` names; returns and raises what ``measure_log_probs`` does.

    Entropies are not measured, and nothing is sent to W&B.
    """
    return measure_log_probs(marins_config(config))


evaluate_lm_log_probs.preflight = lambda config, devices: preflight(marins_config(config), devices)  # type: ignore[attr-defined]


def marins_config(config: Any) -> LogProbsConfig:
    """Return the config of Marin's ``EvalLmConfig``, which on the cluster has today's data config of Levanter's."""
    return LogProbsConfig(
        marins_model(config.checkpoint_path, config.checkpoint_is_hf),
        marins_sets(config.datasets),
        config.output_path,
        tokenizer_path=config.datasets.tokenizer,
        weights=WEIGHTS[0] if config.checkpoint_is_hf else WEIGHTS[1],
        max_sequences=config.max_samples_per_dataset,
        per_device_batch_size=config.per_device_batch_size,
        model=None if config.checkpoint_is_hf else config.model,
    )


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


def check_inputs(source: ModelSource, sets: Mapping[str, str]) -> None:
    """Raise ``ValueError`` with the field if the model or a set is not there."""
    from tradewind.evaluation.token_sets import check_set

    source.check()
    for name, path in sets.items():
        check_set(name, path)


def _measure_missing(config: LogProbsConfig, source: ModelSource, names: list[str]) -> dict[str, Any]:
    from tradewind.evaluation.perplexity import measure
    from tradewind.evaluation.scored_model import loaded
    from tradewind.evaluation.token_sets import read_set

    found = {}
    with loaded(source, config.per_device_batch_size) as model:
        seq_len = length_of(model, config.seq_len)
        for name in names:
            most = None if config.max_sequences is None else config.max_sequences * seq_len
            texts = read_set(name, config.sets[name], config.text_key, model.tokenizer, most)
            check_vocabulary(name, texts.tokens, model)
            documents, levanters = measure(model, texts, seq_len)
            found[name] = documents.numbers() | {"seq_len": seq_len, "levanter": levanters}
            if is_first_host():
                _write_set(config.output_path, name, documents, found[name])
                print(line_of(name, found[name]), flush=True)
    return found


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


def is_first_host() -> bool:
    """Whether this process writes."""
    import jax

    return bool(jax.process_index() == 0)


def _kept(output_path: str, name: str) -> dict[str, Any] | None:
    """Return the numbers of a set that an earlier attempt measured; None if it did not, or was cut."""
    try:
        return read_object(join(output_path, SETS, f"{name}.json"), {"tokens": COUNT}, ["tokens", "loss"])
    except ValueError:
        return None


def _write_set(output_path: str, name: str, documents: Documents, numbers: Mapping[str, Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = join(output_path, SETS, name)
    remove_unfinished(parent(path))
    kinds = {"document": pa.string(), "nats": pa.float64()}
    columns = {key: pa.array(values, kinds.get(key, pa.int64())) for key, values in documents.columns().items()}
    with atomic_writer(f"{path}.parquet") as file:
        parquet.write_table(pa.table(columns), file, compression="zstd")
    write_json(f"{path}.json", numbers)


def line_of(name: str, numbers: Mapping[str, Any]) -> str:
    """Return the log line of a set."""
    bits = numbers["bits_per_byte"]
    end = "unknown bits per byte" if bits is None else f"{bits:.4f} bits per byte"
    return f"{truncated_repr(name)}: loss {numbers['loss']:.4f}, {end}, {numbers['tokens']:,} tokens"


def summary(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all sets in Markdown."""
    rows = [["set", "bits per byte", "95 % interval", "loss", "perplexity", "tokens", "bytes", "documents"]]
    for name, numbers in sets.items():
        interval = numbers["bits_per_byte_interval"]
        rows.append(
            [
                name,
                _digits(numbers["bits_per_byte"]),
                "" if interval is None else " to ".join(map(_digits, interval)),
                _digits(numbers["loss"]),
                _digits(numbers["perplexity"]),
                *("" if numbers[key] is None else f"{numbers[key]:,}" for key in ("tokens", "bytes", "documents")),
            ]
        )
    return f"{as_markdown(rows)}\n\nEach set has its own kind of texts, so there is no mean over sets.\n"


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
