"""Documents that hold items of evaluation sets."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.data.steps import check_snapshot, run
from tradewind.recipes.data import Evaluation, decontaminate, normalize

HERE = Path(__file__).parent
SAILING = Evaluation("sailing", HERE / "evaluations" / "sailing.jsonl", ["question", "choices.text"])
CLOZE = Evaluation("cloze", HERE / "evaluations" / "cloze.jsonl", id_field="id")
DOCUMENTS = normalize("docs", HERE / "inputs", shards=2)


def test_contaminated_documents_are_as_in_the_snapshot(tmp_path: Path) -> None:
    step = decontaminate("contaminated", DOCUMENTS, [SAILING, CLOZE], ngram=5)
    check_snapshot("contaminated", run(step, tmp_path), HERE)
