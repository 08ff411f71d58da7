"""Every recipe makes the same files in an object store as in a folder."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec

from tradewind.datasets import create_backend, set_flow_backend
from tradewind.recipes.data import (
    Evaluation,
    FilterConfig,
    chats_to_documents,
    consolidate,
    decontaminate,
    deduplicate_exact,
    deduplicate_fuzzy,
    documents_to_chats,
    filter_documents,
    from_dolma,
    html_to_text,
    identify_language,
    normalize,
    score_documents,
    to_dolma,
    train_classifier,
    train_test_overlap,
)
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.steps import ExecutorStep
from tradewind.steps.resolution import resolve


def inputs() -> Mapping[str, list[dict[str, Any]]]:
    draw = random.Random(1)
    words = [f"{chr(97 + number % 26)}{number:x}" for number in range(300)]
    texts = [" ".join(draw.choices(words, k=30)) for _ in range(40)]
    return {
        "good": [{"id": str(at), "text": text} for at, text in enumerate([*texts, *(f"{text} end" for text in texts)])],
        "bad": [{"text": " ".join(draw.choices(words[:40], k=30))} for _ in range(40)],
        "questions": [{"text": " ".join(text.split()[3:12])} for text in texts[:9]],
        "chats": [{"messages": [{"role": "user", "content": text}]} for text in texts[:9]],
        "pages": [{"url": f"https://a.org/{at}", "html": f"<p>{text}"} for at, text in enumerate(texts[:9])],
    }


def recipes(root: str) -> list[ExecutorStep]:
    documents = normalize("documents", f"{root}/good", shards=2)
    repeated = deduplicate_exact("repeated", documents, by="paragraph")
    questions = [Evaluation("questions", f"{root}/questions")]
    arguments = {"dim": 4, "bucket": 10, "epoch": 1}
    hashed = train_classifier(
        "hashed", f"{root}/good", f"{root}/bad", kind="hashed_logistic", arguments={"features": 256}
    )
    words = train_classifier("words", f"{root}/good", f"{root}/bad", arguments=arguments)
    scores = score_documents("scores", documents, hashed)
    return [
        deduplicate_fuzzy("similar", documents),
        decontaminate("found", documents, questions, ngram=4),
        train_test_overlap("overlap", {"documents": documents}, questions, ngram_lengths=[2, 4]),
        consolidate("clean", documents, [FilterConfig("remove_spans", repeated, "duplicate_paragraphs")]),
        consolidate("best", documents, [FilterConfig("classify", scores, "quality", "positive", keep_fraction=0.5)]),
        filter_documents("long", documents, [{"rule": "length", "min_words": 31}]),
        score_documents("by_words", documents, words),
        identify_language("languages", documents, words, languages=["positive"]),
        documents_to_chats("chats", chats_to_documents("of_chats", f"{root}/chats")),
        html_to_text("texts", f"{root}/pages"),
        from_dolma("back", to_dolma("dolma", documents)),
    ]


def made(root: str) -> dict[str, bytes]:
    fs, _ = fsspec.core.url_to_fs(root)
    for name, rows in inputs().items():
        fs.makedirs(f"{root}/{name}", exist_ok=True)
        fs.pipe_file(f"{root}/{name}/rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    set_flow_backend(create_backend("sync"))
    files = {}
    try:
        for each in resolve(recipes(root), f"{root}/out").steps:
            each.step.fn(each.config)
            _, folder = fsspec.core.url_to_fs(each.output_path)
            for file in fs.find(folder):
                if ".dataset" not in file:
                    content = fs.cat_file(file).replace(root.encode(), b"ROOT")
                    files[each.name + file[len(folder) :]] = re.sub(rb"-[0-9a-f]{6}/", b"/", content)
    finally:
        set_flow_backend(None)
    return files


def test_recipes_make_the_same_in_an_object_store(cloud: LocalCloudStorage, tmp_path: Path) -> None:
    local, stored = made(str(tmp_path)), made("gs://bucket/data")
    assert len(local) > 40 and {name: local[name] == stored.get(name) for name in local} == dict.fromkeys(stored, True)
