"""Config of a served model. DAG files load this module, so it imports only the standard library and ``steps``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.steps import check_secrets
from tradewind.steps.fields import PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, integer, number, one_of
from tradewind.steps.paths import HUB_PREFIX
from tradewind.steps.resources import RESOURCE_KINDS, Cpu, Gpu, TpuSlice, kind_of_resources
from tradewind.text import did_you_mean, truncated_repr

ENGINES: Final = ("levanter", "vllm", "command")
OWN_MODEL: Final = "model_path"
"""Model of a pool in a step that names its model itself."""
_HASH_CHARS: Final = 12
_SHARED: Final = ("model", "engine", "engine_options", "command", "resources", "served_name", "secrets")
"""The fields that two users of one pool must agree on; a pool's name is their hash."""
_MAX_REPLICAS: Final = 1000
_LEVANTER_OPTIONS: Final[Mapping[str, FieldRule]] = {"max_seq_len": integer(2), "max_seqs": integer(1)}
"""Longest sequence in tokens, and how many sequences are generated at a time."""
_OURS: Final = ("model", "served_model_name", "host", "port", "api_key", "uds", "config")
"""Options of vLLM that a pool sets, or that would take its engine from it."""
_VLLM_OPTION: Final = re.compile(r"[a-z][a-z0-9_]*")
_ENGINE: Final = one_of(ENGINES)
_OPTIONS: Final = FieldRule(
    "a mapping of the engine's options",
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) and name for name in value),
)
_RESOURCES: Final = FieldRule(
    "Cpu(...), Gpu(...) or TpuSlice(...)", lambda value: isinstance(value, (Cpu, Gpu, TpuSlice))
)


@dataclass(frozen=True)
class ServingConfig:
    """A model, the engine that serves it, and how many of them.

    Attributes:
        model: Path of an export, of a training's output or of a Levanter checkpoint, or ``hub:ORG/NAME@COMMIT``.
            Left out in a step that names its model itself, such as an evaluation.
        engine: ``levanter``, ``vllm``, or ``command``: a program of your own.
        engine_options: Arguments of the engine, such as ``{"max_seq_len": 2048}``.
        command: Of engine ``command``: the program and its arguments, in which ``{model}`` is the model's folder on the
            worker and ``{port}`` the port of 127.0.0.1 at which it must serve OpenAI's API and ``/health``.
        resources: Of each engine; a slice must have one host.
        replicas: How many engines run, at least.
        max_replicas: How many run while requests wait; as many as ``replicas`` if None.
        max_concurrent: How many requests an engine works on at a time; the others wait in the pool.
        timeout_s: The pool ends this long after its start, whatever happens.
        idle_timeout_s: The pool ends after this long without a request and without a new user.
        request_timeout_s: A request fails (504) after this long, with its time in the queue.
        served_name: Name of the model in the API; by default the last part of ``model`` that is not ``hf``.
        secrets: Variables of the engine's environment, as in a step: ``{"HF_TOKEN": "env:HF_TOKEN"}``.
    """

    model: str = OWN_MODEL
    engine: str = "levanter"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    resources: Cpu | Gpu | TpuSlice = field(default_factory=Cpu)
    replicas: int = 1
    max_replicas: int | None = None
    max_concurrent: int = 64
    timeout_s: float = 7200.0
    idle_timeout_s: float = 600.0
    request_timeout_s: float = 1800.0
    served_name: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_fields(
            self,
            model=PATH,
            engine=_ENGINE,
            engine_options=_OPTIONS,
            command=TEXTS,
            resources=_RESOURCES,
            replicas=integer(1),
            max_replicas=integer(1).or_none(),
            max_concurrent=integer(1),
            timeout_s=number(above=0),
            idle_timeout_s=number(above=0),
            request_timeout_s=number(above=0),
            served_name=SOME_TEXT.or_none(),
        )
        check_secrets(self.secrets, "ServingConfig")
        self._check_command()
        if isinstance(self.engine_options, Mapping):
            self._check_options(self.engine_options)
        self._check_replicas()
        if isinstance(self.resources, TpuSlice):
            _check_slice(self.resources)

    def _check_command(self) -> None:
        object.__setattr__(self, "command", tuple(self.command))
        if self.engine == "command" and not any("{port}" in str(word) for word in self.command):
            raise ValueError(
                f"command={truncated_repr(self.command)}: with engine='command', give the program and its arguments, "
                "and {port} where it takes its port."
            )
        if self.engine != "command" and self.command:
            raise ValueError(f"command={truncated_repr(self.command)}: only engine='command' takes one.")

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options that the engine does not have; vLLM itself knows its own."""
        if self.engine == "command" and options:
            raise ValueError("engine_options: engine='command' takes none; write them into the command.")
        for name, value in options.items():
            plain = name.replace("-", "_")
            if self.engine == "levanter" and name not in _LEVANTER_OPTIONS:
                raise ValueError(
                    f"engine_options[{truncated_repr(name)}] is no option of Levanter's server; "
                    f"{did_you_mean(name, _LEVANTER_OPTIONS)}"
                )
            if self.engine == "levanter":
                _LEVANTER_OPTIONS[name].check(f"engine_options[{name!r}]", value)
            elif plain in _OURS:
                raise ValueError(f"engine_options[{name!r}]: the pool itself sets it.")
            elif not _VLLM_OPTION.fullmatch(plain):
                raise ValueError(
                    f"engine_options[{truncated_repr(name)}] is no option of vLLM: give {{'max_model_len': 2048}}."
                )

    def _check_replicas(self) -> None:
        if not isinstance(self.replicas, int):
            return
        most = self.replicas if self.max_replicas is None else self.max_replicas
        if isinstance(most, int) and not self.replicas <= most <= _MAX_REPLICAS:
            raise ValueError(
                f"max_replicas={truncated_repr(most)}: give a number from replicas={self.replicas} to {_MAX_REPLICAS}."
            )

    @property
    def most_replicas(self) -> int:
        """The upper limit of engines."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def name_in_api(self) -> str:
        """The model's name for clients."""
        if self.served_name is not None:
            return self.served_name
        path = self.model.removeprefix(HUB_PREFIX).partition("@")[0] if self.is_from_hub else self.model
        folder, name = posixpath.split(path.rstrip("/"))
        return (posixpath.basename(folder) if name == "hf" else "") or name or "model"

    @property
    def is_from_hub(self) -> bool:
        return self.model.startswith(HUB_PREFIX)

    def to_json(self) -> str:
        """Return the config as JSON, for a command line; ``from_json`` reads it."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        fields["model"] = str(self.model)
        resources = dataclasses.asdict(self.resources)
        fields["resources"] = {"kind": kind_of_resources(self.resources), **resources}
        return json.dumps(fields, sort_keys=True, default=dict)

    @staticmethod
    def from_json(text: str) -> ServingConfig:
        """Return the config that ``to_json`` wrote.

        Raises:
            ValueError: The text is no such config; the message names the field.
        """
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"The config of a served model is no JSON: {error}") from None
        if not isinstance(given, dict) or "model" not in given:
            raise ValueError("The config of a served model is no JSON object with a 'model'.")
        known = [each.name for each in dataclasses.fields(ServingConfig)]
        for name in given:
            if name not in known:
                raise ValueError(f"ServingConfig has no field {truncated_repr(name)}; {did_you_mean(name, known)}")
        return ServingConfig(**{**given, "resources": _read_resources(given.get("resources", {"kind": "cpu"}))})


@dataclass(frozen=True)
class PoolLimits:
    """How long a pool waits for its parts.

    Attributes:
        start_s: For an engine's first healthy answer, from the start of its process.
        frozen_s: For a healthy answer of an engine that had one.
        silent_s: For a worker, which answers at once whatever its engine does.
        queue_s: While requests wait, before it grows: a queue that is soon empty needs no engine.
        spare_s: While an engine is spare, before it shrinks: the start of another may take minutes.
    """

    start_s: float = 3600.0
    frozen_s: float = 60.0
    silent_s: float = 20.0
    queue_s: float = 5.0
    spare_s: float = 120.0


def pool_name(config: ServingConfig, state: Sequence[Any] = ()) -> str:
    """Return the name of the pool that serves this config: equal for all users who could share its engines.

    Replicas, limits and timeouts do not count: the first user of a pool sets them. The state of the model's files does.
    """
    fields = json.loads(config.to_json())
    shared = {name: fields[name] for name in _SHARED} | {"state": list(state)}
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
    return f"pool-{digest[:_HASH_CHARS]}"


def _check_slice(resources: TpuSlice) -> None:
    if slice_type(resources.slice_type).is_multi_host:
        raise ValueError(
            f"resources=TpuSlice({resources.slice_type!r}): this type has several hosts; an engine runs on one. Give a "
            "type with one host, such as 'v4-8' or 'v5litepod-8'."
        )
    if resources.num_slices != 1:
        raise ValueError(
            f"resources=TpuSlice(num_slices={truncated_repr(resources.num_slices)}): an engine runs on one slice. Give "
            "the number of engines as replicas."
        )


def _read_resources(given: Any) -> Any:
    if not isinstance(given, dict):
        return given  # refused as no resources
    kinds = {kind: RESOURCE_KINDS[kind] for kind in ("cpu", "gpu", "tpu_slice")}
    made = kinds.get(given.get("kind"))  # type: ignore[arg-type]
    if made is None:
        raise ValueError(f"resources: kind={truncated_repr(given.get('kind'))}: give one of {', '.join(kinds)}.")
    fields = {name: value for name, value in given.items() if name != "kind"}
    unknown = fields.keys() - {each.name for each in dataclasses.fields(made)}
    if unknown:
        raise ValueError(f"resources: {made.__name__} has no field {truncated_repr(min(unknown))}.")
    return made(**fields)
