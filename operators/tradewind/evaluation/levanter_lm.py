"""A stored model as lm-eval's model, by Levanter's harness: process 0 asks, and all hosts compute together.

Only clusters import this module. lm-eval must be importable, since Levanter's classes inherit from its own.
"""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import datasets  # type: ignore[import-untyped]
import haliax as hax
import jax
import numpy as np
from huggingface_hub import constants
from levanter import eval_harness
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from tradewind.evaluation.config import EvaluationConfig
from tradewind.evaluation.lm_eval_files import save_samples
from tradewind.evaluation.scored_model import ModelSource, loaded
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.recipes.lm import levanter_parts

MAX_CONTEXT: Final = 4096
"""Longest prompt with its answer by default, in tokens, if the model's own context is longer."""
SCORED: Final = ("multiple_choice", "loglikelihood")
"""Kinds of tasks that Levanter's harness measures; of others it gives empty answers, or an error."""
_SEGMENTS: Final = 64
"""Prompts in a row of a batch, at most, as in Levanter's own harness."""
_MAX_NAMED: Final = 5
_MAX_SEED: Final = 2**32
_NOISY: Final = ("levanter.eval_harness", "lm_eval")


class UnmeasuredTaskError(ValueError):
    """A task needs what Levanter's harness does not do."""


class LevanterLM(eval_harness.LevanterHarnessLM):
    """Levanter's model of lm-eval, which counts prompts that are longer than the context.

    Attributes:
        shortened: Number of prompts without their begin, of the current task.
        documents: Ids of the first documents of these.
    """

    def __init__(self, leader: Any) -> None:
        super().__init__(leader)
        self.shortened = 0
        self.documents: list[int] = []

    def chat_template(self, chat_template: Any = False) -> str:
        """Return the tokenizer's chat template; empty without one, or if none is asked for."""
        return (self.tokenizer.chat_template or "") if chat_template else ""

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        self._count_long(requests)
        found = [(float(score), bool(is_greedy)) for score, is_greedy in super().loglikelihood(requests)]
        if any(math.isnan(score) for score, _ in found):
            raise ValueError(
                "the model's log probabilities are no numbers: its weights are broken, as of a training that diverged"
            )
        return found

    def _count_long(self, requests: Sequence[Any]) -> None:
        for start in range(0, len(requests), 1000):
            some = requests[start : start + 1000]
            texts = [f"{each.args[0]}{each.args[1]}" for each in some]
            lengths = map(len, self.tokenizer(texts, add_special_tokens=False)["input_ids"])
            long = [each.doc_id for each, length in zip(some, lengths, strict=True) if length > self.EvalPos.size]
            self.shortened += len(long)
            self.documents += [each for each in dict.fromkeys(long) if each not in self.documents]
        self.documents = self.documents[:_MAX_NAMED]


@contextmanager
def opened(source: ModelSource, max_context: int | None) -> Iterator[LevanterLM | None]:
    """Load the model, and give process 0 the model of lm-eval; the others compute until it has ended, and get None.

    All hosts enter together.
    """
    with loaded(source, per_device_batch_size=1) as scored:
        context = max_context or min(scored.max_seq_len, MAX_CONTEXT)
        worker = eval_harness._LmEvalHarnessWorker(
            hax.Axis("batch", scored.rows),
            scored.model.Pos.resize(context),
            scored.model,
            levanter_parts.mesh().resolved_compute_mapping,
            scored.tokenizer.as_hf_tokenizer(),
            levanter_parts.precision(),
            max_packed_segments=_SEGMENTS,
        )
        if jax.process_index() > 0:
            worker.worker_message_loop()
            yield None
            return
        yield LevanterLM(worker)
        worker.stop()  # not after an error: the pod ends the other hosts


@dataclass(frozen=True)
class TaskMeasurer:
    """Measures tasks with one loaded model, on process 0."""

    lm: LevanterLM
    config: EvaluationConfig
    manager: TaskManager
    model_name: str

    def measure(self, task: EvalTaskConfig, folder: Path) -> str | None:
        """Write lm-eval's files of a task; return what a user should know of its prompts.

        Raises:
            UnmeasuredTaskError: The task asks for text, which Levanter's harness does not generate.
        """
        with hub_offline(is_offline=not self.config.network):
            return self._measure(task, folder)

    def _measure(self, task: EvalTaskConfig, folder: Path) -> str | None:
        with chdir(self.manager.include_path or "."):  # tasks name files beside them
            loaded_tasks = self.manager.load([task.name])
        for name, each in loaded_tasks["tasks"].items():
            if each.OUTPUT_TYPE not in SCORED:
                raise UnmeasuredTaskError(
                    f"it has {name}, whose kind is {each.OUTPUT_TYPE}, and Levanter's harness measures only the "
                    "probabilities of given answers: use evaluate_lm_evaluation_harness, which serves the model"
                )
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.ERROR)
        self.lm.shortened, self.lm.documents = 0, []
        tracker = EvaluationTracker(output_path=str(folder))
        results = self._results(task, loaded_tasks)
        samples = results.pop("samples")
        tracker.general_config_tracker.log_experiment_args(
            model_source="levanter",
            model_args=f"model={self.model_name}",
            system_instruction=None,
            chat_template=self.lm.chat_template(self.config.apply_chat_template) or None,
            fewshot_as_multiturn=self.config.apply_chat_template,
        )
        tracker.save_results_aggregated(results=results, samples=samples)
        save_samples(tracker, folder, samples)
        return self._long_prompts()

    def _results(self, task: EvalTaskConfig, loaded_tasks: Mapping[str, Any]) -> Any:
        seed = self.config.seed
        state = random.getstate(), np.random.get_state()
        try:
            return simple_evaluate(
                model=self.lm,
                model_args=f"model={self.model_name}",
                tasks=[task.name],
                num_fewshot=task.num_fewshot,
                limit=self.config.max_eval_instances,
                bootstrap_iters=0,  # the intervals are Tradewind's
                apply_chat_template=self.config.apply_chat_template,
                fewshot_as_multiturn=self.config.apply_chat_template,
                task_manager=_Loaded(loaded_tasks, self.manager),
                random_seed=seed,
                numpy_random_seed=seed % _MAX_SEED,
                torch_random_seed=None,
                fewshot_random_seed=seed,
            )
        finally:
            random.setstate(state[0])
            np.random.set_state(state[1])

    def _long_prompts(self) -> str | None:
        if not self.lm.shortened:
            return None
        documents = ", ".join(map(str, self.lm.documents))
        return (
            f"{self.lm.shortened:,} prompts are longer than the context of {self.lm.EvalPos.size:,} tokens and lost "
            f"their begin, such as those of documents {documents}"
        )


@contextmanager
def hub_offline(*, is_offline: bool) -> Iterator[None]:
    """Let the libraries of the Hugging Face hub send nothing; they have read their environment already."""
    if not is_offline:
        yield
        return
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


class _Loaded:
    """lm-eval's tasks, of which one is loaded already."""

    def __init__(self, tasks: Mapping[str, Any], manager: TaskManager) -> None:
        self._tasks = tasks
        self._manager = manager

    def load(self, names: Any) -> Any:
        return copy.copy(self._tasks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)
