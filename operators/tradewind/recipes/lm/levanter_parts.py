"""Parts of Levanter's config that training, evaluation and the token cache share.

This module may be imported anywhere. Its functions load Levanter, so steps call them on the cluster.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import warnings
from typing import TYPE_CHECKING, Any

from tradewind.datasets.files import exists, is_remote, join, parent
from tradewind.recipes.lm.cache_integrity import LEDGER
from tradewind.recipes.lm.cache_integrity import check_cache as check_split
from tradewind.recipes.model_spec import model_size
from tradewind.text import did_you_mean, truncated_repr

if TYPE_CHECKING:
    from levanter.data.text import LmDataConfig
    from levanter.models.llama import LlamaConfig

COMPONENT = "corpus"
"""Levanter's name of the one data set, and its folder in a token cache of ``tokenize``."""
SPLITS = ("train", "validation")
EXPORT_DTYPES = ("float32", "bfloat16", "float16")
NOISY_LOGGERS = ("levanter", "rigging", "tqdm_loggable", "jax._src.distributed")
FALSE_ALARM_LOGGERS = (
    "zephyr",  # at each stage's start: all workers are dead (none has started yet)
    "fray",  # no peak speed is known for this CPU
    "levanter.tensorstore_serialization",  # a leaf of the optimizer state is None
    "levanter.compat.hf_checkpoints",  # no model to copy the config from, though none is needed
)
_OTHER_NAMES = {"qwen2": "qwen", "gemma3_text": "gemma3"}
"""``model_type`` of a Hugging Face config → Levanter's name, where they differ."""
_WRITES = "_cache_write"
"""JAX's name of the function that writes its compilation cache."""


def llama(size: str, seq_len: int, tokenizer: str) -> LlamaConfig:
    """Return the Llama of that size with a context of ``seq_len`` tokens.

    ``tokenizer`` (a local folder) is also the reference checkpoint, since Levanter would look for both on a hub.
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
        gradient_checkpointing=shape.hidden_dim >= 512,  # storing small activations is cheaper than recomputing
        tokenizer=tokenizer,
        reference_checkpoint=tokenizer,
    )


def language_model(model: Any, size: str, seq_len: int, tokenizer: str) -> Any:
    """Return the given model config, or else the Llama of that size, with the local tokenizer.

    Raises:
        ValueError: It is no model config of Levanter, or its context is shorter than ``seq_len``.
    """
    if model is None:
        return llama(size, seq_len, tokenizer)
    from levanter.models.lm_model import LmConfig

    if not isinstance(model, LmConfig):
        raise ValueError(f"model is a {type(model).__name__}, which is no config of a language model of Levanter's.")
    if seq_len > model.max_seq_len:
        raise ValueError(f"seq_len={seq_len} is longer than the model's context, max_seq_len={model.max_seq_len}.")
    replaced = {"tokenizer", "reference_checkpoint"} & {field.name for field in dataclasses.fields(model)}
    return dataclasses.replace(model, **dict.fromkeys(replaced, tokenizer))


def exported_model(model_type: str) -> Any:
    """Return Levanter's class of configs for the ``model_type`` in an export's ``config.json``.

    Raises:
        ValueError: Levanter has none.
    """
    from levanter.models.lm_model import LmConfig

    known = LmConfig.get_known_choices()
    name = _OTHER_NAMES.get(model_type, model_type)
    if name not in known:
        raise ValueError(f"Levanter has no model {truncated_repr(model_type)}; {did_you_mean(name, known)}")
    return known[name]


def cached_data(cache_path: str, tokenizer: str) -> LmDataConfig:
    """Return the data config of the token cache at ``cache_path``; raises ``ValueError`` without a split."""
    from levanter.data.text import DatasetComponent, LmDataConfig

    check_cache(cache_path)
    return LmDataConfig(
        tokenizer=tokenizer,
        cache_dir=cache_path,
        auto_build_caches=False,
        components={COMPONENT: DatasetComponent(cache_dir=cache_folder(cache_path))},
        shuffle=True,  # by default, a small batch would be of one document
        mixture_block_size=64,
    )


def check_cache(cache_path: str, seq_len: int = 0) -> None:
    """Raise ``ValueError`` if a split of the token cache is missing or damaged, or has no sequence to train on."""
    folder = cache_folder(cache_path)
    for split in SPLITS:
        if not exists(join(folder, split, LEDGER)):
            there_is = f"There is no finished token cache for {split} under cache_path {cache_path}"
            only_train = split == "validation" and folder == cache_path
            raise ValueError(f"{there_is}{': give its step validation_paths' if only_train else ''}.")
        try:
            is_trained = split == SPLITS[0]
            check_split(join(folder, split), seq_len if is_trained else 0, may_be_empty=not is_trained)
        except ValueError as error:
            raise ValueError(f"cache_path: {error}") from None


def cache_folder(cache_path: str) -> str:
    """Return the folder of the splits: inside the output of ``tokenize``, or the output of ``tokenize_files``."""
    return cache_path if exists(join(cache_path, SPLITS[0], LEDGER)) else join(cache_path, COMPONENT)


def on_tpu() -> bool:
    """Whether JAX runs on TPUs in this process."""
    import jax

    return bool(jax.default_backend() == "tpu")


def precision() -> Any:
    """Return Levanter's mixed-precision policy: bfloat16 arithmetic on a TPU, else float32."""
    import jmp

    return jmp.get_policy("p=f32,c=bfloat16" if on_tpu() else "f32")


def export_dtype(name: str | None) -> Any:
    """Return the type of an export's weights; raises ``ValueError`` for an unknown name."""
    import jax.numpy as jnp

    if name is not None and name not in EXPORT_DTYPES:
        raise ValueError(f"levanter['hf_save_dtype']={name!r} is not one of {', '.join(EXPORT_DTYPES)}.")
    return None if name is None else jnp.dtype(name)


def mesh() -> Any:
    """Return a mesh with all devices of all hosts on the data axis."""
    from levanter.utils.mesh import MeshConfig

    return MeshConfig(axes={"data": -1})


def device_count() -> int:
    """Return the number of devices of all hosts."""
    import jax

    return jax.device_count()


def device_kind() -> str:
    """Return JAX's name of the devices, such as ``TPU v4``."""
    import jax

    return str(jax.devices()[0].device_kind)


def device_peak() -> float | None:
    """Return the peak operations per second of a device in bfloat16, by Levanter's table; None without an entry."""
    import jax
    from fray.device_flops import device_flops_for_jax_device

    peak = None if jax.default_backend() == "cpu" else device_flops_for_jax_device(device_kind())
    return None if peak is None else float(peak)


def all_tokens(cache: Any) -> Any:
    """Read all tokens of a split of a token cache in a row: int32, shape ``[tokens]``."""
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
    """Raise ``ValueError`` unless the devices of all hosts divide ``batch_size``.

    ``axes`` is Levanter's mesh, if it may have more than the data axis: then a batch has fewer parts. ``num_slices`` is
    the number of slices of the devices, and ``per_device`` Levanter's ``per_device_parallelism``. ``field`` and
    ``mesh_field`` are names for errors.
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
    """Return the number of parts of a batch on that mesh; raises ``ValueError`` if it does not fit the devices."""
    try:
        ici, dcn = mesh_config.axis_shapes(devices, num_slices)
    except ValueError as error:
        where = f"{devices} devices" + (f" on {num_slices} slices" if num_slices > 1 else "")
        raise ValueError(f"{field} does not fit {where}: {error}") from error
    mapping = mesh_config.resolved_compute_mapping
    axes = mapping.get(mesh_config.batch_axis_name, mapping.get("batch")) or ()
    names = (axes,) if isinstance(axes, str) else axes
    return math.prod(ici.get(name, 1) * dcn.get(name, 1) for name in names)


def cache_compilations_everywhere() -> None:
    """Let all processes on CPUs write to JAX's compilation cache, not only process 0.

    JAX lets process 0 alone write, since others find its entries. On CPUs they do not, as a key names the process. They
    would compile all again at every start, which takes longer than a rehearsal's training. On other devices, and with a
    JAX that writes its cache in another way, nothing changes.
    """
    from jax._src import compilation_cache, compiler, distributed

    jax_write = getattr(compiler, _WRITES, None)
    if jax_write is None or getattr(jax_write, "__module__", "") == __name__:
        return

    def write(key: str, seconds: float, name: str, backend: Any, executable: Any, callbacks: Any) -> None:
        if backend.platform != "cpu" or distributed.global_state.process_id == 0 or callbacks:
            jax_write(key, seconds, name, backend, executable, callbacks)
            return
        try:
            compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
        except Exception as problem:  # as in JAX: it is compiled again later
            warnings.warn(f"The compilation {name} could not be cached: {problem}", stacklevel=2)

    setattr(compiler, _WRITES, write)


def keep_compilations(output_path: str) -> None:
    """Cache JAX's compilations beside the outputs, where a restarted slice finds them.

    ``JAX_COMPILATION_CACHE_DIR`` on the hosts sets one folder for all experiments instead. By default, JAX caches only
    compilations of a second or more; it looks up short ones anyway, so caching them costs no extra request. XLA's own
    caches (of GPU kernels) cannot be on an object store.
    """
    import jax

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or join(parent(output_path), "compilation-cache")
    jax.config.update("jax_compilation_cache_dir", folder if "://" in folder else os.path.abspath(folder))
    if is_remote(folder):
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    cache_compilations_everywhere()


def quiet_libraries() -> None:
    """Silence Levanter and its dependencies, which log every internal step, below warnings; some below errors.

    On CPUs, silence XLA's errors, too: it logs a false one for each cached compilation.
    """
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in FALSE_ALARM_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when jaxlib is loaded


def quiet_console() -> None:
    """Show only warnings on the console; log files do not change.

    For training, where Levanter sets its own log levels and writes a detailed log file.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setLevel(max(handler.level, logging.WARNING))
