"""Stored models: shapes of Levanter checkpoints and Hugging Face models, loading, and export.

The checks compare a stored model with a training's without reading a weight. Call the functions that load or export a
model inside a device mesh.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, exists, is_remote, join
from tradewind.recipes.model_spec import check_sizes
from tradewind.storage import file_system_at
from tradewind.storage.bounded_read import LARGE
from tradewind.text import single_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from levanter.models.llama import LlamaConfig

AVERAGED = "model_averaging/model"
"""Folder of averaged weights in a checkpoint."""
_MODEL = "model/"
_ARRAY = "/zarr.json"
_HUB: Final = "hf://"
_MAX_INDEX: Final = 16 << 20
"""Bytes of the index of a model in parts, which become twenty times as many when parsed."""
_WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
"""Files of weights, of which Levanter reads the first; one in parts has an index of the same name."""


def check_same_model(made: Any, vocab_size: int, checkpoint: str, field: str, part: str = "") -> None:
    """Raise ``ValueError`` with ``field`` if the checkpoint's arrays differ from those of Levanter's config.

    A checkpoint in Levanter's old format, which does not list its arrays, passes. ``part`` is the prefix of the model's
    arrays in a checkpoint of several models, such as ``policy/``.
    """
    stored = stored_shapes(checkpoint)
    wanted = {part + name: shape for name, shape in model_shapes(made, vocab_size).items()}
    for name in sorted(stored.keys() | wanted.keys() if stored else ()):
        if stored.get(name) != wanted.get(name):
            raise ValueError(
                f"{field}: the checkpoint {checkpoint} is of another model: {name} is "
                f"{_format_shape(stored.get(name))} there and {_format_shape(wanted.get(name))} in this one."
            )


def check_model(made: Any, vocab_size: int, field: str) -> None:
    """Raise ``ValueError`` with ``field`` if Levanter cannot build or train the model of that config."""
    check_sizes(made.model, field)
    try:
        model_shapes(made, vocab_size)
    except Exception as error:  # models raise various types
        raise ValueError(
            f"{field}: Levanter cannot build this {type(made.model).__name__} ({first_line_of(error)}): look at its "
            "sizes, which have to fit each other."
        ) from error


def model_shapes(made: Any, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Map names to shapes of the arrays of a config's model, on the devices of this process."""
    import equinox as eqx
    import haliax as hax
    import jax
    from haliax.partitioning import round_axis_for_partitioning
    from haliax.util import is_named_array
    from levanter.utils.jax_utils import leaf_key_paths

    with made.trainer.use_device_mesh():
        vocab = round_axis_for_partitioning(hax.Axis("vocab", vocab_size), made.trainer.parameter_axis_mapping)
        model = eqx.filter_eval_shape(made.model.build, vocab, key=jax.random.PRNGKey(0))
    arrays = eqx.filter(model, lambda leaf: hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
    names = jax.tree.leaves(leaf_key_paths(arrays, is_leaf=is_named_array), is_leaf=is_named_array)
    leaves = jax.tree.leaves(arrays, is_leaf=is_named_array)
    shapes = [leaf.array.shape if is_named_array(leaf) else leaf.shape for leaf in leaves]
    return {name.replace(".", "/"): tuple(shape) for name, shape in zip(names, shapes, strict=True)}


def stored_shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    """Map names to shapes of the model's arrays in a checkpoint; empty for Levanter's old format."""
    if not exists(join(checkpoint, "manifest.ocdbt")):
        return {}
    return asyncio.run(_read_shapes(checkpoint))


def has_arrays(checkpoint: str, folder: str) -> bool:
    """Whether the checkpoint has arrays in ``folder``, such as ``model``."""
    if not exists(join(checkpoint, "manifest.ocdbt")):  # the old format has folders
        return exists(join(checkpoint, folder))
    return any(key.startswith(f"{folder}/") for key in asyncio.run(_keys(checkpoint)))


async def _keys(checkpoint: str) -> list[str]:
    return [key.decode() for key in await (await _open(checkpoint)).list()]


async def _open(checkpoint: str) -> Any:
    import tensorstore
    from levanter.tensorstore_serialization import build_kvstore_spec

    return await tensorstore.KvStore.open({"driver": "ocdbt", "base": build_kvstore_spec(checkpoint)})


async def _read_shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    store, keys = await _open(checkpoint), await _keys(checkpoint)
    wanted = [key for key in keys if key.startswith(_MODEL) and key.endswith(_ARRAY)]
    described = await asyncio.gather(*(store.read(key) for key in wanted))
    return {
        key.removeprefix(_MODEL).removesuffix(_ARRAY): tuple(json.loads(metadata.value)["shape"])
        for key, metadata in zip(wanted, described, strict=True)
    }


def _format_shape(shape: tuple[int, ...] | None) -> str:
    return "not" if shape is None else "×".join(map(str, shape)) or "a scalar"


def check_hub_model(made: Any, begin: Any, field: str) -> None:
    """Check that Levanter can load the Hugging Face model into its own.

    Args:
        made: Levanter's config of the training.
        begin: A folder, a name on the hub, or True for the model's own reference checkpoint.
        field: Field of the config, for errors.

    Raises:
        ValueError: The model is missing or unreadable, lacks weights, or has another shape.
    """
    path, described, stored = described_on_hub(made, begin, field)
    if getattr(made, "use_hf_model_config", False):
        return  # the stored model defines the shape
    existing, wanted = model_shapes(stored, described.vocab_size), model_shapes(made, len(made.data.the_tokenizer))
    for name in sorted(existing.keys() | wanted.keys()):
        if existing.get(name) != wanted.get(name):
            raise ValueError(
                f"{field}: the model {path} is another: {name} is {existing.get(name)} there and {wanted.get(name)} in "
                "this one."
            )


def described_on_hub(made: Any, begin: Any, field: str) -> tuple[str, Any, Any]:
    """Return the path of a Hugging Face model, its config, and Levanter's config with that model.

    Args:
        made: Levanter's config of the training.
        begin: A folder, a name on the hub, or True for the model's own reference checkpoint.
        field: Field of the config, for errors.

    Raises:
        ValueError: The model is missing or unreadable, or lacks weights.
    """
    path = made.model.reference_checkpoint if begin is True else str(begin)
    try:
        converter = made.model.hf_checkpoint_converter().replaced(trust_remote_code=False)
        described = converter.hf_config_from_hf_checkpoint(path)
        stored = dataclasses.replace(made, model=converter.config_from_hf_config(described))
        missing = missing_weights(path)
    except Exception as error:  # the hub's client and config reader raise many types
        raise ValueError(f"{field}={path!r} {_read_problem(error)}") from error
    if missing:
        raise ValueError(f"{field}={path!r} lacks {single_line(missing)}: give a complete model.")
    return path, described, stored


def refuse_own_code(folder: str) -> None:
    """Raise ``ValueError`` if a model or tokenizer brings code of its own, which Levanter's converters would run."""
    from tradewind.storage.files import read_contents  # the file store: not while a DAG file is parsed

    files = [join(folder, name) for name in ("config.json", "tokenizer_config.json")]
    for file, content in read_contents(files, LARGE).items():
        try:
            described = {} if content is None else json.loads(content.text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is no JSON: {single_line(error)}") from None
        if isinstance(described, dict) and "auto_map" in described:
            raise ValueError(
                f"{file} has 'auto_map': the model brings code of its own, which does not run here. Remove the field "
                "if Levanter knows the model's type."
            )


def missing_weights(path: str) -> str:
    """Return a missing file of weights that Levanter would read; empty if all exist."""
    fs, root = _file_system_of(path)
    existing = {basename(name) for name in fs.ls(root, detail=False)}
    for name in _WEIGHTS:
        if (index := f"{name}.index.json") in existing:
            about = fs.info(join(root, index))
            if about["type"] != "file" or about["size"] > _MAX_INDEX:
                raise ValueError(f"{index} is no file of at most {_MAX_INDEX:,} bytes")
            parts = json.loads(fs.cat_file(join(root, index)))["weight_map"].values()
            return next((part for part in parts if part not in existing), "")
    return "" if existing.intersection(_WEIGHTS) else " and ".join(_WEIGHTS)


def _file_system_of(path: str) -> tuple[AbstractFileSystem, str]:
    """Return file system and path, distinguishing folders and hub names as Levanter does."""
    is_of_hub = path.startswith(_HUB)
    if not is_of_hub and (is_remote(path) or path.startswith(("/", "./", "../")) or os.path.isdir(path)):
        return file_system_at(path)
    from huggingface_hub import HfFileSystem

    return HfFileSystem(), path.removeprefix(_HUB)


def _read_problem(error: BaseException) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return "is for those who have accepted its terms on its page: do so, and give the step the secret HF_TOKEN."
        if isinstance(cause, RepositoryNotFoundError):
            return (
                "is not on the hub, or is shown to others only: check the name, or give the step the secret HF_TOKEN."
            )
        if isinstance(cause, RevisionNotFoundError):
            return "is not on the hub in this revision: give a branch, a tag or a commit that its page shows after '@'."
        cause = cause.__cause__ or cause.__context__
    return (
        f"cannot be read ({first_line_of(error)}): give a folder with a model in the form of Hugging Face, or a name "
        "on the hub that the cluster may read."
    )


def first_line_of(error: BaseException) -> str:
    """Return type and first line of a library's error."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return f"{type(error).__name__}: {reason}"


@dataclass(frozen=True)
class ModelAxes:
    """Config, vocabulary and sharding of a stored model."""

    config: LlamaConfig
    vocab: Any
    """Haliax axis, rounded up to a multiple for the mesh."""
    mapping: Any
    """Name of a weight axis → axes of the mesh."""


def model_axes(config: LlamaConfig, vocab_size: int, mapping: Any) -> ModelAxes:
    """Return the axes of a training with a tokenizer of ``vocab_size`` tokens."""
    import haliax as hax
    from haliax.partitioning import round_axis_for_partitioning

    return ModelAxes(config, round_axis_for_partitioning(hax.Axis("vocab", vocab_size), mapping), mapping)


def load_checkpointed(axes: ModelAxes, checkpoints: str) -> Any:
    """Load the model of the newest complete checkpoint; raises ``FileNotFoundError`` without one.

    The weights are the averaged ones, if there are any, as for Levanter's evaluation and export.
    """
    import equinox as eqx
    import jax
    from levanter.checkpoint import latest_checkpoint_path, load_checkpoint

    shape = eqx.filter_eval_shape(axes.config.build, axes.vocab, key=jax.random.PRNGKey(0))
    path = latest_checkpoint_path(checkpoints)
    weights = AVERAGED if has_arrays(path, AVERAGED) else "model"
    policy = f"{weights}/policy"  # the model of a preference training
    return load_checkpoint(
        shape, path, subpath=policy if has_arrays(path, policy) else weights, axis_mapping=axes.mapping
    )


def write_export(
    axes: ModelAxes, model: Any, tokenizer: Any, path: str, *, dtype: Any = None, generation_config: Any = None
) -> None:
    """Export ``model`` and ``tokenizer`` as a Hugging Face folder; all processes of the mesh must call this.

    ``dtype`` is the type of the weights; None keeps it.
    """
    _converter(axes, tokenizer).save_pretrained(model, path, dtype=dtype, generation_config=generation_config)


def load_export(axes: ModelAxes, tokenizer: Any, path: str, precision: Any) -> Any:
    """Load the model of the Hugging Face folder ``path``, in the precision of parameters."""
    converter = _converter(axes, tokenizer).replaced(reference_checkpoint=path)
    return converter.load_pretrained(
        axes.config.model_type, ref=path, config=axes.config, axis_mapping=axes.mapping, dtype=precision.param_dtype
    )


def _converter(axes: ModelAxes, tokenizer: Any) -> Any:
    return axes.config.hf_checkpoint_converter().replaced(tokenizer=tokenizer)
