"""Languages of documents by a model of fastText, and files that are no such models."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.recipes.data.steps import run
from tradewind.datasets import PipelineError
from tradewind.recipes.data import FilterConfig, consolidate, identify_language, normalize
from tradewind.steps import ExecutorStep, resolve

WORDS = {"en": "the ship sails with an evening tide", "de": "das Schiff segelt mit der Flut über", "fr": "le navire"}
TEXTS = {
    "english": "das </s> the ship\nsails with an evening tide",  # the mark ends no text
    "german": "das Schiff segelt über die Flut __label__en",
    "short": "an über",
    "unknown": "Ωμέγα",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of three languages, whole and quantized."""
    import fasttext

    if not hasattr(fasttext, "train_supervised"):
        pytest.skip("fasttext-predict cannot train")
    folder, draw = tmp_path_factory.mktemp("models"), random.Random(1)
    lines = [f"__label__{label} {' '.join(draw.choices(words.split(), k=8))}\n" for label, words in WORDS.items()] * 300
    (folder / "lines.txt").write_text("".join(lines))
    options = {"dim": 4, "epoch": 20, "minn": 2, "maxn": 3, "bucket": 400, "thread": 1, "verbose": 0}
    model = fasttext.train_supervised(str(folder / "lines.txt"), **options)
    model.save_model(str(folder / "model.bin"))
    model.quantize(cutoff=300)
    model.save_model(str(folder / "model.ftz"))
    return folder


def documents(folder: Path, texts: dict[str, str] = TEXTS) -> ExecutorStep:
    folder.mkdir()
    rows = [{"id": own, "text": text} for own, text in texts.items()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return normalize("documents", str(folder), shards=2)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


@pytest.mark.parametrize("name", ["model.bin", "model.ftz"])
def test_languages_are_found_and_kept_by_threshold(name: str, trained: Path, tmp_path: Path) -> None:
    pages = documents(tmp_path / "in")
    found = identify_language("languages", pages, str(trained / name), languages=["en", "fr"], threshold=0.8)
    own = {row["id"]: row["source_id"] for row in rows_of(run(pages, tmp_path))}
    attributes = {own[row["id"]]: row["attributes"] for row in rows_of(run(found, tmp_path))}
    labels = {name: each["language"] and each["language"]["label"] for name, each in attributes.items()}
    assert (labels["english"], labels["german"]) == ("en", "de")
    assert {name for name, each in attributes.items() if not each["other_language"]} == {"english"}
    kept = consolidate("kept", pages, [FilterConfig("remove_doc", found, "other_language")])
    assert [row["text"] for row in rows_of(run(kept, tmp_path))] == [TEXTS["english"]]


def at(place: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Return a function that changes a number in the head of a model."""
    return lambda model: model[:place] + struct.pack(form, value) + model[place + struct.calcsize(form) :]


def with_word(model: bytes) -> bytes:
    """Make the first label a word."""
    place = model.index(b"__label__de\0") + len(b"__label__de\0") + 8
    return model[:place] + b"\0" + model[place + 1 :]


def with_part(model: bytes) -> bytes:
    """Name a part of a word that the quantization has not kept."""
    after = model.index(b"\0", model.rindex(b"__label__")) + 10
    return model[: after + 4] + struct.pack("<i", 300) + model[after + 8 :]


BAD_MODELS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "page": ("bin", lambda _: b"<html>not found</html>" * 10, "does not begin like a model of fastText"),
    "empty": ("bin", lambda _: b"", "it has 0 bytes, fewer than a model"),
    "head only": ("bin", lambda model: model[:92], "it has 92 bytes, fewer than a model"),
    "version": ("bin", at(4, "<i", 99), "does not begin like a model of fastText"),
    "vectors": ("bin", at(36, "<i", 2), "is a model of word vectors, and has no labels"),
    "no labels": ("bin", at(72, "<i", 0), "its head has impossible sizes"),
    "words": ("bin", at(64, "<i", 2**31 - 1), "its dictionary is cut"),
    "dictionary": ("bin", lambda model: model[:130], "its dictionary is cut"),
    "kinds": ("bin", with_word, "its dictionary has words among its labels"),
    "no text": ("bin", lambda model: model.replace(b"__label__de", b"__label__\xff\xfe"), "a label is no text"),
    "one label": ("bin", lambda model: model.replace(b"__label__de", b"__label__fr"), "it has a label twice"),
    "wide": ("bin", at(8, "<i", 5), "a matrix has .* numbers, and not .* × 5"),
    "cut": ("bin", lambda model: model[:-1], r"it has [0-9,]+ bytes, and its sizes make"),
    "longer": ("bin", lambda model: model + b"0", r"it has [0-9,]+ bytes, and its sizes make"),
    "quantized": ("ftz", lambda model: model[: len(model) // 2], "its matrices are cut"),
    "parts": ("ftz", with_part, "its dictionary names parts of words that do not exist"),
    "end": ("ftz", lambda model: model[:-1], r"it has [0-9,]+ bytes, and its sizes make"),
    "long runs": ("bin", at(28, "<i", 1000), "its head has runs of 1,000 words or characters"),
    "no buckets": ("bin", at(40, "<i", 0), "its head has parts of words and no buckets"),
    "loss": ("bin", at(32, "<i", 77), "fastText refuses it: RuntimeError: Unknown loss"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_damaged_models_are_refused(case: str, trained: Path, tmp_path: Path) -> None:
    ending, damage, message = BAD_MODELS[case]
    model = tmp_path / f"damaged.{ending}"
    model.write_bytes(damage((trained / f"model.{ending}").read_bytes()))
    found = identify_language("languages", documents(tmp_path / "in"), str(model))
    with pytest.raises(PipelineError, match=f"damaged.{ending} is no usable model of fastText: .*{message}"):
        run(found, tmp_path)
    assert not [*tmp_path.glob("languages-*/[!.]*")]


PLACES: list[tuple[str, dict[str, Any], str]] = [
    (".", {}, "model: .* has 2 models of fastText .* and no classifier.json: give the folder of train_classifier"),
    ("absent", {}, "model: .*absent has 0 models"),
    ("model.bin", {"languages": ["eng"]}, "languages has 'eng': did you mean 'en'?"),
]


@pytest.mark.parametrize(("name", "options", "message"), PLACES)
def test_unknown_models_and_languages_are_refused(
    name: str, options: dict[str, Any], message: str, trained: Path, tmp_path: Path
) -> None:
    found = identify_language("languages", documents(tmp_path / "in"), str(trained / name), **options)
    with pytest.raises(ValueError, match=message):
        run(found, tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"languages": "en"}, "languages='en': give a list of texts"),
        ({"threshold": "high"}, "threshold='high': give a number"),
        ({"model": None}, "model=None: give a step"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Step 'l': {message}"):
        identify_language("l", "documents", **{"model": "lid.bin", **given})


def test_version_counts_model_languages_and_threshold() -> None:
    def version(model: str = "a", **options: Any) -> str:
        step = identify_language("l", "documents", model, **options)
        return resolve([step], "/p").of(step).hash

    others = [{"model": "b"}, {"languages": ["en"]}, {"threshold": 0.5}]
    assert len({version(**each) for each in [{}, *others]}) == 4  # type: ignore[arg-type]
