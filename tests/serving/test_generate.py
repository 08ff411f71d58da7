"""Generations of a set of documents: what is asked, in which order, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from pyarrow import parquet

from tests.recipes.data.steps import run
from tests.serving.tiny_engine import answer_text, chat_prompt
from tests.support.http_server import serving
from tradewind.datasets import PipelineError
from tradewind.recipes.data import chats_to_documents, normalize
from tradewind.serving.config import ServingConfig
from tradewind.serving.generate import generate
from tradewind.steps import Cpu, ExecutorStep
from tradewind.steps.resolution import resolve

MODEL = "hub:org/tiny@0123abc"
TOO_LONG = "far too long"


class Engine(ThreadingHTTPServer):
    """Answer as the tiny engine does; refuse prompts with ``TOO_LONG``; answer the first request last."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = Lock()
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.has_text = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def asked(self) -> list[str]:
        """Return the prompts of all requests, sorted."""
        return sorted(each["prompt"] if "prompt" in each else chat_prompt(each["messages"]) for each in self.requests)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        engine: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with engine.lock:
            engine.requests.append({"path": self.path, **body})
        is_chat = self.path == "/v1/chat/completions"
        prompt = chat_prompt(body["messages"]) if is_chat else body["prompt"]
        if engine.status != 200 or TOO_LONG in prompt:
            self.answer(400 if engine.status == 200 else engine.status, {"error": {"message": "The context is short."}})
            return
        text = answer_text(prompt, body["max_tokens"]) + ("\ud800" if "broken" in prompt else "")
        said: dict[str, Any] = {"message": {"content": text}} if is_chat else {"text": text}
        if not engine.has_text:
            said = {}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": body["max_tokens"]}
        self.answer(200, {"choices": [{**said, "finish_reason": "length"}], "usage": usage})

    def answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with serving(Engine()) as engine:
        yield engine


def prompts_of(tmp_path: Path, *texts: str, shards: int = 2) -> ExecutorStep:
    rows = [{"text": text, "id": f"page-{number}", "url": f"u{number}"} for number, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return normalize("prompts", tmp_path / "in.jsonl", shards=shards)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("part-*")) for row in parquet.read_table(file).to_pylist()]


def test_generations_are_documents_in_the_order_of_their_prompts(
    engine: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompts = prompts_of(tmp_path, *(f"prompt number {number}" for number in range(100)))
    step = generate("made", prompts, MODEL, address=engine.address, max_tokens=3, seed=7, stop=["\n"], max_concurrent=4)
    made, given = rows_of(run(step, tmp_path)), rows_of(run(prompts, tmp_path))
    assert [row["id"] for row in made] == [row["id"] for row in given]
    for before, after in zip(given, made, strict=True):
        origin = {name: before[name] for name in ("id", "source_id", "source", "metadata")}
        counts = {"finish_reason": "length", "prompt_tokens": 3, "completion_tokens": 3}
        assert after == {**origin, "text": answer_text(before["text"], 3), "prompt": before["text"], **counts}
    assert engine.asked() == sorted(row["text"] for row in given), "each once"
    seeds = {each["prompt"]: each.pop("seed") for each in engine.requests}
    assert len(set(seeds.values())) == 100
    same = {key: engine.requests[0][key] for key in engine.requests[0] if key != "prompt"}
    assert same == {
        "path": "/v1/completions", "model": "tiny", "temperature": 1.0, "top_p": 1.0, "max_tokens": 3, "stop": ["\n"],
    }  # fmt: skip
    engine.requests.clear()
    run(step, tmp_path / "again")
    assert {each["prompt"]: each["seed"] for each in engine.requests} == seeds
    assert "Generated 100 documents with 300 tokens" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, ["### user\nHi", "plain"]),
        ({"template": "Q: {prompt}\nA:"}, ["Q: ### user\nHi\nA:", "Q: plain\nA:"]),
        ({"kind": "question", "template": "Say: {prompt}"}, ["<user>Say: ### user\nHi", "<user>Say: plain"]),
        ({"prompt_field": "source_id"}, ["page-0", "page-1"]),
    ],
    ids=["text", "template", "question", "field"],
)
def test_prompt_is_asked_as_its_kind_says(
    options: dict[str, Any], asked: list[str], engine: Engine, tmp_path: Path
) -> None:
    made = run(
        generate("made", prompts_of(tmp_path, "plain", "### user\nHi"), MODEL, address=engine.address, **options),
        tmp_path,
    )
    assert engine.asked() == asked and len(rows_of(made)) == 2


def test_chat_is_asked_with_its_messages(engine: Engine, tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    chats = chats_to_documents("chats", tmp_path / "chats.jsonl")
    [row] = rows_of(run(generate("made", chats, MODEL, kind="chat", address=engine.address, max_tokens=2), tmp_path))
    assert engine.requests[0]["messages"] == chat
    assert row["text"] == answer_text(chat_prompt(chat), 2) and row["prompt"].startswith("### system")


def test_refused_prompts_are_kept_with_the_reason(engine: Engine, tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, TOO_LONG, *(f"prompt {number}" for number in range(40)))
    folder = run(generate("made", prompts, MODEL, address=engine.address, max_tokens=2), tmp_path)
    assert len(rows_of(folder)) == 40
    counts = json.loads((folder / "stats.json").read_text())["counts"]
    assert counts | {"prompt_tokens": 0} == {
        "documents": 40, "cut": 40, "prompt_tokens": 0, "completion_tokens": 80, "rejected": 1,
    }  # fmt: skip
    [kept] = [line for file in (folder / ".quarantine").rglob("*.jsonl*") for line in _lines(file)]
    assert kept["row"]["text"] == TOO_LONG
    assert kept["error"] == "RowError: The engine refuses the prompt: HTTP 400: The context is short."
    too_many = generate("few", prompts, MODEL, address=engine.address, max_rejected=0.01)
    with pytest.raises(ValueError, match=r"prompts: 1 of 41 were refused, more than max_rejected=0.01"):
        run(too_many, tmp_path)
    with pytest.raises(PipelineError, match="The engine refuses the prompt: HTTP 400"):
        run(generate("none", prompts, MODEL, address=engine.address, on_error="raise"), tmp_path)


def _lines(file: Path) -> list[Any]:
    import gzip

    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_field": "question"}, r"prompt_field='question': \S+ has no such column; it has 'id', 'text'"),
        ({"kind": "chat"}, "is no chat of the template"),
        ({"prompts": "/nowhere"}, "prompts: /nowhere has no part-00000-of-00001.parquet"),
    ],
)
def test_prompts_that_are_none_are_refused(
    options: dict[str, Any], message: str, engine: Engine, tmp_path: Path
) -> None:
    given = {"prompts": prompts_of(tmp_path, *map(str, range(30)), shards=1), **options}
    with pytest.raises(ValueError, match=message):
        run(generate("made", model=MODEL, address=engine.address, **given), tmp_path)
    assert not engine.requests


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "The server refuses all requests: HTTP 404"),
        (400, "The engine refuses the prompt: HTTP 400: The context is short"),
        (200, "The server's answer has no text: {'choices': "),
    ],
)
def test_server_that_answers_nobody_ends_the_step(status: int, message: str, engine: Engine, tmp_path: Path) -> None:
    engine.status = status
    prompts = prompts_of(tmp_path, *(f"prompt {number}" for number in range(60)), shards=1)
    engine.has_text = False
    with pytest.raises(PipelineError, match=message):
        run(generate("made", prompts, MODEL, address=engine.address), tmp_path)
    assert len(engine.requests) < 200


def test_half_of_a_character_is_no_answer(engine: Engine, tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, "broken", "whole")
    folder = run(generate("made", prompts, MODEL, address=engine.address, max_rejected=0.5), tmp_path)
    assert [row["prompt"] for row in rows_of(folder)] == ["whole"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "poem"}, "kind='poem': give one of text, question, chat"),
        ({"template": "Say it."}, "template='Say it.': give a text that holds {prompt} once"),
        ({"temperature": -1}, "temperature=-1: give a number of at least 0"),
        ({"top_p": 0}, "top_p=0: give a number above 0 and at most 1"),
        ({"top_p": True}, "top_p=True"),
        ({"max_tokens": 0}, "max_tokens=0: give a whole number of at least 1"),
        ({"stop": "\n"}, "stop='\\n': give a list of texts"),
        ({"seed": -1}, "seed=-1"),
        ({"max_rejected": "1%"}, "max_rejected='1%'"),
        ({"serving": {"replicas": 2}}, "give ServingConfig(...)"),
        ({"address": "10.0.0.2:8000"}, "give a base URL such as http://10.0.0.2:8000/v1"),
        ({"address": "http://user:pass@host/v1"}, "give a base URL"),
        ({"prompt_field": ""}, "prompt_field=''"),
        ({"model": "hub:org/tiny@main"}, "hub:org/tiny@main"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_bad_option_is_refused_with_step_and_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        generate("made", "/prompts", **{"model": MODEL, **options})
    assert str(raised.value).startswith("Step 'made': ") and message in str(raised.value)


def test_version_counts_what_decides_answers() -> None:
    def version(model: str = MODEL, **options: Any) -> str:
        return resolve([generate("made", "/prompts", model, **options)], "/outputs").steps[-1].output_path

    pool = ServingConfig("other", resources=Cpu(4), replicas=3, timeout_s=60)
    assert version() == version(serving=pool, max_concurrent=2, max_rejected=1, address="http://a/v1", on_error="raise")
    changed: list[dict[str, Any]] = [
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"max_tokens": 1},
        {"stop": ["a"]},
        {"seed": 1},
        {"template": "a {prompt}"},
        {"kind": "question"},
        {"prompt_field": "source"},
        {"model": "hub:org/tiny@0123abd"},
        {"serving": ServingConfig("a", "vllm")},
        {"serving": ServingConfig("a", engine_options={"max_seq_len": 9})},
    ]
    assert len({version(), *(version(**each) for each in changed)}) == len(changed) + 1
