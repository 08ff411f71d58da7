"""Start, list and end pools in a Ray job, for a command or a task that is not on the cluster; join one by its name.

``tradewind.runtime.run_callable`` calls these functions, which return plain values. A pool outlives the job that starts
it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import PoolError, ServedPool, connect, ensure_pool, find_pools, resolved, stop_pool


def start(config: str, token_sha256: str | None = None) -> dict[str, Any]:
    """Start the pool of a config, or join the one that the cluster has; return once an engine is ready.

    If engines do not start, print why with the end of their log, and end with exit code 1.

    Args:
        config: ``ServingConfig`` as JSON.
        token_sha256: Digest of a token that the pool shall accept, as 64 hexadecimal digits.

    Returns:
        The fields of ``PoolStatus``, and whether this call has ``started`` the pool.
    """
    wanted, name = _resolved(config)
    was_there = any(pool.name == name and pool.state != "ending" for pool in find_pools())
    try:
        pool = ensure_pool(wanted)
        print(f"Pool {name} {'was there already' if was_there else 'has started'}.", flush=True)
        try:
            if token_sha256 is not None:
                pool.admit(token_sha256)
            status = pool.wait_ready(wanted.timeout_s)
        except BaseException:  # also SystemExit, which Ray raises when the job is stopped
            if not was_there:
                print(f"Pool {name} ends, since it has not become ready.", flush=True)
                stop([name], only_unused=True)
            raise
    except PoolError as error:
        sys.exit(f"PoolError: {error}")
    return {**asdict(status), "started": not was_there}


def admit(name: str, token_sha256: str) -> dict[str, Any]:
    """Let requests with another token into the pool of this name; return the fields of ``PoolStatus``."""
    connect()
    pool = ServedPool("", "", name)
    try:
        pool.admit(token_sha256)
        return asdict(pool.status())
    except PoolError as error:
        sys.exit(f"PoolError: {error}")


def end_unused(config: str) -> None:
    """End the pool of a config unless a request is in it."""
    stop([_resolved(config)[1]], only_unused=True)


def _resolved(config: str) -> tuple[ServingConfig, str]:
    try:
        return resolved(ServingConfig.from_json(config))
    except PoolError as error:
        sys.exit(f"PoolError: {error}")


def join_pool(name: str) -> ServedPool:
    """Return the pool of this name with a token for this process, which must be on the cluster.

    Raises:
        PoolError: There is no such pool.
    """
    connect()
    return ServedPool("", secrets.token_hex(), name).rejoin()


def stop(names: Sequence[str], *, only_unused: bool = False) -> dict[str, str]:
    """End pools; return for each name ``stopped``, ``absent``, or with ``only_unused`` perhaps ``in use``."""
    found = {pool.name: asdict(pool) for pool in find_pools()}
    results = {}
    for name in names:
        if name not in found:
            results[name] = "absent"
        elif only_unused and _is_in_use(found[name]):
            results[name] = "in use"
        else:
            stop_pool(name)
            results[name] = "stopped"
        print(f"Pool {name}: {results[name]}.", flush=True)
    return results


def _is_in_use(pool: Mapping[str, Any]) -> bool:
    """Whether requests are in the pool's queue or in one of its engines."""
    return bool(pool["queued"] or any(engine["in_flight"] for engine in pool["engines"]))


def pools() -> list[dict[str, Any]]:
    """Return the fields of ``PoolStatus`` of each pool of the cluster."""
    return [asdict(pool) for pool in sorted(find_pools(), key=lambda pool: pool.name)]
