"""Kept answers: read in the next attempt, on each store; what is torn, foreign or of another model is not used."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tradewind.serving import answers as module
from tradewind.serving.answers import Answers, RequestKey

SCOPE = {"model": "m", "engine": "levanter"}
LONG = b'{"choices": [{"text": "' + b"y" * 100_000 + b'"}]}'


def kept(folder: Path | str, scope: object = SCOPE) -> tuple[Answers, list[str]]:
    lines: list[str] = []
    return Answers(str(folder), scope, lines.append), lines  # type: ignore[arg-type]


def filled(folder: Path | str) -> list[RequestKey]:
    answers, _ = kept(folder)
    keys = [answers.key("completions", {"prompt": prompt}) for prompt in ("a", "a", "b")]
    for number, key in enumerate(keys):
        answers.add(key, LONG if number == 2 else b"%d" % number)
    answers.close()
    return keys


def test_answers_found_in_next_attempt(any_folder: str) -> None:
    first = filled(any_folder)
    answers, lines = kept(any_folder)
    assert lines == ["3 requests were answered in an earlier attempt and are not sent again."]
    assert [answers.find(key) for key in first] == [b"0", b"1", LONG]
    again = [answers.key("completions", {"prompt": "a"}) for _ in range(3)]
    assert [answers.find(key) for key in again] == [b"0", b"1", None]
    answers.add(again[2], b"2")
    answers.rewind()
    assert [answers.find(answers.key("completions", {"prompt": "a"})) for _ in range(3)] == [b"0", b"1", b"2"]
    answers.remove()
    assert len(kept(any_folder)[0]) == 0


def test_answers_of_killed_attempt_found_without_its_last_line(tmp_path: Path) -> None:
    """An attempt that is killed closes nothing; its last line may be torn anywhere."""
    answers, _ = kept(tmp_path)
    keys = [answers.key("completions", {"prompt": number}) for number in range(3)]
    for key in keys:
        answers.add(key, b"%d" % key.number)
    (segment,) = tmp_path.iterdir()
    whole = segment.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last + 1, len(whole)):
        segment.write_bytes(whole[:end])
        found, lines = kept(tmp_path)
        assert [found.find(key) for key in keys] == [b"0", b"0", None]
        assert lines[1:] == ["1 stored answers cannot be read: their requests are sent again."]


def test_answers_after_a_full_disk_found(tmp_path: Path) -> None:
    answers, _ = kept(tmp_path)
    keys = [answers.key("completions", {"prompt": number}) for number in range(3)]
    answers.add(keys[0], b"0")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(OSError):
            answers.add(keys[1], LONG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    answers.add(keys[2], b"2")
    for reader in (answers, kept(tmp_path)[0]):
        assert [reader.find(key) for key in keys] == [b"0", None, b"2"]


ODD = {
    "text": b"no json\n",
    "other": b"[1]\n",
    "key": b'{"key": "../../etc", "n": 0, "z": "eJwDAAAAAAE="}\n',
    "number": b'{"key": "' + b"0" * 64 + b'", "n": true, "z": "eJwDAAAAAAE="}\n',
    "packed": b'{"key": "' + b"0" * 64 + b'", "n": 0, "z": "!!"}\n',
    "torn inside": b'{"key": "' + b"0" * 64 + b'", "n": 0, "z": "eJwD"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "bytes": b"\xff\xfe\n",
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
def test_line_that_is_no_answer_skipped(line: bytes, tmp_path: Path) -> None:
    keys = filled(tmp_path)
    (segment,) = tmp_path.iterdir()
    segment.write_bytes(line + segment.read_bytes())
    answers, lines = kept(tmp_path)
    assert [answers.find(key) for key in keys] == [b"0", b"1", LONG]
    assert lines[1:] == ["1 stored answers cannot be read: their requests are sent again."]


@pytest.mark.parametrize(
    "scope", [SCOPE | {"model": "other"}, SCOPE | {"engine": "vllm"}, SCOPE | {"seed": 1}, {}], ids=str
)
def test_answers_of_another_model_not_used(scope: dict[str, object], tmp_path: Path) -> None:
    filled(tmp_path)
    answers, lines = kept(tmp_path, scope)
    assert (len(answers), lines) == (0, [])


def test_key_tells_requests_apart(tmp_path: Path) -> None:
    answers, _ = kept(tmp_path)
    bodies = [
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"prompt": "a"}),
        ("completions", {"prompt": ["a"]}),
        ("completions", {"prompt": "a", "seed": 1}),
        ("completions", {"prompt": "a", "seed": 1.0}),
        ("completions", {"prompt": "\ud800"}),
    ]
    assert len({answers.key(*body).digest for body in bodies}) == len(bodies)
    same = answers.key("completions", {"seed": 1, "prompt": "a"})
    assert same == RequestKey(answers.key("completions", {"prompt": "a", "seed": 1}).digest, 1)


def test_large_answers_in_bucket_are_several_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SEGMENT_CHARS", 10)
    keys = filled(f"memory://{tmp_path.name}")
    answers, _ = kept(f"memory://{tmp_path.name}")
    assert [answers.find(key) for key in keys] == [b"0", b"1", LONG]
