"""Rules for documents at both sides of each threshold, masks, and the step that applies them."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tradewind.datasets import Backend, PipelineError
from tradewind.recipes.data.quality.filter_rules import C4, GopherQuality, GopherRepetition, Rule
from tradewind.recipes.data.quality.filters import RULES, FilterDocumentsConfig, filter_documents, filtered_documents
from tradewind.recipes.data.quality.pii import mask_pii
from tradewind.steps import RunValues, resolve, run_param

PROSE = "The ship of the line sailed on the evening tide, and a gull flew over it."
LARGE = 1_000_000

MEASURES: list[tuple[str, str, str, float]] = [
    ("gopher_quality", "one two\nthree", "min_words words", 3),
    ("gopher_quality", "one two\nthree", "max_words words", 3),
    ("gopher_quality", "four a", "min_word_length word_length", 2.5),
    ("gopher_quality", "four a", "max_word_length word_length", 2.5),
    ("gopher_quality", "# a b #c", "max_symbols hashes", 2 / 4),
    ("gopher_quality", "a... b c… d", "max_symbols ellipses", 2 / 4),
    ("gopher_quality", "- a\n  • b\n* c\nd - e", "max_bullet_lines bullet_lines", 2 / 4),
    ("gopher_quality", "a... \nb…\nc.\n...d", "max_ellipsis_lines ellipsis_lines", 2 / 4),
    ("gopher_quality", "a1 2b, 中文 12 -- _ é's ½", "min_letter_words letter_words", 5 / 8),
    ("gopher_quality", "The the THAT other bee", "min_stop_words stop_words", 2),
    ("gopher_repetition", "a\n\nb\na\na", "max_duplicate_lines duplicate_lines", 2 / 4),
    ("gopher_repetition", "abc\n\nb\nabc", "max_duplicate_line_characters duplicate_line_characters", 3 / 10),
    ("gopher_repetition", "a\n\nb\n\n\na\n\n", "max_duplicate_paragraphs duplicate_paragraphs", 1 / 3),
    ("gopher_repetition", "a\nb\n\na\nb", "max_duplicate_paragraph_characters duplicate_paragraph_characters", 3 / 8),
    ("gopher_repetition", "a bc d a bc", "max_top_2_gram top_2_gram", 2 * 4 / 11),
    ("gopher_repetition", "a b c x a b c y d", "max_top_3_gram top_3_gram", 2 * 5 / 17),
    ("gopher_repetition", "a b c d x a b c d y", "max_top_4_gram top_4_gram", 2 * 7 / 19),
    *(
        ("gopher_repetition", f"{runs} x {runs} y {runs} z", f"max_{name} {name}", 2 * n / size)
        for n in range(5, 11)
        for name in [f"duplicate_{n}_grams"]
        for runs in [" ".join("abcdefghij"[:n])]
        for size in [3 * (2 * n - 1) + 8]
    ),
    ("c4", "Is it? Yes! “So.” It said 'a.b' and\nno", "min_sentences sentences", 5),
    ("c4", "他来了。他走了吗？", "min_sentences sentences", 2),
    ("fineweb", "a.\n\n \nb\nc!\nd ", "min_line_punctuation line_punctuation", 2 / 4),
    ("fineweb", f"{'a' * 30}\n{'b' * 31}\n\n", "max_short_lines short_lines", 1 / 2),
    ("fineweb", "abc\nd\nabc", "max_duplicate_characters duplicate_characters", 3 / 7),
    ("fineweb", "a\nb c\nd", "max_list list", 2 / 4),
    ("length", "é 中\nb", "min_characters characters", 5),
    ("length", "é 中\nb", "max_characters characters", 5),
    ("length", "é 中\nb", "min_words words", 3),
    ("length", "é 中\nb", "max_words words", 3),
]  # fmt: skip


def open_rule(name: str, **bounds: Any) -> Any:
    """Return the rule with thresholds that every text satisfies, but for ``bounds``."""
    names = [field.name for field in dataclasses.fields(RULES[name]) if field.name.startswith(("min_", "max_"))]
    lines = {"terminal_punctuation": False} if name == "c4" else {}
    return RULES[name](**{bound: 0 if bound.startswith("min_") else 10**9 for bound in names} | lines | bounds)


@pytest.mark.parametrize(("rule", "text", "names", "value"), MEASURES)
def test_rule_keeps_a_measure_at_its_bound_only(rule: str, text: str, names: str, value: float) -> None:
    option, name = names.split()
    outcome = open_rule(rule, **{option: value}).apply(text)
    assert outcome.measures[name] == pytest.approx(value)
    assert outcome.failed is None
    beyond = 1 if option.startswith("min_") else -1
    step = beyond if isinstance(value, int) else beyond * 1e-6
    assert open_rule(rule, **{option: value + step}).apply(text).failed == name


def test_thresholds_are_those_that_were_published() -> None:
    bounds = {name: list(dataclasses.astuple(rule())) for name, rule in RULES.items()}
    assert bounds["gopher_quality"] == [50, 100_000, 3, 10, 0.1, 0.9, 0.3, 0.8, 2]
    assert bounds["gopher_repetition"] == [0.3, 0.3, 0.2, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.1]
    assert bounds["c4"] == [True, 3, True, True, True, True, 5]
    assert bounds["fineweb"] == [0.12, 0.67, 30, 0.01, 0.3]


C4_LINES = [
    ("It has an end.", True), ('It is "one"', True), ("It has no end", False), ("It goes on...", False),
    ("Two words.", False), ("\tThree words here! ", True), ("Enable JavaScript to read.", False),
    ("See our Privacy Policy here.", False), ("This page uses cookies.", False),
]  # fmt: skip


@pytest.mark.parametrize(("line", "stays"), C4_LINES)
def test_c4_keeps_lines_that_are_sentences(line: str, stays: bool) -> None:
    outcome = C4(min_sentences=0).apply(f"{PROSE}\n{line}")
    assert outcome.text == (f"{PROSE}\n{line.strip()}" if stays else PROSE)
    assert outcome.counts == {"removed_lines": int(not stays)}


@pytest.mark.parametrize(
    ("options", "line", "failed"),
    [
        ({}, "It was {x}.", "curly_bracket"), ({"curly_bracket": False}, "It was {x}.", None),
        ({}, "It was Lorem Ipsum.", "lorem_ipsum"), ({"lorem_ipsum": False}, "It was Lorem Ipsum.", None),
        ({}, "It was {x}", None), ({"min_line_words": 5}, "It was {x}.", None),
        ({"terminal_punctuation": False}, "It was {x}", "curly_bracket"),
        ({"javascript": False}, "Enable JavaScript {x}.", "curly_bracket"),
        ({"policies": False}, "Privacy policy {x}.", "curly_bracket"),
    ],
)  # fmt: skip
def test_c4_refuses_texts_by_lines_that_stay(options: dict[str, Any], line: str, failed: str | None) -> None:
    assert C4(min_sentences=0, **options).apply(f"{PROSE}\n{line}").failed == failed


PII = [
    ("to ann.lee+x@mail.example.co.uk.", "to email@example.com.", "emails"),
    ("邮箱abc@x.com。", "邮箱email@example.com。", "emails"),
    ("mailto:a@b.org \ud800", "mailto:email@example.com \ud800", "emails"),
    ("2:a@b.org.1", "2:email@example.com.1", "emails"),
    ("at 8.8.8.8:53, IP:1.1.1.1.", "at 192.0.2.1:53, IP:192.0.2.1.", "ips"),
    ("at 2001:4860:4860::8888.", "at 192.0.2.1.", "ips"),
    ("call +49 30 1234567, +1 (212) 555-0123", "call 555-0100, 555-0100", "phones"),
    ("call (212) 555-0123 or 212-555-0123", "call 555-0100 or 555-0100", "phones"),
]
NO_PII = [
    "a@b", "@name", "x@localhost", "email@example.com", "10.0.0.1 127.0.0.1 192.168.1.1 192.0.2.1", "1.2.3.4.5",
    "300.1.1.1", "version1.2.3.4", "12:30:45", "std::vector", "fe80::1", "2001:db8::1", "2024-10-30 12:00",
    "978-3-16-148410-0", "2125550123", "555-0100", "+1 000", "3+123456789", "a@b.org_", "_8.8.8.8", "8.8.8.8a",
    "1:8.8.8.8", "192.168.1.212-555-0123",
]  # fmt: skip


@pytest.mark.parametrize(("text", "masked", "kind"), PII)
def test_pii_is_masked_once(text: str, masked: str, kind: str) -> None:
    found, counts = mask_pii(text)
    assert found == masked
    assert {name for name, count in counts.items() if count} == {kind}
    assert mask_pii(masked) == (masked, dict.fromkeys(counts, 0))


@pytest.mark.parametrize("text", NO_PII)
def test_pii_mask_leaves_what_identifies_no_person(text: str) -> None:
    assert mask_pii(text) == (text, {"emails": 0, "ips": 0, "phones": 0})


PARTS = ["a", "word", "Wörter", "中文。", "\ud800", "...", "#", "\n", "\n\n", "- ", "{", "a@b.org"]


@pytest.mark.parametrize("rule", RULES.values())
@given(texts=st.lists(st.sampled_from(PARTS)))
def test_rule_measures_any_text_by_finite_numbers(rule: type[Rule], texts: list[str]) -> None:
    for text in ("", "\n\n \n", " ".join(texts), "".join(texts)):
        outcome = rule().apply(text, measure_all=True)
        assert all(value >= 0 for value in outcome.measures.values())
        assert all(value <= 1 for name, value in outcome.measures.items() if name.startswith("duplicate_"))
        first = rule().apply(text)
        assert (first.text, first.failed) == (outcome.text, outcome.failed)
        assert rule().edit(outcome.text)[0] == outcome.text


NAIVE_WORDS = st.lists(st.sampled_from(["ab", "cd", "e", "f"]), max_size=60)


@given(NAIVE_WORDS)
def test_runs_of_words_are_counted_as_a_plain_count_does(words: list[str]) -> None:
    text = " ".join(words)
    measures = GopherRepetition().apply(text, measure_all=True).measures
    for n in range(2, 11):
        runs = [words[at : at + n] for at in range(len(words) - n + 1)]
        if n <= 4:
            best = max(runs, key=runs.count, default=[])
            expected = len(" ".join(best)) * runs.count(best)
            name = f"top_{n}_gram"
        else:
            expected, at, seen = 0, 0, []
            while at < len(runs):
                is_known = runs[at] in seen
                expected += len("".join(runs[at])) if is_known else 0
                seen.append(runs[at])
                at += n if is_known else 1
            name = f"duplicate_{n}_grams"
        assert measures[name] == pytest.approx(expected / len(text) if text else 0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize("text", [PROSE + " ", "中", "1.", "a@", "+1 ", '."', "{ "])
def test_rule_takes_linear_time_for_one_long_line(rule: type[Rule], text: str) -> None:
    started = time.thread_time()
    rule().apply((text * (LARGE // len(text)))[:LARGE])
    assert time.thread_time() - started < 20  # 0.01 to 0.5 where nothing else runs; hours if it were quadratic


ROWS = [
    {"id": "a", "text": "\n".join([PROSE, "So it was. A {", "He wrote to a@b.org, and to nobody else."]), "n": 1},
    {"id": "b", "text": "Too short."},
    {"id": "c", "text": "There was the end of the evening. " * 9},
    {"id": "d", "text": "中文没有空格。" * 100},
]
CHOSEN = [
    {"rule": "c4", "min_sentences": 2, "min_line_words": 2}, {"rule": "gopher_quality", "min_words": 10},
    "gopher_repetition", "fineweb", "mask_pii",
]  # fmt: skip


def run(folder: Path, rules: Any = CHOSEN, keep_attributes: bool = False, **options: Any) -> Any:
    config = FilterDocumentsConfig(str(folder / "in"), str(folder / "out"), rules, keep_attributes)
    return Backend(kind="sync", scratch=str(folder / "scratch"), **options).execute(filtered_documents(config))


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    (tmp_path / "in" / "train").mkdir(parents=True)
    (tmp_path / "in" / "train" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_documents_are_kept_or_counted_by_first_failing_rule(documents: Path) -> None:
    results = run(documents)
    assert results == [f"{documents}/out/x.jsonl"]
    text = f"{PROSE}\nHe wrote to email@example.com, and to nobody else."
    assert json.loads(Path(results[0]).read_text()) == {"id": "a", "text": text, "n": 1}
    assert results.counters == {
        "kept": 1,
        "c4.removed_lines": 2,
        "mask_pii.emails": 1,
        "rejected.c4.sentences": 2,
        "rejected.gopher_repetition.top_2_gram": 1,
    }


def test_parquet_keeps_columns_of_documents_and_attributes(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int32())])
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.table({}), tmp_path / "in" / "part-0.parquet")  # as a shard without rows may be
    for part, rows in enumerate([ROWS[:1], ROWS[1:]], 1):
        parquet.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "in" / f"part-{part}.parquet")
    (tmp_path / "in" / "stats.json").write_text("{}")
    kept = [parquet.read_table(path) for path in run(tmp_path)]
    assert [table.schema for table in kept] == [schema] * 3
    assert [table.num_rows for table in kept] == [0, 1, 0]
    (tmp_path / "out").rename(tmp_path / "kept")
    measured = [row for path in run(tmp_path, keep_attributes=True) for row in parquet.read_table(path).to_pylist()]
    assert [row["id"] for row in measured] == ["a", "b", "c", "d"]
    assert measured[0]["attributes"]["c4"] == {
        "removed_lines": 1, "lorem_ipsum": 0, "curly_bracket": 0, "sentences": 2,
    }  # fmt: skip
    assert measured[1]["attributes"]["gopher_quality"]["words"] == 2


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": "a"}, "no column 'text'"),
        ({"id": "a", "text": None}, "text is None"),
        ({"id": 1, "text": "a"}, "id is 1"),
    ],
)
def test_row_without_id_or_text_is_refused_by_name(documents: Path, row: dict[str, Any], problem: str) -> None:
    (documents / "in" / "train" / "x.jsonl").write_text(json.dumps(row))
    with pytest.raises(PipelineError, match=f"{problem}.*x.jsonl row 1"):
        run(documents, keep_attributes=True)


def test_files_of_two_kinds_are_refused(documents: Path) -> None:
    parquet.write_table(pa.table({"id": ["a"]}), documents / "in" / "y.parquet")
    with pytest.raises(ValueError, match="JSON lines and Parquet"):
        run(documents)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([], "give a list of rules"), ("c4", "give a list of rules"), ([3], "rules has 3: the rules are"),
        (["gopher"], "rules has 'gopher': did you mean gopher_quality"), (["c4", C4()], "rules has c4 twice"),
        ([{"rule": "c4", "min_sentence": 3}], "Rule c4 has no option 'min_sentence': did you mean min_sentences"),
        ([{"rule": "c4", "min_sentences": -1}], "Rule c4: min_sentences=-1: give a whole number"),
        ([{"rule": "fineweb", "max_list": "a"}], "Rule fineweb: max_list='a': give a number"),
    ],
)  # fmt: skip
def test_step_refuses_unknown_rules_and_options(rules: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        filter_documents("good", "gs://bucket/raw", rules)
    assert str(caught.value).startswith("Step 'good': ")


def test_version_of_step_counts_thresholds_and_form() -> None:
    forms: list[tuple[list[Any], bool, int]] = [
        ([C4()], False, 1), (["c4"], False, 9), ([C4(min_sentences=3)], False, 1), ([C4()], True, 1),
    ]  # fmt: skip
    steps = [
        filter_documents("good", "gs://bucket/raw", rules, keep_attributes=keeps, max_parallelism=parallel)
        for rules, keeps, parallel in forms
    ]
    versions = [resolve([step], "gs://bucket").of(step).output_path for step in steps]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_threshold_may_be_a_value_of_the_run() -> None:
    step = filter_documents("good", "gs://bucket/raw", [GopherQuality(min_words=run_param("words"))])
    resolved = resolve([step], "gs://bucket", RunValues(params={"words": 7})).of(step)
    assert resolved.config.config.rules[0]["min_words"] == 7
