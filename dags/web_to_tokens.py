"""Airflow DAG from web pages to a trained model: texts, quality, duplicates, tokens, training, loss.

It makes some small pages for itself. For your own, give ``html_to_text`` their paths below: good pages (hq), and others
(lq), such as "gs://bucket/crawl/*.warc.gz". The settings are at the top.
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
    consolidate,
    deduplicate_exact,
    deduplicate_fuzzy,
    html_to_text,
    normalize,
    score_documents,
    train_classifier,
)
from tradewind.recipes.lm.tokens import tokenize_files
from tradewind.recipes.steps import evaluate, python_sources, train, train_tokenizer

SHARDS = 4  # of the documents, at least 2; the first is held out for the evaluation
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


sources = python_sources("tiny/sources", below="email")  # steps named tiny are shared with train_tiny_model
pages = ExecutorStep("web/pages", write_pages, PagesConfig(output_path_of(sources), this_output_path()))

hq = html_to_text("web/hq", pages / "hq.jsonl.gz", source="hq")
lq = html_to_text("web/lq", pages / "lq.jsonl.gz", source="lq")
documents = normalize("web/documents", [hq, lq], shards=SHARDS)

classifier = train_classifier("web/classifier", positive=hq, negative=lq, kind="hashed_logistic")
quality = score_documents("web/quality", documents, classifier)
similar = deduplicate_fuzzy("web/similar", documents)
good = consolidate(
    "web/good",
    documents,
    [
        FilterConfig("classify", quality, "quality", label="positive", threshold=0.5),
        FilterConfig("remove_doc", similar, "duplicate_document"),
    ],
)
repeated = deduplicate_exact("web/repeated", good, by="paragraph")  # of documents that remain
clean = consolidate("web/clean", good, [FilterConfig("remove_spans", repeated, "duplicate_paragraphs")])

held_out, *rest = [clean / f"part-{shard:05d}-of-{SHARDS:05d}.parquet" for shard in range(SHARDS)]
tokenizer = train_tokenizer("web/tokenizer", clean, vocab_size=512)
tokens = tokenize_files("web/tokens", rest, tokenizer, validation_paths=[held_out])
trained = train("web/train", tokens, MODEL, **TRAINING)
evaluated = evaluate("web/evaluate", trained, sample_tokens=50)

experiment_dag(
    "web_to_tokens",
    steps=[evaluated],
    description="From web pages to a tiny language model: text, quality, duplicates, tokens, training, loss.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
