"""The gateway: it waits for a server that is lost, and sends no answered request again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.http_server import serving
from tradewind.rehearsal.local.processes import free_port
from tradewind.serving import gateway as gateway_module
from tradewind.serving.answers import Answers
from tradewind.serving.config import ServingConfig
from tradewind.serving.gateway import Endpoint, FixedTarget, Gateway, PoolTarget
from tradewind.serving.pool import PoolError, PoolStatus, ServedPool

OPEN: dict[str, Any] = {"error": {"message": "no engine is ready", "code": "starting"}}
Reply = tuple[int, Any, dict[str, str]]
HANG_UP: Reply = (0, None, {})


class Server(ThreadingHTTPServer):
    """Replies as scripted, then answers each request with its prompt."""

    daemon_threads = True

    def __init__(self, *script: Reply, token: str | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.script = list(script)
        self.token = token
        self.seen: list[Any] = []
        self.answered: list[str] = []
        self.before_poison: Callable[[], object] = str
        self.poison = [HANG_UP] * 5

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(200, {"data": []}, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._reply(401, {"error": {"message": "no such token"}}, {})
        elif body["prompt"] == "poison" and self.server.poison:
            self.server.before_poison()
            self._reply(*self.server.poison.pop())
        elif self.server.script:
            self._reply(*self.server.script.pop(0))
        else:
            self.server.answered.append(body["prompt"])
            usage = {"prompt_tokens": 3, "completion_tokens": 2}
            self._reply(200, {"choices": [{"text": f"{body['prompt']}!"}], "usage": usage}, {})

    def _reply(self, status: int, given: Any, headers: dict[str, str]) -> None:
        if status == 0:
            self.close_connection = True
            self.connection.close()
            return
        data = (given if isinstance(given, str) else json.dumps(given)).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def gateway_to(server: Server, folder: Path | None = None, **options: Any) -> Iterator[Gateway]:
    answers = None if folder is None else Answers(str(folder), {"model": "m"}, options.get("log", print))
    with Gateway(options.pop("target", FixedTarget(server.url)), answers, **options) as gateway:
        yield gateway
    if answers is not None:
        answers.close()


def ask(gateway: Gateway, prompt: Any = "a", **more: Any) -> requests.Response:
    return requests.post(f"{gateway.base_url}/completions", json={"prompt": prompt, **more}, timeout=60)


def text_of(response: requests.Response) -> str:
    return str(response.json()["choices"][0]["text"])


def test_answered_requests_not_sent_again(tmp_path: Path) -> None:
    """Of equal requests, each is sent once, whatever the attempt, and however the client orders its fields."""
    with serving(Server()) as server:
        for attempt, prompts in enumerate((["a", "a", "b"], ["b", "a", "a", "a"])):
            with gateway_to(server, tmp_path) as gateway:
                orders = ({"prompt": prompt, "n": 1} if attempt else {"n": 1, "prompt": prompt} for prompt in prompts)
                said = [text_of(ask(gateway, **order)) for order in orders]
                assert said == [f"{prompt}!" for prompt in prompts]
                traffic = gateway.traffic
                assert (traffic.requests, traffic.cached) == ((4, 3) if attempt else (3, 0))
        assert (traffic.prompt_tokens, traffic.completion_tokens) == (3, 2)
        assert sorted(server.answered) == ["a", "a", "a", "b"]


LOSSES: dict[str, list[Reply]] = {
    "unavailable": [(503, OPEN, {})],
    "proxy": [(502, "<html>", {}), (504, "", {})],
    "busy": [(429, {}, {"Retry-After": "0"}), (429, {}, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})],
    "hung up": [HANG_UP, HANG_UP],
    "no json": [(200, "<html>welcome</html>", {})],
    "internal": [(500, OPEN, {}), (500, OPEN, {})],
    "odd header": [(503, OPEN, {"Retry-After": "nan"}), (503, OPEN, {"Retry-After": "-5"})],
}


@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_lost_server_is_waited_for(losses: list[Reply], tmp_path: Path) -> None:
    with serving(Server(*losses)) as server, gateway_to(server, tmp_path) as gateway:
        assert text_of(ask(gateway)) == "a!"
        assert len(server.seen) == len(losses) + 1
        assert (gateway.traffic.paused_s > 0) is (losses != LOSSES["internal"])


IDS: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1, "prompt": [5, 6, 7]}
TEXT: dict[str, Any] = {**IDS, "prompt": "a b"}


def logprobs(*values: Any, text: str = "", index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": {"token_logprobs": list(values)}}


FLAWED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no choice": ({}, {"choices": []}, "it has 0 choices with the indices none, not 1"),
    "two": ({}, {"choices": [{"index": 0}, {"index": 1}]}, "it has 2 choices with the indices 0, 1, not 1"),
    "same index": ({"n": 2}, {"choices": [{"index": 0}, {"index": 0}]}, "2 choices with the indices 0, not 2"),
    "batch": ({"prompt": ["a", "b"]}, {"choices": [{"index": 0}]}, "it has 1 choice with the indices 0, not 2"),
    "error": ({}, {"error": {"message": "no memory"}}, "it has no choices: {'error': {'message': 'no memory'}}"),
    "list": ({}, [1], r"it has no choices: \[1\]"),
    "no object": ({}, {"choices": ["a"]}, "it has no choices: "),
    "no echo": (
        IDS,
        {"choices": [logprobs(-1.0)]},
        "1 log probabilities for 3 tokens of the prompt and",
    ),
    "token before": (IDS, {"choices": [logprobs(None, -1, -1, -1, -1)]}, "5 log probabilities for 3 tokens"),
    "token lost": (IDS, {"choices": [logprobs(None, -1, -1)]}, "3 log probabilities for 3 tokens"),
    "NaN": (IDS, {"choices": [logprobs(None, -1, float("nan"), -1)]}, "it has the log probability nan"),
    "null": (IDS, {"choices": [logprobs(None, -1, None, -1)]}, "it has the log probability None"),
    "no logprobs": (IDS, {"choices": [{"index": 0, "logprobs": None}]}, "it has no log probabilities of tokens"),
    "other text": (TEXT, {"choices": [logprobs(-1.0, text="c")]}, "its text does not begin with the prompt"),
    "second of two": (
        {**IDS, "prompt": [[5, 6], [7]]},
        {"choices": [logprobs(None, -1, index=1), logprobs(None, -1, index=0)]},
        "2 log probabilities for 2 tokens",
    ),
}


@pytest.mark.parametrize(("asked", "answer", "flaw"), FLAWED.values(), ids=FLAWED)
def test_answer_of_another_form_is_an_error_and_not_kept(
    asked: dict[str, Any], answer: Any, flaw: str, tmp_path: Path
) -> None:
    with serving(Server((200, answer, {}))) as server, gateway_to(server, tmp_path) as gateway:
        refused = ask(gateway, **asked)
        assert refused.status_code == 422
        assert re.search(
            f"^The server's answer is not what was asked for: .*{flaw}", refused.json()["error"]["message"]
        )
        assert (gateway.traffic.errors, gateway.traffic.answered) == (1, 0)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("asked", "choices"),
    [
        (IDS, [logprobs(None, -1, -2.5, 0)]),
        ({**IDS, "max_tokens": 9}, [logprobs(None, -1, -2.5, 0, -7)]),
        ({**IDS, "max_tokens": 0}, [logprobs(None, -1, -2.5)]),
        ({**IDS, "prompt": [[5], [6, 7]], "n": 2}, [logprobs(*[-1] * (2 + at // 2), index=at) for at in (3, 2, 1, 0)]),
        (TEXT, [logprobs(None, -1, text="a b c")]),
        ({}, [{"text": "c"}]),
    ],
)
def test_answer_of_the_form_asked_for_passes(asked: dict[str, Any], choices: list[Any], tmp_path: Path) -> None:
    with serving(Server((200, {"choices": choices}, {}))) as server, gateway_to(server, tmp_path) as gateway:
        assert ask(gateway, **asked).json() == {"choices": choices}
        assert gateway.traffic.answered == 1


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422, 500])
def test_refusal_passes_through_and_is_not_kept(status: int, tmp_path: Path) -> None:
    refusals = [(status, {"error": {"message": "too long"}}, {})] * (3 if status == 500 else 1)
    with serving(Server(*refusals)) as server:
        with gateway_to(server, tmp_path) as gateway:
            refused = ask(gateway)
            assert (refused.status_code, refused.json()["error"]["message"]) == (status, "too long")
            assert gateway.traffic.errors == 1
        with gateway_to(server, tmp_path) as gateway:
            assert text_of(ask(gateway)) == "a!"


def test_server_followed_to_its_new_address() -> None:
    lines: list[str] = []
    gone = f"http://127.0.0.1:{free_port()}/v1"
    with serving(Server()) as server:
        addresses = iter([gone, gone, "unknown", server.url])

        class Moving:
            def resolve(self) -> Endpoint:
                address = next(addresses)
                if address == "unknown":
                    raise RuntimeError("no head")
                return Endpoint(address)

        with gateway_to(server, target=Moving(), log=lines.append) as gateway, ThreadPoolExecutor(8) as clients:
            assert set(clients.map(lambda n: text_of(ask(gateway, str(n))), range(8))) == {f"{n}!" for n in range(8)}
        assert sorted(server.answered) == [str(n) for n in range(8)]


def test_gives_up_when_server_stays_away() -> None:
    lines: list[str] = []
    target = FixedTarget(f"http://127.0.0.1:{free_port()}/v1")
    with Gateway(target, log=lines.append, recovery_timeout_s=0.5) as gateway:
        for _ in range(2):
            answer = ask(gateway)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gave_up")
        assert gateway.given_up is not None
        assert "has not answered for" in gateway.given_up
        assert lines == [gateway.given_up]
        assert not gateway.is_refused


def test_token_renewed_when_refused_and_given_up_later() -> None:
    tokens = iter(["old", "new"])

    class Rejoined:
        def resolve(self) -> Endpoint:
            return Endpoint(server.url, next(tokens))

    with serving(Server(token="new")) as server:
        with gateway_to(server, target=Rejoined()) as gateway:
            assert text_of(ask(gateway)) == "a!"
        with gateway_to(server) as gateway:
            assert ask(gateway).json()["error"]["code"] == "gave_up"
            assert gateway.is_refused


def test_request_that_breaks_its_server_is_an_error() -> None:
    """Other requests are answered in between: it is this request, and waiting would not end."""

    with serving(Server()) as server, gateway_to(server) as gateway:
        server.before_poison = lambda: ask(gateway, "fine")
        assert ask(gateway, "poison").status_code == 502
        assert server.answered == ["fine"] * 5
        assert gateway.given_up is None


def test_request_that_a_busy_server_puts_off_is_no_error() -> None:
    with serving(Server()) as server, gateway_to(server) as gateway:
        server.before_poison = lambda: ask(gateway, "fine")
        server.poison = [(503, OPEN, {"Retry-After": "0"})] * 6
        assert text_of(ask(gateway, "poison")) == "poison!"


@pytest.mark.parametrize("reply", [HANG_UP, (429, {"error": "too large for the limit"}, {"Retry-After": "0"})])
def test_request_that_alone_gets_no_answer_in_time_is_an_error(reply: Reply) -> None:
    with serving(Server()) as server, gateway_to(server, recovery_timeout_s=0.5, max_concurrent=1) as gateway:
        server.poison = [reply] * 100
        for _ in range(2):
            assert ask(gateway, "poison").status_code == 422
            assert text_of(ask(gateway)) == "a!"
        assert [ask(gateway, "poison").status_code for _ in range(2)] == [422, 503], "the server refuses all"
        assert gateway.given_up is not None


def test_answer_that_cannot_be_kept_reaches_client(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = tmp_path / "answers"
    with serving(Server()) as server, gateway_to(server, folder, log=lines.append) as gateway:
        folder.write_text("a file is in the way, as a full disk would be")
        assert [text_of(ask(gateway, prompt)) for prompt in "ab"] == ["a!", "b!"]
    assert [line.partition(":")[0] for line in lines] == [
        "Answers cannot be kept, and a next attempt asks for them again"
    ]


def test_stream_refused_and_not_sent() -> None:
    with serving(Server()) as server, gateway_to(server) as gateway:
        refused = ask(gateway, stream=True)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_streams")
        assert server.seen == []


def test_pool_that_ends_before_it_is_ready_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its starter may end it; engines that do not start are no reason to try again."""
    started: list[str] = []

    class Pool(ServedPool):
        def rejoin(self) -> ServedPool:
            raise PoolError("has ended")

        def status(self) -> PoolStatus:
            if self.name == "ended":
                raise PoolError("has ended")
            return PoolStatus(self.name, "", "", self.name)

        def wait_ready(self, timeout_s: float = 0.0) -> PoolStatus:
            if self.name != "ready":
                raise PoolError(self.name)
            return self.status()

    def start(config: ServingConfig) -> ServedPool:
        started.append(names.pop(0))
        return Pool("http://h/v1", "t", started[-1])

    monkeypatch.setattr(gateway_module, "ensure_pool", start)
    for names, error in ((["ended", "ready"], None), (["failed"], "failed"), (["ended"] * 3, "ended")):
        target, names = PoolTarget(ServingConfig("m", "command", command=("sh", "{port}"))), list(names)
        with pytest.raises(PoolError, match=error) if error else nullcontext():
            target.wait_ready()
        assert not names


def test_missing_key_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    endpoint = FixedTarget("http://h/v1/", "JUDGE_KEY").resolve()
    assert (endpoint.base_url, endpoint.token) == ("http://h/v1", "s3cret")
    assert "s3cret" not in repr(endpoint)
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ValueError, match="The environment variable JUDGE_KEY with the key for http://h/v1 is not set"):
        FixedTarget("http://h/v1", "JUDGE_KEY").resolve()
