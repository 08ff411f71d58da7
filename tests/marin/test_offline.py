"""Network requests of a file that makes steps: answered from the user's folder, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import EXECUTOR, names, run, write_checkout
from tradewind.marin import RefusedFileError

QUESTIONS: dict[str, tuple[str, str, Any, str]] = {
    "a collection": (
        "from huggingface_hub import get_collection\nname = get_collection('o/c').items[0].item_id\n",
        "collections",
        {"o/c": [{"item_id": "o/m", "item_type": "model"}]},
        "o/m",
    ),
    "revisions": (
        "import huggingface_hub\nname = ' '.join(b.name for b in huggingface_hub.list_repo_refs('o/m').branches)\n",
        "refs",
        {"o/m": {"branches": ["main", "two"], "tags": []}},
        "main two",
    ),
    "a data set's revisions": (
        "import huggingface_hub as h\nname = h.list_repo_refs('o/d', repo_type='dataset').tags[0].name\n",
        "refs",
        {"datasets/o/d": {"branches": [], "tags": ["v1"]}, "o/d": {"branches": [], "tags": ["v2"]}},
        "v1",
    ),
    "parts of a data set": (
        "import datasets\nname = ' '.join(datasets.get_dataset_config_names('o/d'))\n",
        "dataset_configs",
        {"o/d": ["a", "b"]},
        "a b",
    ),
    "splits of a part": (
        "import datasets\nname = ' '.join(datasets.get_dataset_split_names('o/d', 'a'))\n",
        "dataset_splits",
        {"o/d": ["train"], "o/d/a": ["test"]},
        "test",
    ),
    "a model's config": (
        "import transformers as t\nname = str(t.AutoConfig.from_pretrained('o/m', revision='r').hidden_size)\n",
        "model_configs",
        {"o/m@r": {"hidden_size": 64}},
        "64",
    ),
    "a tokenizer": (
        "from transformers import AutoTokenizer\nt = AutoTokenizer.from_pretrained('o/t')\n"
        "name = f'{t.vocab_size} {len(t)}'\n",
        "tokenizers",
        {"o/t": [10, 12]},
        "10 12",
    ),
    "Levanter's tokenizer": (
        "from levanter.compat.hf_checkpoints import load_tokenizer\nname = str(len(load_tokenizer('o/t')))\n",
        "tokenizers",
        {"o/t": [10, 12]},
        "12",
    ),
    "a remote path": (
        "from levanter.utils import fsspec_utils\nname = 'yes' if fsspec_utils.exists('gs://b/x') else 'no'\n",
        "exists",
        {"gs://b/x": False},
        "no",
    ),
}
MAKE = "executor_main([ExecutorStep(name, None, None)])\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "answers"
    made.mkdir()
    monkeypatch.setenv("TRADEWIND_MARIN_ANSWERS", str(made))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_question_has_the_answer_of_the_folder_and_else_none(tmp_path: Path, folder: Path, asked: str) -> None:
    text, kind, answers, name = QUESTIONS[asked]
    root = write_checkout(tmp_path / "marin", a=EXECUTOR + text + MAKE)
    with pytest.raises(RefusedFileError, match=r"^experiments/a.py:\d cannot become a DAG"):
        run(root, "a")
    (folder / f"{kind}.json").write_text(json.dumps(answers))
    assert names(run(root, "a")) == [[name]], "also what was kept is asked again once the folder has changed"


@pytest.mark.slow
def test_changed_offline_answer_applies_and_needs_the_folder(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, kind, _, _ = QUESTIONS["parts of a data set"]
    root = write_checkout(tmp_path / "marin", a=EXECUTOR + text + MAKE)
    for parts in (["a"], ["b", "c"]):
        (folder / f"{kind}.json").write_text(json.dumps({"o/d": parts}))
        assert names(run(root, "a")) == [[" ".join(parts)]]
    monkeypatch.delenv("TRADEWIND_MARIN_ANSWERS")
    with pytest.raises(RefusedFileError, match="get_dataset_config_names"):
        run(root, "a")


@pytest.mark.slow
def test_what_an_answer_does_not_say_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "collections.json").write_text('{"o/c": [{"item_id": "o/m"}]}')
    text = "from huggingface_hub import get_collection\nname = get_collection('o/c').items[0].item_type\n"
    root = write_checkout(tmp_path / "marin", a=EXECUTOR + text + MAKE)
    with pytest.raises(RefusedFileError, match="item_type is asked of an item of the collection o/c, and the answer"):
        run(root, "a")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{", r"collections.json cannot be read: "),
        ("[]", r"collections.json must be a dictionary of questions and answers"),
        ('{"o/c": 3}', r"the answer to 'o/c' must be a list of the collection's items, each an object"),
    ],
)
def test_a_bad_answer_is_named(tmp_path: Path, folder: Path, written: str, told: str) -> None:
    (folder / "collections.json").write_text(written)
    root = write_checkout(tmp_path / "marin", a=EXECUTOR + QUESTIONS["a collection"][0] + MAKE)
    with pytest.raises(RefusedFileError, match=f"BadAnswerError: .*{told}"):
        run(root, "a")


@pytest.mark.slow
def test_only_attributes_in_offline_answer_are_known(tmp_path: Path, folder: Path) -> None:
    (folder / "model_configs.json").write_text(json.dumps({"o/m": {"head_dim": 128}}))
    text = EXECUTOR + "import transformers as t\nmade = t.AutoConfig.from_pretrained('o/m')\n"
    text += "name = str(made.head_dim if hasattr(made, 'head_dim') else 0) + str(getattr(made, '{}', 1))\n"
    text += "executor_main([ExecutorStep(name, None, None)])\n"
    write_checkout(tmp_path, a=text.format("head_dim"), b=text.format("hidden_size"))
    assert names(run(tmp_path, "a")) == [["128128"]]
    with pytest.raises(RefusedFileError, match="^experiments/b.py:4 .* 'hidden_size', ...\\) is asked, and whether"):
        run(tmp_path, "b")
