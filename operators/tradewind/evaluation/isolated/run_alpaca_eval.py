"""Let AlpacaEval judge pairs of answers: ``run_alpaca_eval.py SPEC JUDGED``, two JSON files.

The spec has ``pairs`` (document, position, instruction, output_1 of the reference, output_2), the judge's ``address``
and ``model``, ``annotators`` (a name of AlpacaEval's or a folder), ``gamed`` (AlpacaEval's ``df_gamed.csv``, or null),
``seed`` and ``num_concurrent``. The judge sees the two answers of a pair in an order that AlpacaEval draws.
"""

from __future__ import annotations

import ctypes
import json
import math
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

_PR_SET_PDEATHSIG = 1
_TIMEOUT_S = 7 * 24 * 3600
_MAX_CHARS = 500
_NOTHING = "\0"
"""As often as there were errors: the text of an answer that was none, since AlpacaEval keeps nothing else of it."""
_MIN_FOR_LENGTH = 10
"""Documents that the fit of lengths needs at least: five parts with two each."""


class Judge:
    """Judge behind a gateway, which repeats what is lost and holds what has a limit of rate."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        from openai import OpenAI

        self.spec = spec
        self.errors: list[str] = []
        self.lock = Lock()
        self.client = OpenAI(api_key="none", base_url=spec["address"], max_retries=0, timeout=_TIMEOUT_S)

    def completions(self, prompts: Sequence[str], **options: Any) -> dict[str, Any]:
        """Return answers as AlpacaEval's own functions do; one that failed has a text that no parser takes."""
        fields = {name: value for name, value in options.items() if name not in ("model_name", "is_chat", "num_procs")}
        with ThreadPoolExecutor(self.spec["num_concurrent"]) as pool:
            said = list(pool.map(lambda prompt: self.ask(prompt, fields), prompts))
        nothing = [0.0] * len(said)
        texts = [each["text"] for each in said]
        return {
            "completions": texts,
            "completions_all": said,
            "price_per_example": nothing,
            "time_per_example": nothing,
        }

    def ask(self, prompt: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        from alpaca_eval import utils  # type: ignore[import-not-found]

        try:
            messages = utils.prompt_to_chatml(prompt.strip())
            choice = self.client.chat.completions.create(
                model=self.spec["model"], messages=messages, **fields
            ).model_dump()["choices"][0]
            message = choice["message"]
            calls = message.get("tool_calls") or []
            text = calls[0]["function"]["arguments"] if calls else message.get("content")
        except Exception as error:  # also of a prompt that an answer has broken
            with self.lock:
                self.errors.append(f"The judge gave no answer: {type(error).__name__}: {error}"[:_MAX_CHARS])
                return {"text": _NOTHING * len(self.errors)}
        return {**choice, "text": text if isinstance(text, str) else ""}

    def said(self, raw: Any) -> dict[str, Any]:
        """Return the words of an answer, and the error if there were none."""
        text = raw.get("text") if isinstance(raw, dict) else raw
        if not isinstance(text, str):
            return {"said": "", "error": None}
        if text and not text.strip(_NOTHING):
            return {"said": "", "error": self.errors[len(text) - 1]}
        return {"said": text[:_MAX_CHARS], "error": None}


def compare(spec: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """Return what the judge said of each pair, and the table for AlpacaEval's own metrics."""
    import pandas as pd
    from alpaca_eval.annotators import PairwiseAnnotator  # type: ignore[import-not-found]

    annotator = PairwiseAnnotator(annotators_config=Path(spec["annotators"]), seed=spec["seed"], caching_path=None)
    ((name, single),) = annotator.annotators.items()
    judge = Judge(spec)
    single.fn_completions = judge.completions
    raw: dict[Any, Any] = {}
    filter_rows = single._postprocess

    def postprocess(rows: Any) -> Any:
        """Note the words about pairs without a preference too, which AlpacaEval drops."""
        raw.update((key(row), row[single.completion_column]) for row in rows.to_dict("records"))
        return filter_rows(rows)

    single._postprocess = postprocess
    frame = pd.DataFrame(spec["pairs"])
    annotated = annotator.annotate_pairs(frame[["instruction", "output_1", "output_2"]], chunksize=None)
    preferences = {(key(row), row["output_1"]): preference(row["preference"]) for row in annotated}
    found = [preferences.get((key(pair), pair["output_1"])) for pair in spec["pairs"]]
    judged = [
        {"document": pair["document"], "preference": given, **judge.said(raw.get(key(pair)))}
        for pair, given in zip(spec["pairs"], found, strict=True)
    ]
    frame = frame.assign(generator_1="reference", generator_2="model", annotator=name)
    frame["preference"] = [math.nan if given is None else given for given in found]
    return judged, frame.set_index(pd.Index(frame["position"].tolist()))


def key(row: Mapping[str, Any]) -> Any:
    """Return what tells a pair from others, in whichever order the judge sees its answers."""
    return row["instruction"], frozenset((row["output_1"], row["output_2"]))


def preference(given: Any) -> float | None:
    """Return a number from 1 (the reference is better) to 2; None for anything else."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        return None
    return (number or 1.5) if number == 0 or 1 <= number <= 2 else None


def length_controlled(frame: Any, gamed: str | None) -> dict[str, float]:
    """Return AlpacaEval's length-controlled win rate: as published with its file, else without its difficulties."""
    from alpaca_eval.metrics import glm_winrate  # type: ignore[import-not-found]

    judged = frame[frame["preference"].notna()]
    if len(judged) < _MIN_FOR_LENGTH:
        print(f"There is no length-controlled win rate of fewer than {_MIN_FOR_LENGTH} documents.", flush=True)
        return {}
    kind = "length_controlled_v1" if gamed else "length_controlled_minimal"
    with gamed_file(glm_winrate, gamed, list(frame.index)):
        result = glm_winrate.get_length_controlled_winrate(
            judged, glm_name=kind, save_weights_dir=None, is_add_glm_preference_inplace=False
        )
    suffix = "" if gamed else "_minimal"
    return {f"length_controlled_win_rate{suffix}": float(result["length_controlled_winrate"]) / 100}


@contextmanager
def gamed_file(module: Any, gamed: str | None, positions: Sequence[int]) -> Iterator[None]:
    """Give AlpacaEval the local file instead of the hub's; the minimal model only reads its index."""
    file = Path("no_difficulties.csv")
    file.write_text("model,index,instruction_difficulty\n" + "".join(f"none,{each},0.0\n" for each in positions))
    before = module.hf_hub_download
    module.hf_hub_download = lambda **_: gamed or str(file)
    try:
        yield
    finally:
        module.hf_hub_download = before


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # an evaluation that was killed sends no more requests
    spec = json.loads(Path(sys.argv[1]).read_text())
    judged, frame = compare(spec)
    try:
        metrics = length_controlled(frame, spec["gamed"])
    except Exception as error:  # the fit fails where all answers are alike
        print(f"There is no length-controlled win rate: {type(error).__name__}: {error}", flush=True)
        metrics = {}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    Path(sys.argv[2]).write_text(json.dumps({"judged": judged, "metrics": metrics}))


if __name__ == "__main__":
    main()
