"""Every configured notifier sends an announcement as plain text, never as a template."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from airflow.sdk import BaseNotifier, Context

from tests.fleet.fleets import many_clusters, write_fleet
from tests.support.http_server import serving
from tradewind.cli.main import main
from tradewind.deployment.announce import MAX_MESSAGE_CHARS, FleetError, announce
from tradewind.machine import free_port

POST = "tests.deployment.test_announce.PostNotifier"


class PostNotifier(BaseNotifier):
    """Post a text to a URL, as notifiers of chat services do."""

    template_fields = ("text", "url")

    def __init__(self, *, url: str, text: str = "{{ announcement }}") -> None:
        super().__init__()
        self.url = url
        self.text = text

    def notify(self, context: Context) -> None:
        urllib.request.urlopen(self.url, data=self.text.encode()).close()


@dataclass
class Board:
    """A server that receives announcements."""

    url: str
    posted: list[str] = field(default_factory=list)


@pytest.fixture
def board() -> Iterator[Board]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            board.posted.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print no log line."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        board = Board(f"http://127.0.0.1:{server.server_port}/hook")
        yield board


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(*entries: object) -> None:
        monkeypatch.setenv("AIRFLOW__TRADEWIND__ANNOUNCE_NOTIFIERS", json.dumps(entries))

    return set_up


def test_every_notifier_sends_text_that_is_no_template(board: Board, configure: Callable[..., None]) -> None:
    text = "{{ clusters }}: {{ announcement }} ({{ announced_by }})"
    configure(
        {"classpath": POST, "kwargs": {"url": board.url}},
        {"classpath": POST, "kwargs": {"url": board.url, "text": text}},
    )
    assert announce("{{ 6 * 7 }} o'clock\nüber", ["here", "extra-0"], announced_by="ada") == ["PostNotifier"] * 2
    assert board.posted == ["{{ 6 * 7 }} o'clock\nüber", "here, extra-0: {{ 6 * 7 }} o'clock\nüber (ada)"]


def test_failing_notifier_blocks_no_other_and_its_url_is_hidden(board: Board, configure: Callable[..., None]) -> None:
    secret = f"http://127.0.0.1:{free_port()}/s3cret"
    configure({"classpath": POST, "kwargs": {"url": secret}}, {"classpath": POST, "kwargs": {"url": board.url}})
    with pytest.raises(FleetError) as failed:
        announce("hello", ["here"])
    assert str(failed.value) == "These notifiers failed: PostNotifier (URLError). PostNotifier did announce it."
    assert board.posted == ["hello"]


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"classpath": "nowhere.Notifier"}, "nowhere.Notifier cannot be imported here"),
        ({"classpath": "Notifier"}, "Notifier cannot be imported here"),
        ({"classpath": "tests.deployment.test_announce.Gone"}, "cannot be imported here"),
        ({"classpath": "json.JSONDecoder"}, "json.JSONDecoder is not an Airflow notifier"),
        ({"classpath": POST, "kwargs": {"uri": "s3cret"}}, r"does not accept these kwargs \(TypeError.*: uri\."),
        ({"classpath": POST, "kwarg": {}}, "is not a JSON list of a classpath and kwargs each"),
        ("s3cret", "is not a JSON list"),
    ],
)
def test_invalid_notifier_is_reported_before_any_announcement(
    board: Board, configure: Callable[..., None], entry: object, error: str
) -> None:
    configure({"classpath": POST, "kwargs": {"url": board.url}}, entry)
    with pytest.raises(FleetError, match=error) as failed:
        announce("hello", ["here"])
    assert not board.posted and "s3cret" not in str(failed.value)


def test_without_a_notifier_or_a_text_nothing_is_announced(
    board: Board, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ANNOUNCE_NOTIFIERS", "[s3cret")
    with pytest.raises(FleetError, match="is not a JSON list"):
        announce("hello", ["here"])
    configure()
    with pytest.raises(FleetError, match="No notifier is configured, so nothing was announced"):
        announce("hello", ["here"])
    configure({"classpath": POST, "kwargs": {"url": board.url}})
    for text in (" \n", "a" * (MAX_MESSAGE_CHARS + 1)):
        with pytest.raises(FleetError, match="Nothing was announced"):
            announce(text, ["here"])
    assert not board.posted


def test_command_requires_clusters_and_message(
    board: Board, configure: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path, many_clusters(1), inside=False)))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # monkeypatch restores it
    configure({"classpath": POST, "kwargs": {"url": board.url, "text": "{{ clusters }}: {{ announcement }}"}})

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["cluster", "announce", *words])
        return int(end.value.code or 0), capsys.readouterr().err

    assert run("here")[0] == run("--all", "here", "hello")[0] == run("hear", "hello")[0] == 2
    code, err = run("here", "hello", "--dry-run")
    assert code == 0 and f"Would announce for here, through {POST}: hello" in err and not board.posted
    assert run("here", "hello") == (0, "tradewind: Announced through PostNotifier.\n")
    assert run("--all", "bye")[0] == 0
    assert board.posted == ["here: hello", "here, extra-0: bye"]
