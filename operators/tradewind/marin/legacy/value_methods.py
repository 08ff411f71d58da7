"""Small values in configs: axes, precision policies, dtypes, caches, repository references."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.steps.errors import ExperimentError


def _dtype(name: str) -> type:
    """Return a dtype with JAX's text form, without arithmetic."""
    return type(name, (), {"__module__": "jax.numpy", "__qualname__": name, "dtype": name})


DTYPES: Final[Mapping[str, type]] = {
    name: _dtype(name)
    for name in (
        "bfloat16", "float16", "float32", "float64", "int4", "int8", "int16", "int32", "int64", "uint8", "uint32",
        "float8_e4m3fn", "float8_e5m2",
    )
}  # fmt: skip
_SHORT: Final[Mapping[str, str]] = {
    "bf16": "bfloat16", "f16": "float16", "full": "float32", "f32": "float32", "f64": "float64",
    "bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "float64": "float64",
}  # fmt: skip
_SHOWN: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float16": "f16", "float32": "full", "float64": "f64"}
_PARTS: Final[Mapping[str, str]] = {
    "p": "param_dtype", "params": "param_dtype", "c": "compute_dtype", "compute": "compute_dtype",
    "o": "output_dtype", "output": "output_dtype",
}  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """Precision of parameters, computation and output."""

    param_dtype: Any
    compute_dtype: Any
    output_dtype: Any

    def with_output_dtype(self, output_dtype: Any) -> Policy:
        """Return a copy with another output precision."""
        return dataclasses.replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        given = zip("pco", dataclasses.astuple(self), strict=True)
        return ",".join(f"{letter}={_SHOWN[kind.__name__]}" for letter, kind in given)


Policy.__module__ = "jmp"


def get_policy(policy_name: str) -> Policy:
    """Parse a policy such as ``p=f32,c=bfloat16``. Compute defaults to parameters, output to compute.

    Raises:
        ValueError: A part or a precision is unknown.
        ExperimentError: ``half`` depends on the machine, which is unknown here.
    """
    if "=" not in policy_name:
        kind = _precision(policy_name)
        return Policy(kind, kind, kind)
    given: dict[str, Any] = {}
    for part in policy_name.split(","):
        key, value = part.split("=", 2)
        if key not in _PARTS:
            raise ValueError(f"Unknown key '{key}' in '{policy_name}' should be 'params', 'compute' or 'output'.")
        given[_PARTS[key]] = _precision(value)
    param = given.get("param_dtype", DTYPES["float32"])
    compute = given.get("compute_dtype", param)
    return Policy(param, compute, given.get("output_dtype", compute))


def _precision(name: str) -> type:
    if name == "half":
        raise ExperimentError("jmp.get_policy('half') means another precision on each kind of chip: name it instead.")
    if name not in _SHORT:
        raise ValueError(f"Unknown dtype '{name}' must be one of {', '.join(_SHORT)}.")
    return DTYPES[_SHORT[name]]


class RuntimeEnv(dict[str, Any]):
    """The environment of a Ray job: a dictionary of the given values."""

    def __init__(self, **given: Any) -> None:
        super().__init__({key: value for key, value in given.items() if value is not None})


def _ray_arguments(resources: Any) -> dict[str, Any]:
    names = ("num_cpus", "num_gpus", "resources", "runtime_env")
    given = {name: getattr(resources, name) for name in names}
    return given if resources.accelerator_type is None else {**given, "accelerator_type": resources.accelerator_type}


def _ray_amounts(resources: Any) -> dict[str, Any]:
    amounts = {"CPU": resources.num_cpus, "GPU": resources.num_gpus, **resources.resources}
    kind = resources.accelerator_type
    return amounts if kind is None else {**amounts, f"accelerator_type:{kind}": 0.001}


_UNITS: Final = re.compile(r"^\s*([\d.]+)\s*([kmgtp]?)(i?)b?(?:ytes?)?\s*$", re.IGNORECASE)


def _flush_bytes(config: Any) -> int:
    """Return the bytes of a size such as ``512MB``, in powers of 1000, or of 1024 with an ``i``."""
    given = config.target_size_per_flush
    if isinstance(given, int):
        return given
    found = _UNITS.match(given)
    if not found:
        raise ValueError(f"target_size_per_flush={given!r} is no size: write one such as 512MB.")
    number, unit, is_binary = found.groups()
    return int(float(number) * (1024 if is_binary else 1000) ** " kmgtp".index(unit.lower() or " "))


def _own(name: str) -> Any:
    """Return a class method that creates a legacy class under its default name."""

    def make(cls: Any, batch_size: int | None = None) -> Any:
        if name == "default":
            return cls()
        if name == "one_group":
            return cls(num_shard_groups=1, batch_size=128)
        return cls(num_shard_groups=None, batch_size=128 if batch_size is None else batch_size)

    return classmethod(make)


_REMAT: Final[Mapping[Any, Mapping[str, Any]]] = {
    "offload": {"save_carries": "offload", "save_inputs": "offload", "save_block_internals": False},
    "recompute": {"save_carries": False, "save_inputs": False, "save_block_internals": False},
    "full": {"save_carries": False, "save_inputs": False, "save_block_internals": False},
    "save_all": {"save_carries": True, "save_inputs": True, "save_block_internals": True},
    "nested": {"nested": True},
    True: {"simple": True},
    False: {"save_carries": True, "save_inputs": True, "save_block_internals": True, "disable": True},
}


def _checkpoint_policy(cls: Any, remat_policy: bool | str) -> Any:
    if not isinstance(remat_policy, bool | str) or remat_policy not in _REMAT:
        raise ValueError(f"Invalid checkpoint policy {remat_policy}")
    return cls(**_REMAT[remat_policy])


def _skip_step(cls: Any, config: Any) -> Any:
    if isinstance(config, cls):
        return config
    if isinstance(config, bool):
        return cls() if config else None
    if isinstance(config, int):
        return cls(rolling_interval_length=config)
    raise ValueError(f"Invalid type for SkipStepConfig: {type(config)}")


def _repository(cls: Any, s: str) -> Any:
    return cls(*s.split("@")) if "@" in s else cls(s)


def logical_cpu_core_count() -> int | None:
    """Return the logical CPUs of this machine, or of the Slurm job."""
    given = os.getenv("SLURM_CPUS_ON_NODE")
    return os.cpu_count() if given is None else int(given)


METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "haliax.axis.Axis": {
        "alias": lambda axis, new_name: type(axis)(new_name, axis.size),
        "resize": lambda axis, size: type(axis)(axis.name, size),
        "__str__": lambda axis: f"{axis.name}({axis.size})",
    },
    "haliax._src.scan.ScanCheckpointPolicy": {"from_bool_or_str": classmethod(_checkpoint_policy)},
    "levanter.store.cache.CacheOptions": {
        "target_bytes_per_flush": property(_flush_bytes), "default": _own("default"),
        "no_fanciness": _own("no_fanciness"), "one_group": _own("one_group"),
    },
    "levanter.utils.ray_utils.RayResources": {"to_kwargs": _ray_arguments, "to_resource_dict": _ray_amounts},
    "levanter.optim.skipstep.SkipStepConfig": {"from_bool_int_or_config": classmethod(_skip_step)},
    "levanter.compat.hf_checkpoints.RepoRef": {
        "from_string": classmethod(_repository),
        "__str__": lambda ref: ref.model_name_or_path + (f"@{ref.revision}" if ref.revision is not None else ""),
        "__repr__": lambda ref: f"RemoteRev({ref.model_name_or_path!r}, {ref.revision!r})",
    },
}  # fmt: skip

NAMES: Final[Mapping[str, Any]] = {
    "jmp.Policy": Policy,
    "jmp.get_policy": get_policy,
    "levanter.utils.py_utils.logical_cpu_core_count": logical_cpu_core_count,
    **{f"jax.numpy.{name}": kind for name, kind in DTYPES.items()},
}

# Text extraction configs: arguments for the extraction library.

Config = Any
_NOT_FOR_MARKDOWNIFY: Final = frozenset({"include_images", "include_links"})
_NOT_FOR_RESILIPARSE: Final = frozenset({"use_custom_variant", "markdownify_config", "prepend_title"})


def _preset(cls: Any, config: str) -> Any:
    if config != "default":
        raise ValueError(f"Invalid preset config: {config}. Please use 'default'.")
    return cls()


def _values(config: Config, excluded: frozenset[str]) -> dict[str, Any]:
    names = (spec.name for spec in dataclasses.fields(config))
    return {name: getattr(config, name) for name in names if name not in excluded}


def _markdownify_of_resiliparse(config: Config) -> dict[str, Any]:
    excluded = frozenset({"use_custom_variant", "prepend_title", *config.resiliparse_kwargs})
    names = (spec.name for spec in dataclasses.fields(config.markdownify_config))
    return {name: getattr(config, name) for name in names if name not in excluded}


_MADE: Final = {"default_config": classmethod(lambda cls: cls()), "get_preset_config": classmethod(_preset)}
EXTRACTION_METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "marin.schemas.web.convert.HtmlToMarkdownConfig": {
        **_MADE, "markdownify_kwargs": property(lambda config: _values(config, _NOT_FOR_MARKDOWNIFY)),
    },
    "marin.schemas.web.convert.ResiliparseConfig": {
        **_MADE, "resiliparse_kwargs": property(lambda config: _values(config, _NOT_FOR_RESILIPARSE)),
        "markdownify_kwargs": property(_markdownify_of_resiliparse),
    },
}  # fmt: skip
