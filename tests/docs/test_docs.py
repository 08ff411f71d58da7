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
from tests.support.pages import BLOCKS, FENCE, PAGES, PYTHON, ROOT, SCHEDULED, Block, title
from tradewind.cli.fleet.options import CLUSTERS, DEV
from tradewind.cli.options import DATA, EXPERIMENTS, JOB_ALIASES, CommandGroup
from tradewind.cli.serve_options import SERVE
from tradewind.operators.ray_job import RayJobOperator
from tradewind.provider_info import get_provider_info

REFERENCE = (ROOT / "docs" / "reference.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()

MAX_NOT_RUN = 2
RUN_FILE = """
import gc, os, runpy, sys
file = sys.argv[1]
sys.argv = [file]
os.chdir(os.path.dirname(file))
sys.path[0] = os.getcwd()
makes_dag = "experiment_dag(" in open(file).read() or "marin_experiment" in open(file).read()
runpy.run_path(file, run_name="experiment" if makes_dag else "__main__")  # a script would run the DAG's steps
from airflow.sdk import DAG
for dag in gc.get_objects():
    if isinstance(dag, DAG):
        print(f"{dag.dag_id}:", *("+".join(sorted(task.upstream_task_ids)) + ">" + task.task_id for task in dag.tasks))
"""
SAID = {
    "README": "Step 'total' is done: 2 of 2.",
    "quickstart": "Step 'script/sum', version script/sum-b9f120, attempt 1",
    "train_llama": ">plan plan>train\n",
    "downloads": ">plan plan>raw_pages plan>raw_words\n",
    "counts": ">plan plan>counts\n",
    "say_hello": ">say_hello\n",
    "reports": ">plan plan>report\n",
    "with_secret": ">train\n",
    "flaky": ">job\n",
    "train_by_hand": ">train\n",
    "race": "race_100-results+race_400-results>race_leaderboard\n",
    "rates": "rates_lr_0.001+rates_lr_0.01+rates_lr_0.1>rates_comparison\n",
    "best": "best_comparison>best_longer best_comparison>best_further\n",
    "law": "plan>law_100 plan>law_400 plan>law_1600 law_100+law_1600+law_400>law_fit\n",
    "tokens": "raw_llama+raw_pages>tokenized_pages raw_llama>tokenized_chats plan>tokenized_own\n",
    "wiki": "wiki_tokenizer+wiki_tokens+wiki_train>wiki_evaluate\n",
    "mixture": ">plan plan>mixture_train\n",
    "measured": "measured_new+measured_old>measured_comparison",
    "choices": ">plan plan>choices_nightly\n",
    "chat_models": ">plan plan>evaluation_helm_chat plan>evaluation_alpaca_eval_chat\n",
    "measure": ">plan plan>evaluation_lm_evaluation_harness_nightly\n",
    "texts": "tokenized_uncheatable_eval_wikipedia_english>texts_measured plan>texts_pages plan>texts_books\n",
    "after_upkeep": ">note\n",
    "resumable": ">plan plan>train\n",
    "long_pages": ">plan plan>long_pages\n",
    "data-recipes": " is done: ",
    "data-web": " is done: ",
    "data-quality": " is done: ",
    "languages": "lid+texts>languages languages+texts>kept",
    "data-duplicates": " is done: ",
    "ask_model": ">serve ask+serve>serve_end serve>ask\n",
    "summaries": "plan>articles articles>summaries\n",
}
"""What an example prints: lines of a script, or the tasks of a DAG that needs a cloud, hours or a package."""
PREFLIGHT = """
check({"batch_size": 8}, 4)
try:
    train.preflight({"batch_size": 8}, 3)
except ValueError as error:
    print(error)
"""
CLEANED = """
import gzip, pathlib
provenance = json.loads(next(pathlib.Path("outputs").glob("pages-*/provenance.json")).read_text())["counts"]
made = b"".join(gzip.open(file).read() for file in pathlib.Path("outputs").glob("dolma-*/documents/*.gz"))
print(provenance["duplicates"], "duplicates,", made.count(b"Page"), "documents,", made.count(b"rights"), "with rights")
"""
NEAR = """
import pathlib
from pyarrow import parquet
files = pathlib.Path("outputs").glob("clean/web-*/part-*.parquet")
print([text for file in files for text in parquet.read_table(file)["text"].to_pylist()])
"""
BEST = """
import pathlib
from pyarrow import parquet
files = pathlib.Path("outputs").glob("best-*/part-*.parquet")
texts = [text for file in files for text in parquet.read_table(file)["text"].to_pylist()]
print(len(texts), "documents,", sum("buy" in text for text in texts), "of the web")
"""
CLEAN = """
import pathlib
from pyarrow import parquet
outputs = pathlib.Path("outputs")
print([text for file in outputs.glob("clean-*/part-*") for text in parquet.read_table(file)["text"].to_pylist()])
print([file.read_text().splitlines()[-1] for file in outputs.glob("overlap-*/overlap.md")])
"""
CHATS = """
import gzip, pathlib
print(*[gzip.decompress(file.read_bytes()).decode() for file in pathlib.Path("outputs").glob("chats_again-*/*.gz")])
"""
OTHER = {
    "= decontaminate(": (CLEAN, "['A page about knots.']\n['| sailing | 1 | 1 | 1 (100.0%) |']\n"),
    "= chats_to_documents(": (CHATS, '"content":"Two."}],"id":1,"score":0.9}\n'),
    "= train_classifier(": (BEST, "30 documents, 0 of the web\n"),
    'attribute="own"': ("", "scores\n"),
    "= deduplicate_fuzzy(": (NEAR, "['Another page, about knots.']\n"),
    "pages = normalize(": (CLEANED, "2 duplicates, 4 documents, 1 with rights\n"),
    "executor_main(steps=[good])": ("", "rejected.c4.sentences 1, mask_pii.emails 1, kept 1\n"),
    'listdir("scores")': ("", "['part-00000-of-00001.parquet']\n"),
    "train.preflight = check": (PREFLIGHT, "batch_size=8 is not a multiple of the 3 devices\n"),
    'default_train("my_model"': ("print(trained.name, trained.resources.slice_type)", "checkpoints/my_model v4-32\n"),
    'default_dpo("my_model"': ("print(preferring.name, preferring.resources.slice_type)", "/my_model v4-32\n"),
    "print(mean_interval(": ("", "kind='bonett_price'"),
    "= crawl(": ("", "fetched 2, robots 1, status 1\n"),
    "= filter_documents(": ("", "rejected.c4.sentences 1, mask_pii.emails 1, kept 1\n"),
    "too_short": ("", "pages-00001-of-00002.jsonl.gz']\n{'too_short': 6}\n"),
    'approx_shard_bytes="400 B"': ("", "4\n"),
    "run_over_files(count": ("", "3 files: 0 made, 3 there already, 0 failed\n"),
    "marin_experiment": ("", "tutorials.hello_world: >plan plan>made\n"),
}
"""Part of another example -> code that is run after it, and what is printed."""
FORBIDDEN = re.compile(r"/work\b|/root\b|/tmp/(?!marin\b)|index-url|pypi\.|simple/|://[^\s/]*@")


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

    def run(self, text: str, folder: Path) -> tuple[int | None, str]:
        """Run an example as a file in ``folder``; return its exit code and its output."""
        file = folder / "experiment.py"
        file.write_text(text)
        if "tradewind.marin" in text:
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
def test_example_does_unchanged_what_its_page_says(examples: Examples, block: Block, tmp_path: Path) -> None:
    after, said = next((pair for text, pair in OTHER.items() if text in block.text), ("", ""))
    code, printed = examples.run(block.text + after, tmp_path)
    assert code == 0, printed
    assert said in printed
    assert SAID.get(str(block.dag_id), "") in printed
    if "executor_main(" in block.text and "ExecutorStep(" in block.text:
        statuses = [file.read_text() for file in (tmp_path / "outputs").rglob(".executor_status")]
        assert len(statuses) == block.text.count("ExecutorStep(")
        assert set(statuses) == {"SUCCESS"}
        values = [file.read_text() for file in (tmp_path / "outputs").rglob(".artifact.json")]
        assert "4950" in values, "the sum of both examples"


def test_every_example_has_its_claim_checked() -> None:
    dags = {block.dag_id for block in PYTHON if block.dag_id}
    assert dags == {*SAID, *SCHEDULED}
    assert all(any(text in block.text for block in PYTHON) for text in OTHER)
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


@pytest.mark.parametrize("group", [CLUSTERS, DATA, DEV, SERVE], ids=lambda group: group.prefix)
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
