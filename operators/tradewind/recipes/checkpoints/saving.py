"""Report every step; on a preemption notice, save a checkpoint and exit.

This extends Levanter's checkpointer. As for its time-based checkpoints, process 0 decides, and the other processes
learn it in a collective that every step has anyway. So all processes save the same step, and waiting for a notice costs
nothing. The pod's hosts write a notice for every process, also for process 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NoReturn

from tradewind.recipes.checkpoints.resume import make_incomplete, write_file_list
from tradewind.recipes.metrics.tracking import flush_metrics, flush_trackers
from tradewind.runtime.pods.on_host.heartbeat import beat, saved
from tradewind.runtime.pods.on_host.preemption_notice import preemption_notice
from tradewind.runtime.pods.verdicts import NOTICED

NEVER = timedelta(days=36500)
"""Interval of a training without temporary checkpoints; it still saves one on a notice."""
KEPT_TEMPORARY = 2
"""Number of temporary checkpoints to keep: an older one in case the newest is damaged."""
COMMIT_S = 30 * 60
"""Timeout for all processes' parts of a checkpoint; as in Levanter."""
EXIT_TIMEOUT_S = 10
"""How long process 0, which serves the coordination, waits for the others to exit first."""


def checkpointer_config(permanent: str, temporary: str | None, seconds: float, every: int | None) -> Any:
    """Return Levanter's checkpoint config, with Tradewind's checkpointer.

    Args:
        permanent: Folder of permanent checkpoints: one every ``every`` steps, and the last.
        temporary: Folder of temporary ones, if it is another.
        seconds: Interval of temporary ones.
        every: Steps between permanent ones; None for only the last.
    """
    return _config_class()(
        base_path=permanent,
        temporary_base_path=temporary,
        append_run_id_to_base_path=False,
        save_interval=timedelta(seconds=seconds),
        keep=[{"every": every}] if every else None,
        keep_last_temporary_checkpoints=KEPT_TEMPORARY,
    )


def checkpointer_like(given: Any, permanent: str, temporary: str | None) -> Any:
    """Return such a config with the intervals of a given one, which may have no temporary checkpoints."""
    return _config_class()(
        base_path=permanent,
        temporary_base_path=temporary,
        append_run_id_to_base_path=False,
        save_interval=NEVER if given.save_interval is None else given.save_interval,  # 0: after every step
        keep=given.keep,
        keep_last_temporary_checkpoints=max(given.keep_last_temporary_checkpoints, KEPT_TEMPORARY),
    )


@cache
def _config_class() -> Any:
    """Create the class on first use, since its base class needs Levanter."""
    from levanter.checkpoint import CheckpointerConfig, CheckpointInterval

    @dataclass
    class TradewindCheckpointerConfig(CheckpointerConfig):
        def create(self, run_id: str) -> Any:
            return _checkpointer_class()(
                self.expanded_path(run_id),
                self.save_interval,
                [CheckpointInterval(**interval) for interval in self.keep or []],
                temporary_base_path=self.expanded_temporary_path(run_id),
                keep_last_temporary_checkpoints=self.keep_last_temporary_checkpoints,
            )

    return TradewindCheckpointerConfig


@cache
def _checkpointer_class() -> Any:
    import jax
    from levanter.checkpoint import Checkpointer

    class TradewindCheckpointer(Checkpointer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._manager = _manager_class()(timeout_secs=COMMIT_S)

        def on_step(self, *, tree: Any, step: int, force: bool = False) -> None:
            beat(int(step))
            notice = preemption_notice() if jax.process_index() == 0 and not force else None
            if notice is not None:
                self._last_save_time = datetime.min  # a checkpoint is due, as process 0 tells the others
            saved_before = self._last_save_step
            super().on_step(tree=tree, step=step, force=force)
            if self._last_save_step != saved_before and not force and _broadcast(notice is not None):
                self._exit(int(step), "" if notice is None else notice.reason)

        def save_checkpoint(
            self, tree: Any, step: int, destination: str, commit_callback: Any = None, **options: Any
        ) -> None:
            flush_metrics()  # first, since a training that continues from it does not repeat these rows
            path = os.path.join(options.get("base_path_override") or self.base_path, destination)

            def commit() -> None:  # process 0 calls it when the checkpoint is complete
                saved(step)
                if commit_callback is not None:
                    commit_callback()

            self._manager.checkpoint = path
            super().save_checkpoint(tree, step, destination, commit, **options)

        def _prune_temporary_checkpoints(self, keep: int) -> None:
            super()._prune_temporary_checkpoints(max(keep, 1))  # in case the permanent one is damaged

        def _do_rm_checkpoint(self, cp_path: str) -> None:
            make_incomplete(cp_path)
            super()._do_rm_checkpoint(cp_path)

        def _exit(self, step: int, reason: str) -> NoReturn:
            self._manager.wait_until_finished()
            if jax.process_index() == 0:
                print(f"step {step + 1} is saved, because of a notice: {reason}; this process ends", flush=True)
            flush_trackers()
            _exit_in_order()

    return TradewindCheckpointer


@cache
def _manager_class() -> Any:
    from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

    class ListingManager(GlobalAsyncCheckpointManager):
        """Writes the file list of a checkpoint after all its files and before Levanter's metadata.

        In the other order, a kill in between would leave a complete checkpoint that no list can verify.
        """

        checkpoint = ""
        """Path that ``serialize`` writes next."""

        def serialize(
            self,
            arrays: Any,
            tensorstore_specs: Any,
            *,
            on_commit_callback: Callable[[], None] | None = None,
            transaction: Any = None,
        ) -> None:
            checkpoint = self.checkpoint

            def commit() -> None:
                write_file_list(checkpoint)
                if on_commit_callback is not None:
                    on_commit_callback()

            super().serialize(arrays, tensorstore_specs, on_commit_callback=commit, transaction=transaction)

    return ListingManager


def _broadcast(value: bool) -> bool:
    """Return the value of process 0."""
    import jax

    if jax.process_count() == 1:
        return value
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return bool(broadcast_one_to_all(value))


def _exit_in_order() -> NoReturn:
    """Exit with the code of a checkpoint on notice; process 0 last, since the others abort without it."""
    import jax
    from jax._src.distributed import global_state

    sys.stdout.flush()
    sys.stderr.flush()
    client, rank = global_state.client, jax.process_index()
    try:
        if client is not None and rank > 0:
            client.key_value_set(f"tradewind/left/{rank}", "")
        elif client is not None:
            for other in range(1, jax.process_count()):
                client.blocking_key_value_get(f"tradewind/left/{other}", EXIT_TIMEOUT_S * 1000)
    except jax.errors.JaxRuntimeError as error:
        print(f"Not every process reported its exit: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(NOTICED)
