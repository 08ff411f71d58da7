"""Models become local folders: which export, complete or absent, once per region and node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.datasets.hub_server import COMMIT, TOKEN, HubServer, cut, hub
from tests.serving.exports import tiny_export
from tests.support.stores import gcs, gcs_server
from tests.support.waiting import until
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.serving import weights
from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import resolved
from tradewind.serving.weights import check_model, local_model

__all__ = ["gcs", "gcs_server", "hub"]
REPO = "people/llama"
MODEL = f"hub:{REPO}@{COMMIT}"
FILES = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_export(tmp_path_factory.mktemp("export") / "llama")


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a new node, in a cluster without a prefix."""
    for variable in ("TRADEWIND_PREFIX", "MARIN_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(weights, "NODE_FOLDER", tmp_path / "node")
    yield tmp_path / "node"
    while weights._in_use:
        os.close(weights._in_use.pop())


@pytest.fixture
def model(hub: HubServer, export: Path) -> dict[str, bytes]:
    """Return the files of a model on the hub."""
    files = {path.name: path.read_bytes() for path in export.iterdir()}
    hub.models[REPO] = {**files, "README.md": b"# Llama", "original/weights.pth": b"0", "pytorch_model.bin": b"0"}
    hub.lfs = {"model.safetensors"}
    return files


def served(model: str, **fields: object) -> ServingConfig:
    return replace(ServingConfig(model=model), **fields)  # type: ignore[arg-type]


def cut_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)


def requests_of(hub: HubServer, name: str) -> int:
    return sum(count for path, count in hub.asked.items() if path.endswith(f"/{name}"))


@pytest.mark.parametrize(
    ("made", "given", "expected"),
    [
        (["."], ".", "."),
        (["hf"], ".", "hf"),
        (["hf/step-9", "hf/step-10"], ".", "hf/step-10"),
        (["hf/step-9", "hf/step-10"], "hf", "hf/step-10"),
        (["hf/step-9", "hf/step-10"], "hf/step-9", "hf/step-9"),
        (["hf", "hf/step-10"], ".", "hf"),
        (["hf/step-9", "hf/step-10 cut"], ".", "hf/step-9"),
        (["hf/step-9", "hf/step-10 empty"], ".", "hf/step-9"),
    ],
)
def test_newest_complete_export_is_served_where_it_is(
    export: Path, tmp_path: Path, made: list[str], given: str, expected: str
) -> None:
    for name, _, flaw in (each.partition(" ") for each in made):
        shutil.copytree(export, tmp_path / "run" / name, dirs_exist_ok=True)
        if flaw == "cut":
            cut_short(tmp_path / "run" / name)
        elif flaw == "empty":
            (tmp_path / "run" / name / "model.safetensors").unlink()
    for path in (f"{tmp_path}/run/{given}", f"file://{tmp_path}/run/{given}/"):
        assert Path(local_model(served(path))).resolve() == (tmp_path / "run" / expected).resolve()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "is not there"),
        (lambda run: (run / "config.json").unlink(), "has no export in the form of Hugging Face"),
        (lambda run: (run / "tokenizer.json").unlink(), r"has no tokenizer \(tokenizer.json\): wait for its end"),
        (lambda run: (run / "model.safetensors").unlink(), "lacks model.safetensors"),
        (cut_short, "has only a part of model.safetensors"),
        (
            lambda run: (run / "config.json").rename(run / "manifest.ocdbt"),
            "of Levanter's.*no export is beside",
        ),
    ],
)
def test_model_that_is_not_complete_is_refused(
    export: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    run = shutil.copytree(export, tmp_path / "run")
    spoil(run)
    with pytest.raises(ValueError, match=message):
        local_model(served(str(run)))


@pytest.mark.parametrize(
    "name", [REPO, f"{REPO}@main", f"{REPO}@012345", "llama@0123456", f"../x@{COMMIT}", f"@{COMMIT}"]
)
def test_hub_model_without_a_commit_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="hub:ORG/NAME@COMMIT|no name of a repository"):
        check_model(f"hub:{name}")


def test_hub_model_is_copied_once_with_the_needed_files(hub: HubServer, model: dict[str, bytes], node: Path) -> None:
    folder = Path(local_model(served(MODEL)))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."} == model
    assert folder.parent == node
    asked = hub.asked.copy()
    assert local_model(served(MODEL)) == str(folder)
    assert hub.asked == asked, "a pinned model that is there needs no hub"
    assert Path(local_model(served(f"hub:{REPO}@{COMMIT[:7]}"))).name.endswith(COMMIT[:7])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"people/nobody@{COMMIT}", "has no model 'people/nobody'.*private.*secret HF_TOKEN"),
        (f"{REPO}@{'b' * 40}", "RevisionNotFound|no model|no such revision"),
        (f"{REPO}@abcdef0", "as a branch or a tag, not as a commit"),
    ],
)
def test_hub_model_that_is_not_there_is_named(
    hub: HubServer, model: dict[str, bytes], node: Path, name: str, message: str
) -> None:
    hub.revisions["abcdef0"] = COMMIT
    with pytest.raises(ValueError, match=message) as refused:
        local_model(served(f"hub:{name}"))
    assert f"hub:{name}" in str(refused.value) and TOKEN not in str(refused.value)
    assert not node.exists()


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_hub_repository_that_is_no_model_is_refused(hub: HubServer, model: dict[str, bytes], missing: str) -> None:
    hub.models[REPO] = {name: data for name, data in model.items() if name != missing}
    with pytest.raises(ValueError, match="is no model in the form of Hugging Face|has no tokenizer"):
        local_model(served(MODEL))


def test_hub_token_comes_from_the_secrets(
    hub: HubServer, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "hf_other")
    local_model(served(MODEL, secrets={"HF_TOKEN": "env:OTHER_TOKEN"}))
    assert set(hub.tokens) == {"Bearer hf_other"}


def test_other_nodes_read_the_copy_of_the_region(
    hub: HubServer, model: dict[str, bytes], gcs: LocalCloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = gcs.buckets.create(f"near-{uuid.uuid4().hex}").name
    monkeypatch.setenv("MARIN_PREFIX", f"gs://{bucket}/runs")
    for name in ("one", "two"):
        monkeypatch.setattr(weights, "NODE_FOLDER", tmp_path / name)
        folder = Path(local_model(served(MODEL)))
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."} == model
    assert requests_of(hub, "model.safetensors") == 1


@pytest.fixture
def stored(export: Path, gcs: LocalCloudStorage) -> str:
    """Return the output of a training in a bucket."""
    bucket = gcs.buckets.create(f"models-{uuid.uuid4().hex}", "us-east1").name
    for path in export.iterdir():
        fsspec.filesystem("gs").pipe_file(f"{bucket}/run/hf/{path.name}", path.read_bytes())
    return f"gs://{bucket}/run"


def test_model_of_a_bucket_is_copied_anew_when_it_changes(stored: str) -> None:
    first = local_model(served(stored))
    assert local_model(served(f"{stored}/")) == first
    assert {path.name for path in Path(first).iterdir()} >= set(FILES)
    fsspec.filesystem("gs").pipe_file(f"{stored}/hf/generation_config.json", b"{}")
    assert local_model(served(stored)) != first


@pytest.mark.parametrize(("region", "copies"), [("us-east1", 0), ("us-central2", 1)])
def test_model_of_another_region_is_copied_to_this_one_first(
    stored: str, gcs: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch, region: str, copies: int
) -> None:
    bucket = gcs.buckets.create(f"near-{uuid.uuid4().hex}", region).name
    monkeypatch.setenv("TRADEWIND_PREFIX", f"gs://{bucket}/runs")
    local_model(served(stored))
    assert len(fsspec.filesystem("gs").glob(f"{bucket}/runs/.tradewind/models/*/model.safetensors")) == copies


COPY = """
import sys
from pathlib import Path
from tradewind.serving import weights
from tradewind.serving.config import ServingConfig
weights.NODE_FOLDER = Path(sys.argv[1])
print(weights.local_model(ServingConfig(model=sys.argv[2])))
"""


def test_workers_of_a_node_share_a_copy_and_finish_a_killed_one(
    hub: HubServer, model: dict[str, bytes], node: Path
) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", COPY, str(node), MODEL], stdout=subprocess.PIPE, text=True)

    stalled: list[object] = []
    hub.fail("model.safetensors", lambda handler, _: (stalled.append(1), until(lambda: len(stalled) > 1)))
    killed = start()
    until(lambda: stalled and (node / f"people--llama@{COMMIT}.part" / "config.json").exists())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    stalled.append(2)
    assert not (node / f"people--llama@{COMMIT}").exists()
    hub.fail("model.safetensors", cut(after=1000))
    workers = [start() for _ in range(2)]
    folders = {worker.communicate()[0].splitlines()[-1] for worker in workers}
    assert folders == {str(node / f"people--llama@{COMMIT}")}
    assert (Path(*folders) / "model.safetensors").read_bytes() == model["model.safetensors"]
    assert requests_of(hub, "config.json") == 1


def test_unused_copies_make_room_for_a_model_or_it_is_refused(
    hub: HubServer, model: dict[str, bytes], node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = local_model(served(MODEL))
    old = shutil.copytree(used, node / "old")
    monkeypatch.setattr(weights, "_free_bytes", lambda: 0)
    with pytest.raises(ValueError, match="people--llama@0123456 has 4.* and .* has room for 0 bytes: give"):
        local_model(served(f"hub:{REPO}@{COMMIT[:7]}"))
    assert Path(used).exists(), "this process uses it"
    assert not old.exists()


CHECKPOINT = """
import sys
import equinox as eqx, haliax as hax, jax, jax.numpy as jnp
from haliax.partitioning import set_mesh
from levanter.checkpoint import save_checkpoint
from levanter.utils.mesh import create_mesh_from_axis_specs
from tradewind.recipes.lm.levanter_parts import mesh
from tradewind.serving.levanter_model import described
export, folder = sys.argv[1:]
config, converter = described(export)
made = mesh()
ici, dcn = made.axis_shapes(1, 1)
with set_mesh(create_mesh_from_axis_specs(ici_axes=ici, dcn_axes=dcn)):
    mapping = made.resolved_param_mapping
    model = converter.load_pretrained(config.model_type, ref=export, config=config, axis_mapping=mapping)
    doubled = jax.tree.map(lambda array: 2 * array, model, is_leaf=eqx.is_array)
    save_checkpoint({"model": doubled}, 5, folder, is_temporary=False)
"""


@pytest.mark.long
def test_checkpoint_is_converted_once_with_files_of_an_export(export: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    shutil.copytree(export, tmp_path / "run" / "hf" / "step-3")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-5"
    env = os.environ | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", CHECKPOINT, str(export), str(checkpoint)], env=env, check=True)
    folder = Path(local_model(served(str(checkpoint))))
    converted, before = load_file(folder / "model.safetensors"), load_file(export / "model.safetensors")
    assert converted.keys() == before.keys()
    for name, values in converted.items():
        np.testing.assert_array_equal(values, 2 * before[name])
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (export / name).read_bytes()
    made_at = folder.stat().st_ctime_ns
    assert (
        local_model(served(str(checkpoint))) == str(folder)
        and (folder / "model.safetensors").stat().st_ctime_ns <= made_at
    )
    (checkpoint / "metadata.json").unlink()
    (checkpoint / "manifest.ocdbt").write_bytes(b"0")
    with pytest.raises(ValueError, match="the checkpoint cannot be converted: "):
        local_model(served(str(checkpoint)))
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_pool_serves_the_export_that_its_path_means_now(tmp_path: Path) -> None:
    training = tmp_path / "small-1a"
    older = tiny_export(training / "hf" / "step-10")

    def found(path: Path) -> tuple[str, str, str]:
        config, name = resolved(ServingConfig(str(path)))
        assert resolved(config) == (config, name)
        return config.model, config.name_in_api, name

    first = found(training)
    assert first == found(training / "hf") and first[:2] == (str(older), "small-1a")
    newest = tiny_export(training / "hf")
    second = found(training)
    assert second == found(training / "hf") and second[:2] == (str(newest), "small-1a")
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes())
    third = found(training)
    assert third[:2] == second[:2] and len({each[2] for each in (first, second, third)}) == 3
    assert found(older)[:2] == (str(older), "step-10")
