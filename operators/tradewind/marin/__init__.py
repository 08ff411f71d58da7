"""DAGs from unchanged Marin experiment files, with the versions and paths that Marin gives them.

The names below are imported on first access, because a cluster needs ``translation`` but not the loader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tradewind.marin.loading import MarinDags, MarinFileWarning, marin_experiment, marin_experiments
    from tradewind.marin.refusals import RefusedFileError

__all__ = ["MarinDags", "MarinFileWarning", "RefusedFileError", "marin_experiment", "marin_experiments"]

_MODULE_OF: Final = {**dict.fromkeys(__all__, "loading"), "RefusedFileError": "refusals"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
