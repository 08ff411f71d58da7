"""A model in the form of Hugging Face that a training begins with: is it there, and is it of the training's shape?"""

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

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from levanter.models.llama import LlamaConfig

# Does a checkpoint hold this model? Its arrays say their shapes, and no weight is read for that.

_MODEL = "model/"
_ARRAY = "/zarr.json"


def check_same_model(made: Any, vocab_size: int, checkpoint: str, field: str, part: str = "") -> None:
    """Raise ``ValueError`` naming ``field`` if the arrays of that checkpoint are not those of Levanter's config.

    A checkpoint in Levanter's old format, which does not list its arrays, is let through. ``part`` begins the names of
    the model's arrays in one that holds several models, such as ``policy/``.
    """
    stored = stored_shapes(checkpoint)
    wanted = {part + name: shape for name, shape in model_shapes(made, vocab_size).items()}
    for name in sorted(stored.keys() | wanted.keys() if stored else ()):
        if stored.get(name) != wanted.get(name):
            raise ValueError(
                f"{field}: the checkpoint {checkpoint} is of another model: {name} is {_said(stored.get(name))} there "
                f"and {_said(wanted.get(name))} in this one."
            )


def check_model(made: Any, vocab_size: int, field: str) -> None:
    """Raise ``ValueError`` naming ``field`` if Levanter cannot build the model of that config, or cannot train it."""
    check_sizes(made.model, field)
    try:
        model_shapes(made, vocab_size)
    except Exception as error:  # each model has its own way of refusing
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"{field}: Levanter cannot build this {type(made.model).__name__} ({type(error).__name__}: {reason}): look "
            "at its sizes, which have to fit each other."
        ) from error


def model_shapes(made: Any, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the arrays of a model that Levanter's config would train, on the devices of this process."""
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
    """Name -> shape of the model's arrays in that checkpoint; empty for one in Levanter's old format."""
    if not exists(join(checkpoint, "manifest.ocdbt")):
        return {}
    return asyncio.run(_read_shapes(checkpoint))


def has_arrays(checkpoint: str, folder: str) -> bool:
    """Whether that checkpoint has arrays in ``folder``, such as ``model``."""
    if not exists(join(checkpoint, "manifest.ocdbt")):  # the old format has a folder for each
        return exists(join(checkpoint, folder))
    return any(key.startswith(f"{folder}/") for key in asyncio.run(_keys(checkpoint)))


async def _keys(checkpoint: str) -> list[str]:
    return [key.decode() for key in await (await _opened(checkpoint)).list()]


async def _opened(checkpoint: str) -> Any:
    import tensorstore
    from levanter.tensorstore_serialization import build_kvstore_spec

    return await tensorstore.KvStore.open({"driver": "ocdbt", "base": build_kvstore_spec(checkpoint)})


async def _read_shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    store, keys = await _opened(checkpoint), await _keys(checkpoint)
    wanted = [key for key in keys if key.startswith(_MODEL) and key.endswith(_ARRAY)]
    described = await asyncio.gather(*(store.read(key) for key in wanted))
    return {
        key.removeprefix(_MODEL).removesuffix(_ARRAY): tuple(json.loads(found.value)["shape"])
        for key, found in zip(wanted, described, strict=True)
    }


def _said(shape: tuple[int, ...] | None) -> str:
    return "not" if shape is None else "×".join(map(str, shape)) or "a scalar"


_HUB: Final = "hf://"
_WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
"""What Levanter reads weights from, the first that is there; one in parts has an index of the same name."""


def check_hub_model(made: Any, begin: Any, field: str) -> None:
    """Refuse what Levanter could not load into its model; no weight is read for that.

    Args:
        made: Levanter's config of the training.
        begin: A folder, a name on the hub, or True for the model's own reference checkpoint.
        field: Of the config.

    Raises:
        ValueError: Nothing is there, it cannot be read, it lacks weights, or it is of another shape.
    """
    path, described, stored = described_on_hub(made, begin, field)
    if getattr(made, "use_hf_model_config", False):
        return  # the model is whatever is there
    found, wanted = model_shapes(stored, described.vocab_size), model_shapes(made, len(made.data.the_tokenizer))
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"{field}: the model {path} is another: {name} is {found.get(name)} there and {wanted.get(name)} in "
                "this one."
            )


def described_on_hub(made: Any, begin: Any, field: str) -> tuple[str, Any, Any]:
    """Where the model is, its own config, and Levanter's config of the training with that model.

    Args:
        made: Levanter's config of the training.
        begin: A folder, a name on the hub, or True for the model's own reference checkpoint.
        field: Of the config.

    Raises:
        ValueError: Nothing is there, it cannot be read, or it lacks weights.
    """
    path = made.model.reference_checkpoint if begin is True else str(begin)
    try:
        converter = made.model.hf_checkpoint_converter()
        described = converter.hf_config_from_hf_checkpoint(path)
        stored = dataclasses.replace(made, model=converter.config_from_hf_config(described))
        missing = _missing_weights(path)
    except Exception as error:  # whatever the hub's client and the reader of its configs raise
        raise ValueError(f"{field}={path!r} {_why_unreadable(error)}") from error
    if missing:
        raise ValueError(f"{field}={path!r} lacks {missing}: give a model that was saved, or uploaded, whole.")
    return path, described, stored


def _missing_weights(path: str) -> str:
    """The file of weights that is not there, of those that Levanter would read; empty if all are."""
    fs, root = _file_system_of(path)
    there = {basename(name) for name in fs.ls(root, detail=False)}
    for name in _WEIGHTS:
        if (index := f"{name}.index.json") in there:
            parts = json.loads(fs.cat_file(join(root, index)))["weight_map"].values()
            return next((part for part in parts if part not in there), "")
    return "" if there.intersection(_WEIGHTS) else " and ".join(_WEIGHTS)


def _file_system_of(path: str) -> tuple[AbstractFileSystem, str]:
    """As Levanter tells a folder from a name on the hub."""
    is_of_hub = path.startswith(_HUB)
    if not is_of_hub and (is_remote(path) or path.startswith(("/", "./", "../")) or os.path.isdir(path)):
        return file_system_at(path)
    from huggingface_hub import HfFileSystem

    return HfFileSystem(), path.removeprefix(_HUB)


def _why_unreadable(error: BaseException) -> str:
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
    """What a library's error says, in one line."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return f"{type(error).__name__}: {reason}"


# Models as they lie on the store: Levanter's checkpoints and Hugging Face exports, loaded onto the current mesh.
#
# Call everything inside a device mesh.

AVERAGED = "model_averaging/model"
"""Where a checkpoint has the averaged weights."""


@dataclass(frozen=True)
class ModelAxes:
    """What a stored model has to fit: its config, its vocabulary, and how its weights are sharded."""

    config: LlamaConfig
    vocab: Any
    """The Haliax axis, rounded up to what the mesh divides."""
    mapping: Any
    """From names of weight axes to axes of the mesh."""


def model_axes(config: LlamaConfig, vocab_size: int, mapping: Any) -> ModelAxes:
    """The axes that training used for a tokenizer with ``vocab_size`` tokens."""
    import haliax as hax
    from haliax.partitioning import round_axis_for_partitioning

    return ModelAxes(config, round_axis_for_partitioning(hax.Axis("vocab", vocab_size), mapping), mapping)


def load_checkpointed(axes: ModelAxes, checkpoints: str) -> Any:
    """The model of the newest complete checkpoint under ``checkpoints``; raises ``FileNotFoundError`` without one.

    Its weights are the averaged ones, if the training kept any: those that Levanter takes for evaluation and export.
    """
    import equinox as eqx
    import jax
    from levanter.checkpoint import latest_checkpoint_path, load_checkpoint

    shape = eqx.filter_eval_shape(axes.config.build, axes.vocab, key=jax.random.PRNGKey(0))
    path = latest_checkpoint_path(checkpoints)
    weights = AVERAGED if has_arrays(path, AVERAGED) else "model"
    policy = f"{weights}/policy"  # where a training by preferences has its model
    return load_checkpoint(
        shape, path, subpath=policy if has_arrays(path, policy) else weights, axis_mapping=axes.mapping
    )


def write_export(
    axes: ModelAxes, model: Any, tokenizer: Any, path: str, *, dtype: Any = None, generation_config: Any = None
) -> None:
    """Write ``model`` and ``tokenizer`` as a Hugging Face folder. All processes of the mesh must call this.

    The weights are written as ``dtype``; as they are if there is none.
    """
    _converter(axes, tokenizer).save_pretrained(model, path, dtype=dtype, generation_config=generation_config)


def load_export(axes: ModelAxes, tokenizer: Any, path: str, precision: Any) -> Any:
    """The model of the Hugging Face folder ``path``, in the precision of parameters."""
    converter = _converter(axes, tokenizer).replaced(reference_checkpoint=path)
    return converter.load_pretrained(
        axes.config.model_type, ref=path, config=axes.config, axis_mapping=axes.mapping, dtype=precision.param_dtype
    )


def _converter(axes: ModelAxes, tokenizer: Any) -> Any:
    return axes.config.hf_checkpoint_converter().replaced(tokenizer=tokenizer)
