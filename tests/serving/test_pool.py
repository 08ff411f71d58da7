"""A pool on a real Ray: OpenAI's API at one address, and requests that survive their engines and their head."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.serving.pools import (
    actor_pid,
    answers_of,
    complete,
    complete_all,
    complete_stream,
    events,
    post,
    ready_engines,
    some_prompts,
    tiny_config,
    worker_of,
)
from tests.serving.tiny_engine import answer_text, chat_prompt
from tests.support.shared_clusters import NODE_SECRET
from tests.support.waiting import until
from tradewind.serving.config import pool_name
from tradewind.serving.pool import NAMESPACE, PoolError, ServedPool, ensure_pool, find_pools, stop_pool
from tradewind.serving.start_pool import start
from tradewind.steps import Cpu

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_driver")]
DELAY_S = "1.5"
"""Long enough for all requests of a test to be in flight together."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool") / "requests.jsonl"


@pytest.fixture(scope="module")
def pool(ray_driver: None, log: Path) -> Iterator[ServedPool]:
    """Two engines, eight requests each."""
    config = tiny_config(log, "--delay", DELAY_S, "--token-delay", "0.1", replicas=2, max_concurrent=8)
    pool = ensure_pool(config)
    ready_engines(pool, 2)
    yield pool
    pool.stop()


def test_head_of_pool_is_on_the_head_of_the_cluster(pool: ServedPool) -> None:
    import ray

    [head] = [node for node in ray.nodes() if "node:__internal_head__" in node["Resources"]]
    assert urlsplit(pool.address).hostname == head["NodeManagerAddress"], "any other node may be preempted"


def test_pool_passes_on_openai_api(pool: ServedPool) -> None:
    batch = post(pool, "/completions", {"prompt": ["a b", [1, 2]], "max_tokens": 3, "echo": True, "logprobs": 1})
    messages = [{"role": "user", "content": "hello"}]
    chat = post(pool, "/chat/completions", {"messages": messages, "max_tokens": 4})
    assert batch[0] == chat[0] == 200
    choices = json.loads(batch[1])["choices"]
    assert [choice["text"] for choice in choices] == ["a b" + answer_text("a b", 3), " 1 2" + answer_text([1, 2], 3)]
    assert [len(choice["logprobs"]["token_logprobs"]) for choice in choices] == [5, 5]
    assert json.loads(chat[1])["choices"][0]["message"]["content"] == answer_text(chat_prompt(messages), 4)
    assert json.loads(post(pool, "/models", None)[1])["data"][0]["id"] == "tiny"
    usage = json.loads(chat[1])["usage"]
    assert pool.status().completion_tokens >= 6 + usage["completion_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "token", "status", "kind"),
    [
        ("/completions", {"prompt": "a"}, "wrong", 401, "invalid_api_key"),
        ("/models", None, "", 401, "invalid_api_key"),
        ("/completions", {"prompt": 3}, None, 400, "invalid"),
        ("/load_lora_adapter", {}, None, 404, "invalid_request_error"),
        ("/../metrics", None, None, 404, "invalid_request_error"),
    ],
)
def test_wrong_request_gets_openai_error(
    pool: ServedPool, path: str, body: Any, token: str | None, status: int, kind: str
) -> None:
    answered = post(pool, path, body, token)
    assert (answered[0], json.loads(answered[1])["error"]["type"]) == (status, kind)


def test_second_user_joins_pool_with_own_token(pool: ServedPool, log: Path) -> None:
    config = tiny_config(log, "--delay", DELAY_S, "--token-delay", "0.1", timeout_s=3, max_replicas=5)
    other = ensure_pool(config)
    assert (other.name, other.address) == (pool.name, pool.address) and other.token != pool.token
    assert complete(other, "x") == complete(pool, "x") == answer_text("x", 8)
    assert other.token not in repr(other)
    assert [each.name for each in find_pools()].count(pool.name) == 1


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_killed_process_loses_no_request(pool: ServedPool, log: Path, victim: str) -> None:
    ready_engines(pool, 2)
    prompts = some_prompts()
    answers = complete_all(pool, prompts)
    until(lambda: len(of(prompts, log, "begun")) == 16, "16 requests in flight")
    begun = of(prompts, log, "begun")
    engine = begun[0]["pid"]
    os.kill(engine if victim == "engine" else worker_of(engine), signal.SIGKILL)
    assert answers() == answers_of(prompts)
    sent = Counter(event["prompt"] for event in of(prompts, log, "begun"))
    lost = {event["prompt"] for event in begun if event["pid"] == engine}
    assert sent == {prompt: 2 if prompt in lost else 1 for prompt in prompts} and len(lost) == 8
    assert pool.status().resent >= 8
    ready_engines(pool, 2)


def test_killed_head_continues_with_its_engines(pool: ServedPool, log: Path) -> None:
    names = {engine.name for engine in ready_engines(pool, 2).engines}
    prompts = some_prompts()
    answers = complete_all(pool, prompts, retries=True)
    until(lambda: len(of(prompts, log, "begun")) == 16, "16 requests in flight")
    os.kill(actor_pid(pool.name), signal.SIGKILL)
    assert answers() == answers_of(prompts)
    assert {engine.name for engine in ready_engines(pool, 2).engines} == names
    assert pool.rejoin().address == pool.address
    ended = len(of(prompts, log, "begun"))
    assert complete(pool, "afterwards") == answer_text("afterwards", 8)
    assert len(of(prompts, log, "begun")) == ended, "an answered request is not sent again"


def test_stream_continues_on_another_engine(pool: ServedPool, log: Path) -> None:
    ready_engines(pool, 2)
    [prompt] = some_prompts(1)
    body = {"prompt": prompt, "max_tokens": 32, "stream": True}
    stream = complete_stream(pool, body)
    begun = until(lambda: of([prompt], log, "begun"), "the stream")
    os.kill(begun[0]["pid"], signal.SIGKILL)
    text = stream()
    parts = [json.loads(part)["choices"][0]["text"] for part in re.findall(r"data: (\{.*\})", text)]
    assert "".join(parts) == answer_text(prompt, 32) and text.endswith("data: [DONE]\n\n")
    assert len(of([prompt], log, "begun")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": ("python", "{model}", "{port}"), "model": "/no/model"}, "model=/no/model is not there"),
        ({"model": "hub:org/name@main"}, "give hub:ORG/NAME@COMMIT"),
        ({"engine": "vllm", "command": ()}, "engine='vllm' needs the module vllm, which this cluster lacks"),
        ({"resources": Cpu(64)}, "no node of the cluster can serve 64 CPU; the most that one node has is 2 CPU"),
        ({"resources": Cpu(1, memory_bytes=1 << 50)}, "no node of the cluster can serve"),
    ],
)
def test_impossible_pool_is_refused_at_once(log: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PoolError, match=re.escape(message)):
        ensure_pool(tiny_config(log, **options))
    assert pool_name(tiny_config(log, **options)) not in {each.name for each in find_pools()}


def test_engine_that_cannot_start_is_reported_and_retried(log: Path) -> None:
    secret = "hf_" + "a1B2" * 8
    command = ("sh", "-c", f"echo port {{port}}, no memory, {secret}, $KEY; exit 7")
    config = tiny_config(log, command=command, secrets={"KEY": "env:ON_THE_NODE"}, idle_timeout_s=2.0)
    pool = ensure_pool(config)
    with pytest.raises(
        PoolError, match=r"exited with code 7 before it served(.|\n)*no memory, \*\*\*, \*\*\*"
    ) as error:
        pool.wait_ready()
    assert NODE_SECRET not in str(error.value)
    assert post(pool, "/completions", {"prompt": "a"})[0] == 503
    status = pool.status()
    assert (status.state, status.start_failures) == ("failed", 3) and secret not in repr(status)
    assert pool.rejoin().status().start_failures == 0, "a user who comes later tries again"
    until(lambda: pool.name not in {each.name for each in find_pools()}, "the end of an idle pool")
    assert not stop_pool(pool.name)


def test_pool_starts_anew_while_its_former_ends(log: Path) -> None:
    import ray

    config = tiny_config(log, "--token-delay", "0.2")
    assert start(config.to_json())["started"]
    ray.get(ray.get_actor(pool_name(config), namespace=NAMESPACE).stop.remote())
    assert start(config.to_json())["started"]
    assert stop_pool(pool_name(config))


def of(prompts: list[str], log: Path, event: str) -> list[dict[str, Any]]:
    """Return the engines' events of these prompts."""
    return [each for each in events(log, event) if each["prompt"] in prompts]
