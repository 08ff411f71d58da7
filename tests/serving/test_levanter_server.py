"""OpenAI's API as the engines speak it: one table for Levanter's server and, in ``make test-long``, for vLLM.

vLLM needs an environment of its own (``tests/README.md``): ``TRADEWIND_VLLM_PYTHON`` names its Python.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.serving.exports import CONTEXT, END, tiny_export
from tests.serving.llama import log_probabilities
from tests.support.waiting import until
from tradewind.rehearsal.local.processes import free_port
from tradewind.serving.config import ServingConfig
from tradewind.serving.engines import engine_command

VLLM = os.environ.get("TRADEWIND_VLLM_PYTHON")
LM_EVAL = Path(sys.prefix, "lm-eval")
NEEDS_VLLM = pytest.mark.skipif(VLLM is None, reason="TRADEWIND_VLLM_PYTHON names no Python with vLLM")
TEXT = "the thin cat in the hat"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}


@dataclass
class Api:
    engine: str
    folder: Path
    url: str
    process: subprocess.Popen[bytes]

    def post(self, path: str, **body: Any) -> requests.Response:
        return requests.post(f"{self.url}/v1/{path}", json={"model": "tiny", **body}, timeout=300)

    def answer(self, path: str, **body: Any) -> dict[str, Any]:
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def completion(self, prompt: Any = TEXT, **body: Any) -> dict[str, Any]:
        return self.answer("completions", **{"prompt": prompt, "max_tokens": 12, "temperature": 0, **body})

    def text(self, prompt: Any = TEXT, **body: Any) -> str:
        [choice] = self.completion(prompt, **body)["choices"]
        return str(choice["text"])

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        lines = [line for line in self.post(path, stream=True, **body).text.splitlines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def started(engine: str, folder: Path, log: Path) -> Api:
    """Start the engine as its worker does; return it when it is healthy."""
    options = {"max_seqs": 4} if engine == "levanter" else {"dtype": "float32", "enforce_eager": True}
    config = ServingConfig(model=str(folder), engine=engine, served_name="tiny", engine_options=options)
    port = free_port()
    command = engine_command(config, str(folder), port)
    python = sys.executable if engine == "levanter" else str(VLLM)
    env = os.environ | command.env | {"JAX_PLATFORMS": "cpu", "HOME": str(log.parent)}
    with log.open("wb") as output:
        process = subprocess.Popen([python, *command.argv[1:]], env=env, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"

    def is_healthy() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return requests.get(f"{url}/health", timeout=10).ok
        except requests.RequestException:
            return False

    until(is_healthy, f"{engine} serves")
    return Api(engine, folder, url, process)


@pytest.fixture(
    scope="module",
    params=[
        "levanter llama",
        pytest.param("levanter mistral", marks=pytest.mark.long),
        pytest.param("vllm llama", marks=[pytest.mark.long, NEEDS_VLLM, pytest.mark.timeout(900)]),
    ],
)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    engine, kind = request.param.split()
    folder = tmp_path_factory.mktemp(kind)
    api = started(engine, tiny_export(folder / "model", kind=kind), folder / "log")
    try:
        yield api
    finally:
        api.process.terminate()
        api.process.wait()


def tokens_of(api: Api, text: str) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(api.folder).encode(text))


def random_prompts(count: int, seed: int = 0) -> list[list[int]]:
    chance = np.random.default_rng(seed)
    return [chance.integers(0, 94, length).tolist() for length in chance.integers(3, 60, count)]


def test_all_forms_of_a_prompt_give_the_same_answer(api: Api) -> None:
    ids = tokens_of(api, TEXT)
    answers = [api.completion(prompt) for prompt in (TEXT, [TEXT], ids, [ids])]
    for answer in answers:
        assert answer["object"] == "text_completion"
        assert answer["choices"] == answers[0]["choices"]
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert answer["usage"]["total_tokens"] == len(ids) + answer["usage"]["completion_tokens"]
    [choice] = answers[0]["choices"]
    assert choice["finish_reason"] == "length"
    assert answers[0]["usage"]["completion_tokens"] == 12 == len(choice["text"])
    two = api.completion([TEXT, "in the"])
    assert [each["text"] for each in two["choices"]] == [choice["text"], api.text("in the")]
    assert [each["index"] for each in two["choices"]] == [0, 1]
    assert api.text(echo=True) == TEXT + choice["text"]


def test_scores_of_a_batch_equal_a_forward_pass(api: Api) -> None:
    prompts = [*random_prompts(20), [5], list(range(94)) * 2]
    answer = api.completion(prompts, echo=True, logprobs=1, max_tokens=1)
    assert answer["usage"]["completion_tokens"] == len(prompts)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        expected = log_probabilities(api.folder, prompt)
        told = choice["logprobs"]
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        assert len(told["token_logprobs"]) == len(told["tokens"]) == len(prompt) + 1
        scores = np.array(told["token_logprobs"][1:])
        places = np.arange(len(prompt) - 1)
        np.testing.assert_allclose(scores[:-1], expected[places, prompt[1:]], atol=1e-4)
        best = np.array([max(top.values()) for top in told["top_logprobs"][1:]])
        np.testing.assert_allclose(best, expected.max(axis=1), atol=1e-4)
        np.testing.assert_array_equal(scores[:-1] == best[:-1], expected.argmax(axis=1)[:-1] == prompt[1:])
        assert scores[-1] == best[-1], "the new token is the likeliest"
        assert "".join(told["tokens"]) == choice["text"]
        assert told["text_offset"] == [sum(map(len, told["tokens"][:n])) for n in range(len(told["tokens"]))]


def test_scores_without_a_new_token_repeat_the_prompt(api: Api) -> None:
    answer = api.completion("the cat", echo=True, logprobs=2, max_tokens=0)
    [choice] = answer["choices"]
    assert choice["text"] == "the cat" == "".join(choice["logprobs"]["tokens"])
    if api.engine != "vllm":  # it draws one, and does not show it
        assert answer["usage"]["completion_tokens"] == 0
    assert all(len(top) in (2, 3) for top in choice["logprobs"]["top_logprobs"][1:])


def test_greedy_answers_follow_the_model_in_any_batch(api: Api) -> None:
    prompts = random_prompts(10, seed=1)
    alone = [api.completion(prompt, logprobs=1, max_tokens=20)["choices"][0] for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: api.text(prompt, max_tokens=20), prompts))
    assert together == [each["text"] for each in alone]
    batch = api.completion(prompts, max_tokens=20)
    assert [each["text"] for each in batch["choices"]] == together
    for prompt, choice in zip(prompts, alone, strict=True):
        whole = [*prompt, *tokens_of(api, choice["text"])]
        expected = log_probabilities(api.folder, whole).max(axis=1)[len(prompt) - 1 :]
        scores = choice["logprobs"]["token_logprobs"]
        np.testing.assert_allclose(scores, expected[: len(scores)], atol=1e-3)


def test_text_ends_before_a_stop_string(api: Api) -> None:
    whole = api.text(max_tokens=20)
    for stop, end in ((whole[6:9], 6), ([whole[10], "never"], whole.index(whole[10])), ("never", 20), ([], 20)):
        [choice] = api.completion(max_tokens=20, stop=stop)["choices"]
        first = whole.index(stop) if isinstance(stop, str) and stop in whole else end
        assert choice["text"] == whole[:first]
        assert choice["finish_reason"] == ("length" if first == 20 else "stop")
        streamed = api.events("completions", prompt=TEXT, max_tokens=20, temperature=0, stop=stop)
        assert "".join(each["choices"][0]["text"] for each in streamed) == choice["text"]


def test_stream_has_the_same_text_and_usage_as_the_answer(api: Api) -> None:
    whole = api.completion()
    parts = api.events("completions", prompt=TEXT, max_tokens=12, temperature=0, stream_options={"include_usage": True})
    counts = [{key: value for key, value in each["usage"].items() if value is not None} for each in (parts[-1], whole)]
    assert counts[0] == counts[1]
    assert parts[-1]["choices"] == []
    choices = [each["choices"][0] for each in parts[:-1]]
    assert "".join(each["text"] for each in choices) == whole["choices"][0]["text"]
    assert [each["finish_reason"] for each in choices if each["finish_reason"]] == ["length"]
    assert len(choices) > 3


def test_seed_repeats_a_sample_and_n_draws_several(api: Api) -> None:
    drawn = {"temperature": 1.5, "n": 3, "seed": 7, "max_tokens": 16, "top_p": 0.9}
    first, again = (api.completion(**drawn)["choices"] for _ in range(2))
    assert first == again
    texts = [each["text"] for each in first]
    assert len(set(texts)) == 3
    assert [each["index"] for each in first] == [0, 1, 2]
    assert [each["text"] for each in api.completion(**drawn | {"seed": 8})["choices"]] != texts
    assert api.text(temperature=1.5, top_p=1e-6, seed=1) == api.text(), "the nucleus is the likeliest token"


def test_chat_follows_the_template(api: Api) -> None:
    answer = api.answer("chat/completions", **CHAT, logprobs=True, top_logprobs=2)
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == api.text("<user>hi\n<assistant>", max_tokens=8)
    assert answer["usage"]["prompt_tokens"] == len(tokens_of(api, "<user>hi\n<assistant>"))
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == list(choice["message"]["content"])
    assert all(len(each["top_logprobs"]) == 2 for each in content)
    parts = [part["choices"][0]["delta"] for part in api.events("chat/completions", **CHAT)]
    assert parts[0]["role"] == "assistant"
    assert "".join(part.get("content") or "" for part in parts) == choice["message"]["content"]


def test_model_ends_its_answer_with_its_end_token(api: Api) -> None:
    """Samples until one ends: random weights end about one answer in three of 200 tokens."""
    for seed in range(40):
        answer = api.completion(temperature=1.9, seed=seed, max_tokens=200)
        [choice] = answer["choices"]
        if choice["finish_reason"] == "stop":
            break
    assert choice["finish_reason"] == "stop" and END not in choice["text"]
    assert answer["usage"]["completion_tokens"] < 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "completions",
            {"prompt": TEXT, "max_tokens": 400},
            400,
            f"{CONTEXT}.*max_tokens=400|max_tokens=400.*{CONTEXT}",
        ),
        ("completions", {"prompt": [1] * 300, "max_tokens": 1, "echo": True, "logprobs": 1}, 400, "30[01]"),
        ("completions", {"prompt": TEXT, "model": "other"}, 404, "other"),
        ("completions", {"prompt": TEXT, "logprobs": 21}, 400, "logprobs"),
        ("completions", {"prompt": TEXT, "temperature": -1}, 400, "temperature"),
        ("completions", {"prompt": [10**6]}, 400, "."),
        ("nothing", {}, 404, "Not Found"),
    ],
)
def test_bad_request_is_refused_in_the_form_of_openai(
    api: Api, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    response = api.post(path, **body)
    assert response.status_code == status
    error = response.json().get("error", response.json())
    assert re.search(message, str(error)), error


def test_health_is_told_while_long_prompts_are_read(api: Api) -> None:
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(api.post, "completions", prompt=["the cat " * 4000] * 60)
        answered = 0
        while not long.done():
            answered += requests.get(f"{api.url}/health", timeout=300).ok
    assert long.result().status_code == 400
    assert answered > 3  # before the prompts have come, and then one that waits until they are read


def test_models_and_health_say_what_is_served(api: Api) -> None:
    [model] = requests.get(f"{api.url}/v1/models", timeout=60).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", CONTEXT)
    assert requests.get(f"{api.url}/health", timeout=60).status_code == 200


TASKS = {
    "quiz": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "x",
        "generation_kwargs": {"until": ["~", "\n"], "max_gen_toks": 24},
    },
}


def lm_eval(api: Api, folder: Path, kind: str, path: str, task: str, *more: str) -> list[dict[str, Any]]:
    """Run a local task of lm-eval's against the engine; return its samples."""
    documents = [{"question": word, "choices": [" cat", " the", "in a hat"], "answer": 1} for word in TEXT.split()]
    (folder / "test.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    data = {
        "task": task,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "test.jsonl")}},
    }
    (folder / "task.yaml").write_text(json.dumps({**data, "test_split": "test", **TASKS[task]}))
    model = f"model=tiny,base_url={api.url}/v1/{path},tokenizer={api.folder},tokenizer_backend=huggingface"
    command = [sys.executable, "-m", "lm_eval", "--model", kind, "--tasks", task, "--include_path", str(folder)]
    command += ["--model_args", f"{model},num_concurrent=2,max_length={CONTEXT}", "--batch_size", "4", *more]
    env = os.environ | {"PYTHONPATH": str(LM_EVAL), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    command += ["--output_path", str(folder / "out"), "--log_samples"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    [samples] = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


@pytest.mark.long
def test_lm_eval_gets_the_scores_of_a_forward_pass(api: Api, tmp_path: Path) -> None:
    for sample in lm_eval(api, tmp_path, "local-completions", "completions", "quiz"):
        for choice, (told,) in zip(sample["doc"]["choices"], sample["resps"], strict=True):
            question = tokens_of(api, sample["doc"]["question"])
            whole = question + tokens_of(api, f" {choice}")
            expected = log_probabilities(api.folder, whole)
            places = range(len(question), len(whole))
            logprob = sum(expected[place - 1, whole[place]] for place in places)
            assert float(told[0]) == pytest.approx(logprob, abs=1e-3)
            assert (str(told[1]) == "True") == all(expected[place - 1].argmax() == whole[place] for place in places)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "path", "more"),
    [
        ("local-completions", "completions", []),
        ("local-chat-completions", "chat/completions", ["--apply_chat_template"]),
    ],
)
def test_lm_eval_gets_generations_up_to_a_stop(api: Api, tmp_path: Path, kind: str, path: str, more: list[str]) -> None:
    for sample in lm_eval(api, tmp_path, kind, path, "write", *more):
        question = sample["doc"]["question"]
        prompt = f"<user>{question}\n<assistant>" if more else question
        assert sample["resps"] == [[api.text(prompt, max_tokens=24, stop=["~", "\n"])]]


def test_server_finishes_answers_after_sigterm(api: Api) -> None:
    """Last in this file, as it ends the engine."""
    if api.engine != "levanter":
        pytest.skip("a property of our own server")
    expected = api.text(max_tokens=150, ignore_eos=True)
    body = {"prompt": TEXT, "max_tokens": 150, "temperature": 0, "ignore_eos": True, "stream": True}
    with requests.post(f"{api.url}/v1/completions", json=body, stream=True, timeout=300) as response:
        lines = response.iter_lines()
        first = next(lines)
        api.process.send_signal(signal.SIGTERM)
        events = [line for line in [first, *lines] if line]
    assert events[-1] == b"data: [DONE]"
    texts = [json.loads(line.removeprefix(b"data: "))["choices"][0]["text"] for line in events[:-1]]
    assert "".join(texts) == expected
    assert api.process.wait() == 0
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{api.url}/health", timeout=60)
