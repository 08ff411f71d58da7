"""Make the steps of a language-model pipeline, with one function for each recipe.

Each function selects the recipe, its inputs and its output. The version counts every input, also a path given as text,
and every given setting that the result depends on. An omitted setting has the recipe's default, which does not count.

An input is a step, a path inside one (``step / "a"``) or any other path; a relative one is below the prefix. Options
are fields of ``ExecutorStep`` (``description``, ``resources``, ``cluster``, ...) and of the recipe's config.

The functions refuse unknown options, invalid values, and steps that make another kind of input, with the step's name
and the field. The cluster would find these errors only after the steps before had run.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Concatenate, ParamSpec, TypeVar

from tradewind.datasets.clean import CleanAndShardConfig, clean_and_shard
from tradewind.datasets.python_sources import PythonSourcesConfig, collect_python_sources, running_python
from tradewind.datasets.tokenization import RESUMABLE as RESUMABLE_TOKENS
from tradewind.recipes.comparing.compare import CompareConfig, compare_runs
from tradewind.recipes.comparing.fit_scaling_law import ScalingLawConfig, fit_scaling_law
from tradewind.recipes.evaluate_lm import LmEvalConfig, evaluate_lm
from tradewind.recipes.model_spec import PLACEHOLDERS, model_inputs, versioned_value
from tradewind.recipes.report import ReportConfig, write_report
from tradewind.recipes.token_cache import TokenCacheConfig, build_token_cache
from tradewind.recipes.tokenizers import BpeTokenizerConfig, train_bpe_tokenizer
from tradewind.recipes.train_config import RESUMABLE, LmTrainConfig
from tradewind.recipes.train_lm import train_lm
from tradewind.steps import ExecutorStep, ExperimentError, InputName, MirroredValue, ensure_versioned, this_output_path
from tradewind.steps.paths import is_absolute
from tradewind.steps.placeholders import Lazy
from tradewind.steps.run_values import RunValue
from tradewind.text import truncated_repr

_P = ParamSpec("_P")
_Made = TypeVar("_Made")
_STEP_OPTIONS = ("description", "override_output_path", "resources", "pip_dependency_groups", "cluster", "secrets")
_TRAINED_FIELDS = ("cache_path", "tokenizer_path", "model", "model_size", "seq_len")
_ARGUMENTS = {"cache_path": "tokens", "tokenizer_path": "tokenizer", "model": "model"}
"""Field of an evaluation's config → its argument."""
_MADE: Mapping[type, str] = {
    PythonSourcesConfig: "documents",
    CleanAndShardConfig: "documents",
    BpeTokenizerConfig: "tokenizer",
    TokenCacheConfig: "tokens",
    LmTrainConfig: "trained",
    LmEvalConfig: "evaluated",
    ReportConfig: "report",
    CompareConfig: "comparison",
    ScalingLawConfig: "law",
}
"""Config of a step → kind of its output, named like the argument that takes it."""
_KINDS = {
    "documents": "documents",
    "tokenizer": "a tokenizer",
    "tokens": "a token cache",
    "trained": "a trained model",
    "evaluated": "an evaluation",
    "report": "a report",
    "comparison": "a comparison",
    "law": "a scaling law",
}
_MEASURING = (
    "steps_per_eval", "max_eval_batches", "steps_per_checkpoint", "checkpoint_seconds", "steps_per_line",
    "temporary_checkpoint_path", "tensorboard", "wandb",
)  # fmt: skip
"""When and where a training is evaluated, saved and printed: its weights do not depend on these."""


class _NamedError(ValueError):
    """An error with the step's name, since recipes make steps with other recipes."""


def naming_step(make: Callable[Concatenate[str, _P], _Made]) -> Callable[Concatenate[str, _P], _Made]:
    """Decorate a function of a step's name: its errors get that name."""

    @functools.wraps(make)
    def named(name: str, *args: _P.args, **kwargs: _P.kwargs) -> _Made:
        try:
            return make(name, *args, **kwargs)
        except (ExperimentError, _NamedError):  # has the step's name already
            raise
        except ValueError as error:
            raise _NamedError(f"Step {truncated_repr(name)}: {error}") from None

    return named


@naming_step
def python_sources(name: str, **options: Any) -> ExecutorStep:
    """Return a step with the sources of Python's standard library as documents.

    Its own options are the fields of ``PythonSourcesConfig``, such as ``below``, a folder of the library.
    """
    about = "Python sources of the standard library, one document a file."
    recipe = _Recipe("python_sources", collect_python_sources, PythonSourcesConfig, about)
    return recipe.step(name, {"python": ensure_versioned(running_python())}, options)


@naming_step
def clean(name: str, documents: Any, **options: Any) -> ExecutorStep:
    """Return a step that cleans and deduplicates documents, and splits them into training and validation.

    Its own options are the fields of ``CleanAndShardConfig``, such as ``validation_fraction``.
    """
    about = "Cleaned, deduplicated, split into training and validation, and sharded."
    recipe = _Recipe("clean", clean_and_shard, CleanAndShardConfig, about)
    return recipe.step(name, {"input_path": _input("documents", documents)}, options)


@naming_step
def train_tokenizer(name: str, documents: Any, **options: Any) -> ExecutorStep:
    """Return a step that trains a byte-level BPE tokenizer on all documents.

    Its own options are the fields of ``BpeTokenizerConfig``, such as ``vocab_size``.
    """
    recipe = _Recipe("train_tokenizer", train_bpe_tokenizer, BpeTokenizerConfig, "A byte-level BPE tokenizer.")
    return recipe.step(name, {"input_path": _input("documents", documents)}, options)


@naming_step
def tokenize(name: str, documents: Any, tokenizer: Any, **options: Any) -> ExecutorStep:
    """Return a step that tokenizes documents under ``train/`` and ``validation/`` into Levanter's token cache."""
    recipe = _Recipe(
        "tokenize", build_token_cache, TokenCacheConfig, "Levanter's token cache.", resumable=RESUMABLE_TOKENS
    )
    inputs = {"input_path": _input("documents", documents), "tokenizer_path": _input("tokenizer", tokenizer)}
    return recipe.step(name, inputs, options)


@naming_step
def train(name: str, tokens: Any, model: Any, *, tokenizer: Any = None, **options: Any) -> ExecutorStep:
    """Return a step that trains a language model with Levanter.

    Args:
        name: Name of the step.
        tokens: The token cache to train on.
        model: The name of a size (also ``run_param(...)``), ``lazy("levanter.models.llama:LlamaConfig", ...)``, or a
            model config of Levanter's. All its given fields count.
        tokenizer: The tokenizer of ``tokens``; required if that is no step, or one with a tokenizer of the hub.
        options: Of ``ExecutorStep`` and ``LmTrainConfig``. How often a training is evaluated, saved and printed does
            not count, nor where it runs.

    Raises:
        ValueError: An option is a field of neither, or the tokenizer is unknown.
    """
    return training("train", name, tokens, tokenizer, model, options)


def training(
    maker: str, name: str, tokens: Any, tokenizer: Any, model: Any, options: Mapping[str, Any]
) -> ExecutorStep:
    """Make the step of ``train`` and Marin's ``default_train``; ``maker`` is their name in errors."""
    cache = _input("tokens", tokens)
    tokenizer_path = _tokenizer_of(tokens) if tokenizer is None else _input("tokenizer", tokenizer)
    overrides = options.get("levanter", {})
    if not isinstance(overrides, Mapping):
        given = truncated_repr(overrides)
        raise ValueError(f"{maker}(levanter={given}) is no mapping of settings, such as {{'optimizer.beta2': 0.95}}.")
    levanter = {field: versioned_value(value) for field, value in overrides.items()}
    what = f"a model of size {model}" if isinstance(model, str) else "a language model"
    if isinstance(model, Lazy):
        what = f"a {model.target.rpartition(':')[2]}"
    about = f"Trains {what} with Levanter."
    recipe = _Recipe(maker, train_lm, LmTrainConfig, about, (*_MEASURING, "levanter"), RESUMABLE)
    inputs = {"cache_path": cache, "tokenizer_path": tokenizer_path, **model_inputs(model)}
    return recipe.step(name, inputs, {**_with_begin(options), "levanter": levanter})


def _with_begin(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make ``initialize_from`` an input if it is a relative path, which is below the prefix.

    An absolute path still counts as a value.
    """
    given = options.get("initialize_from")
    _check_kind("initialize_from", "trained", given)
    if isinstance(given, str) and given and not is_absolute(given):
        return {**options, "initialize_from": InputName.hardcoded(given)}
    return options


def _tokenizer_of(tokens: Any) -> Any:
    """Return the tokenizer of the step of these tokens; raises ``ValueError`` without one."""
    tokenizer = declared_tokenizer(tokens)
    if tokenizer is None:
        raise ValueError(
            "tokenizer is missing: the token cache is no step whose config says which one it was made with."
        )
    return tokenizer


@naming_step
def evaluate(
    name: str, trained: Any, *, tokens: Any = None, tokenizer: Any = None, model: Any = None, **options: Any
) -> ExecutorStep:
    """Return a step that evaluates a trained model on the validation tokens and draws a sample.

    ``tokens``, ``tokenizer``, ``model`` and ``seq_len`` are the training's, and required if ``trained`` is no step of
    ``train``. Its other options are the fields of ``LmEvalConfig``.

    Raises:
        ValueError: An option is a field of neither config nor step, or tokens, tokenizer or model are unknown.
    """
    train_path = _input("trained", trained)
    config = _config_of(trained)
    known = {field: getattr(config, field) for field in _TRAINED_FIELDS} if isinstance(config, LmTrainConfig) else {}
    given = {"cache_path": tokens, "tokenizer_path": tokenizer}
    inputs = known | {field: _input(_ARGUMENTS[field], value) for field, value in given.items() if value is not None}
    inputs |= model_inputs(model)
    for field, argument in _ARGUMENTS.items():
        if field not in inputs:
            raise ValueError(f"{argument} is missing: what is evaluated is no step of train, whose config says it.")
    inputs = {"train_path": train_path} | inputs
    if "seq_len" in options:
        inputs.pop("seq_len", None)
    about = "Validation loss and bits per byte, from the checkpoint and from the Hugging Face export."
    return _Recipe("evaluate", evaluate_lm, LmEvalConfig, about, ("batch_size",)).step(name, inputs, options)


@naming_step
def report(name: str, evaluated: Any, *, trained: Any = None, **options: Any) -> ExecutorStep:
    """Return a step that reports a training with its loss curve; the option ``title`` does not count.

    ``trained`` is the evaluated training, required if ``evaluated`` is no step of ``evaluate``.

    Raises:
        ValueError: An option is a field of neither ``ReportConfig`` nor step, or the training is unknown.
    """
    eval_path = _input("evaluated", evaluated)
    train_path = getattr(_config_of(evaluated), "train_path", None) if trained is None else _input("trained", trained)
    if train_path is None:
        raise ValueError("trained is missing: the evaluation is no step whose config says what it evaluated.")
    recipe = _Recipe("report", write_report, ReportConfig, "A report of the training, with its loss curve.", ("title",))
    return recipe.step(name, {"train_path": train_path, "eval_path": eval_path}, options)


@naming_step
def compare(name: str, runs: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that compares runs in one table and one picture, the best first.

    It runs when all runs have ended, also if some failed, and shows those with a result. If a run has none, the step
    writes its files, and fails with that run's label. The next run makes the missing results, and compares again.

    Args:
        name: Name of the step.
        runs: Label → a step that returns numbers, such as one of ``train`` or ``evaluate``.
        options: Of ``ExecutorStep`` and ``CompareConfig``, such as ``metric``, by default the loss of a training or
            an evaluation. The ``title`` does not count.

    Raises:
        ValueError: ``runs`` names none, a label is no text, or a run is no input.
    """
    inputs = _ended_runs(runs)
    if "metric" not in options and all(isinstance(_config_of(run), LmEvalConfig) for run in runs.values()):
        options = {**options, "metric": "checkpoint.loss"}
    recipe = _Recipe("compare", compare_runs, CompareConfig, "Compares the runs that have ended.", ("title",))
    return recipe.step(name, {"runs": inputs}, options)


@naming_step
def scaling_law(name: str, runs: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that fits the loss by size of model and number of tokens to trainings that differ in these.

    It runs when all trainings have ended, also if some failed. Then it writes the law of the others, and fails as
    ``compare`` does.

    Args:
        name: Name of the step.
        runs: Label → a step that returns a loss, parameters and tokens, such as one of ``train``.
        options: Of ``ExecutorStep`` and ``ScalingLawConfig``, such as ``budgets``, FLOPs for which to report the
            best size and length. The ``title`` does not count.

    Raises:
        ValueError: ``runs`` names none, a label is no text, or a run is no input.
    """
    recipe = _Recipe("scaling_law", fit_scaling_law, ScalingLawConfig, "A scaling law through trainings.", ("title",))
    return recipe.step(name, {"runs": _ended_runs(runs)}, options)


def recipe_step(
    name: str, recipe: tuple[Any, ...], inputs: Mapping[str, tuple[str, Any]], options: Mapping[str, Any]
) -> ExecutorStep:
    """Make a step of another module's ``recipe`` (fields of ``_Recipe``); ``inputs``: field → argument, value."""
    fields: dict[str, Any] = {}
    for field, (argument, given) in inputs.items():
        if field == "model":
            fields |= model_inputs(given)
        elif argument == "runs":
            fields[field] = _ended_runs(given)
        elif isinstance(given, Mapping):
            fields[field] = {key: _input(argument, each) for key, each in given.items()}
        else:
            fields[field] = _input(argument, given)
    return _Recipe(*recipe).step(name, fields, _with_begin(options))


def _ended_runs(runs: Any) -> dict[str, Any]:
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"runs is {truncated_repr(runs)}: give labels and steps, such as {{'lr=0.1': trained}}.")
    references = {label: _input(f"runs[{truncated_repr(label)}]", run) for label, run in runs.items()}
    return {label: each.even_if_failed() if isinstance(each, InputName) else each for label, each in references.items()}


@dataclass(frozen=True)
class _Recipe:
    """A recipe, and how to make a step of it."""

    maker: str
    fn: Callable[..., Any]
    config: type[Any]
    about: str
    uncounted: Collection[str] = ()
    resumable: Sequence[str] = ()

    def step(self, name: str, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> ExecutorStep:
        """Make the step with these inputs; raises ``ValueError`` for an unknown option."""
        self._check_names(inputs, options)
        self._check_complete({*inputs, *options, "output_path"})
        settings = {
            field: value if field in self.uncounted else versioned_value(value)
            for field, value in options.items()
            if field not in _STEP_OPTIONS
        }
        config = self.config(**inputs, **settings, output_path=this_output_path())
        step_options = {field: options[field] for field in _STEP_OPTIONS if options.get(field) is not None}
        return ExecutorStep(
            name, self.fn, config, **({"description": self.about, "resumable": self.resumable} | step_options)
        )

    def _check_names(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        given = {*inputs, "output_path", "model", "model_size"}
        fields = [field.name for field in dataclasses.fields(self.config)]
        known = [name for name in fields if name not in given]
        for name in options:
            if name in fields and name in given:
                raise ValueError(
                    f"{self.maker}({name}=...) is no field to be set: {self.maker} fills it in from its arguments."
                )
            if name not in known and name not in _STEP_OPTIONS:
                near = difflib.get_close_matches(name, [*known, *_STEP_OPTIONS], n=3)
                fits = ", ".join(known or _STEP_OPTIONS)
                hint = f"did you mean {' or '.join(near)}?" if near else f"the fields are {fits}."
                raise ValueError(f"{self.maker}({name}=...) is no field of {self.config.__name__}; {hint}")

    def _check_complete(self, given: Collection[str]) -> None:
        missing = [
            each.name
            for each in dataclasses.fields(self.config)
            if each.default is each.default_factory is dataclasses.MISSING and each.name not in given
        ]
        if missing:
            raise ValueError(f"{self.maker} has no default for {', '.join(missing)}: give a value for each.")


def _input(argument: str, value: Any) -> Any:
    """Return a reference to an input that counts in the version; raises ``ValueError`` for another kind."""
    if not isinstance(value, (*PLACEHOLDERS, RunValue, PurePath, str)) or value == "":
        raise ValueError(
            f"{argument} is {truncated_repr(value)}, which is no input: give a step, a path inside one, or another "
            "path."
        )
    _check_kind(argument, argument, value)
    if isinstance(value, ExecutorStep):
        return value.as_input_name()
    return InputName.hardcoded(value) if isinstance(value, str) else versioned_value(value)


def _check_kind(argument: str, wanted: str, value: Any) -> None:
    """Raise ``ValueError`` if ``value`` is the output of a recipe's step of another kind than ``wanted``.

    A path inside an output may be anything: a training's has a tokenizer, too.
    """
    given = value.value if isinstance(value, MirroredValue) else value
    if isinstance(given, InputName) and given.name is None:
        given = given.step
    is_step = isinstance(given, ExecutorStep) and wanted in _KINDS
    if is_step and (made := _MADE.get(type(given.config), wanted)) != wanted:
        raise ValueError(f"{argument} is step {given.name!r}, which makes {_KINDS[made]} and not {_KINDS[wanted]}.")


def declared_tokenizer(tokens: Any) -> Any:
    """Return the tokenizer in the config of a token cache's step; None without such a step.

    A hub name, as ``tokenize_files`` takes it, is no path and gives None, too.
    """
    config = _config_of(tokens)
    tokenizer = getattr(config, "tokenizer", None)
    return getattr(config, "tokenizer_path", tokenizer if isinstance(tokenizer, InputName) else None)


def _config_of(value: Any) -> Any:
    """Return the config of the step that ``value`` is, or is inside; ``None`` for any other path."""
    return getattr(value.step if isinstance(value, InputName) else value, "config", None)
