"""On CPUs, every process keeps what it compiles.

JAX has process 0 alone write its cache, since all others look for the same entries. On CPUs they do not: there, the key
of a compilation names the process. So the others would compile everything anew at every start, which takes longer than
a rehearsal's training.
"""

from __future__ import annotations

import warnings
from typing import Any

_WRITES = "_cache_write"
"""JAX's name for what writes a compilation, or does not."""


def every_process_keeps() -> None:
    """Have also those processes on CPUs that are not the first write to JAX's cache; where JAX computes on anything
    else, and in a JAX that writes its cache in another way, nothing changes."""
    from jax._src import compilation_cache, compiler, distributed

    jaxs = getattr(compiler, _WRITES, None)
    if jaxs is None or getattr(jaxs, "__module__", "") == __name__:
        return

    def write(key: str, seconds: float, name: str, backend: Any, executable: Any, callbacks: Any) -> None:
        if backend.platform != "cpu" or distributed.global_state.process_id == 0 or callbacks:
            jaxs(key, seconds, name, backend, executable, callbacks)
            return
        try:
            compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
        except Exception as problem:  # as JAX does: what cannot be kept is compiled again some day
            warnings.warn(f"The compilation {name} could not be kept: {problem}", stacklevel=2)

    setattr(compiler, _WRITES, write)
