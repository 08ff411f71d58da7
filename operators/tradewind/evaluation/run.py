"""Function of an evaluation's step: serve the model, measure it with a harness, and write the results.

The order is such that little is lost: what is impossible is refused before a model is served, each answer is kept, and
an evaluation whose server does not come back is lost, not failed, so that the next attempt continues.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tradewind.datasets.files import join
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.harnesses import Harness, HarnessRun, harness_of
from tradewind.evaluation.model_files import find_model, model_state
from tradewind.evaluation.results import EvaluationRecord, Model, Serving, Status, TaskResult, write_results
from tradewind.evaluation.summary import summary_text
from tradewind.evaluation.tracking import check_trackers, report_scores
from tradewind.serving.answers import Answers
from tradewind.serving.config import OWN_MODEL, ServingConfig
from tradewind.serving.gateway import FixedTarget, Gateway, PoolTarget
from tradewind.serving.pool import PoolError
from tradewind.steps import AttemptLostError
from tradewind.steps.resources import Cpu, Gpu, TpuSlice
from tradewind.storage import file_system_at
from tradewind.storage.trees import upload_files
from tradewind.text import single_line

ANSWERS: Final = ".answers"
"""Folder of the answers in the output, until the evaluation has succeeded."""
_DISTRIBUTIONS: Final = {"levanter": "marin-levanter", "vllm": "vllm"}
"""Engine → its distribution."""
_MAX_ERROR_CHARS: Final = 2000

_log = partial(print, flush=True)


class EvaluationError(RuntimeError):
    """A task of an evaluation failed, or the model cannot be served; results of other tasks are in the output."""


def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Measure a model, write the results, and return status and scores.

    Raises:
        ValueError: The harness, or the model, cannot do what the config asks for.
        EvaluationError: A task failed, or the model cannot be served.
        AttemptLostError: The model's server was lost and did not come back.
    """
    harness = harness_of(config.evaluator)
    if not harness.served:
        return harness.evaluate(config)
    return _Evaluation(config, harness).run()


def result_of(record: EvaluationRecord) -> dict[str, Any]:
    """Return status and scores of a record; raise ``EvaluationError`` if a task failed."""
    failed = [f"{name}: {task.error}" for name, task in record.tasks.items() if task.status is Status.FAILED]
    if failed:
        about = f"{len(failed)} of {len(record.tasks)} tasks failed: {'; '.join(failed)}"
        raise EvaluationError(single_line(about, _MAX_ERROR_CHARS))
    scores = {name: {score.metric: score.value for score in task.scores} for name, task in record.entries()}
    return {"status": str(record.status), "model": record.model.name, "scores": scores}


class _Evaluation:
    """One attempt at an evaluation."""

    def __init__(self, config: EvaluationConfig, harness: Harness) -> None:
        self._config = config
        self._harness = harness
        self._started_at = time.time()
        check_trackers(config)
        for served in (config.serving, config.judge):
            if isinstance(served, ServedAddress):
                _fixed(served).resolve()  # a missing key, before anything else
        self._model = find_model(config)
        if config.apply_chat_template and self._model.folder is not None and self._model.chat_template is None:
            raise ValueError(
                f"apply_chat_template=True: the tokenizer of {self._model.path} has no chat template. Leave it out, or "
                "give a tokenizer that has one."
            )
        self._served = served_by(config)

    def run(self) -> dict[str, Any]:
        """Measure, write and report."""
        config = self._config
        with tempfile.TemporaryDirectory(prefix="tradewind-evaluation-") as work, ExitStack() as stack:
            run = HarnessRun(
                config,
                work,
                _name_in_api(self._served),
                self._model.folder,
                self._model.max_context,
                "" if config.judge is None else _name_in_api(config.judge),
                log=_log,
            )
            checked = self._harness.check(run)
            stack.callback(getattr(checked, "close", lambda: None))
            gateway = stack.enter_context(self._gateway(self._served, "model", self._model.state))
            judge = None
            if config.judge is not None:
                judge = stack.enter_context(self._gateway(config.judge, "judge", _judge_state(config.judge)))
            run = dataclasses.replace(
                run,
                address=gateway.base_url,
                judge_address="" if judge is None else judge.base_url,
                gateway=gateway,
                judge_gateway=judge,
                checked=checked,
            )
            results = self._harness.run(run)
            upload_files(Path(work), join(config.evaluation_path, self._harness.folder))
            return self._report(results, run)

    @contextmanager
    def _gateway(self, served: ServingConfig | ServedAddress, role: str, state: Sequence[Any]) -> Iterator[Gateway]:
        """Serve a model, and yield the gateway to it.

        Raises:
            EvaluationError: It cannot be served.
        """
        config = self._config
        answers = Answers(join(config.evaluation_path, ANSWERS), _scope(served, role, state), _log)
        target = _fixed(served) if isinstance(served, ServedAddress) else PoolTarget(served)
        try:
            if isinstance(target, PoolTarget):
                _log(f"The pool {target.wait_ready()} serves the model.")
            with Gateway(
                target,
                answers,
                log=_log,
                max_concurrent=config.num_concurrent,
                recovery_timeout_s=config.recovery_timeout_s,
            ) as gateway:
                yield gateway
        except PoolError as error:
            raise EvaluationError(f"The {role} cannot be served: {error}") from None
        except (KeyboardInterrupt, SystemExit):
            _log(f"Stopped. {len(answers):,} answers of the {role} are kept, and the next attempt continues with them.")
            raise
        finally:
            answers.close()

    def _report(self, results: Sequence[TaskResult], run: HarnessRun) -> dict[str, Any]:
        """Write the results, and raise if they are not all there."""
        gateway, judge = run.gateway, run.judge_gateway
        assert gateway is not None
        record = write_results(self._config.evaluation_path, self._record(gateway, run.checked.version), results)
        _log(summary_text(record))
        report_scores(record, self._config)
        given_up = next((each for each in (gateway, judge) if each is not None and each.given_up is not None), gateway)
        if given_up.is_refused:
            raise EvaluationError(given_up.given_up)
        if record.status is Status.INFRASTRUCTURE_LOST:
            raise AttemptLostError(
                f"{given_up.given_up or 'The model could not be asked any more.'} The next attempt continues with the "
                f"{gateway.traffic.answered:,} answers so far."
            )
        result = result_of(record)
        if record.status is Status.SUCCEEDED:
            fs, root = file_system_at(join(self._config.evaluation_path, ANSWERS))
            fs.invalidate_cache()
            if fs.exists(root):
                fs.rm(root, recursive=True)
        return result

    def _record(self, gateway: Gateway, harness_version: str) -> EvaluationRecord:
        config, traffic = self._config, gateway.traffic
        return EvaluationRecord(
            evaluation=config.evaluator,
            status=Status.SUCCEEDED,
            model=Model(
                self._model.path or _name_in_api(self._served),
                config.model_name or _name_in_api(self._served),
                self._model.path.partition("@")[2] or None,
            ),
            serving=serving_of(self._served),
            started_at=self._started_at,
            ended_at=time.time(),
            requests=traffic.requests,
            cached=traffic.cached,
            prompt_tokens=traffic.prompt_tokens,
            completion_tokens=traffic.completion_tokens,
            paused_s=traffic.paused_s,
            harness_version=harness_version,
        )


def served_by(config: EvaluationConfig) -> ServingConfig | ServedAddress:
    """Return what serves the model: the pool of the path as the user gave it, which other users of it join, too."""
    if isinstance(config.serving, ServedAddress):
        return config.serving
    if config.serving is None:
        resources = {} if config.resource_config is None else {"resources": config.resource_config}
        return ServingConfig(str(config.model_path), engine_options=dict(config.engine_kwargs or {}), **resources)
    is_own = config.serving.model == OWN_MODEL
    return dataclasses.replace(config.serving, model=str(config.model_path)) if is_own else config.serving


def _judge_state(judge: ServingConfig | ServedAddress) -> Sequence[Any]:
    is_stored = isinstance(judge, ServingConfig) and judge.engine != "command"
    return model_state(str(judge.model)) if is_stored else []


def _fixed(served: ServedAddress) -> FixedTarget:
    return FixedTarget(served.address, served.api_key)


def _name_in_api(served: ServingConfig | ServedAddress) -> str:
    return served.model if isinstance(served, ServedAddress) else served.name_in_api


def _scope(served: ServingConfig | ServedAddress, role: str, state: Sequence[Any]) -> Mapping[str, Any]:
    """Return what decides an answer besides the request."""
    if isinstance(served, ServedAddress):
        return {"role": role, "address": served.address, "model": served.model, "state": state}
    return {
        "role": role,
        "model": served.model,
        "state": state,
        "engine": served.engine,
        "options": dict(served.engine_options),
        "command": list(served.command),
    }


def serving_of(served: ServingConfig | ServedAddress) -> Serving:
    """Return what the record says of the engines, with the version that is installed here, if one is."""
    if isinstance(served, ServedAddress):
        return Serving("api")
    installed = None
    with suppress(PackageNotFoundError, KeyError):
        installed = version(_DISTRIBUTIONS[served.engine])
    return Serving(served.engine, installed, served.replicas, _hardware(served.resources))


def _hardware(resources: Cpu | Gpu | TpuSlice) -> str:
    match resources:
        case TpuSlice():
            return resources.slice_type
        case Gpu():
            return f"{resources.count:g} {resources.type or 'GPU'}"
    return f"{resources.num_cpus:g} CPU"
