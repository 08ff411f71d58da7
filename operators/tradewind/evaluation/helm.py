"""HELM against a served model, in an environment of its own, with one process for each task.

HELM knows the model by files that are made for the run. They have the gateway's address and no key.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tradewind.datasets.files import join
from tradewind.evaluation.chat import check_numbers
from tradewind.evaluation.environments import HELM, HarnessPython, find_environment
from tradewind.evaluation.harnesses import HarnessRun
from tradewind.evaluation.helm_results import RUN_FILES, HelmRunError, read_metrics, read_run
from tradewind.evaluation.isolated_process import causes, exit_of, run_isolated
from tradewind.evaluation.progress import Progress
from tradewind.evaluation.results import Status, TaskResult
from tradewind.evaluation.tasks import EvalTaskConfig, check_tasks, labels
from tradewind.records.parsing import RecordFormatError, parse
from tradewind.storage import file_system_at
from tradewind.storage.bounded_read import SMALL, read_local
from tradewind.storage.files import read_contents
from tradewind.text import did_you_mean, truncated_repr

_MODEL: Final = "tradewind/model"
_SUITE: Final = "evaluation"
_OWN: Final = "own_tasks"
_ALL_DOCUMENTS: Final = 10**9
"""HELM wants a limit."""
_GENERATION: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
    "max_gen_toks": "max_tokens",
}
"""Names of generation parameters → those of HELM's requests."""
_DEFINED: Final = re.compile(r"""^@run_spec_function\(\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Checked:
    """What ``check`` found: HELM's Python, and the modules of ``task_path``, name → text."""

    python: HarnessPython
    modules: Mapping[str, str]

    @property
    def version(self) -> str:
        """Return HELM's version."""
        return self.python.version


def check(run: HarnessRun) -> Checked:
    """Refuse tasks and options that HELM does not know.

    Raises:
        ValueError: With the field.
    """
    config = run.config
    tasks = check_tasks(config.evals)
    if config.judge is not None:
        raise ValueError("judge: HELM's tasks take no judge from here. Leave it out.")
    for name in config.options:
        raise ValueError(f"options: {truncated_repr(name)} is none of HELM's; it has none. Leave it out.")
    check_numbers(config.generation_params or {}, _GENERATION)
    modules = _own_modules(config.task_path)
    python = find_environment(HELM, run.log)
    bundled = sorted((python.packages / "helm" / "benchmark" / "run_specs").glob("*.py"))
    texts = [*(read_local(file, SMALL).text for file in bundled), *modules.values()]
    known = {name for text in texts for name in _DEFINED.findall(text)}
    for task in tasks:
        name, _, arguments = task.name.partition(":")
        if name not in known:
            raise ValueError(f"evals: {truncated_repr(name)} is no task of HELM's; {did_you_mean(name, sorted(known))}")
        for given in (part.partition("=")[0] for part in arguments.split(",")):
            if given in ("model", "model_deployment"):
                raise ValueError(f"evals: {truncated_repr(task.name)}: leave out {given}, which is the served model.")
    return Checked(python, modules)


def _own_modules(task_path: str | None) -> dict[str, str]:
    """Return the modules of a folder of the user's: name → text."""
    if task_path is None:
        return {}
    fs, root = file_system_at(task_path)
    if not fs.isdir(root):
        raise ValueError(f"task_path={truncated_repr(task_path)} is no folder: give one with modules of tasks.")
    names = sorted(name.rpartition("/")[2] for name in fs.ls(root, detail=False) if str(name).endswith(".py"))
    contents = read_contents([join(task_path, name) for name in names], SMALL)
    for path, content in contents.items():
        if content.flaw is not None:
            raise ValueError(f"task_path: {path} cannot be used, because {content.flaw}.")
    return {path.rpartition("/")[2]: content.text for path, content in contents.items()}


def run(run: HarnessRun) -> list[TaskResult]:
    """Run HELM for each task; a task that fails does not take the others along."""
    tasks = check_tasks(run.config.evals)
    results: list[TaskResult] = []
    for number, (label, task) in enumerate(zip(labels(tasks), tasks, strict=True)):
        run.log(f"HELM: task {label} begins.")
        with TemporaryDirectory(prefix="tradewind-helm-") as home:
            results += _Entry(run, task, label, home, Path(run.work_dir, f"{number:03}")).run()
    return results


@dataclass(frozen=True)
class _Entry:
    """A run entry, which HELM may expand to several runs.

    Attributes:
        home: Folder for everything that is not kept, such as what HELM downloads.
        kept: Folder for the files of its runs, and HELM's log.
    """

    harness_run: HarnessRun
    task: EvalTaskConfig
    label: str
    home: str
    kept: Path

    def run(self) -> list[TaskResult]:
        given, log, metrics = self.harness_run, self.kept / "helm.log", Path(self.home, "metrics.json")
        if given.gateway is not None and given.gateway.given_up is not None:
            return [self._failed(self.label, given.gateway.given_up)]
        self.kept.mkdir(parents=True, exist_ok=True)
        write_configuration(Path(self.home, "prod_env"), given)
        Path(self.home, _OWN).mkdir()
        for name, text in given.checked.modules.items():
            Path(self.home, _OWN, name).write_text(text)
        arguments = [str(metrics), *_arguments(given, self.task, self.home)]
        network = given.config.network
        with Progress(given.gateway, 0, given.log):
            code = run_isolated(
                given.checked.python, "run_helm.py", arguments, log=log, home=self.home, network=network
            )
        runs = Path(self.home, "out", "runs", _SUITE)
        folders = sorted(each for each in runs.glob("*") if (each / RUN_FILES[0]).exists())
        results = [self._read(number, folder, metrics, len(folders)) for number, folder in enumerate(folders)]
        if code != 0:
            name = f"{self.label} (rest)" if folders else self.label
            return [*results, self._failed(name, f"HELM {exit_of(code)}:\n{causes(log)}")]
        return results or [self._failed(self.label, "HELM wrote no results.")]

    def _read(self, number: int, folder: Path, metrics: Path, runs: int) -> TaskResult:
        kept = self.kept / f"{number:03}"
        kept.mkdir()
        for file in RUN_FILES:
            if (folder / file).is_file():
                shutil.copyfile(folder / file, kept / file)
        name = self.label if runs == 1 else f"{self.label} {_variant(folder.name)}"
        try:
            return read_run(folder, name, self.harness_run.checked.version, read_metrics(metrics))
        except HelmRunError as error:
            return self._failed(name, str(error))

    def _failed(self, name: str, why: str) -> TaskResult:
        self.harness_run.log(f"HELM: task {name} failed: {why}")
        gateway = self.harness_run.gateway
        is_lost = gateway is not None and gateway.given_up is not None
        return TaskResult(
            name=name,
            task=self.task.name,
            task_version=f"crfm-helm {self.harness_run.checked.version}",
            num_fewshot=self.task.num_fewshot,
            higher_is_better={},
            metrics={},
            num_documents=0,
            samples=(),
            status=Status.INFRASTRUCTURE_LOST if is_lost else Status.FAILED,
            error=why,
        )


def _arguments(run: HarnessRun, task: EvalTaskConfig, home: str) -> list[str]:
    config = run.config
    shots = [] if task.num_fewshot is None else [f"max_train_instances={task.num_fewshot}"]
    name, _, given = task.name.partition(":")
    entry = f"{name}:{','.join([*filter(None, [given]), f'model={_MODEL}', *shots])}"
    plugins = [f"{home}/{_OWN}/{name}" for name in run.checked.modules]
    return [
        *("--run-entries", entry),
        *("--max-eval-instances", str(config.max_eval_instances or _ALL_DOCUMENTS)),
        *("--suite", _SUITE),
        *("--local-path", f"{home}/prod_env"),
        *("--output-path", f"{home}/out"),
        *("--num-threads", str(config.num_concurrent)),
        "--disable-cache",  # the gateway has one, which outlives the attempt
        *(["--plugins", *plugins] if plugins else []),
    ]


def write_configuration(folder: Path, run: HarnessRun) -> None:
    """Write the files by which HELM knows the model, its tokenizer, and the address that serves it."""
    config = run.config
    client = "ChatClient" if config.apply_chat_template else "CompletionsClient"
    generation = {_GENERATION[name]: value for name, value in (config.generation_params or {}).items()}
    deployment: dict[str, Any] = {
        "name": _MODEL,
        "client_spec": {
            "class_name": f"helm_client.{client}",
            "args": {
                "base_url": run.address,
                "api_key": "none",
                "openai_model_name": run.model,
                "generation": generation,
            },
        },
    }
    if run.model_dir is not None and run.max_context is not None:
        deployment |= {"tokenizer_name": _MODEL, "max_sequence_length": run.max_context}
    kinds = ["LIMITED", "FULL"]
    tags = ["TEXT_MODEL_TAG", f"{kinds[not config.apply_chat_template]}_FUNCTIONALITY_TEXT_MODEL_TAG"]
    tags += ["INSTRUCTION_FOLLOWING_MODEL_TAG"] if config.apply_chat_template else []
    about = {"name": _MODEL, "display_name": run.model, "description": "A served model.", "tags": tags}
    origin = {"creator_organization_name": "Tradewind", "access": "open"}
    files: dict[str, dict[str, Any]] = {
        "model_deployments": {"model_deployments": [deployment]},
        "model_metadata": {"models": [about | origin]},
        "tokenizer_configs": {"tokenizer_configs": [_tokenizer(run.model_dir)] if run.model_dir else []},
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))


def _tokenizer(model_dir: str) -> dict[str, Any]:
    kind = "helm.tokenizers.huggingface_tokenizer.HuggingFaceTokenizer"
    arguments = {"pretrained_model_name_or_path": model_dir}
    tokens = dict.fromkeys(("end_of_text_token", "prefix_token"), _special_token(model_dir))
    return {"name": _MODEL, "tokenizer_spec": {"class_name": kind, "args": arguments}} | tokens


def _special_token(model_dir: str) -> str:
    """Return the token that separates documents, which HELM puts before a text whose probability it asks for."""
    file = Path(model_dir, "tokenizer_config.json")
    try:
        given = parse(read_local(file).text)
    except (OSError, RecordFormatError):
        return ""
    token = given.get("eos_token") if isinstance(given, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else ""


def _variant(folder: str) -> str:
    """Return what tells the runs of one entry apart: the arguments without the model."""
    arguments = folder.partition(":")[2].split(",")
    return ",".join(part for part in arguments if not part.startswith("model=")) or folder
