"""Rebuild steps from versions that Marin's executor recorded, with Tradewind's classes.

Tradewind's classes alone decide which references a config contains, in which order they count, and the text of its
values. Where the record has no order (of a dictionary's keys), the numbers of its references give it.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tradewind.marin.legacy import modules
from tradewind.steps import ExecutorStep, InputName, Recipe, output_path_of, this_output_path, versioned

Version = Mapping[str, Any]
"""``name``, ``config`` (path -> value), ``dependencies`` and perhaps ``pseudo_dependencies`` (keys of versions)."""
REFERENCE = re.compile(r"^DEP\[(\d+)\](?:/(.*))?$", re.DOTALL)
COMPONENT = re.compile(r"^((?:(?!\.configs\.).)*?)\.(cache_dir|(?:train|validation)_urls(?:\.\[\d+\])?)$")


class Rebuilt:
    """Steps of recorded versions, each made once.

    Attributes:
        kinds: Key -> class name of the step's config, or ``other`` for a config built from its paths.
    """

    def __init__(self, versions: Mapping[str, Version]) -> None:
        self._versions = versions
        self._steps: dict[str, ExecutorStep] = {}
        self.kinds: dict[str, str] = {}

    def step(self, key: str) -> ExecutorStep:
        """Return the step of a version, with all its dependencies."""
        if key not in self._steps:
            config = _Config(self, key, self._versions[key])
            self.kinds[key], made = config.made()
            self._steps[key] = ExecutorStep(self._versions[key]["name"], None, made, recipe=Recipe.NOVEMBER_2025)
        return self._steps[key]


class _Config:
    def __init__(self, rebuilt: Rebuilt, key: str, version: Version) -> None:
        self._rebuilt = rebuilt
        self._name: str = version["name"]
        self._values: Mapping[str, Any] = version["config"]
        self._dependencies, self._pseudo = self._numbered(version)
        self._roots = {path.split(".")[0] for path in self._values}

    def _numbered(self, version: Version) -> tuple[list[str], set[int]]:
        """Return the key of each reference number, and the numbers of references without a wait.

        The record numbers both kinds together and lists them apart. With a list of pseudo dependencies, no step
        waits for the initial checkpoint of a training.
        """
        pseudo = list(version.get("pseudo_dependencies", ()))
        if not pseudo or not version["dependencies"]:
            return [*version["dependencies"], *pseudo], set(range(len(pseudo)))
        references = [REFERENCE.match(str(value)) for path, value in self._values.items() if ".initialize_from" in path]
        numbers = {int(found[1]) for found in references if found}
        waiting, others = iter(version["dependencies"]), iter(pseudo)
        count = len(version["dependencies"]) + len(pseudo)
        return [next(others if number in numbers else waiting) for number in range(count)], numbers

    def made(self) -> tuple[str, Any]:
        """Return the kind of the config, and the config."""
        roots, has = self._roots, self._values.__contains__
        if "train_config" in roots and any(path.startswith("train_config.data.configs.") for path in self._values):
            return "TrainLmOnPodConfig", self._training()
        if "evals" in roots:
            return "EvaluationConfig", self._evaluation()
        if "speedrun_config" in roots:
            return "SpeedrunResultsConfig", self._speedrun()
        is_tokenizing = "tokenizer" in roots and roots <= {"tokenizer", "train_paths", "validation_paths"}
        if is_tokenizing and not self._values.get("train_paths"):  # a complete list comes from before that class
            return ("TokenizeConfig" if len(roots) > 1 else "HfTokenizeConfig"), self._tokenizing()
        if roots == {"revision"} or roots == {"revision", "hf_dataset_id"}:
            return "DownloadConfig", self._download()
        if "datasets" in roots and any(path.startswith("datasets.configs.") for path in self._values):
            return self._log_probs()
        if has("extract_method") and has("remove_reference_section"):
            return "ExtractionConfig", self._extraction()
        return "other", self._made_up()

    def _value(self, path: str) -> Any:
        """Return the placeholder that counts as the record's value at a path."""
        recorded = self._values[path]
        found = REFERENCE.match(recorded) if isinstance(recorded, str) else None
        if not found:
            return versioned(recorded)
        number, name = int(found[1]), found[2]
        reference = output_path_of(self._rebuilt.step(self._dependencies[number]), name)
        return reference.nonblocking() if number in self._pseudo else reference

    def _or(self, path: str, otherwise: Any) -> Any:
        return self._value(path) if path in self._values else otherwise

    def _list(self, path: str) -> Any:
        """Return a list whose members count one by one, or one that counts as a whole."""
        if path in self._values:
            return self._value(path)
        numbered = [other for other in self._values if re.fullmatch(re.escape(path) + r"\.\[\d+\]", other)]
        return [self._value(f"{path}.[{at}]") for at in range(len(numbered))]

    def _first_reference(self, paths: list[str]) -> int:
        references = (REFERENCE.match(str(self._values[path])) for path in paths)
        return min((int(found[1]) for found in references if found), default=10**6)

    def _tokenizing(self) -> Any:
        own = modules()["marin.processing.tokenize.tokenize"]
        if self._roots == {"tokenizer"}:
            return own.HfTokenizeConfig(id="org/set", cache_path=this_output_path(), tokenizer=self._value("tokenizer"))
        if any(path.startswith("validation_paths.[0].configs.") for path in self._values):  # one file's mistake
            mixture = self._mixture("validation_paths.[0].configs.")
            return own.TokenizeConfig([], [mixture], this_output_path(), self._value("tokenizer"))
        return own.TokenizeConfig(
            train_paths=self._list("train_paths"), validation_paths=self._list("validation_paths"),
            cache_path=this_output_path(), tokenizer=self._value("tokenizer"), allow_test_in_train=True,
        )  # fmt: skip

    def _mixture(self, prefix: str) -> Any:
        """Return the mixture of the tokenizing steps in the record's components, made by Tradewind."""
        parts: dict[str, list[str]] = {}
        for path in self._values:
            found = COMPONENT.match(path.removeprefix(prefix)) if path.startswith(prefix) else None
            if found:
                parts.setdefault(found[1], []).append(path)
        ordered = sorted(parts, key=lambda name: self._first_reference(parts[name]))
        sources = {name: self._source(prefix + name) for name in ordered}
        mixture = modules()["levanter.data.text"].LMMixtureDatasetConfig
        return mixture(
            configs=sources, train_weights=dict.fromkeys(sources, 1.0), cache_dir=None,
            tokenizer=self._or(prefix.removesuffix("configs.") + "tokenizer", "unversioned"),
        )  # fmt: skip

    def _source(self, path: str) -> Any:
        """Return the training's view of a tokenizing step; for other caches, build it from the paths."""
        cache = self._or(path + ".cache_dir", None)
        step = cache.step if isinstance(cache, InputName) else None
        if hasattr(step and step.config, "as_lm_dataset_source_config"):
            own = modules()["marin.processing.tokenize.data_configs"]
            is_raw = any(each.startswith((f"{path}.train_urls", f"{path}.validation_urls")) for each in self._values)
            return own.step_to_lm_mixture_component(step, include_raw_paths=is_raw)
        return modules()["levanter.data.text"].UrlDatasetSourceConfig(
            cache_dir=cache, train_urls=self._list(path + ".train_urls"),
            validation_urls=self._list(path + ".validation_urls"),
        )  # fmt: skip

    def _training(self) -> Any:
        levanter = modules()["levanter.main.train_lm"]
        optim = modules()["levanter.optim"]
        hyper = [path.rpartition(".")[2] for path in self._values if path.startswith("train_config.optimizer.")]
        adam = optim.AdamConfig(**{name: self._value(f"train_config.optimizer.{name}") for name in hyper})
        training = levanter.TrainLmConfig(
            data=self._mixture("train_config.data.configs."), optimizer=adam,
            trainer=modules()["levanter.trainer"].TrainerConfig(
                initialize_from=self._or("train_config.trainer.initialize_from", None)
            ),
            initialize_from_hf=self._or("train_config.initialize_from_hf", False),
            initialize_from_checkpoint_path=self._or("train_config.initialize_from_checkpoint_path", None),
        )  # fmt: skip
        resources = modules()["marin.resources"].TpuPodConfig(self._or("resources.tpu_type", "v4-8"))
        return modules()["marin.training.training"].TrainLmOnPodConfig(train_config=training, resources=resources)

    def _evaluation(self) -> Any:
        own = modules()["marin.evaluation.evaluation_config"]
        evals = [own.EvalTaskConfig(**_arguments(shown)) for shown in self._values["evals"]]
        return own.EvaluationConfig(
            evaluator="levanter_lm_evaluation_harness", model_name=None,
            model_path=self._or("model_path", "gs://a/model"), evaluation_path=this_output_path(),
            evals=versioned(evals), max_eval_instances=self._or("max_eval_instances", None),
        )  # fmt: skip

    def _speedrun(self) -> Any:
        own = modules()["marin.speedrun.speedrun"]
        author = own.Author(name="A", affiliation="B")
        warmup = self._or("speedrun_config.train_config.warmup", None)
        training = dataclasses.make_dataclass("SimpleTrainConfig", ["warmup"])(warmup)
        config = own.SpeedrunConfig(
            author, "c", modules()["levanter.models.llama"].LlamaConfig(), training,
            self._or("speedrun_config.tokenized_dataset", None),
        )  # fmt: skip
        run = self._or("wandb_run_id", "a-run")
        return own.SpeedrunResultsConfig(run, "entity", "project", config, self._value("output_path"))

    def _download(self) -> Any:
        own = modules()["marin.download"]
        return own.HfDownloadConfig(self._or("hf_dataset_id", "org/set"), self._value("revision"))

    def _log_probs(self) -> tuple[str, Any]:
        of_model: Any = {
            "model": modules()["levanter.models.llama"].LlamaConfig(),
            "datasets": self._mixture("datasets.configs."),
        }
        path = self._or("checkpoint_path", "org/model")
        folder, _, name = self._name.rpartition("/")
        if folder != "analysis/log_probs":
            own = modules()["marin.evaluation.visualize"]
            return "VizLmConfig", own.VizLmConfig(checkpoint_path=path, **of_model)
        make = modules()["marin.evaluation.log_probs"].default_lm_log_probs
        made = make(path, of_model["model"], of_model["datasets"], None, checkpoint_is_hf=True, name=name)
        assert made.name == self._name
        return "EvalLmConfig", made.config

    def _extraction(self) -> Any:
        convert = modules()["marin.schemas.web.convert"]
        given = {name: self._value(name) for name in self._roots - {"extract_config"}}
        has_links = "extract_config.links" in self._values
        extract = convert.ResiliparseConfig(links=self._value("extract_config.links") if has_links else False)
        if "word_threshold" in self._roots:
            made = modules()["marin.transform.wikipedia.transform_wikipedia"].WikiExtractionConfig
            given.setdefault("extract_method", "resiliparse")
        else:
            made = modules()["marin.transform.ar5iv.transform_ar5iv"].Ar5ivExtractionConfig
            given.setdefault("revision", "042024")
        return made(**given, output_path=this_output_path(), extract_config=extract)

    def _made_up(self) -> Any:
        """Return a config of any class: a dictionary per path, in the order in which its references count."""
        ordered = sorted(self._values, key=lambda path: (self._first_reference([path]), path))
        return {path: self._value(path) for path in ordered}


def _arguments(shown: str) -> dict[str, Any]:
    """Return the arguments of a call, for example ``EvalTaskConfig(name='boolq', num_fewshot=10)``."""
    call = ast.parse(shown, mode="eval").body
    assert isinstance(call, ast.Call)
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}


def with_dependencies(versions: Mapping[str, Version], keys: list[str]) -> Iterator[str]:
    """Yield the keys and all their dependencies, each once."""
    seen: set[str] = set()
    pending = list(keys)
    while pending:
        key = pending.pop()
        if key not in seen:
            seen.add(key)
            yield key
            pending += [*versions[key]["dependencies"], *versions[key].get("pseudo_dependencies", ())]
