"""Train a classifier of texts on labelled documents, and measure it on those that are held out.

    quality = train_classifier("quality", positive=books, negative=web, kind="hashed_logistic")
    scores = score_documents("scores", web, quality)
    good = consolidate("good", web, [FilterConfig("classify", scores, "quality", "positive", keep_fraction=0.3)])

The output is a folder with the model, ``classifier.json``, which says how to load it, and ``stats.json``. The same
documents, seed and options give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, dataset_step
from tradewind.datasets.execution import SCRATCH_FOLDER, Results
from tradewind.datasets.files import atomic_writer, join, read_json, write_json
from tradewind.datasets.rows import SeveralRowsError
from tradewind.recipes.data.document_sets import path_input
from tradewind.recipes.data.quality.classifier_models import (
    DESCRIPTION,
    FASTTEXT,
    FILES,
    KINDS,
    Classifier,
    Model,
    description,
)
from tradewind.recipes.data.quality.fasttext_models import MAX_WHOLE, PREFIX, check_trainable, plain_line, whole
from tradewind.recipes.data.quality.training_samples import ClassifierData, is_held_out, sampled_texts
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, FieldRule, check_fields, instance, number, one_of
from tradewind.steps.needs import needs
from tradewind.steps.placeholders import VersionedValue
from tradewind.text import did_you_mean, single_line, truncated_repr

POSITIVE: Final = "positive"
NEGATIVE: Final = "negative"
ALGORITHM: Final = 1
"""Changes with what a training makes of the same input; part of the version."""
MIN_DOCUMENTS: Final = 10
"""A label with fewer documents to train on is refused."""
_DATASETS: Final = FieldRule(
    "a list of ClassifierData",
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, ClassifierData) for each in value),
)
_SEED: Final = whole(0, MAX_WHOLE)
_FRACTION: Final = number(minimum=0, below=1)
_DISTRIBUTIONS: Final = ("fasttext-wheel", "fasttext-predict", "fasttext", "scikit-learn", "numpy")
_BATCH: Final = 1_000
_THRESHOLDS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class TrainClassifierConfig:
    """What ``train_classifier`` trains on."""

    datasets: Sequence[ClassifierData]
    """Documents of each label."""
    output_path: str
    """Gets the model, ``classifier.json`` and ``stats.json``."""
    kind: str = FASTTEXT
    """``fasttext`` or ``hashed_logistic``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the training; those that are not given have the kind's defaults."""
    seed: int = 0
    """Decides the sample, the held-out documents and the training."""
    validation_fraction: float = 0.1
    """Share of the documents to measure the classifier on; 0 for none."""
    algorithm: int = ALGORITHM
    """Of this package."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            datasets=_DATASETS,
            output_path=PATH,
            kind=one_of(tuple(KINDS)),
            arguments=instance("a mapping of arguments", Mapping),
            seed=_SEED,
            validation_fraction=_FRACTION,
        )


@naming_step
def train_classifier(
    name: str,
    positive: Any = None,
    negative: Any = None,
    *,
    datasets: Sequence[ClassifierData] = (),
    kind: str = FASTTEXT,
    arguments: Mapping[str, Any] | None = None,
    seed: int = 0,
    validation_fraction: float = 0.1,
    **options: Any,
) -> ExecutorStep:
    """Return a step that trains a classifier of texts.

    Args:
        name: Name of the step.
        positive: Documents of the label ``positive``: a step, a path, or a list of these.
        negative: Documents of the label ``negative``.
        datasets: Documents of other labels, or with a share or a number of them: ``ClassifierData(...)``.
        kind: ``fasttext``, or ``hashed_logistic``: a logistic regression on hashed runs of words, with scikit-learn.
        arguments: Of the training. ``fasttext``: ``lr``, ``dim``, ``epoch``, ``minCount``, ``minn``, ``maxn``,
            ``wordNgrams``, ``bucket``, ``loss``. ``hashed_logistic``: ``features``, ``wordNgrams``, ``epoch``,
            ``alpha``.
        seed: Decides the sample, the held-out documents and the training.
        validation_fraction: Share of the documents to measure the classifier on, which it is not trained on.
        options: Of ``dataset_step``. ``memory`` is that of the training, too.

    Raises:
        ValueError: An argument does not take its value, or there are fewer than two labels.
    """
    _DATASETS.check("datasets", datasets)
    labelled = [*_labelled(POSITIVE, positive), *_labelled(NEGATIVE, negative), *datasets]
    labels = {_unversioned(each.label) for each in labelled}
    if len(labels) < 2:
        raise ValueError(
            f"datasets has {len(labels)} labels: give positive and negative documents, or ClassifierData of two labels "
            "or more."
        )
    one_of(tuple(KINDS)).check("kind", kind)
    config = TrainClassifierConfig(
        [_counting(each) for each in labelled],
        this_output_path(),
        versioned_value(kind),
        {name: versioned_value(value) for name, value in _all_arguments(kind, arguments or {}).items()},
        versioned_value(seed),
        versioned_value(validation_fraction),
        versioned_value(ALGORITHM),
    )
    about = {"description": f"A classifier ({kind}) of texts: {', '.join(sorted(map(str, labels)))}."}
    return dataset_step(name, trained, config, finish=write_stats, **(about | options))


@needs("fasttext", "pyarrow", "sklearn", extra="quality")
def trained(config: TrainClassifierConfig) -> Dataset[Any]:
    """Return the pipeline of ``train_classifier``: its last shard trains on the sample of all others."""
    if config.kind == FASTTEXT:
        check_trainable()
    path = _trained(config)
    sample = sampled_texts(config.datasets, config.seed, join(config.output_path, SCRATCH_FOLDER, "samples"))
    return sample.map_shard(_Training(config)).write_jsonl(lambda *_: path)


def write_stats(config: TrainClassifierConfig, _: Results) -> None:
    """Write what the training measured, and the accuracy and areas under the curve to the log."""
    stats = read_json(_trained(config))
    write_json(join(config.output_path, "stats.json"), stats)
    if held_out := stats["held_out"]:
        areas = ", ".join(f"{single_line(label)} {each['auc']:.3f}" for label, each in held_out["labels"].items())
        print(
            f"On {held_out['documents']:,} held-out documents: accuracy {held_out['accuracy']:.3f}; area under the "
            f"ROC curve: {areas}.",
            flush=True,
        )


def _trained(config: TrainClassifierConfig) -> str:
    """Return the file in the scratch folder that says that the model is there."""
    return join(config.output_path, SCRATCH_FOLDER, "trained.jsonl")


def _labelled(label: str, documents: Any) -> list[ClassifierData]:
    given = documents if isinstance(documents, (list, tuple)) else [] if documents is None else [documents]
    for each in given:
        PATH.check(label, each)
    return [ClassifierData(each, label) for each in given]


def _counting(data: ClassifierData) -> ClassifierData:
    names = [each.name for each in fields(data) if each.name != "documents"]
    counted = {name: versioned_value(getattr(data, name)) for name in names}
    return replace(data, documents=path_input("documents", data.documents), **counted)


def _unversioned(value: Any) -> Any:
    return value.value if isinstance(value, VersionedValue) else value


def _all_arguments(kind: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"arguments={truncated_repr(given)}: give a mapping of arguments.")
    rules = KINDS[kind].ARGUMENTS
    for name, value in given.items():
        if name not in rules:
            raise ValueError(f"arguments has {truncated_repr(name)}: {did_you_mean(name, rules)}")
        rules[name][0].check(f"arguments[{name!r}]", value)
    return {name: given.get(name, default) for name, (_, default) in rules.items()}


@dataclass(frozen=True)
class _Training:
    """Function of ``map_shard`` that trains on a sample, stores the model, and yields its statistics."""

    config: TrainClassifierConfig

    def __call__(self, rows: Iterator[dict[str, Any]], _: ShardInfo) -> Iterator[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="tradewind-training-") as name:
            folder = Path(name)
            counts = self._write_lines(rows, folder)
            self._check(counts)
            yield self._stats(counts, self._train(folder))

    @property
    def _labels(self) -> list[str]:
        return sorted({data.label for data in self.config.datasets})

    def _write_lines(self, rows: Iterator[dict[str, Any]], folder: Path) -> Counter[tuple[int, bool]]:
        """Write the lines to train on and those that are held out; count them for each data set."""
        counts: Counter[tuple[int, bool]] = Counter()
        totals: Counter[int] = Counter()
        with _lines(folder, False).open("wb") as train, _lines(folder, True).open("wb") as held_out:
            for row in rows:
                at = row["of"]
                data = self.config.datasets[at]
                if totals[at] == data.max_sample_size:  # equal texts share the last place
                    continue
                is_out = is_held_out(row["order"], self.config.validation_fraction)
                line = f"{PREFIX}{data.label} {plain_line(row['text'])}\n"
                (held_out if is_out else train).write(line.encode())
                counts[at, is_out] += 1
                totals[at] += 1
        return counts

    def _check(self, counts: Counter[tuple[int, bool]]) -> None:
        """Refuse too few documents of a label."""
        for label in self._labels:
            known = {at: data.documents for at, data in enumerate(self.config.datasets) if data.label == label}
            train, held_out = (sum(counts[at, is_out] for at in known) for is_out in (False, True))
            if train < MIN_DOCUMENTS or (self.config.validation_fraction and not held_out):
                raise SeveralRowsError(
                    f"The label {label!r} has {train:,} documents to train on and {held_out:,} held out, from "
                    f"{', '.join(known.values())}: give at least {MIN_DOCUMENTS} and one, or validation_fraction=0."
                )

    def _train(self, folder: Path) -> dict[str, Any]:
        """Train, store the model and its description, and return the measures of the stored one."""
        config, labels = self.config, self._labels
        model = folder / FILES[config.kind]
        KINDS[config.kind].train(_lines(folder, False), model, labels, config.arguments, config.seed)
        about = description(config.kind, labels, config.arguments)
        measured = None
        if config.validation_fraction:
            with Classifier(str(model), config.kind, tuple(labels), config.arguments).loaded() as loaded:
                measured = _measures(_lines(folder, True), loaded)
        with model.open("rb") as source, atomic_writer(join(config.output_path, model.name)) as target:
            shutil.copyfileobj(source, target, 1 << 22)
        write_json(join(config.output_path, DESCRIPTION), about)
        with model.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()
        file = {"file": model.name, "bytes": model.stat().st_size, "sha256": digest}
        return {**about, "model": file, "held_out": measured}

    def _stats(self, counts: Counter[tuple[int, bool]], measured: dict[str, Any]) -> dict[str, Any]:
        config = self.config
        datasets = [
            {**vars(data), "train": counts[at, False], "held_out": counts[at, True]}
            for at, data in enumerate(config.datasets)
        ]
        settings = {name: getattr(config, name) for name in ("seed", "validation_fraction", "algorithm")}
        return {**measured, **settings, "datasets": datasets, "libraries": _libraries()}


def _lines(folder: Path, is_out: bool) -> Path:
    return folder / ("held_out.txt" if is_out else "train.txt")


def _libraries() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _measures(lines: Path, model: Model) -> dict[str, Any]:
    """Return the accuracy, and for each label the area under the ROC curve, precision and recall.

    Precision and recall of a label are those of the best label of each text, and in the table those of its scores at
    least at a threshold.
    """
    import numpy as np

    truth: list[str] = []
    scores: list[list[float]] = []
    with lines.open(encoding="utf-8", newline="\n") as file:
        while batch := list(itertools.islice(file, _BATCH)):
            pairs = [line.rstrip("\n").removeprefix(PREFIX).partition(" ") for line in batch]
            truth += [label for label, _, _ in pairs]
            scores += [
                [found.get(label, 0.0) for label in model.labels]
                for found in model.scores([text for _, _, text in pairs])
            ]
    matrix, names = np.array(scores), np.array(truth)
    best = np.array(model.labels)[matrix.argmax(axis=1)]
    labels = {label: _of_label(names == label, best == label, matrix[:, at]) for at, label in enumerate(model.labels)}
    return {"documents": len(names), "accuracy": float((best == names).mean()), "labels": labels}


def _of_label(is_true: Any, is_best: Any, scores: Any) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    table = [
        {"threshold": threshold, **_rates(is_true, scores >= threshold), "kept": float((scores >= threshold).mean())}
        for threshold in _THRESHOLDS
    ]
    area = float(roc_auc_score(is_true, scores))
    return {"documents": int(is_true.sum()), "auc": area, **_rates(is_true, is_best), "thresholds": table}


def _rates(is_true: Any, is_kept: Any) -> dict[str, float | None]:
    """Return precision and recall; the precision of nothing is None."""
    right, kept = int((is_true & is_kept).sum()), int(is_kept.sum())
    return {"precision": right / kept if kept else None, "recall": right / int(is_true.sum())}
