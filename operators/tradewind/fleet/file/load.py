"""From the fleet file to the fleet: all that is wrong with it is said at once, or all of it is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.fleet.clusters import BASE_NODE_TYPE, Capacity, Fleet, FleetCluster, SlicePool
from tradewind.fleet.errors import BadFileError, FileProblem
from tradewind.fleet.file.checks import Settings, fleet_problems, line_problems, place_in_fleet
from tradewind.fleet.file.faults import Faults
from tradewind.fleet.file.schema import fleet_schema, schema_faults
from tradewind.fleet.file.yaml_document import read_what_can_be
from tradewind.fleet.generations import GENERATIONS, TpuGeneration

FLEET_VARIABLE: Final = "TRADEWIND_FLEET"
"""Names the fleet file where no option does."""
USUAL_FILE: Final = Path("infra", "fleet.yaml")
_AS_IT_STANDS: Final = (
    "project", "zone", "max_workers", "bucket", "repository", "image", "tag", "token_secret", "environment",
    "head_service_account", "worker_service_account", "ssh_user", "ssh_private_key", "staging",
)  # fmt: skip


def load_fleet(file: Path) -> Fleet:
    """The fleet that ``file`` describes.

    Raises:
        BadFileError: It cannot be read, or something in it is wrong; every problem is named with its line.
    """
    document = read_what_can_be(file)
    unread = Faults(document.unread)
    faults = [*schema_faults(unread.without(document.value), fleet_schema())]
    problems = [*document.problems, *line_problems(document.value, document)]
    problems += [FileProblem(document.line_of(at), f"{place_in_fleet(at)}: {sentence}") for at, sentence in faults]
    wrong = Faults(document.unread | {at for at, _ in faults})
    sound = wrong.without(document.value)
    clusters = {}
    if isinstance(sound, dict):
        defaults = sound.get("defaults", {})
        clusters = {name: _settings(defaults, own) for name, own in sound.get("clusters", {}).items()}
        problems += fleet_problems(replace(document, value=sound), clusters, wrong)
    if problems:
        raise BadFileError(document.file, problems)
    return Fleet(file, {name: _cluster(name, own) for name, own in clusters.items()}, sound["default_cluster"])


def _settings(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Settings:
    """The fields of a cluster over the file's defaults over the schema's; tables are merged."""
    fields = fleet_schema()["$defs"]
    ours = {name: field["default"] for name, field in fields.items() if "default" in field}
    merged = {**ours, **defaults, **own}
    tables = {name: {**defaults.get(name, {}), **own.get(name, {})} for name in ("environment", "slices")}
    return {**merged, **tables}


def _cluster(name: str, settings: Settings) -> FleetCluster:
    generation = GENERATIONS[settings["generation"]]
    return FleetCluster(
        name=name,
        generation=generation,
        pools=tuple(_pools(generation, settings)),
        capacity=Capacity(settings["capacity"]),
        owner=settings.get("owner"),
        connection=settings.get("connection", name),
        **{field: settings[field] for field in _AS_IT_STANDS},
    )


def _pools(generation: TpuGeneration, settings: Settings) -> Iterator[SlicePool]:
    most, named = settings["max_workers"], settings["slices"]
    base = slice_type(settings.get("base_slice_type", generation.smallest))
    yield SlicePool(BASE_NODE_TYPE, base, settings["min_workers"], most)
    offered = {kind.name: kind for kind in generation.offered} | {kind: slice_type(kind) for kind in named}
    for kind in sorted(offered.values(), key=lambda kind: kind.chips):
        pool = named.get(kind.name, {})
        maximum = pool.get("max", most)
        if kind != base and maximum > 0:
            size = kind.name.rpartition("-")[2]
            yield SlicePool(f"tpu_slice_{generation.name}_{size}", kind, pool.get("min", 0), maximum)
