"""Documents whose texts are almost equal, in one set and across several."""

from __future__ import annotations

from pathlib import Path

from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.recipes.data import FilterConfig, consolidate, deduplicate_fuzzy, normalize

NEAR = Path(__file__).parent / "near"


def rows(folder: Path) -> list[dict[str, object]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


def test_duplicates_across_sets_are_as_in_the_snapshot(tmp_path: Path) -> None:
    sets = {name: normalize(name, NEAR / f"{name}.jsonl", shards=shards) for name, shards in (("wiki", 2), ("web", 3))}
    step = deduplicate_fuzzy("near", sets)
    check_snapshot("fuzzy_duplicates", run(step, tmp_path), NEAR)
    kept = {
        row["source_id"]
        for name, documents in sets.items()
        for row in rows(
            run(
                consolidate(f"kept/{name}", documents, [FilterConfig("remove_doc", step / name, "duplicate_document")]),
                tmp_path,
            )
        )
    }
    assert kept == {"wiki1", "wiki2", "wiki3", "wiki5", "wiki6", "web5"}
