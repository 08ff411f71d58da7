"""``tradewind data run``: options, arguments of the script, and errors in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tradewind.cli.main import main
from tradewind.datasets import set_flow_backend

SCRIPT = """
import sys
from tradewind.datasets import Dataset, flow_backend
backend = flow_backend()
print(backend.kind, backend.max_parallelism, sys.argv[1:])
print(list(backend.execute(Dataset.from_files(sys.argv[1]).load_text().count())))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "script.py").write_text(SCRIPT)
    return str(tmp_path / "script.py")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("--backend sync --max-parallelism 3 SCRIPT SCRIPT -x", 0, "sync 3 ['SCRIPT', '-x']\n"),
        ("--backend sync SCRIPT SCRIPT", 0, "[1]\n"),
        ("--backend sync --dry-run SCRIPT SCRIPT", 0, "[]\n"),
        ("SCRIPT SCRIPT --dry-run", 2, "--dry-run follows the script, so it would be an argument of the script"),
        ("SCRIPT nowhere/*", 1, "SCRIPT: No file matches nowhere/*."),
        ("--memory 2XB SCRIPT", 2, "memory is '2XB'"),
        ("nowhere.py", 2, "There is no script nowhere.py."),
    ],
)
def test_script_runs_or_is_refused_in_one_sentence(
    script: str, capsys: pytest.CaptureFixture[str], words: str, code: int, told: str
) -> None:
    try:
        with pytest.raises(SystemExit) as ended:
            main(["data", "run", *words.replace("SCRIPT", script).split()])
    finally:
        set_flow_backend(None)
    printed = "".join(capsys.readouterr())
    assert ended.value.code == code, printed
    assert told.replace("SCRIPT", script) in printed


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("ls FOLDER", 0, "a.jsonl  file  16  "),
        ("ls --json --prefix x FOLDER", 0, "[]"),
        ("ls FOLDER/a.jsonl", 1, "is a file, and no folder."),
        ("show FOLDER/a.jsonl", 0, "JSON lines, 16 bytes"),
        ("show --filter b:x --columns b FOLDER/a.jsonl", 0, '1  "x"'),
        ("show --json FOLDER/a.jsonl", 0, '"at": "0:1@'),
        ("show FOLDER/a.txt", 0, "text, 4 bytes\n\na\\x1b\nb\n"),
        ("show FOLDER/nothing", 1, "Nothing is at FOLDER/nothing"),
    ],
)
def test_stored_data_is_listed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, told: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":1,"b":"x"}\n')
    (tmp_path / "a.txt").write_text("a\x1b\nb")
    with pytest.raises(SystemExit) as ended:
        main(["data", *words.replace("FOLDER", str(tmp_path)).split()])
    printed = "".join(capsys.readouterr())
    assert ended.value.code == code, printed
    assert told.replace("FOLDER", str(tmp_path)) in printed, printed
