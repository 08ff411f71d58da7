"""Airflow DAG from web pages to a trained model: texts, quality, duplicates, tokens, training, loss.

It makes some small pages for itself. For your own, replace the step ``pages``, and the settings at its top.
"""

import ast
import gzip
import html
import json
import random
from dataclasses import dataclass

from tradewind import Cpu, ExecutorStep, experiment_dag, output_path_of, this_output_path, versioned
from tradewind.datasets.documents import read_documents
from tradewind.datasets.files import atomic_writer, join
from tradewind.recipes.data import (
    FilterConfig,
    GopherQuality,
    consolidate,
    deduplicate_exact,
    filter_documents,
    normalize,
)
from tradewind.recipes.lm.tokens import tokenize_files
from tradewind.recipes.steps import evaluate, python_sources, train, train_tokenizer

SHARDS = 4  # of the documents; the first is held out for the evaluation
MODEL = "tiny"
TRAINING = {"num_train_steps": 20, "learning_rate": 0.01, "batch_size": 8, "seq_len": 64, "resources": Cpu()}


@dataclass(frozen=True)
class PagesConfig:
    sources: str
    output_path: str
    offers: int = versioned(60)


def write_pages(config: PagesConfig) -> dict[str, int]:
    """Write a page for each documented function of some sources, every fourth of them twice, and pages of offers."""
    docstrings = [
        (node.name, about)
        for document in read_documents(config.sources)
        for node in ast.walk(ast.parse(document.text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(about := ast.get_docstring(node) or "") > 100
    ]
    copies = [(f"{name} (mirror)", about) for name, about in docstrings[::4]]
    words = random.Random(1)
    offers = [
        (f"Offer {number}", " ".join(words.choices(["buy", "now", "cheap", "click", "here", "today"], k=60)))
        for number in range(config.offers)
    ]
    return {"hq": write(config, "hq", [*docstrings, *copies]), "lq": write(config, "lq", offers)}


def write(config: PagesConfig, name: str, pages: list[tuple[str, str]]) -> int:
    with atomic_writer(join(config.output_path, f"{name}.jsonl.gz")) as file, gzip.open(file, "wt") as lines:
        for number, (title, text) in enumerate(pages):
            paragraphs = "".join(f"<p>{html.escape(each)}</p>" for each in text.split("\n\n"))
            page = f"<title>{title}</title><nav><a href='/'>Home</a></nav><h1>{title}</h1><main>{paragraphs}</main>"
            lines.write(json.dumps({"url": f"https://{name}.example.com/{number}", "html": page}) + "\n")
    return len(pages)


sources = python_sources("tiny/sources", below="email")
pages = ExecutorStep("web/pages", write_pages, PagesConfig(output_path_of(sources), this_output_path()))

texts = normalize("web/texts", pages, text_field="html", id_field="url", shards=SHARDS)
good = filter_documents("web/good", texts, [GopherQuality(min_words=10, min_stop_words=1)])
repeated = deduplicate_exact("web/repeated", good, by="paragraph")
clean = consolidate("web/clean", good, [FilterConfig("remove_spans", repeated, "duplicate_paragraphs")])

tokenizer = train_tokenizer("web/tokenizer", clean, vocab_size=512)
held_out, *rest = [clean / f"part-{shard:05d}-of-{SHARDS:05d}.parquet" for shard in range(SHARDS)]
tokens = tokenize_files("web/tokens", rest, tokenizer, validation_paths=[held_out])
trained = train("web/train", tokens, MODEL, **TRAINING)
last = evaluate("web/evaluate", trained, sample_tokens=50)

experiment_dag(
    "web_to_tokens",
    steps=[last],
    description="Makes a language model of web pages.",
    tags=["tradewind", "example"],
)
