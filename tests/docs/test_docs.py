"""Check the documentation: its examples run, and its links have targets."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import pytest
from airflow.utils.file import might_contain_dag

import tradewind
from tests.marin.checkouts import EXECUTOR, STEP, write_checkout
from tests.support.fork_server import PreparedPython
from tradewind.cli.fleet.options import CLUSTERS, DEV
from tradewind.cli.options import EXPERIMENTS, JOB_ALIASES, CommandGroup
from tradewind.operators.ray_job import RayJobOperator
from tradewind.provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NO_RUN = "<!-- no-run -->"
MAX_NOT_RUN = 2
RUN_FILE = """
import os, runpy, sys
file = sys.argv[1]
sys.argv = [file]
os.chdir(os.path.dirname(file))
sys.path[0] = os.getcwd()
makes_dag = "experiment_dag(" in open(file).read() or "marin_experiment" in open(file).read()
runpy.run_path(file, run_name="experiment" if makes_dag else "__main__")  # a script would run the DAG's steps
"""
FORBIDDEN = re.compile(r"/work\b|/root\b|/tmp/(?!marin\b)|index-url|pypi\.|simple/|://[^\s/]*@")


@dataclass(frozen=True)
class Block:
    """A fenced block and its position."""

    page: Path
    line: int
    language: str
    text: str
    may_run: bool

    def __str__(self) -> str:
        return f"{title(self.page)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        before = text[: found.start()]
        yield Block(
            page=page,
            line=before.count("\n") + 1,
            language=found[2],
            text=re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE),
            may_run=not before.rstrip().endswith(NO_RUN),
        )


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
FILES = [
    block
    for block in PYTHON
    if re.search(r"^(experiment_dag|executor_main|marin_experiments?|with DAG)\(", block.text, re.MULTILINE)
]


@dataclass(frozen=True)
class Examples:
    """Run each example in a separate process, a fork of one that has imported Airflow and the package."""

    python: PreparedPython
    airflow_home: Path

    def run(self, block: Block, folder: Path) -> tuple[int | None, str]:
        """Run a block as a file in ``folder``; return its exit code and its output."""
        file = folder / "experiment.py"
        file.write_text(block.text)
        if "tradewind.marin" in block.text:
            write_checkout(folder / "marin", tutorials__hello_world=f"{EXECUTOR}{STEP}executor_main([step])\n")
        before = self.files_of_airflow()
        program = self.python.start(RUN_FILE, str(file), env={"TRADEWIND_PREFIX": str(folder / "outputs")})
        printed = "".join(program.communicate())
        assert self.files_of_airflow() == before, "the example changes the Airflow that the other examples use"
        return program.returncode, printed

    def files_of_airflow(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.airflow_home.rglob("*")}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    home = tmp_path_factory.mktemp("airflow")
    env = {key: value for key, value in os.environ.items() if key not in ("MARIN_PREFIX", "TRADEWIND_STEP")}
    python = PreparedPython(["airflow.sdk", "tradewind"], env | {"AIRFLOW_HOME": str(home)})
    try:
        python.start("", env={}).communicate()  # returns once Airflow is imported, since the import creates folders
        yield Examples(python, home)
    finally:
        python.end()


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in PYTHON if block.may_run], ids=str)
def test_example_runs_unchanged(examples: Examples, block: Block, tmp_path: Path) -> None:
    code, printed = examples.run(block, tmp_path)
    assert code == 0, printed
    if "executor_main(" in block.text:
        statuses = [file.read_text() for file in (tmp_path / "outputs").rglob(".executor_status")]
        assert len(statuses) == block.text.count("ExecutorStep(")
        assert set(statuses) == {"SUCCESS"}


def test_at_most_two_examples_are_left_out() -> None:
    assert len(PYTHON) >= 6
    assert len([block for block in PYTHON if not block.may_run]) <= MAX_NOT_RUN


@pytest.mark.parametrize("block", FILES, ids=str)
def test_airflow_reads_an_example_that_is_a_dag_file(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "experiment.py"
    file.write_text(block.text)
    assert might_contain_dag(str(file), safe_mode=True)


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the relative links of a page: the file, and the anchor in it."""
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path if path else page), anchor


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that code hosts create for a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for file, anchor in links_of(page):
        assert file.exists(), f"{page.name} links to {file}"
        assert not anchor or anchor in anchors_of(file), f"{page.name} links to #{anchor} of {file.name}"


def test_every_page_is_in_the_index() -> None:
    listed = {file.resolve() for file, _ in links_of(ROOT / "docs" / "README.md")}
    assert {page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"} <= listed


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_page_names_existing_make_targets_and_no_own_machine(page: Path) -> None:
    assert FORBIDDEN.findall(page.read_text()) == []
    files = (ROOT / "Makefile", ROOT / "docker" / "images.mk")
    targets = {name for file in files for name in re.findall(r"^([a-z_-]+):", file.read_text(), re.MULTILINE)}
    commands = "".join(block.text for block in BLOCKS if block.page == page and block.language == "bash")
    mentioned = re.findall(r"^make ([a-z_-]+)", commands, re.MULTILINE)
    mentioned += re.findall(r"`make ([a-z_-]+)", FENCE.sub("", page.read_text()))
    assert set(mentioned) <= targets


def test_reference_names_public_names_and_their_arguments() -> None:
    assert [name for name in tradewind.__all__ if f"`{name}" not in REFERENCE] == []
    arguments = inspect.signature(inspect.unwrap(RayJobOperator.__init__)).parameters.values()
    own = [one.name for one in arguments if one.kind is one.KEYWORD_ONLY]
    assert "runtime_env" in own
    section = REFERENCE.partition("### `RayJobOperator`")[2].partition("###")[0]
    assert [name for name in own if f"`{name}`" not in section] == []
    section = REFERENCE.partition("### Experiments")[2].partition("\n## ")[0]
    parameters = inspect.signature(tradewind.experiment_dag).parameters
    assert "max_concurrent" in parameters
    assert [name for name in parameters if not re.search(rf"\b{name}\b", section)] == []


def test_command_line_page_names_every_experiment_option() -> None:
    flags = {flag for command in EXPERIMENTS for one in command.options for flag in one.flags if flag.startswith("-")}
    assert "--older-than" in flags
    assert [flag for flag in sorted(flags) if not re.search(rf"`[^`\n]*{flag}\b", COMMAND_LINE)] == []
    assert [command.name for command in EXPERIMENTS if f"### `{command.name}`" not in COMMAND_LINE] == []


@pytest.mark.parametrize("group", [CLUSTERS, DEV], ids=lambda group: group.prefix)
def test_command_line_page_names_every_option_of(group: CommandGroup) -> None:
    page = COMMAND_LINE.partition(f"## `tradewind {group.prefix.strip()}`")[2].partition("\n## ")[0]
    own = [command for command in group.commands if command.name not in JOB_ALIASES]  # which have a section above
    flags = {flag for command in own for one in command.options for flag in one.flags if flag[0] == "-"}
    assert [name for name in sorted(flags) if not re.search(rf"`{name}\b", page)] == []
    names = [command.name for command in group.commands]
    assert [name for name in names if not re.search(rf"^\|[^|]*`{name}\b", page, re.MULTILINE)] == []


def test_reference_names_every_option_field_and_variable() -> None:
    info = get_provider_info()
    options = info["config"]["tradewind"]["options"]
    fields = [name for connection in info["connection-types"] for name in connection["conn-fields"]]
    assert [name for name in [*options, *fields] if f"`{name}`" not in REFERENCE] == []
    sources = "".join(file.read_text() for file in (ROOT / "operators" / "tradewind").rglob("*.py"))
    used = set(re.findall(r'"(TRADEWIND_[A-Z_]+)"', sources))
    assert used
    assert [name for name in sorted(used) if name not in REFERENCE] == []


def test_reference_page_names_every_public_error() -> None:
    package = ROOT / "operators" / "tradewind"
    files = [*package.rglob("errors.py"), *(package / "plans").rglob("*.py"), *(package / "records").rglob("*.py")]
    files = [file for file in files if file.relative_to(package).parts[0] not in ("cli", "cloud_tpu")]
    sources = "".join(file.read_text() for file in files)
    public = set(re.findall(r"^class (\w+Error)\(", sources, re.MULTILINE))
    public -= {"StepConfigTypeError", "RecordFormatError", "StepRuntimeError"}
    assert [name for name in sorted(public) if f"`{name}" not in REFERENCE] == []


def test_architecture_page_shows_all_folders_and_real_modules() -> None:
    page, package = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "operators" / "tradewind"
    folders = {file.parent for file in package.rglob("*.py")} - {package}
    tree = page.partition("```text")[2].partition("```")[0]
    shown = re.findall(r"(\w+)/", tree)
    assert {folder.name for folder in folders} - {"drill_dags"} <= set(shown)
    named = set(re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)`", page)) - {"options.py", "provider_info.py"}
    assert len(named) > 30
    places = {name: package / name.replace(".", "/") for name in named}
    exists = {name for name, path in places.items() if Path(f"{path}.py").is_file() or (path / "__init__.py").is_file()}
    assert named - exists == set()


def test_every_test_named_for_a_threat_exists() -> None:
    threats = (ROOT / "docs" / "security.md").read_text().partition("## Threats")[2].partition("\n## ")[0]
    named = re.findall(r"`(tests/[\w/]+\.py)` \|", threats)
    assert len(named) == threats.count("\n| ") - 2  # without the table's header and separator
    assert [name for name in named if not (ROOT / name).is_file()] == []


def dotted_names(page: str) -> Iterator[str]:
    """Yield the qualified names of tables that follow ``In `tradewind.x`:`` on a page."""
    package = ""
    for line in page.splitlines():
        if line.startswith("## "):
            package = ""
        if found := re.search(r"[Ii]n `(tradewind\.(?:runtime\.pods|rehearsal))`:", line):
            package = found[1]
        if package and line.startswith("| `"):
            for name in re.findall(r"`([a-z_]+(?:\.\w+)+)[(`]", line):
                yield f"{package}.{name}"


@pytest.mark.slow
def test_dotted_names_of_the_reference_can_be_resolved() -> None:
    names = list(dotted_names(REFERENCE))
    assert len(names) > 25
    for name in names:
        resolve_name(name)
