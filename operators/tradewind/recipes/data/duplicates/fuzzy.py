"""Find documents whose texts are almost equal, in one set or across several: attributes for ``consolidate``.

Texts with an equal band of their MinHash signatures come together; in each such group, the others are compared with the
first one, so that a million equal texts make a million pairs. A pair counts if its Jaccard similarity, computed from
both texts, reaches the threshold. Pairs make clusters, of which the first document remains: that of the first set, and
in it the one with the smallest id.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step, flow_backend
from tradewind.datasets.execution import SCRATCH_FOLDER, Results
from tradewind.datasets.files import join, read_json, write_json
from tradewind.datasets.rows import RowError
from tradewind.datasets.shuffle import bucket_of
from tradewind.datasets.token_inputs import InputFile
from tradewind.recipes.data.document_sets import (
    Counted,
    attribute_schema,
    batches_of_texts,
    checked_rows,
    dataset_of,
    part_pattern,
    path_input,
    set_files,
)
from tradewind.recipes.data.duplicates.components import connected_components, edge_schema
from tradewind.recipes.data.duplicates.exact import DUPLICATE_DOCUMENT
from tradewind.recipes.data.duplicates.minhash import SIGNATURES, MinHash, similarity
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, TEXTS, FieldRule, check_fields, number
from tradewind.steps.needs import needs
from tradewind.steps.placeholders import VersionedValue
from tradewind.text import truncated_repr

_ONE_SET: Final = "documents"
"""Name of a set that is not one of several."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_DOCUMENTS: Final = replace(PATH, wanted="a set of documents, or a dict of names and sets")
_CLUSTERS: Final = "clusters"
_MAX_SETS: Final = 100
_BATCH_TEXTS: Final = 1_000
_BATCH_CHARS: Final = 4_000_000
_MAX_LARGEST: Final = 20
_MAX_EXAMPLES: Final = 5
_MAX_EXCERPT: Final = 200
_THRESHOLD: Final = FieldRule(
    "a number above 0 and at most 1, or None",
    lambda value: value is None or (number(above=0).fits(value) and value <= 1),
)


@dataclass(frozen=True)
class FuzzyConfig:
    """What ``deduplicate_fuzzy`` compares, and how."""

    documents: Sequence[str]
    """Sets of documents; of equal texts that of the first set remains."""
    names: Sequence[str]
    """Names of the sets; empty for a single one."""
    output_path: str
    """Gets the attributes, in a folder for each name, ``clusters/`` and ``stats.json``."""
    threshold: float | None
    """Jaccard similarity from which on two texts are duplicates; None to compare signatures only."""
    num_perm: int
    bands: int
    ngram: int
    seed: int
    signatures: str = SIGNATURES

    def __post_init__(self) -> None:
        for each in self.documents:
            PATH.check("documents", each)
        check_fields(self, names=TEXTS, output_path=PATH, threshold=_THRESHOLD)
        self.minhash.check_reach(_unversioned(self.threshold))

    @property
    def minhash(self) -> MinHash:
        """Sizes of the signatures."""
        return MinHash(**{field.name: _unversioned(getattr(self, field.name)) for field in fields(MinHash)})


def _unversioned(value: Any) -> Any:
    return value.value if isinstance(value, VersionedValue) else value


@naming_step
def deduplicate_fuzzy(
    name: str,
    documents: Any,
    *,
    threshold: float | None = 0.8,
    num_perm: int = 286,
    bands: int = 26,
    ngram: int = 5,
    seed: int = 42,
    **options: Any,
) -> ExecutorStep:
    """Return a step that finds texts which are almost equal, in one set of documents or across several.

    Args:
        name: Name of the step.
        documents: A set of documents; or several, as a dict of names and sets, the first of which keeps its documents.
        threshold: Jaccard similarity of the n-grams of two texts from which on one is a duplicate. None takes each
            pair that the signatures bring together, without a look at the texts.
        num_perm: Permutations of a signature.
        bands: Bands of a signature; more of them find pairs that are less similar.
        ngram: Characters of an n-gram.
        seed: Seed of the permutations.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value, or the bands miss most pairs at the threshold.
    """
    sets = _named(documents)
    sizes = {"num_perm": num_perm, "bands": bands, "ngram": ngram, "seed": seed}
    counted = {"threshold": threshold, **sizes, "signatures": SIGNATURES}
    config = FuzzyConfig(
        list(sets.values()),
        versioned_value(list(sets) if isinstance(documents, Mapping) else []),
        this_output_path(),
        **{field: versioned_value(value) for field, value in counted.items()},
    )
    about = {"description": "Attributes of documents whose texts are almost those of others."}
    return dataset_step(name, find_fuzzy_duplicates, config, finish=write_stats, **(about | options))


def _named(documents: Any) -> dict[str, Any]:
    """Return the sets by their names; a single one has none."""
    if not isinstance(documents, Mapping):
        _DOCUMENTS.check("documents", documents)
        return {_ONE_SET: path_input("documents", documents)}
    if not 0 < len(documents) <= _MAX_SETS:
        raise ValueError(f"documents has {len(documents):,} sets: give 1 to {_MAX_SETS:,}.")
    sets: dict[str, Any] = {}
    for name, each in documents.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == _CLUSTERS:
            raise ValueError(
                f"documents: a set has the name {truncated_repr(name)}: give letters, digits, '_' and '-', at "
                f"most 100, and not {_CLUSTERS!r}."
            )
        path = path_input(f"documents[{name!r}]", each)
        if same := [other for other, given in sets.items() if given == path]:
            raise ValueError(f"documents: {same[0]!r} and {name!r} are the same set: give it once.")
        sets[name] = path
    return sets


@dataclass(frozen=True)
class _Set:
    """One of the sets."""

    number: int
    name: str
    files: tuple[InputFile, ...]
    attributes: str
    """Folder of its attributes."""


def _sets(config: FuzzyConfig) -> list[_Set]:
    found: list[_Set] = []
    for at, folder in enumerate(config.documents):
        name = config.names[at] if config.names else _ONE_SET
        attributes = join(config.output_path, name) if config.names else config.output_path
        field = f"documents[{name!r}]" if config.names else "documents"
        if same := [each.name for each in found if config.documents[each.number].rstrip("/") == folder.rstrip("/")]:
            raise ValueError(f"documents: {same[0]!r} and {name!r} are both {folder}: give each set once.")
        found.append(_Set(at, name, tuple(set_files(folder, field)), attributes))
    return found


@needs("dupekit", "pyarrow", "zstandard", extra="data")
def find_fuzzy_duplicates(config: FuzzyConfig) -> Dataset[Any]:
    """Return the last pipeline of ``deduplicate_fuzzy``, when those before it are done."""
    MinHash.check_library()
    sets = _sets(config)
    print("Candidates: documents whose signatures have an equal band.", flush=True)
    edges, counts = _candidates(config, sets)
    if config.threshold is not None:
        print(f"Verification: the texts of {counts.get('candidates', 0):,} pairs.", flush=True)
        edges, verified = _verified(config, sets, edges)
        counts |= verified
    print("Clusters: pairs are joined until nothing changes.", flush=True)
    stars = connected_components(edges, _folder(config, "components"))
    for each in sets:
        _write_attributes(each, stars)
    write_json(_folder(config, "counts.json"), counts)
    clusters = (
        Dataset.from_list(stars)
        .load_parquet()
        .group_by(itemgetter("root"), sort_by=itemgetter("node"), reducer=_Cluster(tuple(each.name for each in sets)))
    )
    return clusters.write_parquet(part_pattern(join(config.output_path, _CLUSTERS), ".parquet"), _cluster_schema())


def _folder(config: FuzzyConfig, name: str) -> str:
    return join(config.output_path, SCRATCH_FOLDER, "fuzzy", name)


def _documents(sets: Sequence[_Set]) -> Dataset[dict[str, Any]]:
    """Return the documents of all sets, each with its ``place``: number of the set, and id."""
    rows = dataset_of([file for each in sets for file in each.files]).load_parquet(("id", "text"))
    return rows.map_shard(_Placing(tuple((each.name, len(each.files)) for each in sets)))


@dataclass(frozen=True)
class _Placing:
    """Check that each document is at its place, and count those of each set."""

    sets: tuple[tuple[str, int], ...]

    def __call__(self, rows: Iterator[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        own, number = shard.shard_idx, 0
        while own >= self.sets[number][1]:
            own -= self.sets[number][1]
            number += 1
        name, total = self.sets[number]
        count = 0
        for row in checked_rows(rows, ShardInfo(own, total)):
            count += 1
            yield {**row, "place": _place(number, row["id"])}
        counters.increment(f"documents {name}", count)


def _place(number: int, own: str) -> str:
    """Return a key of a document of one of the sets, in the order in which documents remain."""
    return f"{number:03d}/{own}"


def _parts_of(place: str) -> tuple[int, str]:
    return int(place[:3]), place[4:]


def _candidates(config: FuzzyConfig, sets: Sequence[_Set]) -> tuple[list[str], dict[str, int]]:
    """Write the pairs of documents with an equal band."""
    members = _documents(sets).map_shard(_Signing(config.minhash))
    pairs = members.group_by(itemgetter(0), sort_by=itemgetter(1), reducer=_star).deduplicate(_itself).map(_as_edge)
    pattern = part_pattern(_folder(config, "candidates"), ".parquet")
    results = flow_backend().execute(pairs.map_shard(Counted("candidates")).write_parquet(pattern, edge_schema()))
    return list(results), dict(results.counters)


@dataclass(frozen=True)
class _Signing:
    """Yield bucket and place for each band of each document."""

    minhash: MinHash

    def __call__(self, rows: Iterator[dict[str, Any]], _: ShardInfo) -> Iterator[tuple[int, str]]:
        for batch in batches_of_texts(rows, _BATCH_TEXTS, _BATCH_CHARS):
            signed = self.minhash.buckets([row["text"] for row in batch])
            for row, buckets in zip(batch, signed, strict=True):
                if not buckets:
                    counters.increment("without_letters")
                for bucket in buckets:
                    yield bucket, row["place"]


def _star(_: int, members: Iterator[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Pair each document of a bucket with the first one."""
    _, first = next(members)
    for _, place in members:
        if place != first:  # two equal bands
            yield place, first


def _itself(row: Any) -> Any:
    return row


def _as_edge(pair: tuple[str, str]) -> dict[str, str]:
    return {"node": pair[0], "root": pair[1]}


def _verified(config: FuzzyConfig, sets: Sequence[_Set], candidates: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Write the pairs whose texts are similar. Only the texts of pairs move to another shard."""
    wanted: list[str] = []
    for each in sets:
        sides = Dataset.from_list(candidates).load_parquet().flat_map(_Sides(each.number))
        by_id = sides.group_by(
            itemgetter("id"), sort_by=itemgetter("node", "root"), reducer=_all, num_output_shards=len(each.files)
        )
        pattern = part_pattern(_folder(config, f"wanted/{each.number}"), ".parquet")
        wanted += flow_backend().execute(by_id.write_parquet(pattern, _wanted_schema()))
    texts = (
        Dataset.from_list(wanted)
        .load_parquet()
        .sorted_merge_join(_documents(sets), itemgetter("id"), itemgetter("id"), _with_text)
    )
    assert config.threshold is not None
    verified = texts.group_by(itemgetter("node", "root"), reducer=_Verifying(config.threshold, config.ngram))
    pattern = part_pattern(_folder(config, "verified"), ".parquet")
    counted = verified.map_shard(Counted("verified"))
    results = flow_backend().execute(counted.write_parquet(pattern, edge_schema()))
    return list(results), {"verified": results.counters.get("verified", 0)}


@dataclass(frozen=True)
class _Sides:
    """Yield a pair with the id of each of its documents that is in one set."""

    number: int

    def __call__(self, pair: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for side in ("node", "root"):
            number, own = _parts_of(pair[side])
            if number == self.number:
                yield {"id": own, **pair}


def _all(_: str, rows: Iterator[Any]) -> Iterator[Any]:
    yield from rows


def _wanted_schema() -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("id", "node", "root")])


def _with_text(pair: dict[str, Any], document: dict[str, Any] | None) -> dict[str, Any]:
    assert document is not None
    return {"node": pair["node"], "root": pair["root"], "text": document["text"]}


@dataclass(frozen=True)
class _Verifying:
    """Yield a pair if its texts are similar."""

    threshold: float
    ngram: int

    def __call__(self, pair: tuple[str, str], sides: Iterator[dict[str, Any]]) -> Iterator[dict[str, str]]:
        texts = [side["text"] for side in sides]
        if len(texts) != 2:
            raise RowError(f"The pair {truncated_repr(pair)} has {len(texts)} texts: a set changed meanwhile.")
        if similarity(texts[0], texts[1], self.ngram) >= self.threshold:
            yield _as_edge(pair)


def _write_attributes(one: _Set, stars: Sequence[str]) -> None:
    own = Dataset.from_list(stars).load_parquet().flat_map(_OwnIds(one.number))
    marks = own.group_by(_itself, reducer=_mark, num_output_shards=len(one.files))
    schema = _attribute_schema()
    flow_backend().execute(marks.write_parquet(part_pattern(one.attributes, ".parquet"), schema))


@dataclass(frozen=True)
class _OwnIds:
    """Yield the id of a duplicate of one set."""

    number: int

    def __call__(self, star: dict[str, Any]) -> list[str]:
        number, own = _parts_of(star["node"])
        return [own] if number == self.number else []


def _mark(own: str, _: Iterator[str]) -> dict[str, Any]:
    return {"id": own, "attributes": {DUPLICATE_DOCUMENT: True}}


def _attribute_schema() -> Any:
    import pyarrow as pa

    return attribute_schema(**{DUPLICATE_DOCUMENT: pa.bool_()})


@dataclass(frozen=True)
class _Cluster:
    """Yield a row for each duplicate of a cluster, and at last one for the document that remains."""

    names: tuple[str, ...]

    def __call__(self, root: str, stars: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        count = 1
        kept, own = _parts_of(root)
        cluster = f"{self.names[kept]}/{own}"
        for star in stars:
            count += 1
            number, duplicate = _parts_of(star["node"])
            counters.increment(f"duplicates {self.names[number]} {self.names[kept]}")
            yield {"cluster": cluster, "set": self.names[number], "id": duplicate, "count": None}
        counters.increment("clusters")
        yield {"cluster": cluster, "set": self.names[kept], "id": own, "count": count}


def _cluster_schema() -> Any:
    import pyarrow as pa

    texts = [pa.field(name, pa.string(), nullable=False) for name in ("cluster", "set", "id")]
    return pa.schema([*texts, ("count", pa.int64())])


def write_stats(config: FuzzyConfig, results: Results) -> None:
    """Write how many documents, pairs and clusters there are, and the largest clusters with beginnings of texts."""
    sets = _sets(config)
    counts = {**read_json(_folder(config, "counts.json")), **results.counters}
    duplicates = {
        each.name: {
            other.name: found for other in sets if (found := counts.get(f"duplicates {each.name} {other.name}"))
        }
        for each in sets
    }
    totals = ["without_letters", "candidates", *(["verified"] if config.threshold is not None else []), "clusters"]
    about = {
        "documents": {each.name: counts.get(f"documents {each.name}", 0) for each in sets},
        **{name: counts.get(name, 0) for name in totals},
        "duplicates": sum(sum(row.values()) for row in duplicates.values()),
        "duplicates_of": duplicates,
        "threshold": config.threshold,
        **vars(config.minhash),
        "largest": _largest(list(results), sets),
    }
    write_json(join(config.output_path, "stats.json"), about)


def _largest(files: Sequence[str], sets: Sequence[_Set]) -> list[dict[str, Any]]:
    """Return the largest clusters, each with some documents and the beginnings of their texts."""
    rows = Dataset.from_list(files).load_parquet().map_shard(_examples)
    clusters = flow_backend().execute(rows.reduce(_largest_of))[0]
    wanted = {(row["set"], row["id"]) for cluster in clusters for row in cluster["documents"]}
    excerpts: dict[tuple[str, str], str] = {}
    for each in sets:
        ids = sorted(own for name, own in wanted if name == each.name)
        shards = sorted({bucket_of(own, len(each.files)) for own in ids})
        texts = dataset_of([each.files[shard] for shard in shards]).load_parquet(("id", "text"))
        found = flow_backend().execute(texts.flat_map(_Excerpts(frozenset(ids)))) if ids else []
        excerpts |= {(each.name, own): text for own, text in found}
    for cluster in clusters:
        for row in cluster["documents"]:
            row["text"] = excerpts[row["set"], row["id"]]
    return list(clusters)


def _examples(rows: Iterator[dict[str, Any]], _: ShardInfo) -> Iterator[dict[str, Any]]:
    """Yield for each cluster its size and some documents: that which remains, and the first duplicates."""
    for cluster, members in itertools.groupby(rows, itemgetter("cluster")):
        held: list[dict[str, str]] = []
        for row in members:
            document = {"set": row["set"], "id": row["id"]}
            if row["count"] is not None:
                yield {"cluster": cluster, "count": row["count"], "documents": [document, *held]}
            elif len(held) < _MAX_EXAMPLES - 1:
                held.append(document)


def _largest_of(clusters: Iterator[Any]) -> list[dict[str, Any]]:
    flat = itertools.chain.from_iterable([each] if isinstance(each, dict) else each for each in clusters)
    return heapq.nsmallest(_MAX_LARGEST, flat, key=lambda each: (-each["count"], each["cluster"]))


@dataclass(frozen=True)
class _Excerpts:
    """Yield id and beginning of the documents with these ids."""

    ids: frozenset[str]

    def __call__(self, document: dict[str, Any]) -> list[tuple[str, str]]:
        return [(document["id"], document["text"][:_MAX_EXCERPT])] if document["id"] in self.ids else []
