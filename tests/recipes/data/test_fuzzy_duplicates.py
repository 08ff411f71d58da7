"""Documents whose texts are almost equal, in one set and across several."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run, shown
from tradewind import output_path_of, run_param
from tradewind.datasets import Backend, PipelineError, create_backend, set_flow_backend
from tradewind.datasets.backends import Workers
from tradewind.datasets.pipeline_step import run_dataset_step
from tradewind.datasets.shard_task import StageWork
from tradewind.recipes.data import FilterConfig, consolidate, deduplicate_fuzzy, normalize
from tradewind.recipes.data.duplicates.components import connected_components, edge_schema
from tradewind.recipes.data.duplicates.minhash import MinHash, similarity
from tradewind.steps.resolution import resolve

NEAR = Path(__file__).parent / "near"
SETS = {name: normalize(name, NEAR / f"{name}.jsonl", shards=shards) for name, shards in (("wiki", 2), ("web", 3))}
WORDS = [f"{chr(97 + number % 26)}{number:x}" for number in range(4_000)]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


def stats(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "stats.json").read_text())
    return found


def written(folder: Path, texts: Sequence[str]) -> Path:
    folder.mkdir()
    lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def varied(text: str, share: float, draw: random.Random) -> str:
    return " ".join(draw.choice(WORDS) if draw.random() < share else word for word in text.split())


def family(seed: int, texts: int, share: float) -> list[str]:
    """Return texts of 60 words, each of which varies an earlier one."""
    draw = random.Random(seed)
    made = [" ".join(draw.choices(WORDS, k=60)) for _ in range(texts // 4)]
    while len(made) < texts:
        made.append(varied(draw.choice(made), share * draw.random(), draw))
    return made


@cache
def grams(text: str, length: int = 5) -> frozenset[str]:
    return frozenset(text[at : at + length] for at in range(max(len(text) - length + 1, 1)))


def jaccard(first: str, second: str) -> float:
    shared = len(grams(first) & grams(second))
    return shared / (len(grams(first)) + len(grams(second)) - shared)


def roots(edges: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the smallest node of the component of each node."""
    root = {node: node for edge in edges for node in edge}
    while changed := [edge for edge in edges if root[edge[0]] != root[edge[1]]]:
        for first, second in changed:
            root[first] = root[second] = min(root[first], root[second])
    return root


def test_duplicates_across_sets_are_as_in_the_snapshot(tmp_path: Path) -> None:
    step = deduplicate_fuzzy("near", SETS)
    check_snapshot("fuzzy_duplicates", run(step, tmp_path), NEAR)
    kept = set()
    for name, documents in SETS.items():
        rule = FilterConfig("remove_doc", output_path_of(step, name), "duplicate_document")
        kept |= {row["source_id"] for row in rows(run(consolidate(f"kept/{name}", documents, [rule]), tmp_path))}
    assert kept == {"wiki1", "wiki2", "wiki3", "wiki5", "wiki6", "web5"}


def test_first_set_keeps_its_documents(tmp_path: Path) -> None:
    folder = run(deduplicate_fuzzy("near", dict(reversed(SETS.items()))), tmp_path)
    assert stats(folder)["duplicates_of"] == {"web": {"web": 1}, "wiki": {"web": 4}}


def test_similarity_is_jaccards_of_ngrams() -> None:
    texts = [*family(1, 60, 0.3), "a", "ab", "abcd", "日本語のテキスト", "日本語の文", "nul\0nul\0", "e\u0301e\u0301"]
    pairs = [(first, second) for first in texts for second in texts]
    assert [similarity(*pair, 5) for pair in pairs] == [jaccard(*pair) for pair in pairs]
    assert similarity("The  Trade-Winds, blow!", "the tradewinds BLOW", 5) == 1
    assert similarity("?!", "?!", 5) == 0, "nothing is left to compare"


def test_long_texts_are_compared_by_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    text = " ".join(draw.choices(WORDS, k=40_000))
    other = text[: len(text) * 9 // 10] + " ".join(draw.choices(WORDS, k=4_000))
    exact = similarity(text, other, 5)
    monkeypatch.setattr("tradewind.recipes.data.duplicates.minhash._MAX_NGRAMS", 20_000)
    assert similarity(text, other, 5) != exact
    assert abs(similarity(text, other, 5) - exact) < 0.03


@pytest.mark.parametrize("minhash", [MinHash(), MinHash(128, 16, seed=1)], ids=["of Marin", "128"])
def test_pairs_are_found_as_often_as_expected(minhash: MinHash) -> None:
    draw = random.Random(3)
    texts = [" ".join(draw.choices(WORDS, k=40)) for _ in range(400)]
    others = [varied(text, 0.15 * draw.random(), draw) for text in texts]
    found = [bool(set(a) & set(b)) for a, b in zip(minhash.buckets(texts), minhash.buckets(others), strict=True)]
    chances = [minhash.chance(jaccard(*pair)) for pair in zip(texts, others, strict=True)]
    deviation = sum(chance * (1 - chance) for chance in chances) ** 0.5
    assert 100 < sum(chances) < 350, "both sides of the curve are tried"
    assert abs(sum(found) - sum(chances)) < 4 * deviation


def test_library_with_other_signatures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.recipes.data.duplicates.minhash._KNOWN_BUCKET", 1)
    with pytest.raises(ValueError, match="installed marin-dupekit makes other signatures than dupekit 0.1: install"):
        MinHash.check_library()


def test_clusters_are_those_of_all_pairs(tmp_path: Path) -> None:
    texts = family(2, 300, 0.12)
    folder = run(deduplicate_fuzzy("near", normalize("docs", written(tmp_path / "in", texts), shards=3)), tmp_path)
    documents = {row["id"]: row["text"] for row in rows(next(tmp_path.glob("docs-*")))}
    ids = sorted(documents)
    close = [(a, b) for a in ids for b in ids if a < b and jaccard(documents[a], documents[b]) >= 0.8]
    wanted = {node for node, root in roots(close).items() if node != root}
    found = {row["id"]: row["cluster"].partition("/")[2] for row in rows(folder / "clusters")}
    marked = {row["id"] for row in rows(folder)}
    assert marked == {own for own, root in found.items() if own != root}
    assert all(roots(close)[own] == roots(close)[root] for own, root in found.items()), "no cluster joins two"
    assert len(wanted) > 100
    assert 0.97 * len(wanted) <= len(marked) <= len(wanted)


def test_result_depends_on_no_order_and_no_shards(tmp_path: Path) -> None:
    texts = family(4, 60, 0.1)
    found = []
    for shards, order in ((1, 1), (4, -1)):
        documents = normalize(f"docs{shards}", written(tmp_path / f"in{shards}", texts[::order]), shards=shards)
        folder = run(deduplicate_fuzzy(f"near{shards}", {"a": documents, "b": SETS["web"]}), tmp_path)
        marks = sorted(json.dumps(row) for part in ("a", "b", "clusters") for row in rows(folder / part))
        found.append((marks, stats(folder)))
    assert found[0] == found[1]
    assert len(found[0][0]) > 40


def test_many_equal_texts_make_as_many_pairs(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", ["The trade winds blow" + "!" * number for number in range(1_000)])
    result = run(deduplicate_fuzzy("near", normalize("docs", folder, shards=2)), tmp_path)
    counts = stats(result)
    assert (counts["candidates"], counts["verified"], counts["clusters"], counts["duplicates"]) == (999, 999, 1, 999)
    (largest,) = counts["largest"]
    assert largest["count"] == 1_000
    assert len(largest["documents"]) == 5


def test_candidates_count_without_threshold(tmp_path: Path) -> None:
    result = run(deduplicate_fuzzy("near", SETS, threshold=None, num_perm=64, bands=64), tmp_path)
    counts = stats(result)
    assert "verified" not in counts
    assert counts["duplicates"] > 5, "one permutation a band brings much together"


def graphs() -> dict[str, list[tuple[str, str]]]:
    draw = random.Random(6)
    nodes = [f"{number:04d}" for number in range(500)]
    shuffled = draw.sample(nodes, 500)
    return {
        "none": [],
        "a chain": list(zip(nodes, nodes[1:], strict=False)),
        "a chain in disorder": list(zip(shuffled, shuffled[1:], strict=False)),
        "a star": [(node, nodes[250]) for node in nodes if node != nodes[250]],
        "at random": list(zip(draw.choices(nodes[:250], k=400), draw.choices(nodes[250:], k=400), strict=True)) * 2,
    }


@pytest.mark.parametrize("shape", graphs())
def test_components_are_those_of_a_walk(shape: str, tmp_path: Path) -> None:
    edges = graphs()[shape]
    files = []
    for part in range(3):
        table = [{"node": max(edge), "root": min(edge)} for edge in edges[part::3]]
        files.append(str(tmp_path / f"{part}.parquet"))
        parquet.write_table(pa.Table.from_pylist(table, edge_schema()), files[-1])
    set_flow_backend(create_backend("sync", scratch=str(tmp_path / "scratch")))
    try:
        found = connected_components(files, str(tmp_path / "rounds"))
    finally:
        set_flow_backend(None)
    stars = {row["node"]: row["root"] for file in found for row in parquet.read_table(file).to_pylist()}
    assert stars == {node: root for node, root in roots(edges).items() if node != root}
    assert len(list((tmp_path / "rounds").iterdir())) <= 10


class Lost(BaseException):
    """The driver dies: nothing catches it."""


@dataclass(frozen=True)
class Dying(Backend):
    """Loses the driver before the second stage that has anything to do."""

    begun: Any = None

    def workers(self, work: StageWork) -> Workers:
        if self.begun:
            raise Lost
        self.begun.append(work.stage.key)
        return super().workers(work)


def test_driver_that_dies_after_each_stage_makes_the_same(tmp_path: Path) -> None:
    step = deduplicate_fuzzy("near", SETS)
    wanted = shown(run(step, tmp_path / "undisturbed"))
    (tmp_path / "disturbed").mkdir()
    for documents in SETS.values():
        run(documents, tmp_path / "disturbed")
    (own,) = [each for each in resolve([step], str(tmp_path / "disturbed")).steps if each.step is step]
    begun: list[str] = []
    while len(begun) == len(set(begun)):  # what follows the last pipeline begins anew
        at_work: list[str] = []
        set_flow_backend(Dying("sync", begun=at_work))
        with suppress(Lost):
            run_dataset_step(own.config)
        set_flow_backend(None)
        begun += at_work
    assert len(begun) > 15, "no stage of the pipelines ran twice"
    assert shown(run(step, tmp_path / "disturbed")) == wanted


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"bands": 25}, "bands=25 does not divide num_perm=286: give one of 1, 2, 11, 13, 22, 26, 143, 286"),
    ({"bands": 0}, "bands=0: give a whole number from 1 to 4,096"),
    ({"num_perm": 10**9}, "num_perm=1000000000: give a whole number from 1 to 4,096"),
    ({"ngram": 0}, "ngram=0: give a whole number from 1"),
    ({"ngram": True}, "ngram=True: give a whole number from 1"),
    ({"seed": -1}, "seed=-1: give a whole number of at least 0"),
    ({"threshold": 0}, "threshold=0: give a number above 0 and at most 1, or None"),
    ({"threshold": 80}, "threshold=80: give a number above 0 and at most 1"),
    ({"threshold": "0.8"}, "threshold='0.8': give a number"),
    ({"threshold": 0.5}, "bands=26 with num_perm=286 finds 1.26% of the pairs at threshold=0.5: give bands=143"),
    ({"documents": ["wiki", "web"]}, "documents=['wiki', 'web']: give a set of documents, or a dict of names and sets"),
    ({"documents": {}}, "documents has 0 sets: give 1 to 100"),
    ({"documents": {"a/b": "wiki"}}, "documents: a set has the name 'a/b': give letters, digits"),
    ({"documents": {"stats.json": "wiki"}}, "documents: a set has the name 'stats.json'"),
    ({"documents": {"clusters": "wiki"}}, "documents: a set has the name 'clusters'"),
    ({"documents": {"a": "wiki", "b": "wiki"}}, "documents: 'a' and 'b' are the same set: give it once"),
    ({"documents": {"a": SETS["web"], "b": SETS["web"]}}, "documents: 'a' and 'b' are the same set: give it once"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_arguments_are_refused_with_step_and_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Step 'd': {message}")):
        deduplicate_fuzzy("d", **({"documents": "docs"} | given))


def test_version_counts_all_but_the_prefix() -> None:
    def version(documents: Any = {"a": "x", "b": "y"}, **changes: Any) -> str:  # noqa: B006
        return resolve([deduplicate_fuzzy("d", documents, **changes)], "/p").steps[-1].hash

    others: list[dict[str, Any]] = [
        {}, {"documents": {"b": "y", "a": "x"}}, {"documents": {"b": "x", "a": "y"}}, {"documents": "x"},
        {"threshold": 0.9}, {"threshold": None}, {"num_perm": 260}, {"bands": 22}, {"ngram": 6}, {"seed": 43},
    ]  # fmt: skip
    assert len({version(**each) for each in others}) == len(others)
    deduplicate_fuzzy("d", "x", threshold=run_param("threshold"), bands=run_param("bands"))  # checked by the plan


def test_set_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    first, second = (run(documents, tmp_path) for documents in SETS.values())
    (second / "part-00001-of-00003.parquet").rename(second / "part-00000-of-00003.parquet")
    with pytest.raises(ValueError, match=re.escape(f"documents['web']: {second} is not one whole set")):
        run(deduplicate_fuzzy("near", {"wiki": first, "web": second}), tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"documents: 'wiki' and 'copy' are both {first}")):
        run(deduplicate_fuzzy("near", {"wiki": SETS["wiki"], "copy": first}), tmp_path)
    twice = pa.concat_tables([parquet.read_table(first / "part-00001-of-00002.parquet")] * 2).sort_by("id")
    parquet.write_table(twice, first / "part-00001-of-00002.parquet")
    with pytest.raises(PipelineError, match=r"The id '.*' occurs twice: make the set with normalize"):
        run(deduplicate_fuzzy("near", first), tmp_path)
