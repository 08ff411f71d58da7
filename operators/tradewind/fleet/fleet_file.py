"""Load and validate the fleet file; report all its problems at once.

Fields that violate the schema are removed, so that the rest can be checked in the same round. Consequences of such a
fault are not reported: a field with a misspelt name is not missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import SliceType, UnknownSliceTypeError, slice_type
from tradewind.fleet.clusters import (
    BASE_NODE_TYPE,
    GENERATIONS,
    Capacity,
    Fleet,
    FleetCluster,
    SlicePool,
    TpuGeneration,
)
from tradewind.fleet.errors import BadFileError, FileProblem, nearest_names_hint
from tradewind.fleet.yaml_schema import (
    MAX_FAULTS,
    YamlDocument,
    YamlPath,
    fleet_schema,
    read_yaml_with_problems,
    schema_faults,
)

_CLUSTERS: Final = "clusters"
_DEFAULTS: Final = "defaults"
_MAX_NAMED: Final = 5


@dataclass(frozen=True)
class Faults:
    """Paths that violate a schema."""

    places: AbstractSet[YamlPath]

    def without(self, value: Any, path: YamlPath = ()) -> Any:
        """Return ``value`` of ``path`` without these paths."""
        if not isinstance(value, dict):
            return value
        below = {name: (*path, name) for name in value}
        return {name: self.without(value[name], at) for name, at in below.items() if at not in self.places}

    def clusters(self) -> set[str]:
        """Return the clusters that have faults or are faults."""
        return {str(place[1]) for place in self.places if place[:1] == (_CLUSTERS,) and len(place) > 1}

    def hides(self, cluster: str, field: str) -> bool:
        """Whether ``field`` of the cluster may be one of these paths, in the cluster or in the defaults."""
        own, shared = (_CLUSTERS, cluster), (_DEFAULTS,)
        names = {str(place[2]) for place in self.places if place[:2] == own and len(place) > 2}
        names |= {str(place[1]) for place in self.places if place[:1] == shared and len(place) > 1}
        tables = {str(place[0]) for place in self.places if len(place) == 1}
        return bool(get_close_matches(field, names) or get_close_matches(_DEFAULTS, tables))


Settings = Mapping[str, Any]
"""The fields of one cluster, with the defaults filled in."""

NEEDED: Final = ("project", "zone", "generation", "bucket", "head_service_account", "worker_service_account")
"""Required fields of each cluster, its own or from the defaults."""
_COUNTS: Final = ("min_workers", "max_workers", "slices")


def place_in_fleet(path: YamlPath) -> str:
    """Return the beginning of a sentence about ``path``: the cluster and the field."""
    match [str(part) for part in path]:
        case ["clusters", cluster]:
            return f"cluster {cluster}"
        case ["clusters", cluster, *fields]:
            return f"cluster {cluster}, {'.'.join(fields)}"
        case fields:
            return ".".join(fields) or "the fleet"


def line_problems(value: Any, document: YamlDocument, path: YamlPath = ()) -> Iterator[FileProblem]:
    """Yield texts of several lines, which no field may have: they would break the generated files."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from line_problems(name, document, (*path, name))
            yield from line_problems(item, document, (*path, name))
    elif isinstance(value, str) and not value.isprintable():
        sentence = f"{place_in_fleet(path)}: a line break or a control character does not belong there: leave it out."
        yield FileProblem(document.line_of(path), sentence)


def fleet_problems(document: YamlDocument, clusters: Mapping[str, Settings], faults: Faults) -> Iterator[FileProblem]:
    """Yield contradictions in a document; ``clusters`` have their defaults, and not their ``faults``."""
    default = document.value.get("default_cluster")
    if default is not None and clusters and default not in {*clusters, *faults.clusters()}:
        line = document.line_of(("default_cluster",))
        near = nearest_names_hint(default, clusters)
        yield FileProblem(line, f"default_cluster: there is no cluster {default!r}: {near}")
    for name, settings in clusters.items():
        for fields, sentence in _cluster_problems(name, settings, faults):
            path = ("clusters", name, *fields)
            yield FileProblem(document.line_of(path), f"{place_in_fleet(path)}: {sentence}")
    for name, sentence in _connection_problems(clusters):
        path = ("clusters", name, "connection")
        yield FileProblem(document.line_of(path), f"{place_in_fleet(path)}: {sentence}")


def _cluster_problems(name: str, settings: Settings, faults: Faults) -> Iterator[tuple[YamlPath, str]]:
    for field in NEEDED:
        if field not in settings and not faults.hides(name, field):
            yield (), f"{field} is missing: write it here, or in defaults if all clusters share it."
    zone, region = settings.get("zone"), settings.get("region")
    if zone and region and zone.rpartition("-")[0] != region:
        yield ("region",), f"zone {zone} is not in region {region}: leave the region out, it follows from the zone."
    if generation := settings.get("generation"):
        yield from _kinds_problems(settings, generation, is_base_known=not faults.hides(name, "base_slice_type"))
    for name, pool in settings["slices"].items():
        least, most = pool.get("min", 0), pool.get("max")
        if most is not None and least > most:
            path = ("slices", name, "min")
            yield path, f"the minimum {least} is above the maximum {most}: lower one or raise the other."
    if not any(faults.hides(name, field) for field in _COUNTS):
        yield from _count_problems(settings)


def _kinds_problems(settings: Settings, generation: str, *, is_base_known: bool) -> Iterator[tuple[YamlPath, str]]:
    base = settings.get("base_slice_type", GENERATIONS[generation].smallest)
    if "base_slice_type" in settings:
        yield from ((("base_slice_type",), sentence) for sentence in _kind_problems(base, generation))
    for name in settings["slices"]:
        path = ("slices", name)
        yield from ((path, sentence) for sentence in _kind_problems(name, generation))
        if name == base and is_base_known:
            yield path, "this is the base type: its minimum is min_workers, its maximum max_workers."


def _count_problems(settings: Settings) -> Iterator[tuple[YamlPath, str]]:
    most, pools = settings["max_workers"], settings["slices"]
    for name, pool in pools.items():
        if pool.get("max", most) > most:
            path = ("slices", name, "max")
            yield path, f"the maximum {pool['max']} is above max_workers, {most}: lower it or raise that."
    at_once = settings["min_workers"] + sum(pool.get("min", 0) for pool in pools.values())
    if at_once > most:
        yield (), f"its minimums add up to {at_once} slices, and max_workers is {most}: lower them or raise that."


def _kind_problems(name: str, generation: str) -> Iterator[str]:
    try:
        kind: SliceType = slice_type(name)
    except UnknownSliceTypeError as error:
        yield str(error)
        return
    if not GENERATIONS[generation].has(kind):
        offered = [known.name for known in GENERATIONS[generation].offered]
        yield f"{name} is no slice of generation {generation}, which has {', '.join(offered[:3])} and so on."


def _connection_problems(clusters: Mapping[str, Settings]) -> Iterator[tuple[str, str]]:
    """Yield ambiguous clusters: ``--cluster`` accepts both names and connection IDs."""
    connections = {name: settings.get("connection", name) for name, settings in clusters.items()}
    sharing: dict[str, list[str]] = defaultdict(list)
    for name, connection in connections.items():
        sharing[connection].append(name)
    for name, connection in connections.items():
        others = ", ".join([other for other in sharing[connection][: _MAX_NAMED + 1] if other != name][:_MAX_NAMED])
        if others:
            yield name, f"connection {connection!r} is also that of {others}: give each its own."
        elif connection in clusters and connection != name:
            yield name, f"{connection!r} is the name of another cluster: give the connection another id."


FLEET_VARIABLE: Final = "TRADEWIND_FLEET"
"""Variable that names the fleet file if no option does."""
USUAL_FILE: Final = Path("infra", "fleet.yaml")
_UNCHANGED: Final = (
    "project", "zone", "max_workers", "bucket", "repository", "image", "tag", "token_secret", "environment",
    "head_service_account", "worker_service_account", "ssh_user", "ssh_private_key", "staging",
)  # fmt: skip


def load_fleet(file: Path) -> Fleet:
    """Load the fleet that ``file`` describes.

    Raises:
        BadFileError: The file cannot be read or has problems; the message has each with its line.
    """
    document = read_yaml_with_problems(file)
    unread = Faults(document.unread)
    faults = [*islice(schema_faults(unread.without(document.value), fleet_schema()), MAX_FAULTS)]
    problems = [*document.problems, *line_problems(document.value, document)]
    problems += [FileProblem(document.line_of(at), f"{place_in_fleet(at)}: {sentence}") for at, sentence in faults]
    if len(faults) == MAX_FAULTS:
        raise BadFileError(
            document.file, [*problems, FileProblem(1, f"there are at least {MAX_FAULTS} problems: mend these first.")]
        )
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
    """Merge a cluster's fields over the file's defaults over the schema's; tables are merged too."""
    fields = fleet_schema()["$defs"]
    builtin = {name: field["default"] for name, field in fields.items() if "default" in field}
    tables = {name: {**defaults.get(name, {}), **own.get(name, {})} for name in ("environment", "slices")}
    return {**builtin, **defaults, **own, **tables}


def _cluster(name: str, settings: Settings) -> FleetCluster:
    generation = GENERATIONS[settings["generation"]]
    return FleetCluster(
        name=name,
        generation=generation,
        pools=tuple(_pools(generation, settings)),
        capacity=Capacity(settings["capacity"]),
        owner=settings.get("owner"),
        connection=settings.get("connection", name),
        **{field: settings[field] for field in _UNCHANGED},
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
