"""Airflow DAG that pretrains a tiny model on Python, and fine-tunes it to answer questions about it.

The trainings use Marin's helpers, with Marin's configs, names and versions.
"""

import ast
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tradewind import Cpu, ExecutorStep, experiment_dag, lazy, output_path_of, this_output_path
from tradewind.datasets.documents import read_documents
from tradewind.datasets.files import atomic_writer, join
from tradewind.marin.defaults import (
    SimpleSFTConfig,
    SimpleTrainConfig,
    default_sft,
    default_tokenize,
    default_train,
    llama,
)
from tradewind.recipes.steps import python_sources, train_tokenizer

TEMPLATE = """{% for message in messages -%}
{% if message.role == "user" %}Q: {{ message.content }}
{% else %}A: {% generation %}{{ message.content }}
{% endgeneration %}{% endif %}{% endfor %}"""


@dataclass(frozen=True)
class ChatsConfig:
    input_path: str
    output_path: str


def write_chats(config: ChatsConfig) -> dict[str, int]:
    """Write a question and an answer for each function whose docstring says what it does."""
    chats = 0
    with atomic_writer(join(config.output_path, "chats.jsonl.gz")) as file, gzip.open(file, "wt") as lines:
        for document in read_documents(config.input_path):
            for name, answer in documented(document.text):
                asked = {"role": "user", "content": f"What does {name} do?"}
                lines.write(json.dumps({"messages": [asked, {"role": "assistant", "content": answer}]}) + "\n")
                chats += 1
    return {"chats": chats}


def documented(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.name, text.splitlines()[0]


sources = python_sources("tiny/sources", below="email")
tokenizer = output_path_of(train_tokenizer("tiny/tokenizer", sources, vocab_size=512))
texts = default_tokenize("sft_tiny/texts", sources / "*.jsonl.gz", tokenizer)
chats = ExecutorStep("documents/sft_tiny", write_chats, ChatsConfig(output_path_of(sources), this_output_path()))
chat_format = lazy("levanter.data.text:ChatLmDatasetFormat", chat_template=TEMPLATE)
questions = default_tokenize("sft_tiny/chats", chats / "chats.jsonl.gz", tokenizer, format=chat_format)

model = llama("llama_nano")
pretraining = SimpleTrainConfig(Cpu(), train_batch_size=4, num_train_steps=20, learning_rate=1e-2)
base = default_train("sft_tiny/base", texts, model, pretraining, use_default_validation=False, eval_harness_tasks=())
tuning = SimpleSFTConfig(
    Cpu(), train_batch_size=4, num_train_steps=20, learning_rate=3e-3, initialize_from_checkpoint_path=base
)
tuned = default_sft("sft_tiny/tuned", questions, model, tuning)

experiment_dag(
    "sft_tiny",
    steps=[tuned],
    description="Pretrains a tiny language model and fine-tunes it on questions and answers.",
    tags=["tradewind", "example"],
)
