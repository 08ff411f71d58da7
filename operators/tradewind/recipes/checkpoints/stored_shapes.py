"""Does a checkpoint hold this model? Its arrays say their shapes, and no weight is read for that."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tradewind.datasets.files import exists, join
from tradewind.recipes.model_argument import check_sizes

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
