"""A cluster imports a user's file although its Levanter lacks names that the file imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marin.checkouts import put
from tests.marin.written import written
from tradewind import runtime
from tradewind.marin import old_names
from tradewind.marin.legacy import modules
from tradewind.serialization.errors import FunctionImportError, TranslationError
from tradewind.serialization.references import Reference, find_legacy_modules
from tradewind.serialization.spec import decode

MADE_HERE = ("levanter", "marin", "users_file", "broken_file")
FILE = """
    from levanter.data.text import NEW, LMDatasetSourceConfig
    from levanter.distributed import RayConfig
    from levanter.infra.ray_tpu import TPUConfig, run_docker_on_pod, run_on_pod_resumable

    class Kept:
        where: run_docker_on_pod | None = None

    def work(function=run_docker_on_pod):
        return function("v4-8")
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder with a small Levanter importable; restore this process afterwards."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in MADE_HERE}
    for name in before:
        del sys.modules[name]
    for package in ("", "data/", "infra/"):
        put(tmp_path / f"levanter/{package}__init__.py", "")
    put(tmp_path / "levanter/data/text.py", "NEW = 1\n")
    put(tmp_path / "levanter/distributed.py", "import levanter.data.text\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in MADE_HERE]:
        del sys.modules[name]
    sys.modules.update(before)


def test_removed_names_can_be_imported(libraries: Path) -> None:
    put(libraries / "users_file.py", FILE)
    work = Reference("users_file", "work").load()
    file = sys.modules["users_file"]
    assert file.NEW == 1
    assert file.RayConfig is modules()["levanter.distributed"].RayConfig
    assert file.TPUConfig is modules()["levanter.infra.ray_tpu"].TPUConfig
    assert file.run_on_pod_resumable is runtime.run_on_pod_resumable
    with pytest.raises(TranslationError, match="^levanter.infra.ray_tpu.run_docker_on_pod of levanter 1.2.dev"):
        work()


LATE_IMPORTS = """
    def work():
        from levanter.infra.ray_tpu import run_on_pod, run_on_pod_multislice_resumable
        from marin.resources import TpuPodConfig
        from marin.utils import remove_tpu_lockfile_on_exit
        return TpuPodConfig, remove_tpu_lockfile_on_exit, run_on_pod, run_on_pod_multislice_resumable
"""


def test_legacy_names_can_be_imported_inside_function(libraries: Path) -> None:
    put(libraries / "users_file.py", LATE_IMPORTS)
    work = Reference("users_file", "work").load()
    find_legacy_modules()
    several = runtime.run_on_pod_multislice_resumable
    assert work() == (runtime.TpuPodConfig, runtime.remove_tpu_lockfile_on_exit, several, several)
    assert runtime.TpuPodConfig is modules()["marin.resources"].TpuPodConfig
    exec("from marin.utils import fsspec_exists, fsspec_glob, rebase_file_path")
    with pytest.raises(ImportError, match="cannot import name 'never_there' from 'marin.utils'"):
        exec("from marin.utils import never_there")
    with pytest.raises(ModuleNotFoundError, match="No module named 'marin.processing'"):
        importlib.import_module("marin.processing.tokenize")


def test_module_of_checkout_is_found_before_tradewinds(libraries: Path) -> None:
    put(libraries / "marin/__init__.py", "")
    put(libraries / "marin/utils.py", "own = 1\n")
    find_legacy_modules()
    assert importlib.import_module("marin.utils").own == 1
    assert importlib.import_module("marin.resources").TpuPodConfig is runtime.TpuPodConfig


def test_file_without_legacy_names_gets_none(libraries: Path) -> None:
    put(libraries / "users_file.py", "from levanter.data.text import NEW\ndef work(): ...\n")
    Reference("users_file", "work").load()
    with pytest.raises(ImportError):
        importlib.import_module("levanter.infra.ray_tpu")


def test_name_unknown_to_all_versions_is_an_error(libraries: Path) -> None:
    put(libraries / "broken_file.py", "from levanter.data.text import never_there\ndef work(): ...\n")
    with pytest.raises(FunctionImportError, match="never_there"):
        Reference("broken_file", "work").load()
    text = importlib.import_module("levanter.data.text")
    assert not hasattr(text, "never_there") and not hasattr(text, "__wrapped__")


def test_marin_function_needing_legacy_libraries_is_refused(libraries: Path) -> None:
    source = "from levanter.infra.ray_tpu import run_on_pod_resumable\ndef run_levanter_train_lm(config): ...\n"
    put(libraries / "marin/training/training.py", source)
    with pytest.raises(FunctionImportError, match="Marin's own and runs from the checkout, with the libraries of that"):
        Reference("marin.training.training", "run_levanter_train_lm").load()


def test_missing_levanter_is_not_replaced(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_names.provide()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "levanter").is_dir()])
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="No module named 'levanter'"):
        importlib.import_module("levanter.infra.ray_tpu")


def test_light_class_is_no_counterpart_and_names_are_added_once(libraries: Path) -> None:
    before = len(sys.meta_path)
    old_names.provide()
    old_names.provide()
    assert len(sys.meta_path) == before + 3
    with pytest.raises(TranslationError, match=r"^config is a levanter\.distributed\.RayConfig of levanter 1\.2\.dev"):
        decode(written(modules()["levanter.distributed"].RayConfig()))


MODEL = """
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class LlamaConfig:
        max_seq_len: int = 1
        num_heads: int = 32
"""


def test_config_with_legacy_field_is_importable_and_readable(libraries: Path) -> None:
    put(libraries / "levanter/models/llama.py", MODEL)
    put(libraries / "users_file.py", "from levanter.models.llama import LlamaConfig\nMODEL = LlamaConfig(seq_len=5)\n")
    model = Reference("users_file", "MODEL").load()
    assert (model.max_seq_len, model.seq_len, model.num_heads) == (5, 5, 32)
    with pytest.raises(AttributeError, match="never_there"):
        model.never_there  # noqa: B018


def test_legacy_field_without_counterpart_is_refused_on_import(libraries: Path) -> None:
    put(libraries / "levanter/models/llama.py", MODEL)
    put(libraries / "broken_file.py", "from levanter.models.llama import LlamaConfig\nLlamaConfig(use_bias=True)\n")
    reason = "TranslationError: LlamaConfig.use_bias is True, a value for levanter.models"
    with pytest.raises(FunctionImportError, match=reason):
        Reference("broken_file", "MODEL").load()
