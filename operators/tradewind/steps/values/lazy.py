"""``lazy``: an object of a heavy library, named in a DAG file and built on the cluster.

It hashes as the real dataclass would whose versioned fields are given here. Fields that are not given take their
defaults on the cluster; a default cannot be versioned from here, because reading it would import the library.
"""

from __future__ import annotations

import re
from typing import Any

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Lazy:
    """A class or function to call on the cluster (``"package.module:Name"``), and its keyword arguments."""

    __slots__ = ("kwargs", "target")

    def __init__(self, target: str, kwargs: dict[str, Any]) -> None:
        if not _TARGET.fullmatch(target):
            raise ValueError(f"lazy({target!r}): write the target as 'package.module:Name'.")
        self.target = target
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"lazy({self.target!r}, {', '.join(f'{key}={value!r}' for key, value in self.kwargs.items())})"


def lazy(target: str, /, **kwargs: Any) -> Any:
    """Stand for ``target(**kwargs)``, built on the cluster: ``lazy("levanter.models.llama:LlamaConfig", n=4)``.

    Give fields that refer to steps in the order in which the class declares them: their order counts in the version.

    Raises:
        ValueError: ``target`` is not of the form ``package.module:Name``.
    """
    return Lazy(target, kwargs)
