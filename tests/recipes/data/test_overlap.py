"""How much of evaluation sets occurs in training sets."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.data.steps import check_snapshot, run
from tests.recipes.data.test_decontamination import CLOZE, HERE, SAILING, drawn, naive, rows_of, stats, written
from tradewind.datasets import PipelineError
from tradewind.recipes.data import Evaluation, normalize, train_test_overlap
from tradewind.steps import ExperimentError
from tradewind.steps.resolution import resolve

SETS = {name: normalize(name, HERE / "inputs" / f"{name}.jsonl", shards=2) for name in ("wiki", "web")}


def test_overlap_is_as_in_the_snapshot(tmp_path: Path) -> None:
    step = train_test_overlap("overlap", SETS, [SAILING, CLOZE], ngram_lengths=[3, 6])
    check_snapshot("overlap", run(step, tmp_path), HERE)


@pytest.mark.parametrize("seed", range(4))
def test_overlap_is_that_of_all_pairs(seed: int, tmp_path: Path) -> None:
    """Each document is compared with each item, by tuples of words in place of hashes."""
    draw = random.Random(seed)
    lengths = draw.sample(range(1, 9), 3)
    items = {name: [drawn(draw, draw.randrange(0, 14)) for _ in range(20)] + [drawn(draw, 9)] for name in ("p", "q")}
    texts = {name: [drawn(draw, draw.randrange(1, 25)) for _ in range(draw.randrange(1, 30))] for name in ("s", "t")}
    texts["none"] = ["Of these words no item has any, not one"]
    evaluations = [
        Evaluation(name, written(tmp_path / name, [{"text": text} for text in own])) for name, own in items.items()
    ]
    sets = {
        name: normalize(name, written(tmp_path / name, [{"text": text} for text in own]), shards=draw.randrange(1, 4))
        for name, own in texts.items()
    }
    folder = run(train_test_overlap("overlap", sets, evaluations, ngram_lengths=lengths), tmp_path)

    overlaps = iter(stats(folder)["overlaps"])
    found = {(row["training_set"], row["evaluation"], row["item"]): row for row in rows_of(folder / "items")}
    for length in lengths:
        for evaluation, own in items.items():
            for name, documents in texts.items():
                seen = {gram for text in documents for gram in naive(text, length)}
                runs = [set(naive(item, length)) for item in own]
                for at, each in enumerate(runs, 1):
                    row = found[name, evaluation, f"rows.jsonl:{at}"]
                    assert (row[f"ngrams_{length}"], row[f"found_{length}"]) == (len(each), len(each & seen))
                overlapping = sum(bool(each & seen) for each in runs)
                assert next(overlaps) == {
                    "training_set": name, "evaluation": evaluation, "ngram": length, "items": len(own),
                    "with_ngrams": sum(map(bool, runs)), "overlapping": overlapping,
                    "whole": sum(bool(each) and each <= seen for each in runs), "fraction": overlapping / len(own),
                }  # fmt: skip
    for name in texts:
        attributes = {row["id"]: row["attributes"] for row in rows_of(folder / name)}
        for document in rows_of(next(tmp_path.glob(f"{name}-*"))):
            for length in lengths:
                own = set(naive(document["text"], length))
                expected = [each for each in items if any(own & set(naive(item, length)) for item in items[each])]
                held = attributes.get(document["id"], {f"evaluations_{length}": []})
                assert held[f"evaluations_{length}"] == expected
                assert bool(held.get(f"overlap_{length}")) == bool(expected)


def test_second_attempt_makes_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = train_test_overlap("overlap", SETS, [SAILING, CLOZE], ngram_lengths=[3, 6])
    folder = run(step, tmp_path)
    report = (folder / "overlap.md").read_text()
    (folder / "overlap.md").unlink()
    capsys.readouterr()
    run(step, tmp_path)
    assert capsys.readouterr().out.count("Nothing to do") == 3, "items, index, and the documents"
    assert (folder / "overlap.md").read_text() == report


def test_length_that_some_evaluations_have_is_compared(tmp_path: Path) -> None:
    short = Evaluation("short", written(tmp_path / "e", [{"text": "two masts"}]))
    folder = run(train_test_overlap("overlap", SETS, [CLOZE, short], ngram_lengths=[2, 5]), tmp_path)
    counted = {(each["evaluation"], each["ngram"]): each["with_ngrams"] for each in stats(folder)["overlaps"]}
    assert counted == {("cloze", 2): 3, ("short", 2): 1, ("cloze", 5): 3, ("short", 5): 0}


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 5], "evaluation_sets: no item of 'short' has 3 words, the longest has 2"),
        ([2, 50], "evaluation_sets: no item has 50 words, the longest has 13"),
    ],
)
def test_runs_longer_than_all_items_are_refused(lengths: list[int], message: str, tmp_path: Path) -> None:
    short = Evaluation("short", written(tmp_path / "e", [{"text": "two masts"}]))
    with pytest.raises(ValueError, match=message):
        run(train_test_overlap("overlap", SETS, [CLOZE, short], ngram_lengths=lengths), tmp_path)


def test_training_set_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training_sets\['raw'\]: .* has no part-00000-of-00001.parquet"):
        run(train_test_overlap("overlap", {**SETS, "raw": HERE / "inputs"}, [CLOZE], ngram_lengths=[3]), tmp_path)
    web = run(SETS["web"], tmp_path)
    first, second = sorted(web.glob("part-*"))
    first.rename(web / "aside")
    second.rename(first)
    (web / "aside").rename(second)
    with pytest.raises(PipelineError, match="belongs to another shard: make the set with normalize"):
        run(train_test_overlap("overlap", {"web": web}, [CLOZE], ngram_lengths=[3]), tmp_path)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"training_sets": {}}, "training_sets={}: give a dict of names and sets of documents"),
    ({"training_sets": "docs"}, "training_sets='docs': give a dict"),
    ({"training_sets": {"a/b": "docs"}}, "training_sets: a set has the name 'a/b'"),
    ({"training_sets": {"items": "docs"}}, "training_sets: a set has the name 'items'"),
    ({"training_sets": {"a": 3}}, "training_sets['a']=3: give a step"),
    ({"evaluation_sets": [CLOZE, CLOZE]}, "evaluation_sets has the name 'cloze' twice"),
    ({"evaluation_sets": []}, "evaluation_sets=[]: give a list of Evaluation"),
    ({"ngram_lengths": []}, "ngram_lengths=[]: give a list of 1 to 8 different whole numbers from 1 to 1,000"),
    ({"ngram_lengths": 5}, "ngram_lengths=5"),
    ({"ngram_lengths": [5, 5]}, "ngram_lengths=[5, 5]"),
    ({"ngram_lengths": [0]}, "ngram_lengths=[0]"),
    ({"ngram_lengths": None}, "ngram_lengths=None"),
    ({"ngram_lengths": "13"}, "ngram_lengths="),
]


@pytest.mark.parametrize(("options", "message"), ARGUMENTS)
def test_wrong_arguments_are_refused_with_step_and_field(options: dict[str, Any], message: str) -> None:
    given = {"name": "o", "training_sets": {"a": "docs"}, "evaluation_sets": [CLOZE], **options}
    with pytest.raises((ValueError, ExperimentError), match=re.escape(f"Step 'o': {message}")):
        train_test_overlap(**given)


def test_version_counts_what_decides_and_no_parallelism() -> None:
    def version(**options: Any) -> str:
        given = {"training_sets": {"a": "docs"}, "evaluation_sets": [Evaluation("e", "e")], **options}
        step = train_test_overlap("o", **given)
        return resolve([step], "/p").of(step).hash

    assert version() == version(max_parallelism=3)
    others: list[dict[str, Any]] = [
        {"training_sets": {"b": "docs"}}, {"training_sets": {"a": "other"}}, {"ngram_lengths": [5]},
        {"evaluation_sets": [Evaluation("f", "e")]},
    ]  # fmt: skip
    assert len({version(**each) for each in [{}, *others]}) == 5
