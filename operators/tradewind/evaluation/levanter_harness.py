"""Measure a model with Levanter's evaluation harness in the processes of a step, one on each host of its slice.

The model is loaded once. lm-eval's tasks are measured one at a time, and the files of each are kept under ``.tasks`` in
the output, so a start after a preemption repeats at most one task. A task that fails does not end the others.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import exists, join, states_below, write_text
from tradewind.datasets.tokenizer_files import is_on_hub
from tradewind.evaluation.config import EvaluationConfig
from tradewind.evaluation.harnesses import LEVANTER_HARNESS
from tradewind.evaluation.lm_eval import check_installed, described, local_tasks, needs_network
from tradewind.evaluation.lm_eval_files import read_lm_eval
from tradewind.evaluation.results import (
    EvaluationRecord,
    Model,
    NoRecordError,
    Serving,
    Status,
    TaskResult,
    read_record,
    write_results,
)
from tradewind.evaluation.summary import summary_text
from tradewind.evaluation.tasks import EvalTaskConfig, check_tasks, labels
from tradewind.evaluation.tracking import check_trackers, report_scores
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.checks import refuse_unknown
from tradewind.steps.needs import needs
from tradewind.steps.paths import HUB_PREFIX
from tradewind.storage import file_system_at
from tradewind.storage.files import existing_many, list_names
from tradewind.storage.trees import list_files, remove_files, upload_files
from tradewind.text import did_you_mean, truncated_repr

if TYPE_CHECKING:
    from tradewind.evaluation.scored_model import ModelSource

FOLDER: Final = ".tasks"
"""Below the output: lm-eval's files of each task that is measured."""
RESUMABLE: Final = (f"{FOLDER}/**",)
KEPT: Final = "lm_eval"
"""Below the output, at the end: lm-eval's files of all tasks."""
_WHOLE: Final = "whole.json"
"""Written last into a task's folder."""
_OPTIONS: Final = ("model", "model_size")
"""Options of an evaluation with this harness: Levanter's config of a model that has no export, or its size."""
_STEP: Final = re.compile(r"step-(\d+)")


def check(config: EvaluationConfig) -> ModelSource:
    """Check all that can be checked without the weights, and return where the model is.

    Raises:
        ValueError: With the field and the remedy.
    """
    for name in config.options:
        if name not in _OPTIONS:
            raise ValueError(
                f"options has {truncated_repr(name)}, which is none of Levanter's harness; "
                f"{did_you_mean(name, _OPTIONS)}"
            )
    if config.serving is not None or config.generation_params is not None:
        field = "serving" if config.serving is not None else "generation_params"
        raise ValueError(
            f"{field}: Levanter's harness loads the model itself and generates no text: leave it out, or use "
            "evaluate_lm_evaluation_harness."
        )
    check_trackers(config)
    _check_tasks(config)
    source = _source(config)
    source.check()
    context = source.model_config(source.local_tokenizer()).max_seq_len
    if config.max_context is not None and config.max_context > context:
        raise ValueError(f"max_context={config.max_context} is longer than the model's context of {context} tokens.")
    if config.apply_chat_template:
        _check_chat_template(source)
    return source


def _check_tasks(config: EvaluationConfig) -> None:
    tasks = check_tasks(config.evals)
    check_installed()
    with tempfile.TemporaryDirectory() as work:
        manager = _manager(config, Path(work))
        refuse_unknown([task.name for task in tasks if not _is_file(task.name)], manager.all_tasks, "evals")


def _states(path: str | None) -> list[Any]:
    """Return what differs if other files take the place of these: a training or a task may be changed at its path."""
    return [] if path is None or path.startswith(HUB_PREFIX) or is_on_hub(path) else states_below(path)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and os.path.isfile(name)


def _manager(config: EvaluationConfig, work: Path) -> Any:
    """Return lm-eval's tasks, with those of the user's folder.

    Raises:
        ValueError: There is no such folder, or it has no tasks.
    """
    from lm_eval.tasks import TaskManager

    wanted = {task.name for task in check_tasks(config.evals) if not _is_file(task.name)}
    if config.task_path is None:
        return TaskManager(include_defaults=bool(wanted))
    local = str(local_tasks(config.task_path, work / "tasks"))
    if not any(Path(local).rglob("*.yaml")):
        raise ValueError(f"task_path={truncated_repr(config.task_path)} has no *.yaml, so it has no task of lm-eval.")
    own = TaskManager(include_path=local, include_defaults=False)
    return own if wanted <= set(own.all_subtasks) else TaskManager(include_path=local)  # this takes seconds


def _check_chat_template(source: ModelSource) -> None:
    from levanter.tokenizers import load_tokenizer

    if not load_tokenizer(source.local_tokenizer()).chat_template:
        raise ValueError(
            f"apply_chat_template=True: the tokenizer of model_path={truncated_repr(source.path)} has no chat "
            "template, as for a base model: leave it out."
        )


def _source(config: EvaluationConfig) -> ModelSource:
    from tradewind.evaluation.scored_model import ModelSource

    path = str(config.model_path)
    found = _newest(path) if config.discover_latest_checkpoint else path
    return ModelSource(found, config.tokenizer, config.options.get("model"), config.options.get("model_size", ""))


def _newest(path: str) -> str:
    """Return the newest of several exports in a folder, such as ``hf`` of a training; else the path itself."""
    if path.startswith(HUB_PREFIX) or exists(join(path, "config.json")):
        return path
    steps = {int(match[1]): name for name in list_names(path) if (match := _STEP.fullmatch(name))}
    exports = (join(path, steps[step]) for step in sorted(steps, reverse=True))
    return next((export for export in exports if exists(join(export, "config.json"))), path)


def preflight(config: EvaluationConfig, devices: int, num_slices: int = 1) -> None:
    """Check, on a CPU before a slice is reserved, what ``evaluate`` will measure; raises ``ValueError``."""
    if num_slices > 1:
        raise ValueError(f"resource_config has {num_slices} slices, and a model is measured on one: give one.")
    check(config)


@needs("jax", "levanter", "lm_eval", extra="evaluation")
def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Measure the model on all devices of the step, and return the status and the scores.

    Raises:
        ValueError: As ``preflight``.
        EvaluationError: A task failed; the results of the others are in the output.
    """
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    from tradewind.evaluation.run import result_of

    levanter_parts.quiet_libraries()
    levanter_parts.keep_compilations(config.evaluation_path)
    started = time.time()
    is_measured = _was_measured(config)
    sync_global_devices("tradewind: record read")
    if not is_measured:
        source = check(config) if jax.process_index() == 0 else _source(config)
        with tempfile.TemporaryDirectory() as work:
            measuring = _Measuring(config, source, Path(work))
            measuring.run()
            if jax.process_index() == 0:
                measuring.write(started)
    sync_global_devices("tradewind: evaluation written")
    return result_of(read_record(config.evaluation_path))


evaluate.preflight = preflight  # type: ignore[attr-defined]
evaluate.warm_imports = ("levanter.eval_harness", "jax.experimental.multihost_utils")  # type: ignore[attr-defined]


def _was_measured(config: EvaluationConfig) -> bool:
    """Whether this attempt has written all results, and its slice was preempted then."""
    try:
        return read_record(config.evaluation_path).status is not Status.FAILED
    except NoRecordError:
        return False


@dataclass(frozen=True)
class _Place:
    """Where the files of one task are.

    Attributes:
        number: Of the task in the evaluation.
        label: Its name in results.
        folder: Local folder for lm-eval's files.
        kept: Folder in the output.
    """

    number: int
    label: str
    task: EvalTaskConfig
    folder: Path
    kept: str


class _Measuring:
    """One evaluation: what is measured already, and the rest.

    All hosts call ``run``; process 0 alone has results.
    """

    def __init__(self, config: EvaluationConfig, source: ModelSource, work: Path) -> None:
        self._config = config
        self._source = source
        self._work = work
        tasks = check_tasks(config.evals)
        self._places = [
            _Place(number, label, task, work / f"{number:03d}", join(config.evaluation_path, FOLDER, self._key(task)))
            for number, (label, task) in enumerate(zip(labels(tasks), tasks, strict=True))
        ]
        self._errors: dict[str, str] = {}

    def _key(self, task: EvalTaskConfig) -> str:
        """Return a name of all that decides the results of a task: another attempt may have another config."""
        config, source = self._config, self._source
        weights = source.path if source.path.startswith(HUB_PREFIX) else source.export or source.checkpoints
        paths = (weights, source.tokenizer_path, config.task_path, task.name if _is_file(task.name) else None)
        decides = [
            [task.name, task.num_fewshot],
            [[path, _states(path)] for path in paths],
            [config.max_eval_instances, config.apply_chat_template, config.max_context, config.seed],
            [_version(name) for name in ("lm_eval", "marin-levanter")],
        ]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]

    def run(self) -> None:
        """Measure the tasks that have no files yet; the model is loaded if there is any."""
        import numpy as np
        from jax.experimental.multihost_utils import broadcast_one_to_all

        whole = existing_many([join(place.kept, _WHOLE) for place in self._places])
        found = np.array([join(place.kept, _WHOLE) in whole for place in self._places])
        found = broadcast_one_to_all(found)  # a host's own copy of the tasks has another state
        missing = [place for place, is_found in zip(self._places, found, strict=True) if not is_found]
        if len(missing) < len(self._places):
            _say(f"{len(self._places) - len(missing)} of {len(self._places)} tasks were measured before")
        if not missing:
            return
        from tradewind.evaluation.levanter_lm import TaskMeasurer, opened

        with opened(self._source, self._config.max_context) as lm:
            if lm is not None:
                name = _model_name(self._config)
                measurer = TaskMeasurer(lm, self._config, _manager(self._config, self._work), name)
                for place in missing:
                    self._measure(place, measurer)

    def _measure(self, place: _Place, measurer: Any) -> None:
        import jax

        started, about = time.monotonic(), f"task {place.number + 1}/{len(self._places)}, {place.label}"
        try:
            warning = measurer.measure(place.task, place.folder)
        except jax.errors.JaxRuntimeError:  # the other hosts are not in step any more
            raise
        except Exception as error:  # tasks and their data sets raise many types
            self._errors[place.label] = _described(error, is_offline=not self._config.network)
            _say(f"{about}: failed, {self._errors[place.label]}")
            return
        _keep(place)
        _say(f"{about}: {time.monotonic() - started:.0f} s{f'; {warning}' if warning else ''}")

    def write(self, started: float) -> None:
        """Write the results of all tasks, and lm-eval's files."""
        results = [result for place in self._places for result in self._results(place)]
        record = EvaluationRecord(
            evaluation=LEVANTER_HARNESS,
            status=Status.SUCCEEDED,
            model=Model(self._source.path, _model_name(self._config)),
            serving=Serving(
                "in_process", f"levanter {importlib.metadata.version('marin-levanter')}", None, _hardware()
            ),
            started_at=started,
            ended_at=time.time(),
            harness_version=f"lm-eval {_version('lm_eval')}",
        )
        output = self._config.evaluation_path
        for place in self._places:
            if place.folder.exists():
                upload_files(place.folder, join(output, KEPT, place.folder.name))
        record = write_results(output, record, results)
        _say(summary_text(record))
        report_scores(record, self._config)
        if not self._errors:  # else the next attempt reads them
            for place in self._places:
                remove_files(place.kept, [file.path for file in list_files(place.kept)])

    def _results(self, place: _Place) -> list[TaskResult]:
        if place.label in self._errors:
            return [_failed(place, self._errors[place.label])]
        if not place.folder.exists():
            _download(place.kept, place.folder)
        return read_lm_eval(str(place.folder), place.label)


def _described(error: BaseException, *, is_offline: bool) -> str:
    """Return what went wrong with a task, and what to do if its data is of the hub."""
    hint = "; its data is not on this host, and the evaluation may not use the network: give network=True"
    return described(error) + (hint if is_offline and needs_network(error) else "")


def _failed(place: _Place, error: str) -> TaskResult:
    task = place.task
    return TaskResult(place.label, task.name, "unknown", task.num_fewshot, {}, {}, 0, (), Status.FAILED, error)


def _keep(place: _Place) -> None:
    """Copy a task's files to the output, in place of those of a killed copy; the last one says that they are whole."""
    fs, root = file_system_at(place.kept)
    fs.invalidate_cache()
    if fs.exists(root):
        fs.rm(root, recursive=True)
    upload_files(place.folder, place.kept)
    write_text(join(place.kept, _WHOLE), "{}\n")


def _download(source: str, folder: Path) -> None:
    fs, root = file_system_at(source)
    fs.get(root, str(folder), recursive=True)
    (folder / _WHOLE).unlink()


def _model_name(config: EvaluationConfig) -> str:
    """Return the model's name in results: the given one, or that of its path, with the run of an export."""
    if config.model_name:
        return config.model_name
    parts = [part for part in str(config.model_path).split("/") if part not in ("", "hf")]
    return "-".join(parts[-2:]) if _STEP.fullmatch(parts[-1]) else parts[-1]


def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


def _hardware() -> str:
    count = levanter_parts.device_count()
    return f"{count} x {levanter_parts.device_kind()}"


def _say(line: str) -> None:
    print(line, flush=True)
