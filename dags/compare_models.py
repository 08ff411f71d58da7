"""Airflow DAG that compares two models on a task of its own: does more training help, as far as the questions tell?

The task: which of four lines is Python, if the others are its words in another order? Each model is served by a pool,
which its evaluation starts. The comparison is paired by question, and has an interval.
"""

import json
import random
from dataclasses import dataclass

from tradewind import Cpu, ExecutorStep, experiment_dag, output_path_of, this_output_path, versioned
from tradewind.datasets.documents import read_documents
from tradewind.evaluation.comparisons import compare_evaluations, require
from tradewind.evaluation.steps import evaluate_lm_evaluation_harness
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.recipes.steps import clean, python_sources, tokenize, train, train_tokenizer
from tradewind.serving.config import ServingConfig

TASK = """\
task: word_order
dataset_path: json
dataset_kwargs:
  data_files: {{test: {path}}}
output_type: multiple_choice
test_split: test
doc_to_text: "Python:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: " "
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""
MIN_WORDS = 5  # of a line


@dataclass(frozen=True)
class QuizConfig:
    sources: str
    output_path: str
    questions: int = versioned(100)


def make_quiz(config: QuizConfig) -> int:
    """Write a task for lm-eval, and its questions."""
    import fsspec

    drawn = random.Random(1)
    lines = [line.split() for document in read_documents(config.sources) for line in document.text.splitlines()]
    long = sorted({tuple(words) for words in lines if len(set(words)) >= MIN_WORDS})
    with fsspec.open(f"{config.output_path}/questions.jsonl", "w") as file:
        for words in drawn.sample(long, config.questions):
            choices = [" ".join(order) for order in (words, *(drawn.sample(words, len(words)) for _ in range(3)))]
            drawn.shuffle(choices)
            file.write(json.dumps({"choices": choices, "answer": choices.index(" ".join(words))}) + "\n")
    with fsspec.open(f"{config.output_path}/word_order.yaml", "w") as file:
        file.write(TASK.format(path="questions.jsonl"))  # beside the task
    return config.questions


sources = python_sources("tiny/sources", below="email")  # steps named tiny are shared with train_tiny_model
tokenizer = train_tokenizer("tiny/tokenizer", sources, vocab_size=512)
tokens = tokenize("tiny/tokens", clean("tiny/clean", sources, validation_fraction=0.1), tokenizer)
quiz = ExecutorStep("compare_models/quiz", make_quiz, QuizConfig(output_path_of(sources), this_output_path()))

evaluated = {}
for name, steps in {"short": 5, "long": 60}.items():
    trained = train(
        f"compare_models/{name}",
        tokens,
        "tiny",
        num_train_steps=steps,
        learning_rate=0.01,
        batch_size=8,
        seq_len=256,
    )
    evaluated[name] = evaluate_lm_evaluation_harness(
        name,
        trained,
        [EvalTaskConfig("word_order")],
        name=f"compare_models/evaluate_{name}",
        task_path=output_path_of(quiz),
        serving=ServingConfig(resources=Cpu(0.5), timeout_s=1200, idle_timeout_s=60),
    )
comparison = compare_evaluations("compare_models/comparison", evaluated["short"], evaluated["long"])
gate = require(evaluated["long"], "word_order", no_worse_than=evaluated["short"], name="compare_models/gate")

experiment_dag(
    "compare_models",
    steps=[comparison, gate],
    description="Trains two tiny models, evaluates them on a task of its own, and compares the scores.",
    max_concurrent=2,
    tags=["tradewind", "example"],
)
