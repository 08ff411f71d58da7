"""Module sandbox of the user's code: imports find its own modules, Tradewind's, and stubs.

A sandbox is reached only through the ``__import__`` of the code loaded in it. So a real levanter or numpy of this
process is neither touched nor found, not even by functions of the file that import something later.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import inspect
import itertools
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from tradewind.marin import utils
from tradewind.marin.checkouts import required_libraries, requirement_files
from tradewind.marin.legacy import modules
from tradewind.marin.legacy.classes import builder
from tradewind.marin.legacy.table import module_rows
from tradewind.marin.names.steps import REPLACEMENTS
from tradewind.marin.offline import answers_fingerprint
from tradewind.marin.refusals import (
    FileFingerprint,
    SourceLine,
    file_fingerprint,
    place_below,
    refuse,
    running_place,
)
from tradewind.marin.sandbox.answers import KNOWN_FUNCTIONS
from tradewind.marin.sandbox.builtins import UserBuiltins
from tradewind.marin.sandbox.executor_api import OVERRIDES
from tradewind.marin.sandbox.identity import compile_file
from tradewind.marin.sandbox.stubs import Stub, StubModule, StubOrigin
from tradewind.steps import RemoteFunction

# Helpers of Marin's ``experiments`` package, for files that import them without having them in a checkout.

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "experiments.anneal_config": ("configs",),
    "experiments.defaults": ("configs", "data", "tasks", "training"),
    "experiments.evals.engine_configs": ("eval_resources",),
    "experiments.evals.evals": ("evaluations",),
    "experiments.evals.exp1600_uncheatable_evals": ("data",),
    "experiments.evals.resource_configs": ("eval_resources",),
    "experiments.evals.task_configs": ("tasks",),
    "experiments.llama": ("models",),
    "experiments.paloma": ("data",),
    "experiments.simple_sft_config": ("configs",),
    "experiments.simple_train_config": ("configs",),
    "experiments.speedrun.prebuilt_caches": ("speedruns",),
    "marin.download.huggingface.download_hf": (),
    "marin.download.uncheatable_eval.download": ("data",),
    "marin.evaluation.run": (),
    "marin.speedrun.speedrun": ("speedruns",),
    "marin.utils": (),
}
"""Module -> modules of ``marin.defaults`` with its most used names."""


@functools.cache
def names_of(module: str) -> Mapping[str, Any]:
    """Return name → Tradewind's object, for one of ``MODULES``; loaded only if a checkout lacks it."""
    sources = [importlib.import_module(f"tradewind.marin.defaults.{source}") for source in MODULES[module]]
    names = {name: getattr(source, name) for source in sources for name in source.__all__}
    if module == "experiments.llama":
        names |= {name: names["llama"](name) for name in names["LLAMAS"]}
    if module == "experiments.defaults":  # other Marin files import these two
        names |= {"_get_tokenizer_for_train": names["tokenizer_of"], "_prepare_data_config": names["training_data"]}
    if module == "experiments.speedrun.prebuilt_caches":
        return {f"fineweb_edu_subcache_{size}": names["fineweb_edu_subcache"](size) for size in ("10B", "10M")}
    if module == "marin.utils":
        names = {name: Stub(StubOrigin(f"{module}.{name}", module, name)) for name in utils.OF_FILES}
        names |= {name: getattr(utils, name) for name in utils.OF_TEXTS}
        runtime = importlib.import_module("tradewind.runtime")
        names["remove_tpu_lockfile_on_exit"] = runtime.remove_tpu_lockfile_on_exit
    return names


# The few names of heavy libraries with a meaning during loading: Ray's functions and draccus' main.


class RayOptions(dict[str, Any]):
    """Serializable options of a Ray function; calling them returns the function with further options.

    Ray's ``options`` is a method, Tradewind's a dictionary. The cluster restores all attributes of a function there.
    """

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        super().__init__({name: value for name, value in given.items() if _is_plain(value)})
        self._function = function
        self._given = dict(given)

    def __call__(self, **options: Any) -> RayFunction:
        return RayFunction(self._function, {**self._given, **options})


class RayFunction(RemoteFunction):
    """A function under ``ray.remote``: a step may run it, but loading a file starts nothing."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        super().__init__(function, RayOptions(function, options))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"Remote functions cannot be called directly. Instead of running '{self.function.__name__}()', try "
            f"'{self.function.__name__}.remote()'."
        )

    def remote(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: there is no cluster yet."""
        raise refuse(
            f"{self.function.__name__}.remote() starts a Ray task while the steps are made: let a step's function do "
            "it."
        )

    @property
    def _function(self) -> Callable[..., Any]:
        return self.function


def ray_remote(*args: Any, **options: Any) -> Any:
    """``ray.remote``, bare or with options; a class becomes an actor, a cluster value."""
    if args and inspect.isfunction(args[0]):
        return RayFunction(args[0], options)
    if args:
        return Stub(StubOrigin(f"ray.remote({getattr(args[0], '__name__', 'class')})", "ray", wrapped=args[0]))
    return lambda decorated: ray_remote(decorated, **(options if inspect.isfunction(decorated) else {}))


def _refused_ray(name: str) -> Callable[..., NoReturn]:
    def called(*args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(f"ray.{name}() needs a Ray cluster while the steps are made: let a step's function do it.")

    return called


def draccus_wrap(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``draccus.wrap()``: a main function called without a config gets that of an empty command line."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def main(*given: Any, **named: Any) -> Any:
            parameter = next(iter(inspect.signature(function).parameters.values()), None)
            if given or parameter is None or parameter.name in named:
                return function(*given, **named)
            return function(_default_config(function, parameter), **named)

        return main

    return decorate


def _default_config(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    kind = parameter.annotation
    if isinstance(kind, str):
        kind = typing.get_type_hints(function).get(parameter.name)
    if not inspect.isclass(kind):
        raise refuse(f"{function.__name__}() needs a config from the command line, and its class is not known here.")
    try:
        return kind()
    except TypeError as error:
        raise refuse(
            f"{function.__name__}() needs arguments from the command line, which a DAG does not have ({error})."
        ) from error


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


_NEEDS_CLUSTER: Final = ("init", "get", "put", "wait", "kill", "get_actor", "cluster_resources")
NAMES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ray": {"remote": ray_remote, **{name: _refused_ray(name) for name in _NEEDS_CLUSTER}},
    "draccus": {"wrap": draccus_wrap},
}
"""Module -> name -> its value here."""

_REAL: Final = sys.stdlib_module_names | {"tradewind", "typing_extensions"}
_USERS: Final = ("experiments", "marin", "src")
_ALIAS: Final = "src.marin"
"""Another name of ``marin``, from its folder."""
_STAND_INS: Final = frozenset({"levanter", "haliax", "jax", "ray", "transformers", "fray", "draccus", "zephyr"})
"""Always stubs, even with sources in the checkout. Another library is one unless the checkout has it."""

ANY_LIBRARY: Final = frozenset({"*"})
MAX_BYTES: Final = 4_000_000
"""Maximum size of a code file."""
_compiled: dict[Path, tuple[FileFingerprint, types.CodeType]] = {}


class ModuleSandbox:
    """All modules of one checkout, each loaded once.

    Attributes:
        root: The checkout.
        salt: Seed of chance and of text hashes, per sandbox; if not 0, the sandbox has another clock.
        lacking: The libraries that are absent where files can do without them.
        modules: Name -> module, shared by all files that run in this sandbox.
        files: The loaded files, with their state at load time.
        optional: Library -> the line where a file continues if its import fails.
        noting: Called after an import of Python's own modules.
    """

    def __init__(self, root: Path, salt: int = 0, lacking: frozenset[str] = frozenset()) -> None:
        self.root = root
        self.optional: dict[str, SourceLine | None] = {}
        self.noting: Callable[[], None] = lambda: None
        self._lacking = lacking
        self._is_next_optional = False
        self._optional_imports = 0
        self.modules: dict[str, types.ModuleType] = {}
        self.files: dict[Path, FileFingerprint] = {}
        self._shadowed: dict[str, types.ModuleType] = {}
        self.builtins = UserBuiltins(self.import_, self.import_module, self._expect_optional, salt)
        self._absent: set[Path] = set()
        self._folders = [root, root / "src", *sorted(root.glob("lib/*/src"))]
        self._beside: list[Path] = []
        self._main_folder = root
        builder().on_cluster = lambda module, name: Stub(StubOrigin(f"{module}.{name}", module, name))
        self._legacy = modules()
        self._required = required_libraries(root)
        self._own: dict[str, Mapping[str, Any]] = {**NAMES, **OVERRIDES, **KNOWN_FUNCTIONS}
        self._parents = {parent for name in (*self._legacy, *self._own, *MODULES) for parent in _parents(name)}
        self._replaced: dict[str, types.ModuleType | None] | None = None
        self._answers = answers_fingerprint()
        self.depends_on({file: file_fingerprint(file) for file in requirement_files(root)})

    def is_fresh(self) -> bool:
        """Whether files and environment are unchanged, and no new file would be found by an import."""
        if not self.builtins.environment.is_fresh() or self._answers != answers_fingerprint():
            return False
        return self.changed_file() is None

    def changed_file(self) -> Path | None:
        """Return a file that changed since it was loaded, or that is new."""
        changed = (file for file, stamp in self.files.items() if file_fingerprint(file) != stamp)
        return next(itertools.chain(changed, (path for path in self._absent if path.exists())), None)

    def depends_on(self, opened: Mapping[Path, FileFingerprint | None]) -> None:
        """Add files of the checkout that running files read to its dependencies."""
        for file, stamp in opened.items():
            if stamp is not None:
                self.files.setdefault(file, stamp)
            else:
                self._absent.add(file)

    @contextmanager
    def entered(self, beside: Path) -> Iterator[None]:
        """Run a file in the folder ``beside``: imports find its neighbours; ``sys.modules`` has user modules.

        Afterwards ``sys.modules`` is restored. Dataclasses, for example, look up the module of a class there.
        """
        self._main_folder = beside
        self._replaced, self._beside = {}, [] if beside in self._folders else [beside]
        before = set(self.modules)
        for name, module in self.modules.items():
            self._show(name, module)
        try:
            yield
        finally:
            for name, replaced in self._replaced.items():
                if replaced is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = replaced
            for name in set(self.modules) - before:  # neighbours belong to this file only
                if self._is_beside(self.modules[name]):
                    del self.modules[name]
            self._replaced, self._beside = None, []

    def forget(self, names: Iterable[str]) -> None:
        """Unload modules, so that the next import loads them again."""
        for name in names:
            self.modules.pop(name, None)
            self._shadowed.pop(name, None)

    def show_main(self, module: types.ModuleType) -> None:
        """Register the running file in ``sys.modules``."""
        self._show("__main__", module)

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> types.ModuleType:
        """Replace ``__import__`` in the user's code."""
        package = (globals or {}).get("__package__") or ""
        full = name if not level else _absolute(name, package, level)
        top = full.partition(".")[0]
        is_optional, self._is_next_optional = self._is_next_optional, False
        if top in _REAL:
            self._check_clash(top)
            count = len(sys.modules)
            real = builtins.__import__(full, None, None, fromlist, 0)
            if len(sys.modules) != count:
                self.noting()
            return self.builtins.module(full if fromlist else top) or real
        with self._may_fail(top, is_optional):
            module = self._imported(full)
        if not fromlist:
            return self.modules[top]
        for wanted in fromlist:
            if wanted == "*" or wanted in vars(module):
                continue
            if not isinstance(module, StubModule):
                self._submodule(f"{full}.{wanted}")
            elif top in _USERS and not hasattr(module, wanted):
                raise ImportError(f"cannot import name {wanted!r} from {full!r}: {self._nowhere()}", name=full)
        return module

    def import_module(self, name: str, package: str | None = None) -> types.ModuleType:
        """Replace ``importlib.import_module`` in the user's code."""
        level = len(name) - len(name.lstrip("."))
        full = _absolute(name[level:], package or "", level) if level else name
        if full.partition(".")[0] in _REAL:
            self._check_clash(full.partition(".")[0])
            return self.builtins.module(full) or importlib.import_module(full)
        with self._may_fail(full.partition(".")[0], is_optional=True):  # the file or a caller may catch its error
            return self._imported(full)

    def _imported(self, full: str) -> types.ModuleType:
        parts = full.split(".")
        for count in range(1, len(parts) + 1):
            module = self._load(".".join(parts[:count]))
        return module

    def _expect_optional(self) -> None:
        """Announce an import without which the file continues; the user's code calls this before it."""
        self._is_next_optional = True

    @contextmanager
    def _may_fail(self, top: str, is_optional: bool) -> Iterator[None]:
        """Import a part of ``top``; a library that the file can do without may be absent.

        Raises:
            ModuleNotFoundError: It is absent in this sandbox.
        """
        self._optional_imports += is_optional
        try:
            if self._optional_imports and self._may_lack(top):
                self.optional.setdefault(top, running_place(self.root))
                if top in self._lacking or self._lacking is ANY_LIBRARY:
                    raise ModuleNotFoundError(f"No module named {top!r}", name=top)
            yield
        finally:
            self._optional_imports -= is_optional

    def _check_clash(self, top: str) -> None:
        """Refuse a name that some processes find in the file's folder and others in Python's library."""
        file = self._main_folder / f"{top}.py"
        if file.is_file() and top not in sys.builtin_module_names:
            raise refuse(f"it imports {top}, which is a module of Python or Tradewind, but also {file.name} beside it.")
        self._absent.add(file)

    def _may_lack(self, top: str) -> bool:
        """Whether Marin's machine may have lacked it: neither in the checkout nor installed with it."""
        if top in _USERS or top in _STAND_INS or top in self._required:
            return False
        return self._find(top, None) == (None, None)

    def execute(self, module: types.ModuleType, file: Path) -> None:
        """Run the code of ``file`` in ``module``."""
        stamp = file_fingerprint(file) or ()
        if stamp and stamp[1] > MAX_BYTES:
            raise refuse(f"{file.name} has more than {MAX_BYTES:,} bytes, the limit of a code file.")
        self.files[file] = stamp
        known = _compiled.get(file)
        if known is None or known[0] != stamp:
            try:
                code = compile_file(file.read_bytes(), str(file))
            except (RecursionError, MemoryError):
                place = place_below(self.root, str(file), 0)
                raise refuse(f"{file.name} has an expression that nests too deep to be compiled.", place) from None
            known = _compiled[file] = (stamp, code)
        module.__dict__["__builtins__"] = self.builtins.names
        module.__file__ = str(file)
        exec(known[1], module.__dict__)

    def _load(self, full: str) -> types.ModuleType:
        if full in self.modules:
            return self.modules[full]
        parent_name, _, own_name = full.rpartition(".")
        if full == _ALIAS or full.startswith(f"{_ALIAS}."):
            module = self.modules[full] = self.import_module(full.removeprefix("src."))
            self._show(full, module)
            vars(self.modules[parent_name])[own_name] = module
            return module
        module, file = self._made(full, self.modules.get(parent_name))
        self.modules[full] = module
        self._show(full, module)
        if file is not None:
            try:
                self.execute(module, file)
            except BaseException:
                self.modules.pop(full, None)
                raise
        module = self.modules.get(full, module)
        if parent_name and not self._is_hidden(full):
            vars(self.modules[parent_name])[own_name] = module
        return module

    def _is_hidden(self, full: str) -> bool:
        """Whether a package has another object under this submodule's name: Marin's function ``tokenize``."""
        parent, _, name = full.rpartition(".")
        row = module_rows().get(parent)
        return row is not None and name in row.withheld

    def _made(self, full: str, parent: types.ModuleType | None) -> tuple[types.ModuleType, Path | None]:
        """Create a module, and return it with the file to run in it."""
        own, table = self._own.get(full), self._legacy.get(full)
        top = full.partition(".")[0]
        package, file = (None, None) if top in _STAND_INS else self._find(full, parent)
        if own is None and table is None and (package is not None or file is not None):
            return self._of_checkout(full, package, file), file
        if own is None and table is None and full in MODULES:
            own = names_of(full)
            self._absent |= {folder / f"{full.rpartition('.')[2]}.py" for folder in self._search(parent)}
        elif own is None and table is None and top in _USERS and full not in self._parents:
            raise ModuleNotFoundError(f"No module named {full!r}: {self._nowhere()}", name=full)
        check = (self._check_absent,) if top in _USERS else ()
        stand_in = StubModule(full, own or {}, table, self._submodule, self._users_own, *check)
        stand_in.__path__ = [str(package)] if package is not None else []
        return stand_in, None

    def _check_absent(self, module: str, name: str) -> None:
        """Refuse a name of a user's module that neither the checkout nor Tradewind has, as Python would.

        A module of the checkout may hand on names of a library by ``import *``, so its names are not refused.

        Raises:
            AttributeError: The cluster does not have it either.
        """
        if f"{module}:{name}" not in REPLACEMENTS and module not in self._shadowed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}: {self._nowhere()}")

    def _nowhere(self) -> str:
        return f"neither the checkout {self.root} nor Tradewind has it."

    def _of_checkout(self, full: str, package: Path | None, file: Path | None) -> types.ModuleType:
        module = types.ModuleType(full)
        is_package = package is not None
        module.__spec__ = importlib.machinery.ModuleSpec(full, None, origin=str(file), is_package=is_package)
        module.__package__ = full if is_package else full.rpartition(".")[0]
        if is_package:
            module.__path__ = [str(package)]
        return module

    def _users_own(self, full: str) -> types.ModuleType | None:
        """Load the checkout's module for names that Tradewind's lacks; Tradewind's names win there, too."""
        if full in self._shadowed:
            return self._shadowed[full]
        stub = self.modules[full]
        package, file = (
            (None, None)
            if full.partition(".")[0] in _STAND_INS
            else self._find(full, self.modules.get(full.rpartition(".")[0]))
        )
        if file is None and full in MODULES:
            module = types.ModuleType(full)
            vars(module).update(names_of(full))
            return module
        if file is None:
            return None
        module = self._shadowed[full] = self._of_checkout(full, package, file)
        try:
            self.execute(module, file)
        except BaseException:
            del self._shadowed[full]
            raise
        table = self._legacy.get(full)
        for name in list(vars(module)):
            if not name.startswith("__") and (name in self._own.get(full, {}) or hasattr(table, name)):
                setattr(module, name, getattr(stub, name))
        return module

    def _find(self, full: str, parent: types.ModuleType | None) -> tuple[Path | None, Path | None]:
        """Return folder and file of a checkout module: a package, a module, or neither."""
        name = full.rpartition(".")[2]
        folders = self._search(parent)
        for folder in folders:
            package, file = folder / name, folder / f"{name}.py"
            if (package / "__init__.py").is_file():
                return package, package / "__init__.py"
            if file.is_file():
                return None, file
        if "." in full or name in _USERS:  # a folder without __init__.py; at the top level, unrelated ones would match
            for folder in folders:
                if (folder / name).is_dir():
                    return folder / name, None
        if parent is None:
            self._absent |= {folder / name / "__init__.py" for folder in folders} | {f / f"{name}.py" for f in folders}
        return None, None

    def _search(self, parent: types.ModuleType | None) -> list[Path]:
        if parent is not None:
            return [Path(folder) for folder in getattr(parent, "__path__", [])]
        return [*self._beside, *self._folders]

    def _submodule(self, full: str) -> types.ModuleType | None:
        """Return the submodule of the checkout or the tables, unless its package hides that name."""
        if self._is_hidden(full):
            return None
        if full in self.modules:
            return self.modules[full]
        parent = self.modules.get(full.rpartition(".")[0])
        found = (None, None) if full.partition(".")[0] in _STAND_INS else self._find(full, parent)
        known = (self._own, self._legacy, self._parents, MODULES)
        if any(full in names for names in known) or found != (None, None):
            return self._load(full)
        return None

    def _is_beside(self, module: types.ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if file is None or module.__name__.partition(".")[0] in _USERS:
            return False
        return any(Path(file).is_relative_to(folder) for folder in self._beside)

    def _show(self, name: str, module: types.ModuleType) -> None:
        """Put a user module into ``sys.modules`` while a file runs."""
        is_users = name == "__main__" or name.partition(".")[0] in _USERS or not isinstance(module, StubModule)
        if self._replaced is None or not is_users:
            return
        self._replaced.setdefault(name, sys.modules.get(name))
        sys.modules[name] = module


def _absolute(name: str, package: str, level: int) -> str:
    parts = package.split(".") if package else []
    if level > len(parts):
        raise ImportError("attempted relative import with no known parent package")
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
