"""AlpacaEval: a model answers instructions, and a judge says whether its answer or the reference's is better.

The instructions with the reference's answers are files of one folder, ``task_path``: ``reference_outputs.json``, and
AlpacaEval's ``df_gamed.csv`` for the length-controlled win rate as it is published. AlpacaEval itself runs in an
environment of its own, and sees only the judge's gateway: never a key, never the hub.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tradewind.evaluation.alpaca_eval_files import (
    GAMED_FILE,
    REFERENCE_FILE,
    Instruction,
    Judgement,
    read_annotators,
    read_instructions,
    read_judged,
    read_task_files,
)
from tradewind.evaluation.chat import Reply, ask_all, check_numbers
from tradewind.evaluation.environments import ALPACA_EVAL, HarnessPython, find_environment
from tradewind.evaluation.harnesses import HarnessRun
from tradewind.evaluation.isolated_process import causes, exit_of, run_isolated
from tradewind.evaluation.model_files import chat_template_in
from tradewind.evaluation.progress import Progress
from tradewind.evaluation.results import Sample, Status, TaskResult
from tradewind.text import did_you_mean, truncate_middle, truncated_repr

_NAME: Final = "alpaca_eval"
_ANNOTATORS: Final = "annotators_config"
_DEFAULT_ANNOTATORS: Final = "weighted_alpaca_eval_gpt4_turbo"
_MAX_TOKENS: Final = 2048
_SHOWN_CHARS: Final = 200
_NEUTRAL: Final[Mapping[str, Any]] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "stop_token_ids": None,
}
"""Sampling settings that are left out of requests with these values, since not each engine knows each."""
_LISTS: Final = ("stop", "stop_token_ids")
_GENERATION: Final = ("temperature", *_NEUTRAL, "max_tokens", "max_gen_toks", "stop", "seed")


@dataclass(frozen=True)
class Checked:
    """What ``check`` found.

    Attributes:
        python: AlpacaEval's Python.
        instructions: Those to answer.
        annotators: Content of the files of the judge's config, by name.
        gamed: Content of ``df_gamed.csv``, if it is there.
        comparison: Hash of what decides preferences besides the judge: its prompt and parser, and the reference.
    """

    python: HarnessPython
    instructions: Sequence[Instruction]
    annotators: Mapping[str, str]
    gamed: str | None
    comparison: str

    @property
    def version(self) -> str:
        """Return AlpacaEval's version."""
        return self.python.version


def check(run: HarnessRun) -> Checked:
    """Refuse files and options that AlpacaEval cannot use, before a model is served.

    Raises:
        ValueError: With the field.
    """
    config = run.config
    for name in config.options:
        if name != _ANNOTATORS:
            meant = did_you_mean(name, (_ANNOTATORS,))
            raise ValueError(f"options: {truncated_repr(name)} is none of AlpacaEval's; {meant}")
    check_numbers(config.generation_params or {}, _GENERATION, lists=_LISTS)
    if config.evals:
        raise ValueError("evals: AlpacaEval has one task. Leave them out, and give the instructions by task_path.")
    if config.judge is None:
        raise ValueError(
            "judge: AlpacaEval needs one. Give ServedAddress('https://HOST/v1', 'MODEL', api_key='NAME_OF_VARIABLE'), "
            "or a ServingConfig."
        )
    if run.model_dir is not None and chat_template_in(run.model_dir) is None:
        raise ValueError(
            f"{run.model}: AlpacaEval's instructions are conversations, and this model's tokenizer has no chat "
            "template. Give a tokenizer that has one."
        )
    contents = read_task_files(config.task_path)
    python = find_environment(ALPACA_EVAL, run.log)
    annotators = read_annotators(
        f"options[{_ANNOTATORS!r}]", str(config.options.get(_ANNOTATORS, _DEFAULT_ANNOTATORS)), python.packages
    )
    every = read_instructions(contents[REFERENCE_FILE])
    count = min(config.max_eval_instances or len(every), len(every))
    chosen = sorted(random.Random(config.seed).sample(range(len(every)), count))
    gamed = contents.get(GAMED_FILE)
    decides = json.dumps([sorted(annotators.items()), [(each.text, each.reference) for each in every]])
    comparison = hashlib.sha256(decides.encode()).hexdigest()[:8]
    return Checked(python, [every[position] for position in chosen], annotators, gamed, comparison)


def run(run: HarnessRun) -> list[TaskResult]:
    """Let the model answer and the judge compare; return the one result."""
    checked: Checked = run.checked
    run.log(f"AlpacaEval: the model answers {len(checked.instructions):,} instructions.")
    texts = [instruction.text for instruction in checked.instructions]
    fields = generation_fields(run)
    with Progress(run.gateway, len(texts), run.log):
        replies = ask_all(run.address, run.model, texts, fields, run.config.num_concurrent)
    work = Path(run.work_dir)
    work.mkdir(parents=True, exist_ok=True)
    answered = [pair for pair in zip(checked.instructions, replies, strict=True) if pair[1].error is None]
    outputs = [
        {
            "instruction": instruction.text,
            "output": reply.text,
            "generator": run.model,
            "position": instruction.position,
        }
        for instruction, reply in answered
    ]
    (work / "model_outputs.json").write_text(json.dumps(outputs, indent=1))
    if not answered:
        return [_result(run, replies, {}, {}, "The model answered no instruction: " + str(replies[0].error))]
    run.log(f"AlpacaEval: the judge compares {len(answered):,} answers.")
    judged: Mapping[str, Judgement] = {}
    metrics: Mapping[str, float] = {}
    why = None
    with TemporaryDirectory(prefix="tradewind-alpaca-eval-") as home:
        try:
            judged, metrics = _judge(run, answered, Path(home), work)
            _check_judge(judged)
        except ValueError as error:
            why = str(error)
    return [_result(run, replies, judged, metrics, why)]


def generation_fields(run: HarnessRun) -> dict[str, Any]:
    """Return the fields of requests to the model."""
    given = {"temperature": 0.0, **(run.config.generation_params or {})}
    fields = {name: value for name, value in given.items() if not _is_neutral(name, value)}
    most = fields.pop("max_gen_toks", None)
    room = _MAX_TOKENS if run.max_context is None else min(_MAX_TOKENS, run.max_context // 2)
    return {"max_tokens": most or room, **fields}


def _is_neutral(name: str, value: Any) -> bool:
    return value is None or value == [] or (name in _NEUTRAL and value == _NEUTRAL[name])


def _judge(
    run: HarnessRun, answered: Sequence[tuple[Instruction, Reply]], home: Path, work: Path
) -> tuple[dict[str, Judgement], dict[str, float]]:
    """Compare in AlpacaEval's own process.

    Raises:
        ValueError: It failed; the message says why.
    """
    checked: Checked = run.checked
    folder = home / "judge"
    folder.mkdir()
    for name, text in checked.annotators.items():
        (folder / name).write_text(text)
    if checked.gamed is not None:
        (home / GAMED_FILE).write_text(checked.gamed)
    spec = {
        "pairs": [_pair(*each) for each in answered],
        "address": run.judge_address,
        "model": run.judge_model,
        "annotators": str(folder),
        "gamed": None if checked.gamed is None else str(home / GAMED_FILE),
        "seed": run.config.seed,
        "num_concurrent": run.config.num_concurrent,
    }
    (home / "spec.json").write_text(json.dumps(spec))
    log, judged = work / "alpaca_eval.log", work / "judged.json"
    arguments = [str(home / "spec.json"), str(judged)]
    with Progress(run.judge_gateway, len(answered), run.log):
        code = run_isolated(checked.python, "run_alpaca_eval.py", arguments, log=log, home=str(home), network=False)
    if code != 0:
        raise ValueError(f"AlpacaEval {exit_of(code)}:\n{causes(log)}")
    return read_judged(judged)


def _pair(instruction: Instruction, reply: Reply) -> dict[str, Any]:
    return {
        "document": str(instruction.position),
        "position": instruction.position,
        "instruction": instruction.text,
        "output_1": instruction.reference,
        "output_2": reply.text,
    }


def _check_judge(judged: Mapping[str, Judgement]) -> None:
    """Refuse a judge whose answers are none of those that its config reads; raises ``ValueError``."""
    if not any(each.preference is not None for each in judged.values()):
        first = next(iter(judged.values()), None)
        shown = "nothing" if first is None else first.error or repr(truncate_middle(first.said, _SHOWN_CHARS))
        raise ValueError(
            f"No answer of the judge is a preference; the first is {shown}. Give the {_ANNOTATORS} that this judge can "
            "answer: those whose names begin with weighted_ need log probabilities (logprobs)."
        )


def _result(
    run: HarnessRun,
    replies: Sequence[Reply],
    judged: Mapping[str, Judgement],
    metrics: Mapping[str, float],
    why: str | None,
) -> TaskResult:
    checked: Checked = run.checked
    samples = tuple(
        _sample(instruction, reply, judged.get(str(instruction.position)))
        for instruction, reply in zip(checked.instructions, replies, strict=True)
    )
    is_lost = any(gateway is not None and gateway.given_up is not None for gateway in (run.gateway, run.judge_gateway))
    status = Status.INFRASTRUCTURE_LOST if is_lost else Status.SUCCEEDED if why is None else Status.FAILED
    template = None if run.model_dir is None else chat_template_in(run.model_dir)
    return TaskResult(
        name=_NAME,
        task=_NAME,
        task_version=f"alpaca-eval {checked.version}, {run.judge_model}, {checked.comparison}",
        num_fewshot=None,
        higher_is_better=dict.fromkeys(("win_rate", *metrics), True),
        metrics=metrics,
        num_documents=len(samples),
        samples=samples,
        status=status,
        error=why,
        chat_template_sha256=None if template is None else hashlib.sha256(template.encode()).hexdigest(),
    )


def _sample(instruction: Instruction, reply: Reply, judgement: Judgement | None) -> Sample:
    error = reply.error
    if error is None and (judgement is None or judgement.preference is None):
        error = "The judge was not asked." if judgement is None else judgement.error or _nonsense(judgement.said)
    scores = {} if error or judgement is None else {"win_rate": (judgement.preference or 1.0) - 1.0}
    return Sample(str(instruction.position), instruction.text, instruction.reference, reply.text, scores, error)


def _nonsense(said: str) -> str:
    return f"The judge's answer names neither answer as better: {truncated_repr(said)}."
