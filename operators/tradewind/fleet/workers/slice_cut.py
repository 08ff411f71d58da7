"""What the marker of a cluster says of a slice that is being cut into others: what is to be made, before it is deleted.

Whoever can write the bucket can write it. So what is made is this cluster's and called by the old slice's name; who it
runs as is not looked at, since people may have chosen that (see ``docs/security.md``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.resources import is_name, is_queue_body
from tradewind.fleet.clusters import CLUSTER_LABEL
from tradewind.fleet.errors import FleetError

_LONGEST: Final = 1000
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,2}")
_FIELDS: Final = frozenset({"slice", "identity", "kinds", "bodies"})


class BadCutError(FleetError):
    """The marker says of a cut what nobody can go on with."""


@dataclass(frozen=True)
class SliceCut:
    """One cut.

    Attributes:
        name: The slice that is cut.
        identity: Which one of that name.
        kinds: The types of the new ones.
        bodies: Their names, and what creates each of them.
    """

    name: str
    identity: str
    kinds: list[str]
    bodies: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"slice": self.name, "identity": self.identity, "kinds": self.kinds, "bodies": dict(self.bodies)}

    @staticmethod
    def of(details: Mapping[str, Any], cluster: str) -> SliceCut | None:
        """That in the marker of ``cluster``; None if nothing was written down yet.

        Raises:
            BadCutError: It is none of ours.
        """
        if not _FIELDS & details.keys():
            return None
        cut = SliceCut(*(details.get(field) for field in ("slice", "identity", "kinds", "bodies")))  # type: ignore[arg-type]
        if cut._is_ours(cluster):
            return cut
        raise BadCutError(
            f"Cluster {cluster}: its marker does not say which slice was being cut into what: ask who began, and have "
            "what was begun ended with 'tradewind cluster stop', or put the marker right. Nothing was changed."
        )

    def _is_ours(self, cluster: str) -> bool:
        """Whether the fields, which may be anything, are those of a cut of ``cluster``."""
        texts = [self.name, self.identity, *(self.kinds if isinstance(self.kinds, list) else [None])]
        return (
            all(isinstance(text, str) and len(text) < _LONGEST for text in texts)
            and is_name(self.name)
            and isinstance(self.bodies, dict)
            and len(self.kinds) == len(self.bodies)  # so at most 999
            and all(_is_part(self.name, new, body, cluster) for new, body in self.bodies.items())
        )


def _is_part(name: str, new: str, body: Any, cluster: str) -> bool:
    """Whether ``new`` is called as a part of the slice ``name``, and ``body`` creates one of ``cluster``."""
    number = new.removeprefix(f"{name}-")
    if number == new or not _NUMBER.fullmatch(number) or not isinstance(body, dict):
        return False
    try:
        node = body["tpu"]["nodeSpec"][0]["node"] if is_queue_body(body) else body
        return bool(node["labels"][CLUSTER_LABEL] == cluster)
    except (LookupError, TypeError):
        return False
