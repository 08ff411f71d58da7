"""Train any Levanter ``TrainLmConfig`` on the hosts of a pod: a user's own, or one of Marin's experiments.

Levanter's main function trains, so all its options work: mixtures, schedules, several validation sets, averaged
weights, other models and optimizers. This module adds what a preemptible slice needs, as in ``train_lm``: it checks
everything first, and a start continues from the newest undamaged checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import basename, exists, join
from tradewind.recipes.checkpoints.resume import clean_up_checkpoints
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.chat_export import chat_lines
from tradewind.recipes.lm.checks import (
    can_lay_out,
    check_batches,
    check_data,
    check_hub_is_there,
    check_models,
    check_tasks,
    check_train_config,
)
from tradewind.recipes.lm.config import LevanterTrainConfig, set_variables
from tradewind.recipes.lm.data_locations import check_places, missing_caches
from tradewind.recipes.lm.levanter_parts import quiet_libraries
from tradewind.recipes.lm.pod_config import (
    TrainingOutput,
    check_initial_checkpoint,
    first_step,
    output_of,
    prepare_config,
    resolve_initial_checkpoint,
    with_batch_size,
)
from tradewind.recipes.lm.stored_models import check_model
from tradewind.recipes.lm.trainer import LM, train, with_simulated_slices
from tradewind.recipes.lm.training_summary import (
    TrainingSummary,
    end_lines,
    losses,
    resumed_summary,
    start_lines,
    training_summary,
)
from tradewind.recipes.metrics.trackers import tensorboard_path, wandb_folder
from tradewind.recipes.metrics.tracking import TrackingOptions, tracker_config
from tradewind.recipes.token_cache import own_scratch
from tradewind.recipes.train_config import metrics_path
from tradewind.runtime.pods.on_host.heartbeat import expect_steps

__all__ = ["LevanterTrainConfig", "run_levanter_train_lm"]

WITHOUT_KEY: Final = ("offline", "disabled", "dryrun")
"""Modes of W&B that need no key."""


def with_all_trackers(
    made: Any, output_path: str, first_step: int, together: int = 1, also_kept: tuple[str, ...] = ()
) -> Any:
    """Return the config with Tradewind's tracker, and its own with paths under the output.

    Args:
        made: The config.
        output_path: Output of the training.
        first_step: The next step.
        together: Sequences in each example of a step.
        also_kept: Patterns of other metrics to keep.
    """
    given = made.trainer.tracker
    placed = [_with_path(each, output_path, first_step) for each in (given if isinstance(given, Sequence) else [given])]
    options = dataclasses.replace(_options(made, output_path, together), also_kept=also_kept)
    trackers = [tracker_config(options), *(each for each in placed if each is not None)]
    return dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, tracker=tuple(trackers)))


def _with_path(tracker: Any, output_path: str, first_step: int) -> Any:
    """Return the tracker for this process; None if it cannot be used here."""
    import jax
    from levanter.tracker.tensorboard import TensorboardConfig
    from levanter.tracker.wandb import WandbConfig

    if isinstance(tracker, WandbConfig):
        return _wandb(tracker, output_path)
    if isinstance(tracker, TensorboardConfig):
        is_first = jax.process_index() == 0
        path = tensorboard_path(output_path)
        return dataclasses.replace(tracker, logdir=path, purge_step=first_step) if is_first else None
    return tracker


def _wandb(tracker: Any, output_path: str) -> Any:
    """Return the W&B tracker, on all hosts, since they exchange the run's id; None without a key."""
    import jax

    mode = os.environ.get("WANDB_MODE") or tracker.mode
    if mode not in WITHOUT_KEY and not os.environ.get("WANDB_API_KEY"):
        if jax.process_index() == 0:
            print(
                "W&B is left out: give the step secrets={'WANDB_API_KEY': ...}, or the tracker mode='offline'. "
                f"The losses are in {metrics_path(output_path)}.",
                flush=True,
            )
        return None
    os.environ.setdefault("WANDB_DIR", wandb_folder(output_path))
    code = tracker.save_code if isinstance(tracker.save_code, str) else False
    return dataclasses.replace(tracker, name=tracker.name or basename(output_path), mode=mode, save_code=code)


def _options(made: Any, output_path: str, together: int) -> TrackingOptions:
    sizes = made.trainer.train_batch_size
    stages = ((0, sizes),) if isinstance(sizes, int) else tuple((each.start, each.value) for each in sizes)
    steps, length = made.trainer.num_train_steps, made.train_seq_len or made.model.max_seq_len
    return TrackingOptions(
        metrics_path=metrics_path(output_path),
        total_steps=steps,
        tokens_per_step=stages[0][1] * length * together,
        steps_per_line=max(10, steps // 1000),
        examples_per_step=stages[0][1],
        batch_sizes=stages if len(stages) > 1 else (),
        each_set=True,
    )


@dataclass(frozen=True)
class TrainingAdapter:
    """Parts of a training that depend on its kind.

    Attributes:
        main: Levanter's module whose main function trains.
        check: Checks Levanter's config alone.
        prepare: Makes the config that Levanter runs.
        check_data: Checks the data of the prepared config.
        check_models: Checks the shapes of stored models, also in the given folders of checkpoints.
        summary: Returns the size of the training, for log and result.
        start_lines: Returns the log lines at the start.
        losses: Makes parts of the result from the last step's metrics.
        end_lines: Returns the log lines of the result.
        also_kept: Returns patterns of other metrics to keep.
    """

    main: str
    check: Callable[[Any], None]
    prepare: Callable[[Any], Any]
    check_data: Callable[[Any], None]
    check_models: Callable[[Any, list[str]], None]
    summary: Callable[[Any], TrainingSummary]
    start_lines: Callable[[TrainingSummary, Any], list[str]]
    losses: Callable[[Mapping[str, Any]], dict[str, Any]]
    end_lines: Callable[[Mapping[str, Any]], list[str]]
    also_kept: Callable[[Any], tuple[str, ...]] = lambda made: ()

    def preflight_checks(self, config: Any, devices: int, num_slices: int) -> None:
        """Check on a CPU all that the training needs to run on that many devices over all slices.

        Raises:
            ValueError: With the field and the remedy.
        """
        self.check(config.train_config)
        check_places(config)
        output_of(config).check_checkpoints()
        made = self.prepare(config)
        check_batches(made.trainer, devices, num_slices)
        self.check_data(made)
        check_initial_checkpoint(config, made)
        if can_lay_out(made):  # else the training itself checks
            check_model(made, len(made.data.the_tokenizer), "train_config.model")
            self.check_models(made, output_of(config).roots)
        else:
            check_hub_is_there(made, output_of(config).roots)
        first_step(config, made)

    def run(self, config: Any) -> dict[str, Any]:
        """Train to the last step, and return the result.

        Raises:
            ValueError: As ``preflight_checks``.
        """
        set_variables(config)
        quiet_libraries()
        output = output_of(config)
        if result := output.result():
            return result
        levanter_parts.keep_compilations(output.path)
        self.check(config.train_config)
        output.remove_unfinished()
        clean_up_checkpoints(output.roots)
        output.check_newest()
        resolve_initial_checkpoint(config)
        made = with_batch_size(with_simulated_slices(self.prepare(config)))
        check_batches(made.trainer, levanter_parts.device_count(), made.trainer.num_slices)
        self.check_data(made)
        self.check_models(made, output.roots)
        summary = resumed_summary(self.summary(made), made, first_step(config, made))
        if output.newest_step() < output.num_train_steps - 1:
            self._train(made, output, summary)  # a complete run would write its last checkpoint again
        output.keep_last_checkpoint()
        return self._finish(output, summary)

    def _train(self, made: Any, output: TrainingOutput, summary: TrainingSummary) -> None:
        import jax

        newest = output.newest_step()
        if jax.process_index() == 0:
            resumed = [f"continues after step {newest + 1}/{summary.steps}"] if newest >= 0 else []
            exports = chat_lines(made) if made.hf_save_path else ["writes no Hugging Face export"]
            lines = [*self.start_lines(summary, made), *(f"  {line}" for line in exports), *resumed]
            print("\n".join(lines), flush=True)
        with own_scratch() if missing_caches(made) else nullcontext():
            expect_steps()
            tracked = with_all_trackers(made, output.path, newest + 1, summary.together, self.also_kept(made))
            train(tracked, self.main, 0 if made.trainer.initialize_from else summary.first_step)
        output.await_last_checkpoint()

    def _finish(self, output: TrainingOutput, summary: TrainingSummary) -> dict[str, Any]:
        import jax

        export = join(output.path, "hf", f"step-{summary.steps - 1}")
        result = summary.numbers() | {
            "checkpoint": output.last_checkpoint,
            "export": export if exists(join(export, "config.json")) else None,
        }
        if jax.process_index() == 0:
            result |= self.losses(output.last_metrics())
            print("\n".join(self.end_lines(result)), flush=True)
        output.write_result(result)
        return result


_LM: Final = TrainingAdapter(
    main=LM,
    check=check_train_config,
    prepare=prepare_config,
    check_data=check_data,
    check_models=check_models,
    summary=training_summary,
    start_lines=start_lines,
    losses=losses,
    end_lines=end_lines,
)


def preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Check on a CPU all that the training needs to run on that many devices over all slices.

    Raises:
        ValueError: With the field and the remedy.
    """
    _LM.preflight_checks(config, devices, num_slices)
    check_tasks(config.train_config.eval_harness)


def run_levanter_train_lm(config: Any) -> dict[str, Any]:
    """Train to the last step, from the newest undamaged checkpoint.

    Args:
        config: A ``LevanterTrainConfig``, or Marin's ``TrainLmOnPodConfig``.

    Returns:
        ``run_id``, ``first_step`` (0, unless it continues another training), ``steps``, ``parameters``, ``tokens``,
        ``flops``, ``devices``, ``device_kind``, ``device_flops`` (peak per second of one; None if unknown),
        the losses of the last step in nats per token (``train_loss``, ``eval_loss`` and by validation set
        ``eval_losses``; None if not measured), ``checkpoint`` and ``export`` (None without one).

    Raises:
        ValueError: As ``preflight``.
    """
    return _LM.run(config)


run_levanter_train_lm.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved
run_levanter_train_lm.warm_imports = (LM, "jax.experimental.multihost_utils")  # type: ignore[attr-defined]
