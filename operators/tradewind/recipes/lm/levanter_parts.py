"""The parts of Levanter's configuration that training, evaluation and the token cache share.

This module may be imported anywhere; its functions load Levanter, so they are called on the cluster, inside a step.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import warnings
from typing import TYPE_CHECKING, Any

from tradewind.datasets.files import exists, is_remote, join, parent
from tradewind.recipes.model_spec import model_size

if TYPE_CHECKING:
    from levanter.data.text import LmDataConfig
    from levanter.models.llama import LlamaConfig

# On CPUs, every process keeps what it compiles.
#
# JAX has process 0 alone write its cache, since all others look for the same entries. On CPUs they do not: there, the
# key of a compilation names the process. So the others would compile everything anew at every start, which takes longer
# than a rehearsal's training.

_WRITES = "_cache_write"
"""JAX's name for what writes a compilation, or does not."""


def cache_compilations_everywhere() -> None:
    """Have also those processes on CPUs that are not the first write to JAX's cache; where JAX computes on anything
    else, and in a JAX that writes its cache in another way, nothing changes."""
    from jax._src import compilation_cache, compiler, distributed

    jaxs = getattr(compiler, _WRITES, None)
    if jaxs is None or getattr(jaxs, "__module__", "") == __name__:
        return

    def write(key: str, seconds: float, name: str, backend: Any, executable: Any, callbacks: Any) -> None:
        if backend.platform != "cpu" or distributed.global_state.process_id == 0 or callbacks:
            jaxs(key, seconds, name, backend, executable, callbacks)
            return
        try:
            compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
        except Exception as problem:  # as JAX does: what cannot be kept is compiled again some day
            warnings.warn(f"The compilation {name} could not be kept: {problem}", stacklevel=2)

    setattr(compiler, _WRITES, write)


COMPONENT = "corpus"
"""Levanter's name for our one data set; also the folder inside a token cache of ``tokenize``."""
SPLITS = ("train", "validation")
LEDGER = "shard_ledger.json"
EXPORT_DTYPES = ("float32", "bfloat16", "float16")


def llama(size: str, seq_len: int, tokenizer: str) -> LlamaConfig:
    """The Llama of that size with a context of ``seq_len`` tokens.

    ``tokenizer`` (a local folder) is also the reference checkpoint: Levanter would look for both on a hub otherwise.
    """
    from levanter.models.llama import LlamaConfig

    shape = model_size(size)
    return LlamaConfig(
        max_seq_len=seq_len,
        hidden_dim=shape.hidden_dim,
        intermediate_dim=shape.intermediate_dim,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        gradient_checkpointing=shape.hidden_dim >= 512,  # small activations are cheaper to keep than to recompute
        tokenizer=tokenizer,
        reference_checkpoint=tokenizer,
    )


def language_model(model: Any, size: str, seq_len: int, tokenizer: str) -> Any:
    """The model config that was given, or else the Llama of that size, with our tokenizer.

    Raises ``ValueError`` if it is no model config of Levanter's or has a shorter context than ``seq_len``.
    """
    if model is None:
        return llama(size, seq_len, tokenizer)
    from levanter.models.lm_model import LmConfig

    if not isinstance(model, LmConfig):
        raise ValueError(f"model is a {type(model).__name__}, which is no config of a language model of Levanter's.")
    if seq_len > model.max_seq_len:
        raise ValueError(f"seq_len={seq_len} is longer than the model's context, max_seq_len={model.max_seq_len}.")
    ours = {"tokenizer", "reference_checkpoint"} & {field.name for field in dataclasses.fields(model)}
    return dataclasses.replace(model, **dict.fromkeys(ours, tokenizer))


def cached_data(cache_path: str, tokenizer: str) -> LmDataConfig:
    """The token cache at ``cache_path``, to read. Raises ``ValueError`` if a split is not there."""
    from levanter.data.text import DatasetComponent, LmDataConfig

    check_cache(cache_path)
    return LmDataConfig(
        tokenizer=tokenizer,
        cache_dir=cache_path,
        auto_build_caches=False,
        components={COMPONENT: DatasetComponent(cache_dir=cache_folder(cache_path))},
        shuffle=True,  # Levanter's default keeps neighbours together, and small batches would then be of one document
        mixture_block_size=64,
    )


def check_cache(cache_path: str) -> None:
    """Raise ``ValueError`` if a split of the token cache is not there."""
    folder = cache_folder(cache_path)
    for split in SPLITS:
        if not exists(join(folder, split, LEDGER)):
            there_is = f"There is no finished token cache for {split} under cache_path {cache_path}"
            only_train = split == "validation" and folder == cache_path
            raise ValueError(f"{there_is}{': give its step validation_paths' if only_train else ''}.")


def cache_folder(cache_path: str) -> str:
    """The folder that holds the splits: of ``tokenize`` one inside its output, of ``tokenize_files`` the output."""
    return cache_path if exists(join(cache_path, SPLITS[0], LEDGER)) else join(cache_path, COMPONENT)


def on_tpu() -> bool:
    """Whether JAX computes on TPUs here."""
    import jax

    return bool(jax.default_backend() == "tpu")


def precision() -> Any:
    """Levanter's mixed-precision policy: bfloat16 arithmetic on a TPU, float32 throughout elsewhere."""
    import jmp

    return jmp.get_policy("p=f32,c=bfloat16" if on_tpu() else "f32")


def export_dtype(name: str | None) -> Any:
    """What the weights of an export are written as. Raises ``ValueError`` for a name that is no such type."""
    import jax.numpy as jnp

    if name is not None and name not in EXPORT_DTYPES:
        raise ValueError(f"levanter['hf_save_dtype']={name!r} is not one of {', '.join(EXPORT_DTYPES)}.")
    return None if name is None else jnp.dtype(name)


def mesh() -> Any:
    """All devices of all hosts along the data axis."""
    from levanter.utils.mesh import MeshConfig

    return MeshConfig(axes={"data": -1})


def device_count() -> int:
    """Devices of all hosts."""
    import jax

    return jax.device_count()


def device_kind() -> str:
    """What JAX calls the devices, such as ``TPU v4``."""
    import jax

    return str(jax.devices()[0].device_kind)


def device_peak() -> float | None:
    """Operations a second that one device can do at most, in bfloat16, by Levanter's table; None where it has none."""
    import jax
    from fray.device_flops import device_flops_for_jax_device

    peak = None if jax.default_backend() == "cpu" else device_flops_for_jax_device(device_kind())
    return None if peak is None else float(peak)


def all_tokens(cache: Any) -> Any:
    """All tokens of a split of a token cache in a row: int32, shape ``[tokens]``."""
    import numpy as np

    return np.asarray(cache.store.tree["input_ids"].data[0 : cache.store.tree["input_ids"].data_size].read().result())


def check_batch_size(
    batch_size: int,
    devices: int,
    axes: Any = None,
    num_slices: int = 1,
    *,
    per_device: int = -1,
    field: str = "batch_size",
    mesh_field: str = "levanter['trainer.mesh']",
) -> None:
    """Raise ``ValueError`` unless ``batch_size`` can be divided among the devices of all hosts.

    ``axes`` is Levanter's mesh, if it may have other axes than the data axis: then fewer parts of a batch are enough.
    ``num_slices`` is over how many slices the devices are spread, and ``per_device`` Levanter's
    ``per_device_parallelism``. The two names are those of the fields that are told.
    """
    parts = devices if axes is None else _batch_parts(axes, devices, num_slices, mesh_field)
    if batch_size < 1 or batch_size % parts:
        what = "the number of devices" if parts == devices else f"what a batch is divided into on {devices} devices"
        raise ValueError(f"{field}={batch_size} is not a positive multiple of {what}, {parts}.")
    if per_device > 0 and batch_size % (parts * per_device):
        raise ValueError(
            f"{field}={batch_size} is not a positive multiple of {parts * per_device}: it is divided into {parts} "
            f"parts, and per_device_parallelism={per_device} sequences of each are computed at a time."
        )


def _batch_parts(mesh_config: Any, devices: int, num_slices: int, field: str) -> int:
    """Into how many parts that mesh divides a batch. Raises ``ValueError`` if the mesh does not fit the devices."""
    try:
        ici, dcn = mesh_config.axis_shapes(devices, num_slices)
    except ValueError as error:
        where = f"{devices} devices" + (f" on {num_slices} slices" if num_slices > 1 else "")
        raise ValueError(f"{field} does not fit {where}: {error}") from error
    mapping = mesh_config.resolved_compute_mapping
    axes = mapping.get(mesh_config.batch_axis_name, mapping.get("batch")) or ()
    names = (axes,) if isinstance(axes, str) else axes
    return math.prod(ici.get(name, 1) * dcn.get(name, 1) for name in names)


def keep_compilations(output_path: str) -> None:
    """Keep JAX's compilations beside the outputs, where a restarted slice finds them, or where the environment says.

    Whoever sets ``JAX_COMPILATION_CACHE_DIR`` on the hosts has one folder for all experiments. The thresholds matter:
    by default JAX keeps only what took a second to compile. JAX looks for every compilation, so keeping the short ones
    too costs no look more. XLA's own caches (of GPU kernels) cannot be on an object store.
    """
    import jax

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or join(parent(output_path), "compilation-cache")
    jax.config.update("jax_compilation_cache_dir", folder if "://" in folder else os.path.abspath(folder))
    if is_remote(folder):
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    cache_compilations_everywhere()


# Keep task logs readable: Levanter and what it builds on report every internal step at INFO.

NOISY_LOGGERS = ("levanter", "rigging", "tqdm_loggable", "jax._src.distributed")
FALSE_ALARM_LOGGERS = (
    "zephyr",  # at the start of every stage: all its workers are dead (it has started none yet)
    "fray",  # no peak speed is known for this CPU
    "levanter.tensorstore_serialization",  # a leaf of the optimizer state is None
    "levanter.compat.hf_checkpoints",  # no model to copy the config from, though none is needed
)


def quiet_libraries() -> None:
    """Let only warnings of Levanter and its companions through, and of some of them only errors.

    Where a process computes on CPUs, XLA's errors too: for every kept compilation it logs one that is none.
    """
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in FALSE_ALARM_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when jaxlib is loaded


def quiet_console() -> None:
    """Let only warnings through to the console, and leave log files as they are.

    For training: Levanter sets the levels of its own loggers and keeps a detailed log file.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setLevel(max(handler.level, logging.WARNING))
