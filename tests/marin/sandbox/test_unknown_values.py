"""A file may store and pass on cluster values, but not use them in names, paths, versions or branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, MAKE, made_name, names, put, refusal, run, run_text, write_checkout
from tradewind.marin import RefusedFileError

LIBRARY = "import dataclasses, typing, copy, json, math, os; from heavy.library import Config, SIZE, load\n"
HEAD = f"{LIBRARY}made = Config(1)\n"
END = "executor_main([ExecutorStep('s', None, None)])\n"

NEEDS = {
    "truth": "1 if made else 2",
    "truth of a comparison": "SIZE > 3",
    "text": "str(SIZE)",
    "text in a name": "f'name-{SIZE}'",
    "its repr": "repr(made)",
    "a path": "os.path.join('a', load('b'))",
    "number": "int(SIZE)",
    "an index": "[1, 2][SIZE]",
    "a sum": "SIZE + 1",
    "a sum from the right": "1 + SIZE",
    "a floor": "math.floor(SIZE)",
    "its sign": "-SIZE",
    "flags": "SIZE | 3",
    "equality": "made == Config(1)",
    "difference": "made != None",
    "None": "load('x') is None",
    "not None": "made.size is not None",
    "a constant's None": "None is SIZE",
    "identity": "made is Config(1)",
    "its type": "type(made) is Config",
    "membership": "3 in [SIZE]",
    "a key": "{made: 1}",
    "length": "len(load('x'))",
    "elements": "list(load('x'))",
    "count of steps": "[0] * SIZE",
    "what is in it": "'x' in load('x')",
    "an instance": "isinstance(3, Config)",
    "of a type": "isinstance(load('x'), str)",
    "hasattr": "hasattr(made, 'x')",
    "getattr with a default": "getattr(made, 'x', 3)",
    "callable": "callable(made)",
    "a change": "setattr(made, 'x', 3)",
    "an item's change": "made.__setitem__('x', 3)",
    "sorting": "sorted([SIZE, load('x')])",
    "json": "json.dumps({'a': made})",
    "versioned": "versioned(made)",
    "versioned inside": "versioned({'a': [made]})",
    "a replaced one": "str(dataclasses.replace(made, x=1).y)",
    "a dataclass": "dataclasses.is_dataclass(made)",
    "its fields": "[f.name for f in dataclasses.fields(made)]",
    "a kind that is matched": "match SIZE:\n    case int(): ...\n    case _: ...",
    "None that is matched": "match load('x'):\n    case None: ...\n    case _: ...",
    "elements that are matched": "match (1, SIZE):\n    case (1, None): ...\n    case _: ...",
    "None in a chain": "None is SIZE is None",
    "not None in a chain": "None is None is not SIZE",
    "identity by a function": "__import__('operator').is_(SIZE, None)",
    "its type in a table": "{int: 'a'}.get(type(SIZE), 'b')",
    "the name of its type": "type(SIZE).__name__",
    "its class": "made.__class__.__name__",
    "its docs": "str(made.__doc__)",
    "its name": "load.__name__",
    "a method of its": "made.__len__",
    "a function": "__import__('inspect').isfunction(load)",
    "a class": "__import__('inspect').isclass(Config)",
    "a dispatch": "__import__('functools').singledispatch(print)(SIZE)",
    "isinstance of builtins": "__import__('builtins').isinstance(SIZE, int)",
    "json by default": "json.dumps({'a': made}, default=lambda value: 'a')",
    "a pickle": "__import__('pickle').dumps(made)",
    "what is raised": "raise load.Error('x')",
    "an error that it may end": "with load.mesh(): 1 / 0",
}
LIBRARIES = {
    "a version": "__import__('heavy').__version__",
    "whether it has a name": "hasattr(__import__('heavy'), 'shard_map')",
    "a name with a default": "getattr(__import__('heavy'), 'shard_map', None)",
    "whether it is there": "__import__('importlib.util').util.find_spec('vllm')",
    "which is there": "__import__('importlib.metadata').metadata.version('jax')",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", [*NEEDS, *LIBRARIES])
def test_inspecting_cluster_value_is_refused_with_line_and_name(tmp_path: Path, form: str) -> None:
    line = {**NEEDS, **LIBRARIES}[form]
    message = str(refusal(tmp_path, f"{HEAD}\n{line}\n{END}", ":5 cannot become a DAG: "))
    assert "known only on the cluster" in message or "no JSON" in message
    if form not in ("json", "its type", "a replaced one", "its fields", *LIBRARIES):
        assert "heavy.library." in message


def test_standard_libraries_and_imported_modules_are_known(tmp_path: Path) -> None:
    text = "import importlib.util, heavy.inner, json, operator\n"
    text += "assert importlib.util.find_spec('json') and hasattr(heavy, 'inner') and getattr(json, 'no', 3) == 3\n"
    text += "assert json.dumps({1}, default=list) == '[1]' and operator.is_(None, None) and type(3) is int\n"
    text += "match (1, [2]):\n    case (1, [name]): name = f's{name}'\n"
    assert made_name(tmp_path, HEAD + text) == "s2"


@pytest.mark.parametrize("caught", ["Exception", "TypeError", "BaseException", "", "suppress"])
def test_refusal_cannot_be_caught(tmp_path: Path, caught: str) -> None:
    text = f"try:\n    name = f's{{int(SIZE)}}'\nexcept {caught}:\n    name = 's3'\n"
    if caught == "suppress":
        text = "import contextlib; name = 's3'\nwith contextlib.suppress(BaseException): name = f'{int(SIZE)}'\n"
    refusal(tmp_path, HEAD + text + MAKE, ":5 cannot become a DAG: it needs the number of heavy")


ALLOWED = {
    "annotations": "def f(a: Config | None, *b: 'typing.Any') -> dict[str, Config]: ...",
    "annotations of typing": "def f(a: typing.Optional[Config], b: typing.Callable[[Config], SIZE.Of]): ...",
    "subscripts": "def f(a: Config['x', 1], b: load.Float[Config, 'b n']): ...",
    "fields of a dataclass": (
        "@dataclasses.dataclass(frozen=True)\nclass Own:\n    a: Config = made\n    b: Config | None = None\n"
        "assert Own().a is made and dataclasses.replace(Own(), b=made).b is made"
    ),
    "a call that is only made": "load.silence(level=3)",
    "storing": "kept = {'a': [made, (SIZE,)]}; assert kept['a'][0] is made and made is not None",
    "copies": "assert copy.deepcopy([made])[0] is made and made is copy.copy(made)",
    "a decorator": "@load.jit(static=1)\ndef f(x): ...\n@load.cached\ndef g(x): ...",
    "a context": "with load.mesh(1) as mesh:\n    kept = mesh",
    "a module": (
        "T = typing.TypeVar('T')\nclass Layer(load.Module, typing.Generic[T]):\n    x: int\n    @load.jit\n"
        "    def go(self): ..."
    ),
    "an object's None": "assert made is not None and Config is not None and load is not None",
    "the users own": "own = object(); assert load('x') is not own and made is made",
    "its own class": "assert isinstance(made, Config)",
    "no class of ours": "assert not isinstance(made, (ExecutorStep,))",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ALLOWED)
def test_use_without_knowledge_of_value_is_allowed(tmp_path: Path, form: str) -> None:
    found = run_text(tmp_path, f"{HEAD}{ALLOWED[form]}\nexecutor_main([ExecutorStep('s', None, {{'x': made}})])\n")
    assert names(found) == [["s"]]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("Config(data=step)", "config.x is heavy.library.Config"),
        ("Config([1, {'a': step / 'b'}])", "config.x is heavy"),
        ("load(1).replace(out=this_output_path())", "config.x is heavy"),
        ("Config(n=versioned(3)).inner", "config.x is heavy"),
        ("dataclasses.replace(made, data=step)", "config.x is dataclasses.replace"),
        ("dataclasses.replace(Config(data=step), x=1)", "config.x is dataclasses.replace"),
        ("Config(load(versioned(3)))", "config.x is heavy"),
        ("['a', {'b': {1: Config(data=step)}}]", r"config.x.\[1\].b.1 is heavy"),
    ],
)
def test_cluster_value_built_from_step_is_refused_in_config(tmp_path: Path, given: str, reason: str) -> None:
    text = f"step = ExecutorStep('s', None, None)\nx = {given}\nexecutor_main([ExecutorStep('t', None, {{'x': x}})])\n"
    refusal(tmp_path, HEAD + text, f":5 .* step 't': {reason}")


OWN = """
from levanter.no_table.models import Base
@Base.register_subclass("own")
@dataclasses.dataclass(frozen=True)
class Own(Base):
    a: int = 1
    def size(self):
        return self.a * 2

@dataclasses.dataclass(frozen=True)
class Plain(Base):
    a: int = 1
class Bare(Base): ...
"""


def test_class_with_unknown_base_keeps_own_fields_and_methods(tmp_path: Path) -> None:
    text = HEAD + OWN + "assert Plain(a=3).a == 3 and Plain() == Plain(1) and isinstance(Plain(), Base)\n"
    run_text(
        tmp_path, text + "assert dataclasses.replace(Plain(), a=2).a == 2\nx = Plain().b, Plain.c\nexecutor_main([])\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Plain(hidden=3)", "Plain inherits from levanter.no_table.models.Base, whose fields are not known here"),
        ("f'{Plain()}'", "it needs the text of a Plain, which inherits from levanter.no_table.models.Base"),
        ("repr([Plain()])", "it needs the text of a Plain"),
        ("versioned(Plain())", "versioned.. is given a Plain, which inherits"),
        ("Plain().hidden + 1", "it needs the value of levanter.no_table.models.Base.hidden"),
        ("Own(a=1).size() + 1", "it needs the value of levanter.no_table"),
        ("Bare(ExecutorStep('s', None, None))", "it needs the constructor of a Bare"),
        ("1 if Bare() else 2", "it needs a method of a Bare, which inherits from levanter.no_table"),
        ("len(Plain())", "it needs a method of a Plain"),
        ("Bare() == Bare()", "it needs a method of a Bare"),
        ("hasattr(Bare(), 'hidden')", r"it needs hasattr\(levanter.no_table.models.Base, 'hidden'\)"),
        ("hasattr(Bare(), '__len__')", r"it needs hasattr\(levanter.no_table.models.Base, '__len__'\)"),
        ("getattr(Plain(), 'hidden', 3)", r"it needs getattr\(levanter.no_table.models.Base, 'hidden', ...\)"),
        ("isinstance(Bare(), dict)", r"it needs isinstance\(\) of a Bare, which inherits from levanter.no_table"),
        ("callable(Bare())", r"it needs callable\(levanter.no_table.models.Base\)"),
        ("dataclasses.asdict(Plain())", "it needs the fields of a Plain, which inherits from levanter.no_table"),
        ("dataclasses.fields(Plain)", "it needs the fields of a Plain"),
    ],
)
def test_use_of_unknown_base_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    refusal(tmp_path, f"{HEAD}{OWN}{line}\nexecutor_main([])\n", f":17 cannot become a DAG: {reason}")


def test_refusal_names_line_of_the_helper(tmp_path: Path) -> None:
    put(tmp_path / "src/marin/sizes.py", "from jax import devices\ndef count():\n    return len(devices())\n")
    write_checkout(tmp_path, a=f"{EXECUTOR}from marin.sizes import count\nexecutor_main([None] * count())\n")
    line = r"^src/marin/sizes.py:3 cannot .*: it needs the length of jax.devices\(...\).*\(loading"
    with pytest.raises(RefusedFileError, match=line):
        run(tmp_path, "a")


RAY = "import ray\n@ray.remote(num_cpus=2, memory=1024, resources={'TPU': 1})\ndef work(config): ...\n"


def test_a_ray_function_keeps_its_options_and_runs_a_step(tmp_path: Path) -> None:
    text = RAY + "@ray.remote\nclass Actor: ...\nexecutor_main([ExecutorStep('s', work.options(num_cpus=3), None)])\n"
    (step,) = run_text(tmp_path, text).calls[0].steps
    assert step.fn.options == {"num_cpus": 3, "memory": 1024, "resources": {"TPU": 1}}  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("work.options(num_cpus=1).remote(1)", r"work.remote\(\) starts a Ray task"),
        ("ray.get([])", r"ray.get\(\) needs a Ray cluster"),
        ("work(1)", "TypeError: Remote functions cannot be called directly"),
    ],
)
def test_nothing_of_ray_is_started_while_a_file_is_loaded(tmp_path: Path, line: str, reason: str) -> None:
    refusal(tmp_path, f"{RAY}{line}\n", f":5 cannot become a DAG: {reason}")
