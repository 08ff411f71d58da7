"""Pages that show texts with each token coloured by its log probability, also beside another model's.

A page is one file of HTML with a style sheet in it and no script: what it shows is text of others, all escaped. A token
is darker the less likely the model found it, by its class of ten; its title says the numbers.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import join, write_text
from tradewind.evaluation.scoring import (
    CHECKPOINT,
    EXPORT,
    WEIGHTS,
    ScoringConfig,
    check_inputs,
    check_vocabulary,
    is_first_host,
    length_of,
    marins_model,
    marins_sets,
    scoring_step,
)
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep
from tradewind.steps.fields import PATH, check_fields, integer
from tradewind.steps.needs import needs

if TYPE_CHECKING:
    import numpy as np

    from tradewind.evaluation.scored_model import ModelSource
    from tradewind.evaluation.token_sets import TokenSet

_ABOUT: Final = "Pages of texts with each token coloured by its log probability."
_CLASSES: Final = 10
_STEP: Final = 1.2
"""Nats of a class: the last is for tokens of less than e^-10.8."""
_COLOURS: Final = {"k": "220 60 30", "b": "20 150 60", "w": "240 140 0"}
"""Letter of a kind of classes → their colour: of one model, better and worse than it."""
_INVISIBLE: Final = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
_STYLE: Final = """
body { font: 15px/1.9 ui-monospace, monospace; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #111;
  background: #fff; }
h1, h2, p { font-family: system-ui, sans-serif; line-height: 1.4; }
span { border-radius: 2px; padding: 0 1px; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class VisualizeConfig(ScoringConfig):
    """Config of ``draw_log_probs``, whose output gets ``NAME.html`` for each set."""

    num_docs_per_dataset: int = 32
    """Sequences of each set, from its beginning."""
    seq_len: int | None = None
    """As in ``LogProbsConfig``."""
    comparison_path: str | None = None
    """Another model with the same tokenizer, which is compared with the first."""
    comparison_weights: str | None = None
    """Its ``weights``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            num_docs_per_dataset=integer(1),
            seq_len=integer(2).or_none(),
            comparison_path=PATH.or_none(),
            comparison_weights=WEIGHTS,
        )

    def sources(self) -> list[ModelSource]:
        """Return where the models are."""
        from tradewind.evaluation.scored_model import ModelSource

        first = self.source()
        if self.comparison_path is None:
            return [first]
        tokenizer = self.tokenizer_path or first.local_tokenizer()
        other = (self.comparison_path, tokenizer, self.model, self.model_size, self.comparison_weights)
        return [first, ModelSource(*other, field="comparison_path")]


@naming_step
def visualize_log_probs(name: str, model: Any, sets: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that draws the first texts of each set with each token coloured by its log probability.

    Arguments are those of ``evaluate_log_probs``; options are the fields of ``VisualizeConfig``, such as
    ``comparison_path``, another model to compare with.
    """
    given = {"model": model, "sets": sets, **options}
    return scoring_step(name, "visualize_log_probs", draw_log_probs, VisualizeConfig, _ABOUT, **given)


@needs("jax", "levanter")
def draw_log_probs(config: VisualizeConfig) -> dict[str, Any]:
    """Write the pages; return their paths under ``pages``.

    Raises:
        ValueError: A model or a set cannot be read, or they do not fit each other.
    """
    from tradewind.recipes.lm import levanter_parts

    levanter_parts.quiet_libraries()
    preflight(config)
    levanter_parts.keep_compilations(config.output_path)
    texts: dict[str, TokenSet] = {}
    scores: list[dict[str, np.ndarray]] = []
    pieces: dict[int, str] = {}
    for source in config.sources():
        found, pieces = _scored(config, source, texts)
        scores.append(found)
    pages = {}
    for name, shown in texts.items():
        pages[name] = join(config.output_path, f"{name}.html")
        if is_first_host():
            write_text(pages[name], page(name, shown, [each[name] for each in scores], pieces))
    return {"pages": pages}


def preflight(config: VisualizeConfig, devices: int = 0, num_slices: int = 1) -> None:
    """Check all that can be known before a slice is reserved; raises ``ValueError`` with the field."""
    check_inputs(config, devices, num_slices)
    for source in config.sources()[1:]:
        source.check()


draw_log_probs.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved


def visualize_lm_log_probs(config: Any) -> dict[str, Any]:
    """Draw what Marin's ``VizLmConfig`` names; returns and raises what ``draw_log_probs`` does."""
    return draw_log_probs(marins_pages(config))


def _marins_preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    preflight(marins_pages(config), devices, num_slices)


visualize_lm_log_probs.preflight = _marins_preflight  # type: ignore[attr-defined]


def marins_pages(config: Any) -> VisualizeConfig:
    """Return the config of Marin's ``VizLmConfig``, which on the cluster has today's data config of Levanter's."""
    other = config.comparison_model_path
    return VisualizeConfig(
        config.checkpoint_path,
        marins_sets(config.datasets),
        config.output_path,
        tokenizer_path=config.datasets.tokenizer,
        weights=CHECKPOINT,
        num_docs_per_dataset=config.num_docs_per_dataset,
        comparison_path=None if other is None else marins_model(other, config.comparison_is_hf),
        comparison_weights=EXPORT if config.comparison_is_hf else CHECKPOINT,
        per_device_batch_size=config.per_device_batch_size,
        model=config.model,
    )


def _scored(
    config: VisualizeConfig, source: ModelSource, texts: dict[str, TokenSet]
) -> tuple[dict[str, np.ndarray], dict[int, str]]:
    """Return set → log probability of each token, and token → its piece of text.

    The first model reads the sets into ``texts``.
    """
    from tradewind.evaluation.perplexity import sequences_of
    from tradewind.evaluation.scored_model import loaded
    from tradewind.evaluation.token_sets import read_set

    found = {}
    with loaded(source, config.per_device_batch_size) as model:
        seq_len = length_of(model, config.seq_len)
        for name, path in config.sets.items():
            if name not in texts:
                most = config.num_docs_per_dataset * seq_len
                texts[name] = read_set(name, path, config.text_key, model.tokenizer, most)
            tokens = texts[name].tokens
            check_vocabulary(name, tokens, model)
            sequences, segments = sequences_of(tokens, seq_len, model.tokenizer.eos_token_id)
            found[name] = model.log_probs(sequences, segments).reshape(-1)[: len(tokens)]
        return found, pieces_of(model.tokenizer, {token for each in texts.values() for token in each.tokens.tolist()})


def pieces_of(tokenizer: Any, tokens: Iterable[int]) -> dict[int, str]:
    """Return token → its piece of a text, with the space that it would lose at the beginning of one."""
    before = tokenizer.encode(".", add_special_tokens=False)
    length = len(tokenizer.decode(before))
    return {token: tokenizer.decode([*before, token])[length:] for token in tokens}


def page(name: str, texts: TokenSet, scores: Sequence[np.ndarray], pieces: Mapping[int, str]) -> str:
    """Return the page of a set: its texts by the scores of one model, or of a second one minus the first."""
    shown = html.escape(name)
    scale = "".join(f'<span class="k{kind}">{kind * _STEP:.1f}</span> ' for kind in range(_CLASSES))
    about = f"Nats of each token: {scale}"
    if len(scores) > 1:
        about = "Tokens that the second model finds likelier are green, those that it finds less likely are orange."
    head = f'<meta charset="utf-8"><title>{shown}</title><style>{_STYLE}{_colours()}</style>'
    body = "\n".join(_documents(texts, scores, pieces))
    return f"""<!doctype html>
<html lang="en"><head>{head}</head><body><h1>{shown}</h1><p>{about}</p>
{body}
</body></html>
"""


def _colours() -> str:
    return "".join(
        f".{letter}{kind} {{ background: rgb({colour} / {0.9 * kind / _CLASSES:.2f}); }}\n"
        for letter, colour in _COLOURS.items()
        for kind in range(_CLASSES)
    )


def _documents(texts: TokenSet, scores: Sequence[np.ndarray], pieces: Mapping[int, str]) -> Iterator[str]:
    ends = [*texts.starts[1:].tolist(), len(texts.tokens)]
    for document, begin, end in zip(texts.names, texts.starts.tolist(), ends, strict=True):
        spans = (
            _span(pieces.get(int(texts.tokens[at]), ""), [each[at] for each in scores]) for at in range(begin, end)
        )
        yield f"<h2>{html.escape(document)}</h2><p>{''.join(spans)}</p>"


def _span(piece: str, scores: Sequence[float]) -> str:
    first, last = float(scores[0]), float(scores[-1])
    kind, size = "k", -first
    title = f"{first:.3f}"
    if len(scores) > 1:
        kind, size = ("b" if last > first else "w"), abs(last - first)
        title = f"{first:.3f}, then {last:.3f}"
    number = _CLASSES - 1 if math.isnan(size) else int(min(_CLASSES - 1, size / _STEP))
    return f'<span class="{kind}{number}" title="{title}">{html.escape(_visible(piece))}</span>'


def _visible(piece: str) -> str:
    """Show line breaks, tabs and other control characters as signs, and a piece of only spaces as dots."""
    if piece.strip(" ") == "":
        return "·" * len(piece)
    visible = "".join(_INVISIBLE.get(sign, sign if sign.isprintable() else "�") for sign in piece)
    return visible + ("\n" if "\n" in piece else "")
