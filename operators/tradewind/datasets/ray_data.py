"""Ray Data for a recipe: quiet, and on the cluster of the surrounding Ray job if there is one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_ray_data() -> Iterator[None]:
    """Ray, quiet: the cluster of the surrounding Ray job if there is one, else one on this machine for this block."""
    import ray
    from ray.data import DataContext

    ours = not ray.is_initialized()
    if ours:
        ray.init(ignore_reinit_error=True, log_to_driver=False)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns that there are no bars
    context = DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        if ours:
            ray.shutdown()
