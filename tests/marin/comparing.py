"""Permitted differences between a legacy config and its converted form: only those listed here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

CHANGES: Final[Mapping[str, Any]] = json.loads((Path(__file__).parent / "changes.json").read_text())
NOW: Final[Mapping[str, str]] = {
    **{name: change["now"] for name, change in CHANGES["changed"].items() if "now" in change},
    "levanter.data.text.LMMixtureDatasetConfig": "levanter.data.text.datasets.LmDataConfig",
    "levanter.lora.LoraConfig": "levanter.adaptor.lora.LoraConfig",
    "jmp.Policy": "jmp._src.policy.Policy",
}
"""Class -> its module today."""
SINGLE: Final = ("UrlSingleDatasetLMConfig", "HfSingleDatasetLMConfig", "SingleDatasetLMConfigBase")
Fields = Mapping[str, Any]


def _renamed(name: str) -> Callable[[Any, Fields], bool]:
    return lambda value, today: bool(today[name] == value)


def _in(name: str, inner: str) -> Callable[[Any, Fields], bool]:
    return lambda value, today: bool(today[name]["fields"][inner] == value)


def _is_default(*defaults: Any) -> Callable[[Any, Fields], bool]:
    return lambda value, today: value in defaults


def _is_dropped(value: Any, today: Fields) -> bool:
    return True


def _are_components(sources: Mapping[str, Any], today: Fields) -> bool:
    components = today["components"]
    assert list(sources) == list(components)
    for name, source in sources.items():
        component = components[name]["fields"]
        assert not list(differences(source, component["source"]))
        assert {key: component["source"]["fields"][key] for key in ("cache_dir", "format", "tags")} == {
            key: component[key] for key in ("cache_dir", "format", "tags")
        }
        assert (component["pack"], component["flat_cache"]) == (None, False)
    return True


GONE: Final[Mapping[str, Callable[[Any, Fields], bool]]] = {
    "seq_len": _renamed("max_seq_len"),
    "cross_entropy_block_size": _is_dropped,
    "num_shard_groups": _is_dropped,
    "target_size_per_flush": _is_dropped,
    "ray": _is_dropped,
    "single_turn": _is_default(False),
    "enable_logprobs": _is_default(False),
    "doct_to_target": _is_default(None),
    "max_train_length": _is_default(None),
    "epoch": _is_default(0),
    "profiler_start_step": _in("profiler", "start_step"),
    "profiler_num_steps": _in("profiler", "num_steps"),
    "profiler_perfetto_link": _in("profiler", "perfetto_link"),
    "batch_axis": _in("mesh", "batch_axis_name"),
    **dict.fromkeys(
        (
            "fsdp_axis", "tensor_parallel_axes", "axis_resources", "parameter_axis_resources",
            "replica_ici_axis_size", "model_axis_size", "replica_dcn_axis_size",
        ),
        lambda value, today: "mesh" in today,
    ),
    "configs": _are_components,
    "ignore_token_id": _is_default(None, -100),
}  # fmt: skip
"""Field that a class of today lacks -> whether today's value has the same meaning."""
OTHER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "profiler": lambda value, today: today["fields"]["enabled"] is value,
    "permutation_type": lambda value, today: today == (value or "linear"),
}
"""Field with another form today -> whether that form has the same meaning."""


def differences(then: Any, today: Any, at: str = "config") -> Iterator[str]:
    """Yield every place where a shown value of today differs in meaning from the legacy value."""
    if not (isinstance(then, dict) and "class" in then and isinstance(today, dict) and "class" in today):
        if isinstance(then, dict) and isinstance(today, dict) and then.keys() == today.keys():
            for key in then:
                yield from differences(then[key], today[key], f"{at}.{key}")
        elif isinstance(then, list) and isinstance(today, list) and len(then) == len(today):
            for number, pair in enumerate(zip(then, today, strict=True)):
                yield from differences(*pair, f"{at}.[{number}]")
        elif then != today:
            yield f"{at}: {then} is {today}"
        return
    if then["class"].endswith(SINGLE):
        if today["class"] != NOW["levanter.data.text.LMMixtureDatasetConfig"] or today["fields"]["components"]:
            yield f"{at}: no data is {today}"
        return
    if today["class"] != NOW.get(then["class"], then["class"]):
        yield f"{at}: a {then['class']} is a {today['class']}"
    fields = today["fields"]
    for name, value in then["fields"].items():
        if name in OTHER and fields.get(name) != value:
            if not OTHER[name](value, fields[name]):
                yield f"{at}.{name}: {value} is {fields[name]}"
        elif name in fields:
            yield from differences(value, fields[name], f"{at}.{name}")
        elif name not in GONE or not GONE[name](value, fields):
            yield f"{at}.{name}: {value} is lost"
