"""The LM Evaluation Harness (lm-eval) against a served model, in a process of its own (``run_lm_eval``).

``check`` starts that process, which loads the tasks and makes their prompts, and refuses what is impossible. Then it
waits until ``run`` gives it the address. If it dies over a task, that task has failed, and another process measures the
rest; the gateway answers again what was answered.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tradewind.datasets.files import is_remote
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.harnesses import HarnessRun
from tradewind.evaluation.isolated_process import OFFLINE, isolated_environment
from tradewind.evaluation.lm_eval_files import read_lm_eval
from tradewind.evaluation.progress import Progress
from tradewind.evaluation.results import Status, TaskResult
from tradewind.evaluation.tasks import EvalTaskConfig, check_tasks, labels
from tradewind.steps.amounts import human_size
from tradewind.steps.fields import FLAG
from tradewind.storage import file_system_at
from tradewind.text import did_you_mean, single_line, truncated_repr

OPTIONS: Final = ("add_bos_token", "confirm_run_unsafe_code", "truncate")
"""Options of an evaluation with this harness, all False by default:

``add_bos_token``: whether prompts begin with the tokenizer's special tokens; ``confirm_run_unsafe_code``: whether tasks
may run code that the model wrote; ``truncate``: whether a prompt that is too long loses its begin.
"""
_QUIET: Final = {"TQDM_DISABLE": "1", "OPENAI_API_KEY": ""}
_FINDS_PACKAGES: Final = ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_UNREACHABLE: Final = (
    "OfflineModeIsEnabled", "DatasetNotFoundError", "LocalEntryNotFoundError", "ConnectionError", "ConnectTimeout",
    "DataFilesNotFoundError", "MaxRetryError", "ConnectError",
)  # fmt: skip
"""Errors of libraries that cannot download data."""
_MAX_LOG_CHARS: Final = 2000
_MAX_TASKS_BYTES: Final = 1 << 30


class HarnessError(RuntimeError):
    """lm-eval's process ended before it could say what is wrong."""


def check(run: HarnessRun) -> Prepared:
    """Load the tasks and make their prompts, before a model is served.

    Raises:
        ValueError: A task is unknown, needs the network, or does not fit the model; the message names it.
        HarnessError: The process ended.
    """
    config = run.config
    tasks = check_tasks(config.evals)
    check_options(config.options)
    check_installed()
    prepared = Prepared(run, dict(zip(labels(tasks), tasks, strict=True)))
    try:
        prepared.start(prepared.tasks)
    except BaseException:
        prepared.close()
        raise
    return prepared


def check_installed() -> None:
    """Raise ``ValueError`` if there is no lm-eval."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(
            "lm-eval is not installed on this cluster: use an image with the extra 'evaluation' of "
            "airflow-provider-tradewind."
        )


def check_options(options: Any) -> None:
    """Refuse unknown options, also while a DAG file is parsed; raises ``ValueError``."""
    for name, given in options.items() if isinstance(options, Mapping) else ():
        if name not in OPTIONS:
            raise ValueError(f"options has {name!r}, which is none of lm-eval's here; {did_you_mean(name, OPTIONS)}")
        FLAG.check(f"options[{name!r}]", given)


def run(run: HarnessRun) -> list[TaskResult]:
    """Measure the tasks; return results for each, also for those that failed."""
    prepared: Prepared = run.checked
    with Progress(run.gateway, sum(prepared.requests.values()), run.log):
        found = prepared.measure(run)
    return [result for label in prepared.tasks for result in found[label]]


class Prepared:
    """lm-eval's process, with the prompts of the tasks.

    Attributes:
        version: Version of lm-eval.
        tasks: Label → task, of the whole evaluation.
        requests: Label of a task → number of its requests.
        documents: Label of a task → number of its documents.
    """

    def __init__(self, run: HarnessRun, tasks: Mapping[str, EvalTaskConfig]) -> None:
        self._run = run
        self.version = importlib.metadata.version("lm_eval")
        self.tasks = tasks
        self.requests: dict[str, int] = {}
        self.documents: dict[str, int] = {}
        self._copied = tempfile.TemporaryDirectory(prefix="tradewind-tasks-")
        self._task_path = local_tasks(run.config.task_path, Path(self._copied.name))
        self._process: subprocess.Popen[str] | None = None
        self._log_file = Path(run.work_dir, "lm_eval.log")

    def start(self, tasks: Iterable[str]) -> None:
        """Start a process with the tasks of these labels, and wait until it has made their prompts.

        Raises:
            ValueError: A task is impossible.
            HarnessError: The process ended.
        """
        self._end()
        self._run.log("lm-eval loads the tasks and makes their prompts.")
        with self._log_file.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tradewind.evaluation.run_lm_eval"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(self._run.config),
                cwd=self._task_path or self._run.work_dir,  # so that tasks name files beside them
            )
        self._send(self._spec(tasks))
        refused: list[str] = []
        for event in self._events():
            match event["event"]:
                case "refused":
                    refused.append(_refusal(event, self._run))
                case "prepared":
                    self._note(event)
                case "ready":
                    return
                case "done":
                    raise ValueError(" ".join(refused))
        raise HarnessError(f"lm-eval ended before it had made the prompts. {self._last_lines()}")

    def measure(self, run: HarnessRun) -> dict[str, list[TaskResult]]:
        """Measure all tasks; return label → results."""
        found: dict[str, list[TaskResult]] = {}
        while left := [label for label in self.tasks if label not in found]:
            if run.gateway is not None and run.gateway.given_up is not None:
                return found | {label: [self._lost(label, run.gateway.given_up)] for label in left}
            try:
                if self._process is None:
                    self.start(left)
                self._send({"address": run.address})
                self._collect(run, found)
            except (HarnessError, BrokenPipeError, ValueError) as error:
                now = next(label for label in self.tasks if label not in found)
                found[now] = [self._failed(now, f"{error} {self._last_lines()}")]
                run.log(f"{now} failed: {single_line(error)}")
                self._end()
                if run.gateway is not None:
                    run.gateway.rewind()
        return found

    def close(self) -> None:
        """End the process, and remove the copies of tasks."""
        self._end()
        self._copied.cleanup()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _collect(self, run: HarnessRun, found: dict[str, list[TaskResult]]) -> None:
        """Take the results of a process.

        Raises:
            HarnessError: It ended within a task.
        """
        for event in self._events():
            label = event.get("label", "")
            match event["event"]:
                case "started":
                    run.log(f"{label}: {self.documents[label]:,} documents, about {self.requests[label]:,} requests.")
                case "ended":
                    found[label] = read_lm_eval(self._folder(label), label)
                case "failed" if event["lost"]:
                    found[label] = [self._lost(label, event["error"])]
                case "failed":
                    found[label] = [self._failed(label, event["error"])]
                    run.log(f"{label} failed: {event['error']}")
                case "done":
                    return
        code = None if self._process is None else self._process.wait()
        raise HarnessError(f"lm-eval's process ended with exit code {code} while it measured this task.")

    def _note(self, event: Mapping[str, Any]) -> None:
        label = event["label"]
        self.requests[label], self.documents[label] = event["requests"], event["documents"]
        if event["truncated"]:
            self._run.log(
                f"{label}: {event['truncated']:,} documents are longer than the model's context of "
                f"{self._run.max_context:,} tokens, and lose their begin."
            )

    def _spec(self, tasks: Iterable[str]) -> dict[str, Any]:
        run, config = self._run, self._run.config
        return {
            "tasks": [
                {
                    "name": self.tasks[label].name,
                    "label": label,
                    "num_fewshot": self.tasks[label].num_fewshot,
                    "folder": str(self._folder(label)),
                }
                for label in tasks
            ],
            "task_path": self._task_path,
            "limit": config.max_eval_instances,
            "apply_chat_template": config.apply_chat_template,
            "generation_params": dict(config.generation_params or {}),
            "seed": config.seed,
            "network": config.network,
            "num_concurrent": config.num_concurrent,
            "model_name": run.model,
            "tokenizer": run.model_dir,
            "max_context": run.max_context,
            **{name: config.options.get(name, False) for name in OPTIONS},
        }

    def _folder(self, label: str) -> Path:
        number = list(self.tasks).index(label)
        return Path(self._run.work_dir, f"{number:03d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', label)[:80]}")

    def _send(self, line: Mapping[str, Any]) -> None:
        pipe = None if self._process is None else self._process.stdin
        if pipe is not None:
            pipe.write(json.dumps(line) + "\n")
            pipe.flush()

    def _events(self) -> Iterator[dict[str, Any]]:
        pipe = None if self._process is None else self._process.stdout
        for line in pipe or ():
            yield json.loads(line)

    def _failed(self, label: str, error: str, status: Status = Status.FAILED) -> TaskResult:
        task, documents = self.tasks[label], self.documents.get(label, 0)
        why = single_line(error, _MAX_LOG_CHARS)
        return TaskResult(label, task.name, "", task.num_fewshot, {}, {}, documents, (), status, why)

    def _lost(self, label: str, why: str) -> TaskResult:
        return self._failed(label, why, Status.INFRASTRUCTURE_LOST)

    def _last_lines(self) -> str:
        """Return the end of what lm-eval printed."""
        if not self._log_file.exists():
            return ""
        text = self._log_file.read_text(errors="replace")[-_MAX_LOG_CHARS:].strip()
        return f"Its last lines: {single_line(text[text.find(chr(10)) + 1 :], _MAX_LOG_CHARS)}" if text else ""


def local_tasks(path: str | None, folder: Path) -> str | None:
    """Return a local folder with the tasks at ``path``: itself, or a copy.

    Raises:
        ValueError: It is no folder, or too large for tasks.
    """
    if path is None:
        return None
    fs, root = file_system_at(path)
    fs.invalidate_cache()
    if not fs.isdir(root):
        raise ValueError(f"task_path={truncated_repr(path)} is no folder: give one with the YAML files of tasks.")
    if not is_remote(path):
        return str(root)
    files = {name: entry["size"] for name, entry in fs.find(root, detail=True).items()}
    if sum(files.values()) > _MAX_TASKS_BYTES:
        limit = human_size(_MAX_TASKS_BYTES)
        raise ValueError(f"task_path={truncated_repr(path)} holds more than {limit}: give a folder with tasks only.")
    for name in files:
        relative = PurePosixPath(name.removeprefix(root).lstrip("/"))
        if ".." not in relative.parts:
            Path(folder, relative).parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(name, str(folder / relative))
    return str(folder)


def _environment(config: EvaluationConfig) -> dict[str, str]:
    """Return the environment of lm-eval's process: no keys of servers, and no secrets for code that a model wrote."""
    more = _QUIET | ({} if config.network else OFFLINE)
    if config.options.get("confirm_run_unsafe_code"):
        found = {name: os.environ[name] for name in _FINDS_PACKAGES if name in os.environ}
        own = isolated_environment(os.path.expanduser("~"), network=config.network)
        return found | own | more | {"HF_ALLOW_CODE_EVAL": "1"}
    keys = {served.api_key for served in (config.serving, config.judge) if isinstance(served, ServedAddress)}
    return {name: value for name, value in os.environ.items() if name not in keys} | more


def described(error: BaseException) -> str:
    """Return an error of lm-eval's in one line."""
    if "Sample larger than population" in str(error):  # of the library that draws
        return "the data has fewer documents than the shots of a prompt: give fewer shots"
    return single_line(f"{type(error).__name__}: {error}", 1000)


def needs_network(error: BaseException) -> bool:
    """Whether a task cannot be loaded since its data is not on this host."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    return any(type(link).__name__ in _UNREACHABLE for link in chain)


def _refusal(event: Mapping[str, Any], run: HarnessRun) -> str:
    """Return why a task is impossible, and what to do."""
    name = event["name"]
    match event["kind"]:
        case "unknown":
            hint = f"did you mean {' or '.join(event['near'])}?" if event["near"] else "see 'lm-eval ls tasks'."
            where = f" and {run.config.task_path} does not have" if run.config.task_path else ""
            return f"evals has {name!r}, which lm-eval does not know{where}: {hint}"
        case "network":
            return (
                f"evals has {name!r}, whose data is not on this host, and the evaluation may not use the network: give "
                f"network=True, or put the data into the host's cache of data sets. ({event['error']})"
            )
        case "context":
            first = ", ".join(event["documents"])
            more = event["count"] - len(event["documents"])
            return (
                f"evals has {name!r}, of which {event['count']:,} documents do not fit into the model's context of "
                f"{run.max_context:,} tokens (the longest needs {event['longest']:,}): {first}"
                f"{f' and {more:,} more' if more else ''}. Give fewer shots or tokens to generate, or "
                "options={'truncate': True}, which cuts off the begin of their prompts."
            )
        case "tokenizer":
            return f"evals has {name!r}, which needs the model's tokenizer: give tokenizer=, a folder with it."
    return f"evals has {name!r}, which lm-eval cannot prepare: {event['error']}"
