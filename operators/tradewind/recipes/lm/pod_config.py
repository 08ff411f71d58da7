"""Prepare a Levanter config for a pod: paths under the output, checkpoints to begin with, and the output itself.

All processes of a training call the methods of ``TrainingOutput`` together; process 0 writes and removes.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from glob import has_magic
from typing import Any, Final

from tradewind.datasets.files import exists, is_remote, join, remove_unfinished, write_json
from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.recipes.checkpoints.resume import (
    METADATA,
    InitialCheckpoint,
    InitialCheckpointFile,
    damage,
    damaged_checkpoints,
    make_permanent,
    newest_checkpoint,
    newest_under,
    remove_temporary,
)
from tradewind.recipes.checkpoints.saving import checkpointer_like
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.chat_export import with_chat_format
from tradewind.recipes.lm.checks import check_averages, trains_whole_model, usable_harness
from tradewind.recipes.lm.config import LevanterTrainConfig, output_path_of, run_id_of
from tradewind.recipes.lm.data_locations import builds_caches
from tradewind.recipes.lm.levanter_config import log_folder
from tradewind.recipes.lm.trainer import loads_whole_models
from tradewind.recipes.metrics.file import read_metrics
from tradewind.recipes.stored_json import read_object
from tradewind.recipes.train_config import checkpoints_path, export_path, folder_of_training, metrics_path, result_path
from tradewind.records.parsing import COUNT

LAST_CHECKPOINT_TIMEOUT_S: Final = 900.0
"""Timeout for writing the last checkpoint after the last step."""
_STATE: Final = "trainer.initialize_from"
_WEIGHTS: Final = "initialize_from_checkpoint_path"
"""Levanter's fields for an initial checkpoint."""
_OTHER_STATE: Final = "train_config.trainer.load_checkpoint_path"
_REFERENCE: Final = "reference.model_path"
"""Field of the reference checkpoint, which is read at every start."""


@dataclass(frozen=True)
class TrainingOutput:
    """The output of a training.

    Attributes:
        path: Gets ``checkpoints/``, ``metrics.jsonl`` and, last of all, ``result.json``.
        num_train_steps: Length of the training.
        temporary: Folder of temporary checkpoints, if it is another one.
    """

    path: str
    num_train_steps: int
    temporary: str | None = None

    @property
    def roots(self) -> list[str]:
        """Return the folders of checkpoints, that of permanent ones first."""
        return [checkpoints_path(self.path), *([self.temporary] if self.temporary else [])]

    @property
    def last_checkpoint(self) -> str:
        """Return the path of the last step's checkpoint."""
        return join(self.roots[0], f"step-{self.num_train_steps - 1}")

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished training of this length, or None."""
        try:
            result = read_object(result_path(self.path), {"steps": COUNT}, ["steps"])
        except ValueError:  # it is written again, from the last checkpoint
            return None
        return result if result and result["steps"] == self.num_train_steps else None

    def check_checkpoints(self) -> None:
        """Check before a slice is reserved that the training can continue from its checkpoints, if it has any.

        Raises:
            ValueError: Every one is damaged, one is of a longer training, or Levanter would not find them.
        """
        for root in self.roots:
            if has_magic(root):
                raise ValueError(
                    f"{root} has one of the letters * ? [ in it, which Levanter takes for a pattern: it would not find "
                    "the checkpoints there. Use a prefix without them."
                )
        damaged_checkpoints(self.roots)
        self.check_newest()

    def check_newest(self) -> None:
        """Raise ``ValueError`` for a checkpoint of a longer training, which would look like the end of this one."""
        if (step := self.newest_step()) >= self.num_train_steps:
            raise ValueError(
                f"{self.path} has a checkpoint of step {step}, and this training ends with step "
                f"{self.num_train_steps - 1}: give it an output of its own, or more num_train_steps."
            )

    def remove_unfinished(self) -> None:
        """Remove unfinished files of a killed process: only a new attempt would, not a restart after a preemption."""
        import jax

        if jax.process_index() == 0:
            remove_unfinished(self.path)

    def newest_step(self) -> int:
        """Return the last step's index in the newest complete checkpoint; -1 without one."""
        newest = newest_checkpoint(self.roots)
        return -1 if newest is None else newest.step

    def await_last_checkpoint(self) -> None:
        """Wait until the last checkpoint, which Levanter writes in the background, is complete.

        Raises:
            TimeoutError: It is not complete in time.
        """
        deadline = time.monotonic() + LAST_CHECKPOINT_TIMEOUT_S
        last = join(self.last_checkpoint, METADATA)
        while self.newest_step() < self.num_train_steps - 1 or not exists(last):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The last checkpoint under {self.path} was not complete in time.")
            time.sleep(0.2)

    def keep_last_checkpoint(self) -> None:
        """Make the last checkpoint permanent, and remove temporary ones."""
        import jax
        from jax.experimental.multihost_utils import sync_global_devices

        if jax.process_index() == 0:
            newest = newest_checkpoint(self.roots)
            if newest is not None and newest.is_temporary:
                make_permanent(newest, self.roots[0])
            remove_temporary(self.roots)
        sync_global_devices("tradewind: last checkpoint kept")

    def last_metrics(self) -> dict[str, Any]:
        """Return the metrics of the last step; none without a file, since the checkpoint needs none."""
        path = metrics_path(self.path)
        metrics = read_metrics(path) if exists(path) else []
        return metrics[-1] if metrics and metrics[-1]["step"] == self.num_train_steps - 1 else {}

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result; all processes wait for it."""
        import jax
        from jax.experimental.multihost_utils import sync_global_devices

        if jax.process_index() == 0:
            write_json(result_path(self.path), result)
        sync_global_devices("tradewind: result written")


def output_of(config: Any) -> TrainingOutput:
    """Return the output of the training."""
    path, trainer = output_path_of(config), config.train_config.trainer
    base = trainer.checkpointer.temporary_base_path
    return TrainingOutput(path, trainer.num_train_steps, folder_of_training(base, path) if base else None)


def prepare_config(config: Any) -> Any:
    """Return the ``TrainLmConfig`` for Levanter, with checkpoints and exports under the output path.

    Raises:
        ValueError: The tokenizer's folder or the initial checkpoint is missing.
    """
    made = with_paths(config)
    return dataclasses.replace(made, eval_harness=usable_harness(made.eval_harness))


def with_paths(config: Any) -> Any:
    """Prepare the fields that all training configs share."""
    given = config.train_config
    data = data_with_paths(config, given.data, "data")
    made = dataclasses.replace(
        given,
        data=data,
        model=_model(given, data.tokenizer),
        trainer=_trainer(config),
        hf_save_path=_export(config),
        initialize_from_checkpoint_path=_checkpoint(config, _WEIGHTS),
    )
    return with_chat_format(made)


def data_with_paths(config: Any, data: Any, field: str) -> Any:
    """Return the data config with a local tokenizer; raises ``ValueError`` if it is missing."""
    tokenizer = data.tokenizer
    if is_remote(tokenizer) or os.path.isabs(tokenizer):  # else a name on a hub
        tokenizer = local_tokenizer(tokenizer, f"train_config.{field}.tokenizer")
    if not (builds := builds_caches(config)):
        data = dataclasses.replace(data, components={name: _from_cache(each) for name, each in data.components.items()})
    return dataclasses.replace(data, auto_build_caches=builds, tokenizer=tokenizer)


def _from_cache(component: Any) -> Any:
    """Return ``component`` without its hub source, which Levanter asks on every host although the cache exists."""
    from levanter.data.text import HfDatasetSourceConfig, UrlDatasetSourceConfig

    is_of_hub = isinstance(getattr(component, "source", None), HfDatasetSourceConfig)
    return dataclasses.replace(component, source=UrlDatasetSourceConfig()) if is_of_hub else component


def reference_of(config: Any) -> str | None:
    """Return the reference checkpoint of a preference training, if it is one of Levanter's.

    Raises:
        ValueError: It is missing.
    """
    return _checkpoint(config, _REFERENCE)


def resolve_initial_checkpoint(config: Any) -> None:
    """Let process 0 choose and record the checkpoints of other trainings; all processes wait."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    if jax.process_index() == 0:
        begins = (_STATE, _WEIGHTS) if output_of(config).newest_step() < 0 else ()
        for field in (*begins, _REFERENCE):
            with suppress(ValueError):  # every process raises it later
                if (checkpoint := _checkpoint(config, field)) is not None:
                    first = (
                        newest_under(checkpoint, f"train_config.{field}").step + 1 if _continues(config, field) else 0
                    )
                    _record_of(config, field).write(InitialCheckpoint(_given(config, field), checkpoint, first))
    sync_global_devices("tradewind: begin settled")


def check_initial_checkpoint(config: Any, made: Any) -> None:
    """Check the initial checkpoint for damage, such as an incomplete copy.

    Called once, before a slice is reserved, since it reads all of a checkpoint on a disk.

    Raises:
        ValueError: A file is missing or has changed.
    """
    begins = {_STATE: made.trainer.initialize_from, _WEIGHTS: made.initialize_from_checkpoint_path}
    for field, checkpoint in begins.items():
        if checkpoint and _is_read(config, field) and (wrong := damage(checkpoint)) is not None:
            raise ValueError(
                f"train_config.{field}: the checkpoint {checkpoint} is damaged, {wrong}: copy it again or give another."
            )


def first_step(config: Any, made: Any) -> int:
    """Return the training's first step: that after the checkpoint's, if it continues another training.

    ``trainer.initialize_from`` continues one, and so does ``initialize_from_checkpoint_path`` in Marin's configs: then
    ``num_train_steps`` and the learning rate span both trainings. Otherwise, a training begins with the weights alone.

    Raises:
        ValueError: No steps follow the checkpoint's, or it lacks the required averaged weights.
    """
    field = next((each for each in (_STATE, _WEIGHTS) if _given(config, each) and _continues(config, each)), None)
    if field is None:
        return 0
    output = output_of(config)
    if output.newest_step() >= 0 and (begun := _record_of(config, field).read()) is not None:
        return begun.first_step
    path = made.trainer.initialize_from or made.initialize_from_checkpoint_path
    source = newest_under(path, f"train_config.{field}")
    if field == _WEIGHTS and not made.trainer.allow_partial_checkpoint:
        check_averages(made.trainer, source.path, f"train_config.{field}")
    first, steps = source.step + 1, made.trainer.num_train_steps
    if first >= steps:
        raise ValueError(
            f"train_config.{field}: this training continues the checkpoint {source.path} of step {source.step}, and "
            f"train_config.trainer.num_train_steps={steps} ends it there: give the steps of both together."
        )
    return first


def _given(config: Any, field: str) -> str:
    """Return the path in this field; empty without one."""
    given = config.train_config
    if field == _REFERENCE:
        reference: Any = getattr(given, "reference", None)
        return "" if getattr(reference, "is_hf", True) else str(reference.model_path or "")
    return str((given.trainer.initialize_from if field == _STATE else given.initialize_from_checkpoint_path) or "")


def _continues(config: Any, field: str) -> bool:
    """Whether the training continues the checkpoint's whole state, and not its weights alone."""
    is_of_marin = not isinstance(config, LevanterTrainConfig)
    return field == _STATE or (field == _WEIGHTS and is_of_marin and loads_whole_models(config.train_config))


def _checkpoint(config: Any, field: str) -> str | None:
    """Return the checkpoint in this field: the recorded one, if there is a record.

    Raises:
        ValueError: The training needs it, and it does not exist.
    """
    if not (path := _given(config, field)):
        return None
    has_own = output_of(config).newest_step() >= 0
    is_read, label = _is_read(config, field), f"train_config.{field}"
    return _record_of(config, field).resolve(path, label, is_read=is_read, has_own=has_own)


def _record_of(config: Any, field: str) -> InitialCheckpointFile:
    make = InitialCheckpointFile.of_reference if field == _REFERENCE else InitialCheckpointFile.of_begin
    return make(output_of(config).roots[0])


def _is_read(config: Any, field: str) -> bool:
    """Whether the training reads that checkpoint.

    A reference and an adapter's initial checkpoint are read at each start, any other only by a training without its
    own.
    """
    return field == _REFERENCE or output_of(config).newest_step() < 0 or not trains_whole_model(config.train_config)


def with_batch_size(made: Any) -> Any:
    """Replace a batch size of -1 by the number that follows from the devices."""
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
        distributed=DistributedConfig(initialize_jax_distributed=False),  # the pod initialized it
        require_accelerator=levanter_parts.on_tpu(),
        log_dir=log_folder(output.path),
        log_jaxprs=False,  # it traces every step again at each start
        log_xla_hlo=False,
        shutdown_at_exit=False,
        wandb=None,  # the trackers include it
        initialize_from=_checkpoint(config, _STATE),
        **_loads(given, output),
    )


def _loads(given: Any, output: TrainingOutput) -> dict[str, Any]:
    """Return the settings to load another training's checkpoint: without one, Levanter would begin anew.

    Raises:
        ValueError: There is none.
    """
    if newest_checkpoint(output.roots):
        return {"load_checkpoint": None, "load_checkpoint_path": None}
    if given.load_checkpoint_path is None or given.load_checkpoint is False:
        return {}
    return {"load_checkpoint_path": newest_under(given.load_checkpoint_path, _OTHER_STATE).path}


def _model(given: Any, tokenizer: str) -> Any:
    """Set the local tokenizer, since Levanter would download that of the reference checkpoint and replace it.

    In a training that begins with weights of the hub, the reference checkpoint is their source and stays.
    """
    fields = {field.name for field in dataclasses.fields(given.model)}
    local = {"tokenizer": tokenizer} if "tokenizer" in fields and given.model.tokenizer is None else {}
    is_reference = (
        given.initialize_from_hf
        or getattr(given, "pad_tokenizer_to_match_model", False)
        or not os.path.isdir(tokenizer)
    )
    if "reference_checkpoint" in fields and not is_reference:
        local["reference_checkpoint"] = tokenizer
    return dataclasses.replace(given.model, **local) if local else given.model


def _export(config: Any) -> str | None:
    """Return the path of exports; None for an adapter, or for a model without a Hugging Face format."""
    from levanter.compat.hf_checkpoints import HFCompatConfig

    given = config.train_config
    has_form = trains_whole_model(given) and isinstance(given.model, HFCompatConfig)
    return export_path(output_path_of(config)) if has_form and given.hf_save_steps else None
