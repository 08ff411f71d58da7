"""Rebuild every step of Marin's record with the light classes, and count those with the same version text.

    python -m scripts.marin.versions --oracle oracle.json.gz [--write]

The record has, for each version that Marin's own executor computed, the name, the versioned values of its config, and
its dependencies; the key is the beginning of the text's MD5. ``--write`` also writes a few versions of every kind, for
the test ``tests/marin/legacy/test_oracle_versions.py``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.marin.legacy.rebuilding import Rebuilt, with_dependencies
from tradewind.steps import resolve

VECTORS: Final = Path(__file__).resolve().parents[2] / "tests/marin/legacy/oracle_versions.json"
OF_EACH_KIND: Final = 1
Versions = Mapping[str, Mapping[str, Any]]


def key_of(rebuilt: Rebuilt, key: str) -> str:
    """Return the key of our text of a version."""
    step = rebuilt.step(key)
    text = resolve([step], "gs://bucket").of(step).version_json
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[: len(key)]


def chosen(versions: Versions, kinds: Mapping[str, str]) -> list[str]:
    """Choose versions of every kind and with every setting, those with few dependencies first."""
    size = {key: sum(1 for _ in with_dependencies(versions, [key])) for key in versions}
    depth: dict[str, int] = {}
    for key in sorted(versions, key=lambda key: size[key]):
        below = versions[key]["dependencies"]
        depth[key] = 1 + max((depth[other] for other in below), default=-1)
    taken: Counter[str] = Counter()
    keys = []
    for key in sorted(versions, key=lambda key: (size[key], key)):
        marks = list(_marks(versions[key], kinds[key], depth[key]))
        if any(taken[mark] < OF_EACH_KIND for mark in marks):
            taken.update(marks)
            keys.append(key)
    return keys


def _marks(version: Mapping[str, Any], kind: str, depth: int) -> Iterable[str]:
    paths = [path for path in version["config"] if ".configs." not in path]
    if kind == "other":
        paths = []
    yield kind
    yield f"{kind} {depth if depth > 4 else ''} {bool(version.get('pseudo_dependencies'))}"
    for path in paths:
        yield f"{kind} {path.split('[')[0]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build every step of Marin's record again, and compare.")
    parser.add_argument("--oracle", type=Path, required=True, help="the record, oracle.json.gz")
    parser.add_argument("--write", action="store_true", help=f"write {VECTORS.name} too")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    versions: Versions = json.loads(gzip.decompress(given.oracle.read_bytes()))["versions"]
    rebuilt = Rebuilt(versions)
    agreeing, differing = Counter[str](), []
    for key in versions:
        if key_of(rebuilt, key) == key:
            agreeing[rebuilt.kinds[key]] += 1
        else:
            differing.append(key)
    for kind, count in agreeing.most_common():
        print(f"{count:6} {kind}")
    print(f"{agreeing.total()} of {len(versions)} versions agree; others: {', '.join(differing) or 'none'}")
    if given.write:
        keys = chosen(versions, rebuilt.kinds)
        every = {key: versions[key] for key in sorted(with_dependencies(versions, keys))}
        rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(row)}" for key, row in every.items())
        VECTORS.write_text(f"{{\n{rows}\n}}\n")
        print(f"{len(keys)} versions chosen, {len(every)} with what they depend on, {VECTORS.stat().st_size} bytes")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
