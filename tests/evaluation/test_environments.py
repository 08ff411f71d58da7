"""Environments of harnesses: found, refused with the line that makes them, made once, and never half made.

A shell script stands for Python, venv and pip. It writes what it was asked, so that a real environment of minutes is
not needed here; ``make evaluation-envs`` makes those, and ``test_isolated_harnesses.py`` uses them.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.check_lock import flaws, pins
from tests.evaluation.harness_stubs import harness_python
from tests.support.waiting import until
from tradewind.evaluation import environments
from tradewind.evaluation.environments import (
    ALPACA_EVAL,
    ENVIRONMENTS,
    HELM,
    MAKE,
    find_environment,
    is_complete,
    main,
    make_environment,
)
from tradewind.evaluation.isolated_process import isolated_environment

REAL_PYTHON = sys.executable
PYTHON = """#!/bin/sh
echo "$@" >> "{folder}/asked"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; touch "$3/pyvenv.cfg"; cp "$0" "$3/bin/stub"; cp "$0" "$3/bin/python";;
  *builder.lock*) cat "$8" >> "{folder}/builder";;
  *"pip install"*) while [ -e "{folder}/hold" ]; do sleep 0.05; done; if [ -e "{folder}/fail" ]; then
    echo "ERROR: no index" >&2; exit 1; fi;;
  -I*) echo 1.2; echo "{folder}/site/package";;
esac
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "stub"
    script.write_text(PYTHON.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(environments, "_python", lambda folder: folder / "bin" / "stub")  # else counted as a Python
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    for environment in ENVIRONMENTS.values():
        monkeypatch.delenv(environment.variable, raising=False)
    monkeypatch.delenv(MAKE, raising=False)
    return script


def asked(python: Path) -> list[str]:
    return (python.parent / "asked").read_text().splitlines()


def test_locks_pin_the_harnesses_with_hashes() -> None:
    for environment in ENVIRONMENTS.values():
        text = environment.lock.read_text()
        assert [*flaws(text)] == []
        wanted = environment.lock.with_suffix(".in").read_text()
        assert f"{environment.distribution}" in wanted and pins(text)[environment.distribution] in wanted
        assert not pins(text).keys() & {"torch", "ray", "apache-airflow"}


def test_missing_environment_is_refused_with_the_command(python: Path) -> None:
    with pytest.raises(ValueError) as raised:
        find_environment(HELM)
    assert f"`{python} -m tradewind.evaluation.environments helm`" in str(raised.value)
    assert "TRADEWIND_HELM_PYTHON" in str(raised.value)
    assert not (python.parent / "prefix").exists(), "nothing is made"


@pytest.mark.parametrize("script", ["exit 1", "echo 1.2", "nothing"])
def test_a_python_without_the_harness_is_refused(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    other = tmp_path / "other"
    if script != "nothing":
        other.write_text(f"#!/bin/sh\n{script}\n")
        other.chmod(0o755)
    monkeypatch.setenv(ALPACA_EVAL.variable, str(other))
    with pytest.raises(ValueError, match="TRADEWIND_ALPACA_EVAL_PYTHON=.*other is no Python with alpaca-eval"):
        find_environment(ALPACA_EVAL)


def test_the_variable_names_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = harness_python(tmp_path, monkeypatch, HELM, "")
    found = find_environment(HELM)
    assert (found.executable, found.version, found.packages) == (str(made), "9.9", tmp_path / "site")


def test_the_command_makes_an_environment_once(python: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["helm", "alpaca_eval"]) == main(["helm"]) == 0
    folder = HELM.default_folder
    assert is_complete(HELM, folder) and find_environment(HELM).executable == str(folder / "bin" / "stub")
    assert f"TRADEWIND_HELM_PYTHON={folder}/bin/stub" in capsys.readouterr().out
    lines = [line for line in asked(python) if f"venv {folder}" in line or f"-r {HELM.lock}" in line]
    assert len(lines) == 2 and "--no-deps --require-hashes --no-build-isolation" in lines[1]
    assert (python.parent / "builder").read_text().count("setuptools==") == 1, "what builds is pinned too"


def test_a_node_makes_it_only_where_the_deployment_says_so(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAKE, "1")
    assert find_environment(ALPACA_EVAL).version == "1.2"
    assert is_complete(ALPACA_EVAL, ALPACA_EVAL.default_folder)


def test_failed_install_is_told_and_never_used(python: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (python.parent / "fail").touch()
    assert main(["helm"]) == 1
    assert "ended with exit code 1:\nERROR: no index" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not on this node"):
        find_environment(HELM)
    (python.parent / "fail").unlink()
    assert main(["helm"]) == 0
    assert sum("venv" in line for line in asked(python)) == 2, "the half that was there is made anew"


def test_another_python_is_another_environment(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_environment(HELM, before := HELM.default_folder)
    monkeypatch.setattr(environments.sys, "version_info", SimpleNamespace(major=3, minor=99))
    assert HELM.default_folder != before and not is_complete(HELM, before)


def test_a_folder_with_other_files_is_left_alone(python: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="mine has other files: give an empty folder"):
        make_environment(HELM, mine)
    with pytest.raises(ValueError, match="cannot be made in .*thesis.txt/env: File exists. Give another --folder"):
        make_environment(HELM, mine / "thesis.txt" / "env")
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_concurrent_makers_make_one_environment(python: Path) -> None:
    (python.parent / "hold").touch()
    folder, said = HELM.default_folder, list[str]()
    makers = [threading.Thread(target=make_environment, args=(HELM, folder, said.append)) for _ in range(3)]
    for maker in makers:
        maker.start()
    until(lambda: sum("Waiting" in line for line in said) == 2, "two makers wait")
    assert not is_complete(HELM, folder)
    (python.parent / "hold").unlink()
    for maker in makers:
        maker.join()
    assert is_complete(HELM, folder) and sum("venv" in line for line in asked(python)) == 1


@pytest.mark.slow
def test_pip_of_a_killed_maker_still_holds_the_lock(python: Path, tmp_path: Path) -> None:
    (python.parent / "hold").touch()
    folder = HELM.default_folder
    code = "import sys; sys.executable, folder = sys.argv[1:]; import pathlib; from tradewind.evaluation import "
    code += "environments as e; e.make_environment(e.HELM, pathlib.Path(folder))"
    maker = subprocess.Popen([REAL_PYTHON, "-c", code, str(python), str(folder)])
    until(lambda: (tmp_path / "asked").exists() and f"-r {HELM.lock}" in asked(python)[-1], "pip begins")
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    with folder.with_name(f"{folder.name}.lock").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (python.parent / "hold").unlink()
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert not is_complete(HELM, folder)
    make_environment(HELM, folder)
    assert is_complete(HELM, folder)


def test_a_harness_gets_proxies_only_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "SSL_CERT_FILE", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "given")
    offline, online = (isolated_environment("/home/of/harness", network=network) for network in (False, True))
    assert offline["HF_HUB_OFFLINE"] == "1" and "HTTPS_PROXY" not in offline
    assert online["HTTPS_PROXY"] == online["SSL_CERT_FILE"] == "given" and "HF_HUB_OFFLINE" not in online
    for variables in (offline, online):
        assert variables["HOME"] == "/home/of/harness" and not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & variables.keys()
