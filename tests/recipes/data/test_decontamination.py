"""Documents that hold items of evaluation sets."""

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import PipelineError
from tradewind.recipes.data import Evaluation, FilterConfig, consolidate, decontaminate, normalize
from tradewind.recipes.data.overlap.ngram_index import Items, _loaded, load_index, pack_index, read_header
from tradewind.recipes.data.overlap.words import word_hashes, word_spans
from tradewind.steps import ExperimentError
from tradewind.steps.resolution import resolve

HERE = Path(__file__).parent
SAILING = Evaluation("sailing", HERE / "evaluations" / "sailing.jsonl", ["question", "choices.text"])
CLOZE = Evaluation("cloze", HERE / "evaluations" / "cloze.jsonl", id_field="id")
DOCUMENTS = normalize("docs", HERE / "inputs", shards=2)


def written(folder: Path, rows: Sequence[Any], name: str = "rows.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


def stats(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "stats.json").read_text())
    return found


def test_contaminated_documents_are_as_in_the_snapshot(tmp_path: Path) -> None:
    step = decontaminate("contaminated", DOCUMENTS, [SAILING, CLOZE], ngram=5)
    check_snapshot("contaminated", run(step, tmp_path), HERE)


def test_contaminated_documents_and_spans_are_removed(tmp_path: Path) -> None:
    found = decontaminate("contaminated", DOCUMENTS, [SAILING, CLOZE], ngram=5, threshold=0.9)
    rules = {"remove_doc": "contaminated", "remove_spans": "contaminated_spans"}
    removed, cut = (
        rows_of(run(consolidate(kind, DOCUMENTS, [FilterConfig(kind, found, name)]), tmp_path))
        for kind, name in rules.items()
    )
    assert len(removed) == 3 and len(cut) == 4
    assert not any("Knoten" in row["text"] for row in removed + cut)
    assert sum("Größe und Maß: .\n" in row["text"] for row in cut) == 1


def naive_words(text: str) -> list[str]:
    return [unicodedata.normalize("NFKC", word).casefold() for word in re.findall(r"[^\W_]+", text)]


def naive(text: str, length: int) -> list[tuple[str, ...]]:
    words = naive_words(text)
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]


def drawn(draw: random.Random, words: int) -> str:
    """Return a text of few different words, so that runs repeat within a text and in many."""
    letters = ["a", "B", "é", "É", "ß", "x1", "Ab"]
    return "".join(draw.choice(letters) + draw.choice([" ", ", ", "_", "\n", "—"]) for _ in range(words))


@pytest.mark.parametrize("seed", range(5))
def test_decisions_are_those_of_all_pairs(seed: int, tmp_path: Path) -> None:
    """Each document is compared with each item, by tuples of words in place of hashes."""
    draw = random.Random(seed)
    length, threshold = draw.choice([1, 2, 4, 5]), draw.choice([0.0, 0.2, 0.5, 1.0])
    sets = {name: [drawn(draw, draw.randrange(1, 15)) for _ in range(draw.randrange(1, 30))] for name in ("p", "q")}
    for texts in sets.values():
        texts.append(drawn(draw, length))
    texts = [drawn(draw, draw.randrange(1, 40)) for _ in range(60)]
    evaluations = [
        Evaluation(
            name, written(tmp_path / name, [{"text": text, "id": at} for at, text in enumerate(items)]), id_field="id"
        )
        for name, items in sets.items()
    ]
    documents = normalize("docs", written(tmp_path / "docs", [{"text": text} for text in texts]), shards=3)
    folder = run(decontaminate("found", documents, evaluations, ngram=length, threshold=threshold), tmp_path)

    expected: dict[str, Any] = {}
    for document in rows_of(next(tmp_path.glob("docs-*"))):
        runs = naive(document["text"], length)
        held = [
            (name, str(at), len(own & set(runs)), len(own))
            for name, items in sets.items()
            for at, own in enumerate(set(naive(item, length)) for item in items)
            if own & set(runs) and len(own & set(runs)) / len(own) >= threshold
        ]
        if held:
            expected[document["id"]] = held
    found = {row["id"]: row for row in rows_of(folder)}
    assert found.keys() == expected.keys()
    for own, held in expected.items():
        assert len(found[own]["items"]) == len(held)
        for by in found[own]["attributes"]["contaminated_by"]:
            of_set = [each for each in held if each[0] == by["evaluation"]]
            best = max(of_set, key=lambda each: (each[2] / each[3], -int(each[1])))
            assert (by["evaluation"], by["item"], by["ngrams"], by["of"], by["items"]) == (*best, len(of_set))
    counts = stats(folder)
    assert counts["counts"]["contaminated"] == len(expected)
    for evaluation in counts["evaluations"]:
        pairs = {each[:2] for held in expected.values() for each in held if each[0] == evaluation["name"]}
        assert evaluation["items_found"] == len(pairs)


@pytest.mark.parametrize("length", [1, 3, 7])
def test_spans_cover_the_shared_runs_and_no_more(length: int, tmp_path: Path) -> None:
    draw = random.Random(length)
    items = [drawn(draw, 9) for _ in range(4)]
    documents = normalize("docs", written(tmp_path / "docs", [{"text": drawn(draw, 200)} for _ in range(9)]))
    evaluation = Evaluation("all", written(tmp_path / "items", [{"text": text} for text in items]))
    found = {
        row["id"]: row for row in rows_of(run(decontaminate("d", documents, [evaluation], ngram=length), tmp_path))
    }
    known = {gram for item in items for gram in naive(item, length)}
    for document in rows_of(next(tmp_path.glob("docs-*"))):
        text, words = document["text"], [match.span() for match in re.finditer(r"[^\W_]+", document["text"])]
        covered = set()
        for at, gram in enumerate(naive(text, length)):
            if gram in known:
                covered |= set(range(words[at][0], words[at + length - 1][1]))
        spans = found[document["id"]]["attributes"]["contaminated_spans"] if document["id"] in found else []
        assert {at for begin, end in spans for at in range(begin, end)} == covered


SAME: list[tuple[str, str]] = [
    ("Straße", "STRASSE"), ("ﬁne", "fine"), ("cafe\u0301", "caf\u00e9"), ("so\u00adft", "soft"), ("ＡＢ１", "ab1"),
    ("a-b", "a b"), ("don't", "Don\u2019t"), ("x\ufeffy", "xy"), ("ﾃｽﾄｶﾞ", "テストガ"), ("hello_world", "Hello, world!"),
    ("\ud800a b", "a b"), ("हिन्दी", "\u200dहिन्दी"), ("_é_", "É"), ("我們去", "我 們，去"), ("Ǆ", "ǆ"),
]  # fmt: skip
OTHER: list[tuple[str, str]] = [
    ("é", "e"),
    ("zero\u200bwidth", "zerowidth"),
    ("1.5", "15"),
    ("我們", "們我"),
    ("", "a"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_texts_of_the_same_words_have_the_same_hashes(one: str, other: str) -> None:
    for text in (other, f"\n{other}…", f"{other} "):
        assert word_hashes(one).tolist() == word_hashes(text).tolist()


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_texts_of_other_words_have_other_hashes(one: str, other: str) -> None:
    assert word_hashes(one).tolist() != word_hashes(other).tolist()


@given(st.text(), st.text())
def test_words_do_not_depend_on_the_text_around_them(one: str, other: str) -> None:
    joined = f"{one}\n{other}"
    assert word_hashes(joined).tolist() == [*word_hashes(one).tolist(), *word_hashes(other).tolist()]
    assert len(list(word_spans(joined))) == len(word_hashes(joined))
    assert all(begin < end for begin, end in word_spans(joined))


EVALUATIONS: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "no field": ([{"question": "a b c"}], {}, "has no column 'text': it has 'question'.*e/rows.jsonl row 1"),
    "no part": (
        [{"choices": {"label": ["a"]}}],
        {"fields": ["choices.text"]},
        "there is no 'text' in what has 'label'",
    ),
    "no object at the part": ([{"choices": "a"}], {"fields": ["choices.text"]}, "there is no 'text' in what is 'a'"),
    "no column of the part": ([{"x": "a"}], {"fields": ["choices.text"]}, "has no column 'choices': it has 'x'"),
    "number": ([{"text": "a b c"}, {"text": 3}], {}, "The column 'text' holds 3: give columns of texts.*row 2"),
    "list of numbers": ([{"text": ["a", 1]}], {}, "The column 'text' holds 1"),
    "no object": (["a b c"], {}, "it is 'a b c'"),
    "no id": ([{"text": "a b c"}], {"id_field": "id"}, "has no column 'id'"),
    "list as id": ([{"text": "a b c", "id": [1]}], {"id_field": "id"}, r"The id 'id' is \[1\]"),
    "no rows": ([], {}, "evaluations: 'e' has 0 rows, and none has a word"),
    "no words": ([{"text": None}, {"text": " …"}], {}, "evaluations: 'e' has 2 rows, and none has a word"),
    "too long": ([{"text": "a b"}, {"text": "a"}], {}, "evaluations: no item of 'e' has 3 words, the longest has 2"),
}


@pytest.mark.parametrize("case", EVALUATIONS)
def test_unusable_evaluations_are_refused_by_name(case: str, tmp_path: Path) -> None:
    rows, options, message = EVALUATIONS[case]
    evaluation = Evaluation("e", written(tmp_path / "e", rows), **options)
    with pytest.raises((PipelineError, ValueError), match=message):
        run(decontaminate("d", DOCUMENTS, [CLOZE, evaluation], ngram=3), tmp_path)
    assert not [*tmp_path.glob("d-*/part-*")]


def test_rows_of_evaluations_are_never_left_out(tmp_path: Path) -> None:
    evaluation = Evaluation("e", written(tmp_path / "e", [{"text": "a b c"}, {}]))
    with pytest.raises((PipelineError, ValueError), match="no column 'text'"):
        run(decontaminate("d", DOCUMENTS, [evaluation], ngram=3, on_error="skip"), tmp_path)
    (tmp_path / "e" / "rows.jsonl").write_text('{"text": "a b c"}\n{"te')
    with pytest.raises((PipelineError, ValueError), match="evaluations: 1 rows cannot be read"):
        run(decontaminate("d", DOCUMENTS, [evaluation], ngram=3, on_error="skip"), tmp_path)


@pytest.mark.parametrize(
    "text", ["\ud83d half a character", "a \x00 b \u202e c", "e\u0301" * 5_000, "𝕒 𝕓 𝕔 \U0010ffff"]
)
def test_hostile_texts_of_evaluations_find_nothing(text: str, tmp_path: Path) -> None:
    evaluation = Evaluation("e", written(tmp_path / "e", [{"text": f"{text} one two", "id": text}]), id_field="id")
    folder = run(decontaminate("d", DOCUMENTS, [evaluation], ngram=3), tmp_path)
    assert rows_of(folder) == []


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"evaluations": []}, "evaluations=[]: give a list of Evaluation"),
    ({"evaluations": CLOZE}, "evaluations=Evaluation("),
    ({"evaluations": ["e.jsonl"]}, "evaluations=['e.jsonl']: give a list of Evaluation"),
    ({"evaluations": [CLOZE, CLOZE]}, "evaluations has the name 'cloze' twice"),
    ({"ngram": 0}, "ngram=0: give a whole number from 1 to 1,000"),
    ({"ngram": 1001}, "ngram=1001"),
    ({"ngram": True}, "ngram=True"),
    ({"threshold": 1.1}, "threshold=1.1: give a number from 0 to 1"),
    ({"threshold": "0"}, "threshold='0'"),
    ({"threshold": float("nan")}, "threshold=nan"),
    ({"documents": 3}, "documents=3: give a step"),
]


@pytest.mark.parametrize(("options", "message"), ARGUMENTS)
def test_wrong_arguments_are_refused_with_step_and_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ExperimentError), match=re.escape(f"Step 'd': {message}")):
        decontaminate(**{"name": "d", "documents": "docs", "evaluations": [CLOZE], **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name=''"), ({"name": "a\nb"}, "name='a\\nb': give a name"),
        ({"path": ""}, "path=''"), ({"fields": []}, "fields=[]: give a list of names"),
        ({"fields": "text"}, "fields='text'"), ({"fields": [1]}, "fields=[1]"), ({"id_field": 3}, "id_field=3"),
    ],
)  # fmt: skip
def test_evaluations_without_a_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Evaluation(**{"name": "e", "path": "e.jsonl", **options})


def test_missing_evaluation_or_documents_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"evaluations\[1\].path: there is nothing at .*gone"):
        run(decontaminate("d", DOCUMENTS, [CLOZE, Evaluation("e", tmp_path / "gone")]), tmp_path)
    with pytest.raises(ValueError, match="documents: .* has no part-00000-of-00001.parquet"):
        run(decontaminate("d", HERE / "inputs", [CLOZE]), tmp_path)


def test_second_attempt_makes_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = decontaminate("d", DOCUMENTS, [SAILING, CLOZE], ngram=5)
    folder = run(step, tmp_path)
    files = {file: file.read_bytes() for file in folder.rglob("*") if file.suffix in (".parquet", ".bin")}
    about = (folder / "stats.json").read_text()
    (folder / "stats.json").unlink()
    capsys.readouterr()
    run(step, tmp_path)
    assert capsys.readouterr().out.count("Nothing to do") == 3, "items, index and documents"
    assert {file: file.read_bytes() for file in files} == files
    assert (folder / "stats.json").read_text() == about


def test_long_texts_have_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Größe a_b x" * 50 + "y" * 100
    expected = word_hashes(text).tolist()
    monkeypatch.setattr("tradewind.recipes.data.overlap.words._MAX_LISTED", 10)
    assert word_hashes(text).tolist() == expected


FIELDS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "order": ({"a": "one", "b": "two"}, ["b", "a"], "two one"),
    "part": ({"q": {"stem": "one", "choices": [{"text": "two", "label": 1}, {"text": "three"}]}},
             ["q.stem", "q.choices.text"], "one two three"),
    "dot": ({"q.stem": "one", "q": 3}, ["q.stem"], "one"),
    "nested": ({"q": [["one", None], {"x": "two", "y": ["three"]}]}, ["q"], "one two three"),
    "null": ({"q": None, "r": {"s": None}, "t": "one"}, ["q.x", "r.s.u", "t"], "one"),
}  # fmt: skip


@pytest.mark.parametrize("case", FIELDS)
def test_texts_of_an_item_are_those_of_its_fields(case: str, tmp_path: Path) -> None:
    row, fields, text = FIELDS[case]
    documents = normalize("docs", written(tmp_path / "docs", [{"text": text}]))
    evaluation = Evaluation("e", written(tmp_path / "e", [row]), fields)
    found = run(decontaminate("d", documents, [evaluation], ngram=len(text.split()), threshold=1.0), tmp_path)
    assert stats(found)["counts"]["contaminated"] == 1
    assert stats(found)["evaluations"][0]["longest"] == len(text.split())


def test_evaluation_may_be_the_output_of_a_step(tmp_path: Path) -> None:
    evaluation = Evaluation("e", normalize("e", HERE / "evaluations" / "cloze.jsonl"), id_field="source_id")
    found = rows_of(run(decontaminate("d", DOCUMENTS, [evaluation], ngram=5), tmp_path))
    assert {by["item"] for row in found for by in row["attributes"]["contaminated_by"]} == {"1", "2"}


def test_too_many_words_of_evaluations_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.recipes.data.overlap.ngram_index.MAX_WORDS", 20)
    with pytest.raises(PipelineError, match="evaluations: the evaluations have more than 20 words: divide them"):
        run(decontaminate("d", DOCUMENTS, [SAILING, CLOZE], ngram=5), tmp_path)


def test_index_that_changed_is_not_read(tmp_path: Path) -> None:
    """Size and time of the file stay, so that only its checksum tells."""
    step = decontaminate("d", DOCUMENTS, [SAILING, CLOZE], ngram=5)
    folder = run(step, tmp_path)
    (file,) = folder.rglob("part-*.bin")
    content, state = bytearray(file.read_bytes()), file.stat()
    content[-200] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    next(folder.glob("part-*.parquet")).unlink()
    _loaded.cache_clear()
    for on_error in ("raise", "skip"):
        step = decontaminate("d", DOCUMENTS, [SAILING, CLOZE], ngram=5, on_error=on_error)
        with pytest.raises(PipelineError, match="part-00000-of-00001.bin is damaged: remove its folder"):
            run(step, tmp_path)


@pytest.mark.parametrize("labels", range(9))
def test_arrays_of_an_index_are_aligned(labels: int, tmp_path: Path) -> None:
    names = ("e" * labels,)
    items = Items(names, np.zeros(1, np.int64), ["x" * labels], np.array([3]), np.arange(3, dtype=np.uint64))
    (tmp_path / "index").write_bytes(b"".join(pack_index(items, 2)))
    index = load_index(read_header(str(tmp_path / "index")))
    arrays = [value for value in vars(index).values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 8 and all(array.flags.aligned for array in arrays)
    assert index.label(0) == "x" * labels


def test_version_counts_what_decides_and_no_parallelism() -> None:
    def version(**options: Any) -> str:
        evaluation = Evaluation(**{"name": "e", "path": "e.jsonl", "fields": ["a"], **options.pop("evaluation", {})})
        step = decontaminate(**{"name": "d", "documents": "docs", "evaluations": [evaluation], **options})
        return resolve([step], "/p").of(step).hash

    assert version() == version(max_parallelism=3, memory="4GB")
    others: list[dict[str, Any]] = [
        {"documents": "other"}, {"ngram": 8}, {"threshold": 0.5}, {"evaluation": {"name": "f"}},
        {"evaluation": {"path": "f"}}, {"evaluation": {"fields": ["b"]}}, {"evaluation": {"id_field": "i"}},
    ]  # fmt: skip
    assert len({version(**each) for each in [{}, *others]}) == 8


def test_parquet_and_several_files_make_one_evaluation(tmp_path: Path) -> None:
    folder = written(tmp_path / "e", [{"text": "Ein Knoten ist"}])
    table = pa.table({"text": pa.array([["A schooner", "has at least"], None])})
    parquet.write_table(table, folder / "a.parquet")
    found = run(decontaminate("d", DOCUMENTS, [Evaluation("e", folder)], ngram=3), tmp_path)
    assert stats(found)["evaluations"][0] | {"documents": 0} == {
        "name": "e", "items": 3, "with_ngrams": 2, "ngrams": 4, "longest": 5, "items_found": 2, "documents": 0,
    }  # fmt: skip
    items = {by["item"] for row in rows_of(found) for by in row["attributes"]["contaminated_by"]}
    assert items == {"a.parquet:1", "rows.jsonl:1"}
