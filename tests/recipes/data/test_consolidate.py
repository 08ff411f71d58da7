"""Documents joined with their attributes, and the rules of a consolidation."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import Dataset, PipelineError, create_backend, set_flow_backend
from tradewind.recipes.data import FilterConfig, consolidate, deduplicate_exact, filter_documents, normalize
from tradewind.recipes.data.thresholds import _number_at, _place_of, find_threshold
from tradewind.steps import ExperimentError
from tradewind.steps.resolution import resolve

INPUTS = Path(__file__).parent / "inputs"
DOCUMENTS = normalize("docs", INPUTS, shards=2)


def scored(tmp_path: Path, **scores: Any) -> tuple[Path, Path]:
    """Make documents, and attributes of each by its ``source_id``; others get none."""
    documents, folder = run(DOCUMENTS, tmp_path), tmp_path / "scores"
    folder.mkdir()
    for file in documents.glob("*.parquet"):
        rows = [
            {"id": row["id"], "attributes": scores["w" + row["source_id"].strip("w")]}
            for row in parquet.read_table(file).to_pylist()
            if "w" + row["source_id"].strip("w") in scores
        ]
        parquet.write_table(
            pa.Table.from_pylist(rows, None if rows else pa.schema([("id", pa.string())])), folder / file.name
        )
    return documents, folder


def kept(folder: Path) -> dict[str, str]:
    rows = [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]
    return {row["source_id"]: row["text"] for row in rows}


def test_paragraphs_are_removed_as_in_the_snapshot(tmp_path: Path) -> None:
    duplicates = deduplicate_exact("duplicates", DOCUMENTS, by="paragraph")
    rule = FilterConfig("remove_spans", duplicates, "duplicate_paragraphs")
    check_snapshot("consolidate", run(consolidate("clean", DOCUMENTS, [rule]), tmp_path), INPUTS)


def test_measures_of_filters_are_scores(tmp_path: Path) -> None:
    measures = filter_documents("measures", DOCUMENTS, ["gopher_quality"], keep_attributes=True)
    rule = FilterConfig("classify", measures, "gopher_quality", "words", threshold=15)
    assert {own.strip("w") for own in kept(run(consolidate("kept", DOCUMENTS, [rule]), tmp_path))} == {"18"}


QUALITY: Mapping[str, Any] = {
    "w1": {"quality": {"high": 0.9}, "language": "en", "bad": False, "cut": [[0, 9, 1.0], [2, 10, 1.0], [3, 4, 1.0]]},
    "w17": {"quality": {"high": 0.2}, "language": "en", "bad": True, "cut": []},
    "w2": {"quality": {"high": 0.2}, "language": "en", "bad": True, "cut": []},
    "w18": {"quality": {"high": 0.5}, "language": "de", "bad": None, "cut": [[0, 93, 1.0]]},
}  # without 19; of 2 and 17, whose texts are equal, one is left
RULES: dict[str, tuple[list[dict[str, Any]], set[str]]] = {
    "threshold": ([{"threshold": 0.5}], {"1", "18"}),
    "upper": ([{"upper_threshold": 0.5}], {"2", "18"}),
    "both": ([{"threshold": 0.3, "upper_threshold": 0.6}], {"18"}),
    "missing": ([{"threshold": 0.5, "keep_if_missing": True}], {"1", "18", "19"}),
    "third": ([{"keep_fraction": 0.34}], {"1"}),
    "two thirds": ([{"keep_fraction": 0.67}], {"1", "18"}),
    "little": ([{"keep_fraction": 0.01}], {"1"}),
    "remove_doc": ([{"type": "remove_doc", "name": "bad", "label": None}], {"1", "18", "19"}),
    "remove_spans": ([{"type": "remove_spans", "name": "cut", "label": None}], {"1", "2", "19"}),
    "two": ([{"keep_fraction": 0.5}, {"type": "remove_spans", "name": "cut", "label": None}], {"1"}),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_keep_the_documents_that_they_name(case: str, tmp_path: Path) -> None:
    rules, ids = RULES[case]
    documents, scores = scored(tmp_path, **QUALITY)
    base = {"type": "classify", "attribute_path": scores, "name": "quality", "label": "high"}
    folder = run(consolidate("kept", documents, [FilterConfig(**{**base, **rule}) for rule in rules]), tmp_path)
    texts = kept(folder)
    assert {own.strip("w").replace("17", "2") for own in texts} == ids
    assert json.loads((folder / "stats.json").read_text())["counts"]["documents"] == len(ids)
    if case in ("remove_spans", "two"):
        assert texts["w1"].startswith("winds blow"), "overlapping and nested spans of the original text"


def test_second_attempt_finds_thresholds_and_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents, scores = scored(tmp_path, **QUALITY)
    rule = FilterConfig("classify", scores, "quality", "high", keep_fraction=0.5)
    step = consolidate("kept", documents, [rule])
    first = {
        file: file.read_bytes() for file in run(step, tmp_path).rglob("*") if file.suffix in (".parquet", ".jsonl")
    }
    capsys.readouterr()
    run(step, tmp_path)
    assert capsys.readouterr().out.count("Nothing to do") == 7, "three passes twice, and the documents"
    assert {file: file.read_bytes() for file in first} == first


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "name": ({"name": "qualty"}, QUALITY, "There is no attribute 'qualty': there are 'quality'"),
    "label": ({"name": "bad"}, QUALITY, "The attribute 'bad' is False, which has no labels"),
    "text": ({"name": "language", "label": None}, QUALITY, "'language' is 'en': a score is a finite number"),
    "nan": ({}, {"w1": {"quality": {"high": math.nan}}}, "is nan: a score is a finite number|'high': nan"),
    "span": (
        {"type": "remove_spans", "label": None, "threshold": None},
        QUALITY,
        "A span is 'high'|'quality'|A span is",
    ),
    "outside": (
        {"type": "remove_spans", "name": "cut", "label": None, "threshold": None},
        {"w1": {"cut": [[5, 4000]]}},
        r"A span is \[5, 4000\], and the text has 80 characters",
    ),
    "a text": ({}, {"w1": '{"quality": 1}'}, "The attributes are '.*': give an object with their names"),
    "nothing left": ({"threshold": 2}, QUALITY, "filters: of 4 documents none is left"),
    "other label": (
        {"label": "low", "keep_if_missing": True},
        QUALITY,
        "'quality' has no label 'low': there are 'high'",
    ),
    "no scores": (
        {"threshold": None, "keep_fraction": 0.5},
        {"w1": {"quality": {"high": None}}},
        "has no scores named 'quality'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_attributes_are_refused(case: str, tmp_path: Path) -> None:
    changes, rows, message = BAD[case]
    documents, scores = scored(tmp_path, **rows)
    base = {"type": "classify", "attribute_path": scores, "name": "quality", "label": "high", "threshold": 0.5}
    with pytest.raises((PipelineError, ValueError), match=message):
        run(consolidate("kept", documents, [FilterConfig(**{**base, **changes})]), tmp_path)
    assert not [*tmp_path.glob("kept-*/stats.json")]


def test_attributes_of_other_shards_are_refused_by_name(tmp_path: Path) -> None:
    others = deduplicate_exact("duplicates", normalize("others", INPUTS, shards=3))
    rule = FilterConfig("remove_doc", others, "duplicate_document")
    message = r"filters\[0\].attribute_path: .*duplicates-.* has 3 shards and .*docs-.* has 2: give attributes"
    with pytest.raises(ValueError, match=message):
        run(consolidate("kept", DOCUMENTS, [rule]), tmp_path)


def test_attributes_of_other_documents_are_refused(tmp_path: Path) -> None:
    """The other set has as many shards, so that only its ids can tell."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.jsonl").write_text('{"text": "a line\\nof one"}\n{"text": "a line\\nof two"}\n')
    others = deduplicate_exact("duplicates", normalize("others", str(tmp_path / "other"), shards=2), by="paragraph")
    own = deduplicate_exact("own", DOCUMENTS, by="paragraph")
    rules = [FilterConfig("remove_spans", each, "duplicate_paragraphs") for each in (own, others)]
    with pytest.raises(ValueError, match=r"filters\[1\]: none of the documents of .* has attributes in .*duplicates"):
        run(consolidate("kept", DOCUMENTS, rules), tmp_path)


def test_rule_about_documents_that_are_removed_already(tmp_path: Path) -> None:
    documents, scores = scored(tmp_path, **QUALITY)
    scores = scores.rename(tmp_path / "first")
    _, marks = scored(tmp_path, w2={"bad": True}, w17={"bad": True})
    rules = [
        FilterConfig("classify", str(scores), "quality", "high", threshold=0.5),
        FilterConfig("remove_doc", str(marks), "bad"),
        FilterConfig("remove_doc", str(scores), "bad"),
    ]
    folder = run(consolidate("kept", documents, rules), tmp_path)
    counts = json.loads((folder / "stats.json").read_text())["counts"]
    assert (counts["read"], counts["removed_by_quality"], counts["documents"]) == (4, 2, 2)
    assert counts.get("removed_by_bad_1", 0) == counts.get("removed_by_bad_2", 0) == 0


CLASSIFY = {"type": "classify", "attribute_path": "a", "name": "n"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**CLASSIFY, "threshold": 1, "keep_fraction": 0.5}, "threshold and keep_fraction are both given"),
    (CLASSIFY, "type='classify' has no bound: give one of threshold, keep_fraction, upper_threshold"),
    ({**CLASSIFY, "type": "keep"}, "type='keep': give one of classify, remove_doc, remove_spans"),
    ({**CLASSIFY, "keep_fraction": 1.0}, "keep_fraction=1.0: give a number above 0 and below 1"),
    ({**CLASSIFY, "threshold": math.nan}, "threshold=nan"),
    ({**CLASSIFY, "threshold": "high"}, "threshold='high'"),
    ({**CLASSIFY, "type": "remove_doc", "threshold": 0.5}, "threshold=0.5: type='remove_doc' has none"),
    ({**CLASSIFY, "type": "remove_spans", "label": "x"}, "label='x': type='remove_spans' has none"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_impossible_rules_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        FilterConfig(**fields)


@pytest.mark.parametrize("filters", [[], None, [CLASSIFY], FilterConfig("remove_doc", "a", "n")])
def test_filters_that_are_no_list_of_rules_are_refused(filters: Any) -> None:
    with pytest.raises((ValueError, ExperimentError), match="Step 'kept': filters=.*: give a list of FilterConfig"):
        consolidate("kept", "docs", filters)


def test_version_counts_each_field_of_a_rule() -> None:
    def version(**changes: Any) -> str:
        step = consolidate("kept", "docs", [FilterConfig(**{**CLASSIFY, "threshold": 1.0, **changes})])
        return resolve([step], "/p").of(step).hash

    others: list[dict[str, Any]] = [
        {"attribute_path": "b"}, {"name": "b"}, {"label": "b"}, {"threshold": 2.0}, {"upper_threshold": 2.0},
        {"threshold": None, "keep_fraction": 0.5}, {"keep_if_missing": True},
    ]  # fmt: skip
    assert len({version(**each) for each in [{}, *others]}) == 8


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(NUMBERS, min_size=2))
def test_places_are_in_the_order_of_numbers(numbers: list[float]) -> None:
    assert sorted(numbers, key=_place_of) == sorted(numbers)
    assert [_number_at(_place_of(number)) for number in numbers] == numbers


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 0.5, 0.999])
def test_threshold_is_that_of_a_sorted_list(fraction: float, tmp_path: Path) -> None:
    draw = random.Random(7)
    groups = [
        [draw.choice([draw.gauss(0, 1), 0.0, 1e-300, 1.0 - draw.random() * 1e-12]) for _ in range(300)] for _ in "abc"
    ]
    scores = Dataset.from_list(groups).flat_map(list)
    set_flow_backend(create_backend("sync", scratch=str(tmp_path / "scratch")))
    try:
        found = find_threshold(scores, fraction, str(tmp_path / "passes"))
    finally:
        set_flow_backend(None)
    assert found == sorted(sum(groups, []), reverse=True)[max(1, int(fraction * 900 + 0.5)) - 1]
