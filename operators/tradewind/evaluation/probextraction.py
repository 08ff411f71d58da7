"""How likely a model continues a book word for word: the probability of each suffix after its prefix.

A window is a prefix and the suffix that follows it, of fixed numbers of tokens; windows begin every ``stride`` tokens.
The probability of a window is that of drawing exactly its suffix after its prefix, at temperature 1. Drawn ``n`` times,
the suffix occurs with probability ``1 - (1 - p)^n``.

The output has for each set the windows in shards (``sets/NAME/part-*.parquet``), a strip that shows where in the text
windows are likely (``sets/NAME.svg``) and numbers (``sets/NAME.json``), and last of all ``probextraction.json``. An
attempt after a loss keeps the shards that are done.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import exists, join, remove_unfinished, write_json, write_text
from tradewind.evaluation.scoring import (
    SETS,
    ScoringConfig,
    check_finite,
    check_inputs,
    check_vocabulary,
    is_first_host,
    scoring_step,
    write_columns,
)
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep
from tradewind.steps.fields import check_fields, integer
from tradewind.steps.needs import needs
from tradewind.storage import open_file
from tradewind.text import as_markdown, truncated_repr

if TYPE_CHECKING:
    import numpy as np

    from tradewind.evaluation.scored_model import ScoredModel
    from tradewind.evaluation.token_sets import TokenSet

RESULT_FILE: Final = "probextraction.json"
SCHEMA: Final = "tradewind.probextraction/1"
THRESHOLDS: Final = (0.001, 0.01, 0.1, 0.5, 0.9)
"""Probabilities; the result says which share of all windows reaches each."""
WINDOWS_PER_SHARD: Final = 8192
_ABOUT: Final = "Probability of each suffix of texts after its prefix."
_CELLS: Final = 400
"""Columns of a strip."""
_DECADES: Final = 6.0
"""A window of probability 10^-6 or less is white."""


@dataclass(frozen=True)
class ProbextractionConfig(ScoringConfig):
    """Config of ``measure_extraction``."""

    prefix_tokens: int = 50
    """Tokens that the model is given."""
    suffix_tokens: int = 50
    """Tokens whose probability is measured."""
    stride: int = 5
    """Tokens from one window to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, prefix_tokens=integer(1), suffix_tokens=integer(1), stride=integer(1))


@naming_step
def evaluate_extraction(name: str, model: Any, sets: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that measures how likely a model continues texts word for word.

    Args:
        name: Name of the step.
        model: A training, an export, a checkpoint, or ``hub:ORGANISATION/NAME@COMMIT``.
        sets: Name → documents, such as books, or a token cache: steps, or paths.
        options: Of ``ExecutorStep``, such as ``resources``, and of ``ProbextractionConfig``.

    Raises:
        ValueError: A set is no input, its name is no path, or an option is a field of neither or invalid.
    """
    given = {"model": model, "sets": sets, **options}
    return scoring_step(name, "evaluate_extraction", measure_extraction, ProbextractionConfig, _ABOUT, **given)


@needs("jax", "levanter", "pyarrow")
def measure_extraction(config: ProbextractionConfig) -> dict[str, Any]:
    """Measure all windows that are not done yet; write and return the numbers of each set under ``sets``.

    Raises:
        ValueError: The model or a set cannot be read, they do not fit each other, or all texts are too short.
    """
    from tradewind.evaluation.scored_model import loaded
    from tradewind.evaluation.token_sets import read_set
    from tradewind.recipes.lm import levanter_parts

    levanter_parts.quiet_libraries()
    check_inputs(config)
    levanter_parts.keep_compilations(config.output_path)
    sets = {}
    with loaded(config.source(), config.per_device_batch_size) as model:
        _check_context(config, model)
        for name, path in config.sets.items():
            texts = read_set(name, path, config.text_key, model.tokenizer, None)
            check_vocabulary(name, texts.tokens, model)
            sets[name] = _measure_set(config, name, texts, model)
    result = {"schema": SCHEMA, "model": {"path": config.model_path}, "sets": sets}
    if is_first_host():
        write_text(join(config.output_path, "summary.md"), summary(sets))
        write_json(join(config.output_path, RESULT_FILE), result)
    return result


measure_extraction.preflight = check_inputs  # type: ignore[attr-defined]  # before a slice is reserved


def _check_context(config: ProbextractionConfig, model: ScoredModel) -> None:
    begins = model.tokenizer.bos_token_id is not None
    length = config.prefix_tokens + config.suffix_tokens + begins
    if length > model.max_seq_len:
        given = f"prefix_tokens={config.prefix_tokens} and suffix_tokens={config.suffix_tokens}"
        first = " with the one that begins a text" if begins else ""
        raise ValueError(f"{given} are {length:,} tokens{first}: the model's context is {model.max_seq_len:,}.")


@dataclass(frozen=True)
class Windows:
    """Windows of a set.

    Attributes:
        begins: Where each prefix begins in all tokens in a row: int64, shape ``[windows]``.
        documents: Number of the text of each, of the same shape.
        too_short: Names of the texts that have no window.
    """

    begins: np.ndarray
    documents: np.ndarray
    too_short: list[str]


def windows_of(texts: TokenSet, is_silent: np.ndarray, length: int, stride: int) -> Windows:
    """Return all windows inside texts, without the silent tokens at both ends of each, which spell nothing of it."""
    import numpy as np

    begins, documents, too_short = [], [], []
    ends = np.append(texts.starts[1:], len(texts.tokens))
    for number, (begin, end) in enumerate(zip(texts.starts.tolist(), ends.tolist(), strict=True)):
        spoken = np.flatnonzero(~is_silent[begin:end])
        first, last = (begin + spoken[0], begin + spoken[-1] + 1) if len(spoken) else (begin, begin)
        found = np.arange(first, last - length + 1, stride, dtype=np.int64)
        begins.append(found)
        documents.append(np.full(len(found), number))
        if not len(found):
            too_short.append(texts.names[number])
    return Windows(np.concatenate(begins), np.concatenate(documents), too_short)


def _measure_set(config: ProbextractionConfig, name: str, texts: TokenSet, model: ScoredModel) -> dict[str, Any]:
    import numpy as np

    from tradewind.recipes.lm.token_bytes import token_bytes

    spelling = token_bytes(model.tokenizer)
    spelled = None if spelling is None else spelling.spelled(texts.tokens, texts.starts)
    is_silent = np.isin(texts.tokens, model.tokenizer.all_special_ids) if spelled is None else spelled == 0
    length = config.prefix_tokens + config.suffix_tokens
    windows = windows_of(texts, is_silent, length, config.stride)
    if not len(windows.begins):
        shown = ", ".join(truncated_repr(text) for text in windows.too_short[:5])
        raise ValueError(f"sets[{name!r}]: no text has the {length:,} tokens of a window, such as {shown}.")
    folder = join(config.output_path, SETS, name)
    if is_first_host():
        remove_unfinished(folder)
    log_probs = _all_log_probs(config, name, texts, windows, spelled, model)
    numbers = numbers_of(log_probs, windows)
    if is_first_host():
        suffixes = windows.begins + config.prefix_tokens
        strip = strip_of(suffixes, config.suffix_tokens, log_probs, len(texts.tokens))
        write_text(f"{folder}.svg", svg(name, strip))
        write_json(f"{folder}.json", numbers)
    return numbers


def _all_log_probs(
    config: ProbextractionConfig,
    name: str,
    texts: TokenSet,
    windows: Windows,
    spelled: np.ndarray | None,
    model: ScoredModel,
) -> np.ndarray:
    """Return the log probabilities of all windows; shards that are not there are computed and written."""
    import numpy as np

    count = math.ceil(len(windows.begins) / WINDOWS_PER_SHARD)
    offsets = None if spelled is None else (byte_offsets(texts, spelled), spelled)
    log_probs = []
    for shard in range(count):
        path = join(config.output_path, SETS, name, f"part-{shard:05d}-of-{count:05d}.parquet")
        part = slice(shard * WINDOWS_PER_SHARD, (shard + 1) * WINDOWS_PER_SHARD)
        begins = windows.begins[part]
        found = _kept(path, begins)
        if found is None:
            found = _log_probs(config, texts, begins, model)
            check_finite(name, found)
            if is_first_host():
                write_columns(path, _rows(config, texts, windows.documents[part], begins, offsets, found))
                print(f"{truncated_repr(name)}: {shard + 1:,} of {count:,} shards", flush=True)
        log_probs.append(found)
    return np.concatenate(log_probs)


def byte_offsets(texts: TokenSet, spelled: np.ndarray) -> np.ndarray:
    """Return where each token begins in its text, in UTF-8 bytes."""
    import numpy as np

    before = np.concatenate([[0], np.cumsum(spelled)])[:-1]
    lengths = np.diff(np.append(texts.starts, len(texts.tokens)))
    return np.asarray(before - np.repeat(before[texts.starts], lengths))


def _log_probs(config: ProbextractionConfig, texts: TokenSet, begins: np.ndarray, model: ScoredModel) -> np.ndarray:
    """Return the log probability of the suffix of each window: float64."""
    import numpy as np

    inside = begins[:, None] + np.arange(config.prefix_tokens + config.suffix_tokens)
    tokens = texts.tokens[inside]
    if (first := model.tokenizer.bos_token_id) is not None:
        tokens = np.pad(tokens, ((0, 0), (1, 0)), constant_values=first)
    found = model.log_probs(tokens, np.zeros_like(tokens))
    return np.asarray(found[:, -config.suffix_tokens :].sum(axis=1, dtype=np.float64))


def _rows(
    config: ProbextractionConfig,
    texts: TokenSet,
    documents: np.ndarray,
    begins: np.ndarray,
    offsets: tuple[np.ndarray, np.ndarray] | None,
    log_probs: np.ndarray,
) -> dict[str, list[Any]]:
    """Return the columns of a shard; ``offsets`` are the begin and the length of each token, in bytes of its text."""
    first = begins + config.prefix_tokens
    last = first + config.suffix_tokens - 1
    unknown: list[int | None] = [None] * len(begins)
    return {
        "document": [texts.names[number] for number in documents],
        "token": (begins - texts.starts[documents]).tolist(),
        "position": begins.tolist(),
        "suffix_begin": unknown if offsets is None else offsets[0][first].tolist(),
        "suffix_end": unknown if offsets is None else (offsets[0] + offsets[1])[last].tolist(),
        "log_prob": log_probs.tolist(),
    }


def _kept(path: str, begins: np.ndarray) -> np.ndarray | None:
    """Return what an earlier attempt measured of these windows; None if it did not."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    if not exists(path):
        return None
    try:
        with open_file(path) as file:
            table = parquet.read_table(file, columns=["position", "log_prob"])
    except (pa.ArrowException, OSError):
        return None
    found: np.ndarray = np.asarray(table["log_prob"].to_numpy(), dtype=np.float64)
    return found if np.array_equal(table["position"].to_numpy(), begins) else None


def numbers_of(log_probs: np.ndarray, windows: Windows) -> dict[str, Any]:
    """Return the numbers of a set: which share of its windows reaches each probability."""
    import numpy as np

    probabilities = np.exp(log_probs)
    return {
        "windows": len(log_probs),
        "documents": len(np.unique(windows.documents)),
        "too_short": len(windows.too_short),
        "mean_log_prob": float(log_probs.mean()),
        "max_probability": float(probabilities.max()),
        "share_above": {str(threshold): float((probabilities >= threshold).mean()) for threshold in THRESHOLDS},
    }


def strip_of(suffixes: np.ndarray, suffix_tokens: int, log_probs: np.ndarray, tokens: int) -> np.ndarray:
    """Return the largest log probability of a suffix that reaches into each cell of the text; -inf without one."""
    import numpy as np

    cells = min(_CELLS, tokens)
    strip = np.full(cells, -np.inf)
    first = suffixes * cells // tokens
    last = (suffixes + suffix_tokens - 1) * cells // tokens
    for ahead in range(int((last - first).max()) + 1):
        reached = np.minimum(first + ahead, last)
        np.maximum.at(strip, reached, log_probs)
    return strip


def svg(name: str, strip: np.ndarray) -> str:
    """Return a strip as a picture: the text from left to right, darker where a suffix is likelier."""
    shown = html.escape(name)
    bars = []
    for at, log_prob in enumerate(strip.tolist()):
        strength = max(0.0, 1 + log_prob / math.log(10) / _DECADES)
        if strength > 0:
            bars.append(f'<rect x="{at}" width="1" height="30" fill="#8b0000" fill-opacity="{strength:.3f}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(strip)} 30" width="{2 * len(strip)}" height="60" '
        f'preserveAspectRatio="none" role="img"><title>{shown}</title><rect width="100%" height="30" fill="#fff"/>'
        f"{''.join(bars)}</svg>\n"
    )


def summary(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all sets in Markdown."""
    rows = [["set", "windows", *(f"p ≥ {threshold:g}" for threshold in THRESHOLDS), "largest p"]]
    for name, numbers in sets.items():
        shares = (f"{100 * share:.3g} %" for share in numbers["share_above"].values())
        rows.append([name, f"{numbers['windows']:,}", *shares, f"{numbers['max_probability']:.3g}"])
    return f"{as_markdown(rows)}\n"
