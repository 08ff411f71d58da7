"""Which variables a job gets from the machine that submits it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tradewind.cli.jobs.env import discover_project, env_in, job_env, module_folders, one_variable
from tradewind.cli.output import CommandError, UsageError

TOKEN = "hf_" + "Ab1" * 12


def env_of(folder: Path, warnings: list[str], *given: list[str], secrets: tuple[str, ...] = ()) -> dict[str, str]:
    return job_env(given, secrets, folder, folder / ".marin.yaml", warnings.append)


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        (["A=1"], ("A", "1")), (["A=1=2"], ("A", "1=2")), (["A", "1"], ("A", "1")), (["A", "x=y"], ("A", "x=y")),
        (["A"], ("A", "")), (["A="], ("A", "")), (["MAX_TOKENS=100"], ("MAX_TOKENS", "100")),
        (["HF_TOKEN="], ("HF_TOKEN", "")), (["A=one\ntwo"], ("A", "one\ntwo")),
    ],
)  # fmt: skip
def test_a_variable_is_written_in_three_ways(values: list[str], variable: tuple[str, str]) -> None:
    assert one_variable(values) == variable


@pytest.mark.parametrize(
    "values", [["HF_TOKEN=hunter2"], ["WANDB_API_KEY", "hunter2"], ["HF_TOKEN"], [f"NOTE={TOKEN}"]]
)
def test_secret_in_env_option_is_refused_with_alternative(values: list[str]) -> None:
    name = values[0].partition("=")[0]
    with pytest.raises(UsageError, match=f"--secret {name}=projects/") as refused:
        one_variable(values)
    assert "hunter2" not in str(refused.value) and TOKEN not in str(refused.value)
    assert f'printf %s "${name}" | gcloud secrets create ' in str(refused.value)
    with pytest.raises(UsageError, match="does not have it.$"):
        one_variable(['$(reboot)"_TOKEN=hunter2'])
    with pytest.raises(UsageError, match="a Hugging Face token") as refused:
        one_variable([TOKEN])
    assert TOKEN not in str(refused.value)


def test_option_wins_over_file_and_machine_variables_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    warnings: list[str] = []
    assert env_of(tmp_path, warnings) == {}
    (tmp_path / "src").mkdir()
    (tmp_path / ".marin.yaml").write_text("env:\n  A: file\n  B: file\n  PYTHONPATH: here\n")
    assert env_of(tmp_path, warnings, ["B=option"]) == {"A": "file", "B": "option", "PYTHONPATH": "here"}
    assert warnings == []


def test_secrets_in_the_file_are_not_sent_and_warned_of(tmp_path: Path) -> None:
    (tmp_path / ".marin.yaml").write_text(f"env:\n  HF_TOKEN: {TOKEN}\n  A: 1\n")
    warnings: list[str] = []
    assert env_of(tmp_path, warnings) == {"A": "1"}
    [warning] = warnings
    assert "HF_TOKEN of .marin.yaml looks like a secret" in warning and TOKEN not in warning
    assert env_of(tmp_path, warnings, secrets=("HF_TOKEN",)) == {"A": "1"}
    assert warnings == [warning], "the job gets HF_TOKEN as a secret"
    with pytest.raises(UsageError, match="A is given by -e and by --secret"):
        env_of(tmp_path, warnings, ["A=1"], secrets=("A",))


def test_values_of_the_file_become_texts(tmp_path: Path) -> None:
    file = tmp_path / ".marin.yaml"
    assert env_in(file) == {}
    file.write_text("env: {A: 1, B: true, C: null, D: 1.5}\nother: 2\n")
    assert env_in(file) == {"A": "1", "B": "true", "C": "", "D": "1.5"}
    file.write_text("other: 2\n")
    assert env_in(file) == {}
    file.write_text("env:\n  A: |\n    one\n    two\n")
    assert env_in(file) == {"A": "one\ntwo\n"}


@pytest.mark.parametrize("text", [f"env: [{TOKEN}", f"env: {TOKEN}", "\x00"])
def test_a_file_that_cannot_be_read_is_named_and_not_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / ".marin.yaml").write_text(text)
    with pytest.raises(CommandError, match=r"\.marin\.yaml") as refused:
        env_in(tmp_path / ".marin.yaml")
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('env:\n  A: 1\n  B: "a\\0b"\n', 3, "the value of B has a NUL"),
        ('env:\n  "A\\nB": 1\n', 2, r"'A\\nB' is not the name of a variable"),
        ('env:\n  A: 1\n\n  "A=B": 1\n', 4, "'A=B' is not the name of a variable"),
        ('env:\n  "": 1\n', 2, "'' is not the name of a variable"),
        ("env:\n  A:\n    - b\n", 2, "the value of A is not a text"),
        ("other: 1\nenv: [a]\n", 2, "'env' must be a map"),
        ("env:\n  A: 1\n  A: 2\n", 3, "this is not valid YAML"),
        ("env:\n  A: 1\n  B: \x00\n", 1, "this is not valid YAML"),
        ("a: " + "[" * 100_000, 1, "this is not valid YAML"),
        ("a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, {'*b' + str(n - 1) + ', ' if n else ''}*a]\n" for n in range(9))
         + "env: {A: " + "[" + "*b8, " * 9000 + "*b8]}", 1, "this is not valid YAML"),
    ],
    ids=lambda text: ascii(text)[:30],
)  # fmt: skip
def test_impossible_variable_is_refused_with_file_and_line(text: str, line: int, why: str, tmp_path: Path) -> None:
    file = tmp_path / ".marin.yaml"
    file.write_text(text)
    with pytest.raises(CommandError, match=rf"\.marin\.yaml:\d+: {why}") as refused:
        env_in(file)
    assert f":{line}:" in str(refused.value) or line == 1
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        *(([name], "is not the name of a variable: write -e N") for name in ("A\nB=1", "A\x1b[2J=1", "a" * 501)),
        *((values, "write -e NAME=VALUE") for values in (["A", "1", "2"], ["A=1", "2"], ["=1"], ["", "1"], [""])),
        (["A B", "1"], "'A B' is not the name of a variable"),
        (["A=b\0c"], "the value of -e A has a NUL, which no variable can have"),
    ],
    ids=ascii,
)
def test_impossible_env_option_is_refused(values: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        one_variable(values)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_the_commit_and_the_workspaces_modules_are_found(tmp_path: Path) -> None:
    for folder in ("src", "lib/one/src", "lib/two/src", "lib/bare", "sub/a/src", "sub/b"):
        (tmp_path / folder).mkdir(parents=True)
    workspace = '[tool.uv.workspace]\nmembers = ["lib/*", "lib/one"]\nexclude = ["lib/two"]\n'
    (tmp_path / "pyproject.toml").write_text(workspace)
    modules = ["a", "b", "gone"]
    text = "".join(f'[submodule "{name}"]\n\tpath = sub/{name}\n\turl = x%y\n' for name in modules)
    (tmp_path / ".gitmodules").write_text(text)
    assert module_folders(tmp_path) == ["src", "lib/one/src", "sub/a/src", "sub/b"]
    assert "GIT_COMMIT" not in discover_project(tmp_path)  # the repository has no commit yet
    for words in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m x"):
        subprocess.run(["git", "-C", str(tmp_path), *words.split()], check=True)
    commit = subprocess.check_output(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], text=True).strip()
    found = discover_project(tmp_path)
    assert found == {"GIT_COMMIT": commit, "PYTHONPATH": "src:lib/one/src:sub/a/src:sub/b"}


@pytest.mark.parametrize(
    ("project", "modules"),
    [
        ('[tool.uv.workspace]\nmembers = ["/etc/*"]\n', ""),
        ('[tool.uv.workspace]\nmembers = ["../*"]\n', ""),
        ("[tool.uv.workspace]\nmembers = [7]\nexclude = {a = 1}\n", ""),
        ("[tool]\nuv = 7\n", ""),
        ("tool = [1]\n", ""),
        ("a = " + "[" * 100_000, ""),
        (".".join("a" * 50_000) + " = 1", ""),
        ("a = " + "1" * 5000, ""),
        (None, None),
        ("", '[submodule "a"]\n\tpath = /etc\n'),
        ("", '[submodule "a"]\n\tpath = ../outside\n'),
        ("", '[submodule "a"]\n\tpath = in/../../outside\n'),
        ("", '[submodule "a"]\n\tpath = a:b\n'),
        ("", "[submodule"),
        ("", "\x00"),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_foreign_project_adds_no_outside_modules_and_no_error(
    project: str | None, modules: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    for name in ("code/in", "code/a:b/src", "outside/src"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in (("pyproject.toml", project), (".gitmodules", modules)):
        os.mkfifo(folder / name) if text is None else (folder / name).write_text(text)
    assert module_folders(folder) == []
