"""Check that comments, docstrings, messages and pages use plain technical English: ``make check`` runs it.

Each pattern is a private word or idiom that a standard term replaces. Identifiers and strings without a space, for
example keys of records, are not checked.
"""

from __future__ import annotations

import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CHECKED: Final = (
    "operators",
    "plugins",
    "demo",
    "dags",
    "scripts",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
MAX_TEST_NAME: Final = 60
WORDS: Final = {
    r"who(?:so)?ever|somebody|nobody|anybody|no one": "name the agent: the lease owner, a user, another process",
    r"(?:is|are|was|were|be|been) told": "is reported, is logged, is named",
    r"(?:is|are|be|was|were) (?:had|said)": "exists, is available; is reported",
    r"no more than": "at most",
    r"lies?|lain": "is, exists (a peer sends wrong data)",
    r"stands?|stood": "is, exists",
    r"(?:goes|go|went|gone|going) on": "continues",
    r"(?:comes?|came) of": "results from",
    r"(?:lives?|lived) on": "survives",
    r"keepers?": "lease owner",
    r"witness(?:es)?": "sentinel file",
    r"claimants?": "claimer",
    r"(?:an?|the|its|their|whose|that|this|each|every|another's|one) turns?|takes? turns|in turns": "attempt, lease",
    r"in vain": "without success",
    r"persons?|people": "user",
    r"polite(?:ly)?": "graceful shutdown",
}
"""Pattern -> what to write instead."""
ALLOWED: Final[dict[str, frozenset[str]]] = {
    "dags/cluster_restart.py": frozenset({"people"}),  # the id of a task, which plans and XComs have
    "docs/versions-and-records.md": frozenset({"witness"}),  # a stored key
    "operators/tradewind/records/lease.py": frozenset({"witness"}),  # a stored key
    "operators/tradewind/runtime/run_step.py": frozenset({"lives on"}),  # NOTHING_LEFT, which other versions read
}
"""File -> words that are right there, in lower case."""

_ANY: Final = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def prose_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, or those of the comments and texts of a module, with their numbers."""
    if file.suffix != ".py":
        yield from enumerate(file.read_text().splitlines(), 1)
        return
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
                yield from enumerate(token.string.splitlines(), token.start[0])


def findings(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, word and advice for each word that is not allowed in ``file``."""
    allowed = ALLOWED.get(str(file.relative_to(ROOT)), frozenset())
    for number, line in prose_of(file):
        for found in _ANY.finditer(line):
            if found[0].lower() not in allowed:
                yield number, found[0], _advice(found[0])


def _advice(word: str) -> str:
    return next(advice for pattern, advice in WORDS.items() if re.fullmatch(pattern, word, re.IGNORECASE))


def files(paths: list[str]) -> Iterator[Path]:
    """Yield the modules and pages below ``paths``, without those that npm has installed."""
    for path in (ROOT / name for name in paths or CHECKED):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".md") and file != Path(__file__).resolve() and "node_modules" not in file.parts:
                yield file


def long_test_names() -> Iterator[str]:
    """Yield the place of each test whose name has more than ``MAX_TEST_NAME`` characters."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for name in re.findall(r"def (test_\w+)", file.read_text()):
            if len(name) > MAX_TEST_NAME:
                yield f"{file.relative_to(ROOT)}: '{name}': {len(name)} characters, at most {MAX_TEST_NAME}"


def main(paths: list[str]) -> int:
    count = 0
    for file in files(paths):
        for number, word, advice in findings(file):
            count += 1
            print(f"{file.relative_to(ROOT)}:{number}: '{word}': {advice}")
    for line in () if paths else long_test_names():
        count += 1
        print(line)
    print(f"{count} words or names to replace" if count else "words: all plain")
    return count > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
