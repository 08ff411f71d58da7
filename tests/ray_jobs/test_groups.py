"""Dependency groups of a project become one environment with the versions of its lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ray_jobs.tiny_wheels import write_lock, write_wheel
from tradewind.ray_jobs.dependencies import environment_of, find_project
from tradewind.ray_jobs.errors import BadDependencyGroupError

PYPROJECT = """
[project]
name = "My_Project"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["base"]

[project.optional-dependencies]
Speak_Up = ["speaker<2"]
everything = ["my-project[speak-up]", "whisper"]
nothing = []
windows = ["winonly; sys_platform == 'win32'"]
by-python = ["oldie; python_version < '3.12'"]
with-ray = ["ray[default]", "whisper"]

[dependency-groups]
talk = ["speaker", {include-group = "quiet"}]
quiet = ["whisper"]

[tool.uv]
package = false
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "1.5", "2.0"):
        write_wheel(folder, "speaker", version, requires=["voice"])
    write_wheel(folder, "voice", "0.3", requires=["breath; python_version < '3.12'", "winonly; os_name == 'nt'"])
    write_wheel(folder, "ray", "9.9", requires=["voice; extra == 'default'", "base"])
    for name in ("whisper", "base", "winonly", "oldie", "breath"):
        write_wheel(folder, name, "0.1")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "dags").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path / "project"


@pytest.fixture
def locked(project: Path, wheels: Path) -> Path:
    write_lock(project, wheels)
    return project


def packages(groups: list[str], project: Path) -> list[str]:
    environment = environment_of(groups, project / "dags")
    return environment["uv"]["packages"] if environment else []


def refused(groups: list[str], project: Path) -> str:
    with pytest.raises(BadDependencyGroupError) as caught:
        environment_of(groups, project / "dags")
    return str(caught.value)


# ---- uv.lock


BREATH = "breath==0.1 ; (python_full_version < '3.12')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        ("speak-up", [BREATH, "speaker==1.5", "voice==0.3"]),
        ("Speak_Up", [BREATH, "speaker==1.5", "voice==0.3"]),
        ("everything", [BREATH, "speaker==1.5", "voice==0.3", "whisper==0.1"]),
        ("talk", [BREATH, "speaker==1.5", "voice==0.3", "whisper==0.1"]),
        ("nothing", []),
        ("windows", []),
        ("by-python", ["oldie==0.1 ; (python_full_version < '3.12')"]),
        ("with-ray", ["base==0.1", BREATH, "voice==0.3", "whisper==0.1"]),
    ],
)
def test_uv_lock_packages_of_group_for_linux_exclude_ray(locked: Path, group: str, wanted: list[str]) -> None:
    assert packages([group], locked) == wanted


def test_packages_of_uv_lock_are_installed_without_resolving(locked: Path) -> None:
    environment = environment_of(["quiet"], locked / "dags", ["--no-index", "--find-links", "/wheels"])
    assert environment["uv"]["uv_pip_install_options"] == ["--no-deps", "--no-index", "--find-links", "/wheels"]
    assert environment["config"] == {"setup_timeout_seconds": 1800}


def test_named_version_added_to_group_and_overrides_lock(locked: Path) -> None:
    environment = environment_of(["talk", "speaker==1.0", "scipy==1.14"], locked / "dags")
    assert environment["uv"]["packages"] == [BREATH, "voice==0.3", "whisper==0.1", "speaker==1.0", "scipy==1.14"]
    assert environment["uv"]["uv_pip_install_options"] == []


def test_lock_older_than_group_is_refused(locked: Path) -> None:
    file = locked / "pyproject.toml"
    file.write_text(file.read_text().replace("nothing = []", 'nothing = []\nlater = ["whisper"]'))
    assert refused(["later"], locked) == f"{locked / 'uv.lock'} is older than the group 'later': run 'uv lock' there."


def test_environment_depends_only_on_project_and_groups(locked: Path) -> None:
    before = environment_of(["talk", "nothing"], locked)
    (locked / "dags" / "new.py").touch()
    assert environment_of(["talk", "nothing"], locked) == environment_of(["talk", "nothing"], locked / "dags") == before


def test_uv_lock_sources_other_than_index(project: Path) -> None:
    (project / "uv.lock").write_text("""
requires-python = ">=3.11"
[[package]]
name = "my-project"
source = { virtual = "." }
[package.optional-dependencies]
speak-up = [{ name = "from-git" }, { name = "from-url" }, { name = "member" }]
nothing = [{ name = "from-file" }]
[[package]]
name = "from-git"
version = "1"
source = { git = "https://host/repo?subdirectory=sub&rev=main#0a1b2c" }
[[package]]
name = "from-url"
version = "1"
source = { url = "https://host/x-1-py3-none-any.whl" }
[[package]]
name = "member"
version = "1"
source = { editable = "libs/member" }
dependencies = [{ name = "of-member" }]
[[package]]
name = "of-member"
version = "2"
source = { registry = "https://host/simple" }
[[package]]
name = "from-file"
version = "1"
source = { path = "../x-1-py3-none-any.whl" }
""")
    assert packages(["speak-up"], project) == [
        "from-git @ git+https://host/repo@0a1b2c#subdirectory=sub",
        "from-url @ https://host/x-1-py3-none-any.whl",
        "of-member==2",
    ]
    assert "takes 'from-file' from the file ../x-1-py3-none-any.whl" in refused(["nothing"], project)


# ---- pinned requirements


def test_pinned_file_gives_versions_and_via_dependencies(project: Path) -> None:
    (project / "requirements.lock").write_text(
        "# made by a tool\n"
        "breath==0.2 ; python_version < '3.12' \\\n    --hash=sha256:00\n    # via voice\n"
        "speaker==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n    # via my-project (pyproject.toml)\n"
        "other==7  # via base\n"
        "voice==0.3\n    # via\n    #   speaker\n    #   singer\n"
        "--pre\n"
    )
    environment = environment_of(["speak-up"], project / "dags")
    assert environment["uv"]["packages"] == ['breath==0.2; python_version < "3.12"', "speaker==1.0", "voice==0.3"]
    assert environment["uv"]["uv_pip_install_options"] == []


def test_lock_without_via_comments_pins_only_group_versions(project: Path) -> None:
    (project / "requirements.lock").write_text("speaker==1.0\nvoice==0.3\n")
    assert packages(["everything"], project) == ["speaker==1.0", "whisper"]


def test_lock_takes_precedence_over_other_requirements(project: Path) -> None:
    for version, file in (("1.1", "requirements-dev.txt"), ("1.2", "requirements.txt"), ("1.3", "requirements.lock")):
        (project / file).write_text(f"speaker=={version}\n")
        assert packages(["speak-up"], project) == [f"speaker=={version}"]


def test_pin_outside_project_requirement_is_refused(project: Path) -> None:
    (project / "requirements.lock").write_text("speaker==2.0\n")
    assert "pins speaker==2.0, and the project wants speaker<2: update the lock." in refused(["speak-up"], project)


# ---- groups and projects


def test_no_groups_and_ray_need_no_environment(project: Path) -> None:
    assert environment_of([], project) == {}
    assert packages(["with-ray"], project) == ["whisper"]


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (["speakup"], "'speakup', which is no extra or group of "),
        (["speakup"], "there are by-python, everything, nothing, quiet, speak-up, talk, windows, with-ray;"),
        *(([entry], "neither a group nor a requirement") for entry in ("not a name", "../x", "", "-r x.txt", "--pre")),
        ("train", "write a list of texts, such as ['scipy==1.14']."),
    ],
)
def test_groups_of_another_form_are_refused(project: Path, groups: list[str], says: str) -> None:
    assert says in refused(groups, project)


def test_requirement_needs_no_project_but_a_group_does(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    entries = ["scipy==1.14", "scipy<2,>=1", "scipy[fast]", "x @ https://host/x.whl"]
    assert [packages([entry], tmp_path) for entry in entries] == [[entry] for entry in entries]
    message = refused(["train"], tmp_path)
    assert f"there is no pyproject.toml at or above {tmp_path / 'dags'}" in message and "'scipy==1.14'" in message


def test_cyclic_and_unknown_group_includes_refused(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[dependency-groups]\na = [{include-group = "b"}]\nb = [{include-group = "a"}]\nc = [{include-group = "z"}]\n'
    )
    assert "'a' includes itself" in refused(["a"], project)
    assert "includes 'z', which does not exist" in refused(["c"], project)


LOCK = """
[[package]]
name = "my-project"
source = { virtual = "." }
[package.dev-dependencies]
talk = [{ name = "p0" }]
"""
MARKER = "platform_machine == '{}' or python_version == '9.{}'"
DIAMONDS = LOCK + "".join(
    f'[[package]]\nname = "p{n}"\nversion = "1"\ndependencies = ['
    + ", ".join(f'{{ name = "p{n + 1}", marker = "{MARKER.format(kind, n)}" }}' for kind in ("x86_64", "aarch64"))
    + "]\n"
    for n in range(30)
)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("uv.lock", "no = [toml"), ("uv.lock", "package = 3"), ("uv.lock", "[[package]]\nx = 1"),
        ("uv.lock", LOCK.replace("[{", "{").replace("}]", "}")), ("uv.lock", LOCK), ("uv.lock", DIAMONDS),
        ("uv.lock", "requires-python = '!'"), ("pyproject.toml", "no = [toml"), ("pyproject.toml", "project = 3"),
        ("pyproject.toml", "[project]\noptional-dependencies = [1]"),
        ("pyproject.toml", "[dependency-groups]\ntalk = 1"), ("pyproject.toml", "[dependency-groups]\ntalk = [1]"),
        ("pyproject.toml", f"{'a.' * 50_000}a = 1"), ("pyproject.toml", f"a = {'[' * 50_000}"),
        ("pyproject.toml", '"a\\"b".' * 30_000 + "a = 1"), ("pyproject.toml", "[a]\n" * 70_000),
    ],
)  # fmt: skip
def test_unreadable_project_or_lock_is_refused_by_name(project: Path, file: str, text: str) -> None:
    (project / file).write_text(text)
    assert str(project / file.replace("uv.lock", "")) in refused(["talk"], project)


def test_named_pipe_or_link_to_itself_is_no_lock(project: Path) -> None:
    os.mkfifo(project / "requirements.lock")
    assert "requirements.lock cannot be read: it is no regular file" in refused(["talk"], project)
    (project / "uv.lock").symlink_to("uv.lock")
    assert "uv.lock cannot be read: [Errno 40] Too many levels of symbolic links" in refused(["talk"], project)


def test_groups_that_include_each_other_twice_are_read_once(project: Path) -> None:
    twice = "".join(f"g{n} = [{{include-group = 'g{n + 1}'}}, {{include-group = 'g{n + 1}'}}]\n" for n in range(40))
    (project / "pyproject.toml").write_text(f"[dependency-groups]\n{twice}g40 = ['whisper']\n")
    assert packages(["g0"], project) == ["whisper"]


def test_pyproject_without_project_is_ignored(project: Path) -> None:
    (project / "dags" / "pyproject.toml").write_text("[tool.ruff]\n")
    found = find_project(project / "dags")
    assert found is not None and found.file == project / "pyproject.toml"
