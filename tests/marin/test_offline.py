"""Network requests of a file that makes steps: answered from the user's folder, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import MAKE, made_name, refusal

pytestmark = pytest.mark.slow

HUB = "import huggingface_hub as hub\n"
QUESTIONS: dict[str, tuple[str, str, Any, str]] = {
    "a collection": (
        f"{HUB}name = hub.get_collection('o/c').items[0].item_id\n",
        "collections", {"o/c": [{"item_id": "o/m", "item_type": "model"}]}, "o/m",
    ),
    "revisions": (
        f"{HUB}name = ' '.join(branch.name for branch in hub.list_repo_refs('o/m').branches)\n",
        "refs", {"o/m": {"branches": ["main", "two"], "tags": []}}, "main two",
    ),
    "a data set's revisions": (
        f"{HUB}name = hub.list_repo_refs('o/d', repo_type='dataset').tags[0].name\n",
        "refs", {"datasets/o/d": {"branches": [], "tags": ["v1"]}, "o/d": {"branches": [], "tags": ["v2"]}}, "v1",
    ),
    "parts of a data set": (
        "import datasets\nname = ' '.join(datasets.get_dataset_config_names('o/d'))\n",
        "dataset_configs", {"o/d": ["a", "b"]}, "a b",
    ),
    "splits of a part": (
        "import datasets\nname = ' '.join(datasets.get_dataset_split_names('o/d', 'a'))\n",
        "dataset_splits", {"o/d": ["train"], "o/d/a": ["test"]}, "test",
    ),
    "a model's config": (
        "import transformers as t\nname = str(t.AutoConfig.from_pretrained('o/m', revision='r').hidden_size)\n",
        "model_configs", {"o/m@r": {"hidden_size": 64}}, "64",
    ),
    "a tokenizer": (
        "import transformers\nt = transformers.AutoTokenizer.from_pretrained('o/t')\n"
        "name = f'{t.vocab_size} {len(t)}'\n",
        "tokenizers", {"o/t": [10, 12]}, "10 12",
    ),
    "Levanter's tokenizer": (
        "from levanter.compat.hf_checkpoints import load_tokenizer\nname = str(len(load_tokenizer('o/t')))\n",
        "tokenizers", {"o/t": [10, 12]}, "12",
    ),
    "a remote path": (
        "from levanter.utils import fsspec_utils\nname = 'yes' if fsspec_utils.exists('gs://b/x') else 'no'\n",
        "exists", {"gs://b/x": False}, "no",
    ),
}  # fmt: skip
"""Text of a file, the kind of its question, answers to it, and the name that the file makes of them."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "answers"
    made.mkdir()
    monkeypatch.setenv("TRADEWIND_MARIN_ANSWERS", str(made))
    return made


@pytest.mark.parametrize("question", QUESTIONS)
def test_offline_question_is_answered_from_folder_or_refused(tmp_path: Path, folder: Path, question: str) -> None:
    text, kind, answers, name = QUESTIONS[question]
    refusal(tmp_path, text + MAKE, r":\d cannot become a DAG")
    (folder / f"{kind}.json").write_text(json.dumps(answers))
    assert made_name(tmp_path, text) == name, "a changed folder invalidates earlier evaluations"


def test_changed_offline_answer_applies_and_needs_the_folder(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, kind, _, _ = QUESTIONS["parts of a data set"]
    for parts in (["a"], ["b", "c"]):
        (folder / f"{kind}.json").write_text(json.dumps({"o/d": parts}))
        assert made_name(tmp_path, text) == " ".join(parts)
    monkeypatch.delenv("TRADEWIND_MARIN_ANSWERS")
    refusal(tmp_path, text + MAKE, ".*get_dataset_config_names")


def test_missing_field_of_an_answer_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "collections.json").write_text('{"o/c": [{"item_id": "o/m"}]}')
    text = f"{HUB}name = hub.get_collection('o/c').items[0].item_type\n{MAKE}"
    refusal(tmp_path, text, ":3 .* it needs item_type of an item of the collection o/c, which the answer")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("{", "collections.json cannot be read: "),
        ("[" * 100_000, "collections.json cannot be read: it is nested too deeply"),
        ("[]", "collections.json must be a dictionary of questions and answers"),
        ('{"o/c": 3}', "the answer to 'o/c' must be a list of the collection's items, each an object"),
    ],
    ids=lambda text: text[:30],
)
def test_invalid_answer_file_is_named(tmp_path: Path, folder: Path, written: str, reason: str) -> None:
    (folder / "collections.json").write_text(written)
    refusal(tmp_path, QUESTIONS["a collection"][0] + MAKE, f".*BadAnswerError: .*{reason}")


def test_only_attributes_in_offline_answer_are_known(tmp_path: Path, folder: Path) -> None:
    (folder / "model_configs.json").write_text(json.dumps({"o/m": {"head_dim": 128}}))
    text = "import transformers as t\nmade = t.AutoConfig.from_pretrained('o/m')\n"
    text += "name = str(made.head_dim if hasattr(made, 'head_dim') else 0) + str(getattr(made, '{}', 1))\n"
    assert made_name(tmp_path, text.format("head_dim")) == "128128"
    refusal(tmp_path, text.format("hidden_size") + MAKE, r":4 .* 'hidden_size', ...\), and whether")
