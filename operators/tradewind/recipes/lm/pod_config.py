"""The config that Levanter runs: the one that was given, with the places and the habits of a training on our pods."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import exists, is_remote, join, read_json, remove_unfinished, write_json
from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.recipes.checkpoints.resume import (
    METADATA,
    InitialCheckpoint,
    InitialCheckpointFile,
    damage,
    make_permanent,
    newest_checkpoint,
    newest_under,
    remove_temporary,
)
from tradewind.recipes.checkpoints.saving import checkpointer_like
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.checks import check_averages, usable_harness
from tradewind.recipes.lm.config import LevanterTrainConfig, output_path_of, run_id_of
from tradewind.recipes.lm.data_locations import builds_caches
from tradewind.recipes.lm.levanter_config import log_folder
from tradewind.recipes.lm.trainer import loads_whole_models
from tradewind.recipes.metrics.file import read_metrics
from tradewind.recipes.train_config import checkpoints_path, export_path, folder_of_training, metrics_path, result_path

# What a training leaves under its output path while it runs and when it has ended.
#
# The processes of a training call these methods together, on all hosts; process 0 writes and removes.

LAST_CHECKPOINT_S: Final = 900.0
"""How long the last checkpoint may take to reach the store after the last step."""


@dataclass(frozen=True)
class TrainingOutput:
    """The output of a training.

    Attributes:
        path: Gets ``checkpoints/``, ``metrics.jsonl`` and, last of all, ``result.json``.
        num_train_steps: How long the training is.
        temporary: Where its temporary checkpoints lie, if that is another folder.
    """

    path: str
    num_train_steps: int
    temporary: str | None = None

    @property
    def roots(self) -> list[str]:
        """The folders that hold checkpoints: the permanent ones' first."""
        return [checkpoints_path(self.path), *([self.temporary] if self.temporary else [])]

    @property
    def last_checkpoint(self) -> str:
        """Where the checkpoint of the last step lies, or will."""
        return join(self.roots[0], f"step-{self.num_train_steps - 1}")

    def result(self) -> dict[str, Any] | None:
        """What the training returned, if one of this length has ended."""
        path = result_path(self.path)
        result: dict[str, Any] | None = read_json(path) if exists(path) else None
        return result if result and result["steps"] == self.num_train_steps else None

    def check_newest(self) -> None:
        """Raise ``ValueError`` for a checkpoint of a longer training, which would pass for the end of this one."""
        if (step := self.newest_step()) >= self.num_train_steps:
            raise ValueError(
                f"{self.path} has a checkpoint of step {step}, and this training ends with step "
                f"{self.num_train_steps - 1}: give it an output of its own, or num_train_steps of more."
            )

    def remove_unfinished(self) -> None:
        """Remove what a killed process was writing: a start after a preemption is no new attempt, which would."""
        import jax

        if jax.process_index() == 0:
            remove_unfinished(self.path)

    def newest_step(self) -> int:
        """Index of the last step in the newest complete checkpoint; -1 if there is none."""
        newest = newest_checkpoint(self.roots)
        return -1 if newest is None else newest.step

    def await_last_checkpoint(self) -> None:
        """Levanter writes checkpoints in the background and returns before the last one is complete; what is newest
        until then is an older one.

        Raises:
            TimeoutError: It does not get there.
        """
        deadline = time.monotonic() + LAST_CHECKPOINT_S
        last = join(self.last_checkpoint, METADATA)
        while self.newest_step() < self.num_train_steps - 1 or not exists(last):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The last checkpoint under {self.path} was not complete in time.")
            time.sleep(0.2)

    def keep_last_checkpoint(self) -> None:
        """Leave the last checkpoint, as a permanent one, and the other permanent ones."""
        import jax
        from jax.experimental.multihost_utils import sync_global_devices

        if jax.process_index() == 0:
            newest = newest_checkpoint(self.roots)
            if newest is not None and newest.is_temporary:
                make_permanent(newest, self.roots[0])
            remove_temporary(self.roots)
        sync_global_devices("tradewind: last checkpoint kept")

    def last_metrics(self) -> dict[str, Any]:
        """What was measured at the last step."""
        metrics = read_metrics(metrics_path(self.path))
        return metrics[-1] if metrics and metrics[-1]["step"] == self.num_train_steps - 1 else {}

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what the training returns, the last thing it does; no process goes on before it is there."""
        import jax
        from jax.experimental.multihost_utils import sync_global_devices

        if jax.process_index() == 0:
            write_json(result_path(self.path), result)
        sync_global_devices("tradewind: result written")


_STATE: Final = "trainer.initialize_from"
_WEIGHTS: Final = "initialize_from_checkpoint_path"
"""Fields of Levanter's that name a checkpoint to begin with."""
_OTHER_STATE: Final = "train_config.trainer.load_checkpoint_path"
_REFERENCE: Final = "reference.model_path"
"""That which names a checkpoint to compare with, at every start."""


def output_of(config: Any) -> TrainingOutput:
    """What the training leaves."""
    path, trainer = output_path_of(config), config.train_config.trainer
    base = trainer.checkpointer.temporary_base_path
    return TrainingOutput(path, trainer.num_train_steps, folder_of_training(base, path) if base else None)


def prepare_config(config: Any) -> Any:
    """A ``TrainLmConfig`` with its checkpoints and exports under the output path.

    Raises:
        ValueError: The tokenizer's folder or the checkpoint to begin with is not there.
    """
    made = with_places(config)
    return dataclasses.replace(made, eval_harness=usable_harness(made.eval_harness))


def with_places(config: Any) -> Any:
    """The same of any config of a training, as far as they are alike."""
    given = config.train_config
    data = data_with_places(config, given.data, "data")
    return dataclasses.replace(
        given,
        data=data,
        model=_model(given, data.tokenizer),
        trainer=_trainer(config),
        hf_save_path=_export(config),
        initialize_from_checkpoint_path=_taken(config, _WEIGHTS),
    )


def data_with_places(config: Any, data: Any, field: str) -> Any:
    """A config of data with a tokenizer that is here. Raises ``ValueError`` if there is none."""
    tokenizer = data.tokenizer
    if is_remote(tokenizer) or os.path.isabs(tokenizer):  # and no name on a hub
        tokenizer = local_tokenizer(tokenizer, f"train_config.{field}.tokenizer")
    return dataclasses.replace(data, auto_build_caches=builds_caches(config), tokenizer=tokenizer)


def reference_of(config: Any) -> str | None:
    """The checkpoint that preferences are compared with, if it is one of Levanter's.

    Raises:
        ValueError: It is not there.
    """
    return _taken(config, _REFERENCE)


def resolve_initial_checkpoint(config: Any) -> None:
    """Process 0 decides which checkpoints of others this training takes, and writes that down; all wait for it."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    if jax.process_index() == 0:
        begins = (_STATE, _WEIGHTS) if output_of(config).newest_step() < 0 else ()
        for field in (*begins, _REFERENCE):
            with suppress(ValueError):  # which every process will raise
                if (checkpoint := _taken(config, field)) is not None:
                    first = newest_under(checkpoint, f"train_config.{field}").step + 1 if _goes_on(config, field) else 0
                    _file(config, field).write(InitialCheckpoint(_given(config, field), checkpoint, first))
    sync_global_devices("tradewind: begin settled")


def check_initial_checkpoint(config: Any, made: Any) -> None:
    """Refuse a damaged checkpoint to begin with, such as one of which only a part was copied.

    For once, before there is a slice: on a disk all of it is read for that.

    Raises:
        ValueError: A file is missing, or is another than was written.
    """
    begins = {_STATE: made.trainer.initialize_from, _WEIGHTS: made.initialize_from_checkpoint_path}
    for field, checkpoint in begins.items():
        if checkpoint and _is_read(config, field) and (wrong := damage(checkpoint)) is not None:
            raise ValueError(
                f"train_config.{field}: the checkpoint {checkpoint} is damaged, {wrong}: copy it again or give another."
            )


def first_step(config: Any, made: Any) -> int:
    """The step with which the training begins: after a checkpoint's, if it goes on with all that another one was.

    So does one with ``trainer.initialize_from``, and one of Marin's also with ``initialize_from_checkpoint_path``: its
    ``num_train_steps`` and its learning rate are those of both trainings together. Ours begins with the weights alone.

    Raises:
        ValueError: There are no steps after the checkpoint's, or it lacks averaged weights that are asked for.
    """
    field = next((each for each in (_STATE, _WEIGHTS) if _given(config, each) and _goes_on(config, each)), None)
    if field is None:
        return 0
    output = output_of(config)
    if output.newest_step() >= 0 and (begun := _file(config, field).read()) is not None:
        return begun.first_step
    path = made.trainer.initialize_from or made.initialize_from_checkpoint_path
    found = newest_under(path, f"train_config.{field}")
    if field == _WEIGHTS and not made.trainer.allow_partial_checkpoint:
        check_averages(made.trainer, found.path, f"train_config.{field}")
    first, steps = found.step + 1, made.trainer.num_train_steps
    if first >= steps:
        raise ValueError(
            f"train_config.{field}: the checkpoint {found.path} is of step {found.step}, with which this training goes "
            f"on, and train_config.trainer.num_train_steps={steps} ends it there: give the steps of both together."
        )
    return first


def _given(config: Any, field: str) -> str:
    """The path that this field names; empty if it does not."""
    given = config.train_config
    if field == _REFERENCE:
        reference: Any = getattr(given, "reference", None)
        return "" if getattr(reference, "is_hf", True) else str(reference.model_path or "")
    return str((given.trainer.initialize_from if field == _STATE else given.initialize_from_checkpoint_path) or "")


def _goes_on(config: Any, field: str) -> bool:
    """Whether it goes on with all that the checkpoint holds, and not with the weights alone."""
    is_ours = isinstance(config, LevanterTrainConfig)
    return field == _STATE or (field == _WEIGHTS and not is_ours and loads_whole_models(config.train_config))


def _taken(config: Any, field: str) -> str | None:
    """The checkpoint that this field names: the one that was written down, if there is such a note.

    Raises:
        ValueError: There is none, and the training has to read it.
    """
    if not (path := _given(config, field)):
        return None
    has_own = output_of(config).newest_step() >= 0
    is_read, label = _is_read(config, field), f"train_config.{field}"
    return _file(config, field).found(path, label, is_read=is_read, has_own=has_own)


def _file(config: Any, field: str) -> InitialCheckpointFile:
    checkpoints = output_of(config).roots[0]
    return (
        InitialCheckpointFile.of_reference(checkpoints)
        if field == _REFERENCE
        else InitialCheckpointFile.of_begin(checkpoints)
    )


def _is_read(config: Any, field: str) -> bool:
    """Whether that checkpoint is read: one to begin with by a training without its own, or an adapter's at each start.

    A reference is, always.
    """
    return field == _REFERENCE or output_of(config).newest_step() < 0 or not _is_whole(config.train_config)


def with_batch_size(made: Any) -> Any:
    """The same with its batch as a number, which Levanter can also tell from what each device takes."""
    trainer = made.trainer
    if trainer.train_batch_size != -1:
        return made
    size = trainer.per_device_parallelism * trainer.data_axis_size
    return dataclasses.replace(made, trainer=dataclasses.replace(trainer, train_batch_size=size))


def _trainer(config: Any) -> Any:
    from levanter.distributed import DistributedConfig

    given, output = config.train_config.trainer, output_of(config)
    return dataclasses.replace(
        given,
        id=run_id_of(config),
        checkpointer=checkpointer_like(given.checkpointer, output.roots[0], output.temporary),
        distributed=DistributedConfig(initialize_jax_distributed=False),  # the pod has done that
        require_accelerator=levanter_parts.on_tpu(),
        log_dir=log_folder(output.path),
        log_jaxprs=False,  # they trace every step once more, at every start
        log_xla_hlo=False,
        shutdown_at_exit=False,
        wandb=None,  # it is the tracker already
        initialize_from=_taken(config, _STATE),
        **_loads(given, output),
    )


def _loads(given: Any, output: TrainingOutput) -> dict[str, Any]:
    """What the training goes on from, if that is not its own: without a checkpoint there Levanter would begin anew.

    Raises:
        ValueError: There is none.
    """
    if newest_checkpoint(output.roots):
        return {"load_checkpoint": None, "load_checkpoint_path": None}
    if given.load_checkpoint_path is None or given.load_checkpoint is False:
        return {}
    return {"load_checkpoint_path": newest_under(given.load_checkpoint_path, _OTHER_STATE).path}


def _model(given: Any, tokenizer: str) -> Any:
    """With our tokenizer, since Levanter would fetch that of the reference checkpoint from a hub, only to replace it.

    In a training that begins with weights of the hub, the reference checkpoint is where these are.
    """
    fields = {field.name for field in dataclasses.fields(given.model)}
    ours = {"tokenizer": tokenizer} if "tokenizer" in fields and given.model.tokenizer is None else {}
    is_reference = (
        given.initialize_from_hf
        or getattr(given, "pad_tokenizer_to_match_model", False)
        or not os.path.isdir(tokenizer)
    )
    if "reference_checkpoint" in fields and not is_reference:
        ours["reference_checkpoint"] = tokenizer
    return dataclasses.replace(given.model, **ours) if ours else given.model


def _export(config: Any) -> str | None:
    """Where exports go; nowhere for a model without a form of Hugging Face's, or an adapter, which has its own."""
    from levanter.compat.hf_checkpoints import HFCompatConfig

    given = config.train_config
    has_form = _is_whole(given) and isinstance(given.model, HFCompatConfig)
    return export_path(output_path_of(config)) if has_form and given.hf_save_steps else None


def _is_whole(given: Any) -> bool:
    """Whether the model itself is trained, and no adapter of it."""
    return type(given.adapter).__name__ == "NoAdaptorConfig"
