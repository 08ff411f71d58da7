"""Where a fleet file does not fit its schema, so that the rest of it can be judged in the same round.

What only follows from a fault is not said besides: a field under a misspelt name is not missing.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from tradewind.fleet.file.yaml_document import YamlPath

_CLUSTERS: Final = "clusters"
_DEFAULTS: Final = "defaults"


@dataclass(frozen=True)
class Faults:
    """The places that a schema has something against."""

    places: AbstractSet[YamlPath]

    def without(self, value: Any, path: YamlPath = ()) -> Any:
        """``value``, which stands at ``path``, without what stands at these places."""
        if not isinstance(value, dict):
            return value
        below = {name: (*path, name) for name in value}
        return {name: self.without(value[name], at) for name, at in below.items() if at not in self.places}

    def clusters(self) -> set[str]:
        """The clusters that have faults, or are one."""
        return {str(place[1]) for place in self.places if place[:1] == (_CLUSTERS,) and len(place) > 1}

    def hides(self, cluster: str, field: str) -> bool:
        """Whether ``field`` of the cluster may stand at one of these places, in the cluster or in the defaults."""
        own, shared = (_CLUSTERS, cluster), (_DEFAULTS,)
        names = {str(place[2]) for place in self.places if place[:2] == own and len(place) > 2}
        names |= {str(place[1]) for place in self.places if place[:1] == shared and len(place) > 1}
        tables = {str(place[0]) for place in self.places if len(place) == 1}
        return bool(get_close_matches(field, names) or get_close_matches(_DEFAULTS, tables))
