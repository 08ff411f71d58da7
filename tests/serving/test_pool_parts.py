"""Parts of a pool without Ray: config, scaling, leases, streams and the relay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tradewind.serving.balancer import Balancer, Engine, EngineLostError, NoEngineError, Scaler
from tradewind.serving.config import PoolLimits, ServingConfig, pool_name
from tradewind.serving.relay import Relay
from tradewind.serving.streams import DONE, DifferentStreamError, EventSplitter, StreamedAnswer
from tradewind.steps import Cpu, Gpu, Hosts, TpuSlice

COMMAND = ("python", "engine.py", "{port}")


# ---- config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "model='': give a step, a path"),
        ({"engine": "vlm"}, "engine='vlm': give one of levanter, vllm, command."),
        ({"engine": "command"}, "with engine='command', give the program"),
        ({"engine": "command", "command": ("python", "engine.py")}, "{port} where it takes its port"),
        ({"engine": "command", "command": COMMAND, "engine_options": {"a": 1}}, "engine='command' takes none"),
        ({"command": COMMAND}, "only engine='command' takes one"),
        ({"engine_options": [1]}, "engine_options=[1]: give a mapping"),
        ({"engine_options": {"max_seqlen": 1}}, "['max_seqlen'] is no option of Levanter's server; did you mean 'max_"),
        ({"engine_options": {"max_seq_len": "4k"}}, "['max_seq_len']='4k': give a whole number"),
        ({"engine": "vllm", "engine_options": {"port": 80}}, "['port']: the pool itself sets it"),
        ({"engine": "vllm", "engine_options": {"served-model-name": "x"}}, "name']: the pool itself sets it"),
        ({"engine": "vllm", "engine_options": {"--dtype": "half"}}, "['--dtype'] is no option of vLLM"),
        ({"resources": Hosts(2)}, "give Cpu(...), Gpu(...) or TpuSlice(...)"),
        ({"resources": TpuSlice("v4-16")}, "this type has several hosts"),
        ({"resources": TpuSlice("v4-8", num_slices=2)}, "Give the number of engines as replicas"),
        ({"replicas": 0}, "replicas=0: give a whole number of at least 1"),
        ({"replicas": True}, "replicas=True: give a whole number"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas=2: give a number from replicas=3 to 1000"),
        ({"max_replicas": 1001}, "max_replicas=1001"),
        ({"max_concurrent": 0}, "max_concurrent=0"),
        ({"timeout_s": float("nan")}, "timeout_s=nan: give a number above 0"),
        ({"idle_timeout_s": -1}, "idle_timeout_s=-1"),
        ({"secrets": {"HF_TOKEN": "hf_the_value"}}, "the value of 'HF_TOKEN' in secrets is no reference"),
    ],
)
def test_invalid_serving_config_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^") as refused:
        ServingConfig(**{"model": "gs://b/m", **options})
    assert message in str(refused.value) and "hf_the_value" not in str(refused.value)


@pytest.mark.parametrize("resources", [Cpu(2), Gpu(1, type="A100"), TpuSlice("v4-8")])
def test_serving_config_survives_json(resources: Any) -> None:
    config = ServingConfig(
        "hub:org/name@abc", "command", command=COMMAND, resources=resources, secrets={"HF_TOKEN": "env:HF_TOKEN"}
    )
    assert ServingConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("model", "name"),
    [("gs://b/small-1a/", "small-1a"), ("gs://b/small-1a/hf", "small-1a"), ("/hf", "hf"), ("hub:org/name@abc", "name")],
)
def test_model_is_named_as_its_folder_or_training(model: str, name: str) -> None:
    assert ServingConfig(model).name_in_api == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object with a 'model'"),
        ('{"model": "m", "replica": 2}', "has no field 'replica'; did you mean 'replicas'?"),
        ('{"model": "m", "resources": {"kind": "hosts"}}', "resources: kind='hosts'"),
        ('{"model": "m", "resources": {"kind": "cpu", "cpus": 1}}', "Cpu has no field 'cpus'"),
        ('{"model": "m", "resources": 3}', "resources=3"),
    ],
)
def test_invalid_json_of_config_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="^") as refused:
        ServingConfig.from_json(text)
    assert message in str(refused.value)


def test_pool_name_counts_what_users_must_agree_on() -> None:
    first = pool_name(ServingConfig("m"))
    assert first == pool_name(ServingConfig("m", replicas=3, timeout_s=1, max_concurrent=2))
    others = [{"model": "n"}, {"engine": "vllm"}, {"resources": Cpu(2)}, {"engine_options": {"max_seq_len": 9}}]
    assert len({first, *(pool_name(ServingConfig(**{"model": "m", **each})) for each in others)}) == 5


# ---- scaling


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ([(0, 1, 4, 1), (9, 1, 4, 1)], [1, 1]),  # a short queue
        ([(0, 1, 4, 1), (10, 1, 4, 1)], [1, 2]),
        ([(0, 9, 4, 1), (10, 9, 4, 1)], [1, 4]),  # as many as have work
        ([(0, 99, 4, 1), (10, 99, 4, 1), (20, 99, 4, 3), (40, 99, 4, 3)], [1, 4, 4, 4]),
        ([(0, 1, 4, 0), (50, 1, 4, 0)], [1, 1]),  # the first one has yet to start
        ([(0, 9, 4, 1), (10, 9, 4, 1), (20, 0, 9, 4), (119, 0, 8, 4), (121, 0, 8, 4)], [1, 4, 4, 4, 3]),
        ([(0, 9, 4, 1), (10, 9, 4, 1), (20, 0, 0, 4), (70, 0, 13, 4), (121, 0, 0, 4)], [1, 4, 4, 4, 4]),
    ],
)
def test_scaler_follows_queue_within_limits(seen: Sequence[tuple[int, int, int, int]], wanted: list[int]) -> None:
    scaler = Scaler(1, 4, max_concurrent=4, limits=PoolLimits(queue_s=10, spare_s=100))
    decided = [scaler.decide(now, queued=queued, in_flight=flying, ready=ready) for now, queued, flying, ready in seen]
    assert decided == wanted


# ---- leases


async def test_lost_engine_ends_its_leases_only() -> None:
    balancer, ended = Balancer(1), []
    with pytest.raises(NoEngineError):
        async with balancer.lease():
            pass
    for name in ("a", "b"):
        balancer.add(Engine(name, "", ""))

    async def use() -> None:
        try:
            async with balancer.lease() as engine:
                await asyncio.sleep(0.05)
                ended.append(engine.name)
        except EngineLostError:
            ended.append("lost")
            async with balancer.lease(losses=1) as engine:
                ended.append(f"again on {engine.name}")

    users = [asyncio.create_task(use()) for _ in range(4)]
    await asyncio.sleep(0.01)
    assert (balancer.in_flight, balancer.queued) == (2, 2)
    balancer.lose("a")
    await asyncio.gather(*users)
    assert ended == ["lost", "b", "again on b", "b", "b"]
    assert (balancer.in_flight, balancer.queued) == (0, 0)


async def test_cancelled_lease_in_queue_leaves_no_place() -> None:
    balancer = Balancer(1)
    balancer.add(Engine("a", "", ""))

    async def use() -> None:
        async with balancer.lease():
            await asyncio.sleep(60)

    first, second = asyncio.create_task(use()), asyncio.create_task(use())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (balancer.in_flight, balancer.queued) == (1, 1)
    second.cancel()
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (balancer.in_flight, balancer.queued, balancer.engines["a"].in_flight) == (0, 0, 0)


# ---- streams


def event(text: str, identity: str = "1", **fields: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": None, **fields}
    return b"data: " + json.dumps({"id": identity, "choices": [choice]}).encode() + b"\n\n"


def text_of(events: Sequence[bytes]) -> str:
    bodies = [json.loads(each[6:]) for each in events if each not in (b"", DONE)]
    assert {body["id"] for body in bodies} <= {"1"}
    return "".join(choice["text"] for body in bodies for choice in body["choices"])


@pytest.mark.parametrize(
    "second", [["a", " b", " c d"], ["a b", " c", " d"], ["a b c", " d"], ["a b c d"], ["", "a b", " c d"]]
)
def test_second_stream_continues_first_at_any_cut(second: list[str]) -> None:
    answer = StreamedAnswer()
    got = [answer.pass_on(event(text)) for text in ("a", " b")]
    answer.begin_again()
    got += [answer.pass_on(event(text, "2")) for text in second]
    got += [answer.pass_on(DONE)]
    assert text_of(got) == "a b c d" and got[-1] == DONE and answer.is_complete


@pytest.mark.parametrize("second", [[event("a x")], [event("a"), DONE], [event("a", finish_reason="stop")]])
def test_different_second_stream_is_refused(second: list[bytes]) -> None:
    answer = StreamedAnswer()
    answer.pass_on(event("a b"))
    answer.begin_again()
    with pytest.raises(DifferentStreamError):
        for each in second:
            answer.pass_on(each)


@pytest.mark.parametrize("part", [{"logprobs": {"tokens": ["a"]}}, {"delta": {"tool_calls": [1]}}])
def test_stream_with_more_than_text_is_not_continued(part: dict[str, Any]) -> None:
    answer = StreamedAnswer()
    answer.begin_again()
    assert answer.pass_on(event("a", **part)) == event("a", **part)
    with pytest.raises(DifferentStreamError, match="more than text"):
        answer.begin_again()


def test_events_are_cut_wherever_the_data_is() -> None:
    data = b"data: 1\r\n\r\ndata: 2\n\n: comment\n\ndata: 3"
    for size in (1, 2, 7, 100):
        splitter = EventSplitter()
        parts = [each for at in range(0, len(data), size) for each in splitter.feed(data[at : at + size])]
        assert parts == [b"data: 1\n\n", b"data: 2\n\n", b": comment\n\n"]


# ---- relay


async def test_relay_lets_only_its_token_through() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    server = web.ServerRunner(web.Server(handler))
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    relay = Relay("127.0.0.1", "the token")
    url = f"http://127.0.0.1:{await relay.start()}/x"
    body = b"x" * 1_000_000
    async with aiohttp.ClientSession() as session:
        for headers, status in (({}, 401), ({"Authorization": "Bearer the toke"}, 401)):
            async with session.post(url, headers=headers) as answer:
                assert answer.status == status
        right = {"Authorization": "Bearer the token"}
        with pytest.raises(aiohttp.ClientError):
            await session.post(url, headers=right)  # no engine yet
        relay.engine_port = server.addresses[0][1]
        for _ in range(2):
            async with session.post(url, headers=right, data=body) as answer:
                assert await answer.read() == body
    await server.cleanup()
