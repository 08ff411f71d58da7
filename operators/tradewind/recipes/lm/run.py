"""Train any ``TrainLmConfig`` of Levanter's on the hosts of a pod: a person's own, or of one of Marin's experiments.

Levanter's own main function trains, so whatever it takes is taken: mixtures, schedules, several validation sets,
averaged weights, other models and optimizers.
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

__all__ = [
    "LevanterTrainConfig",
    "run_levanter_train_lm",
]

# Who hears of a training's measures: our metrics file, and what the config names of that which can be used here.

WITHOUT_KEY: Final = ("offline", "disabled", "dryrun")
"""Modes of W&B that ask nobody."""


def with_all_trackers(
    made: Any, output_path: str, first_step: int, together: int = 1, also_kept: tuple[str, ...] = ()
) -> Any:
    """The same config with its trackers placed under the output, and ours.

    Args:
        made: The config.
        output_path: Of the training.
        first_step: The one to go on with.
        together: Sequences in each example of a step.
        also_kept: What is kept besides the losses, as patterns.
    """
    given = made.trainer.tracker
    placed = [_placed(each, output_path, first_step) for each in (given if isinstance(given, Sequence) else [given])]
    options = dataclasses.replace(_options(made, output_path, together), also_kept=also_kept)
    trackers = [tracker_config(options), *(each for each in placed if each is not None)]
    return dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, tracker=tuple(trackers)))


def _placed(tracker: Any, output_path: str, first_step: int) -> Any:
    """None for one that cannot be used, or not in this process."""
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
    """On all hosts, as they exchange the run's id."""
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


# The course of a training with Levanter on the hosts of a pod, whatever is trained.
#
# Levanter's own main function trains. Ours is what a slice that can vanish needs, as in ``train_lm``: what cannot work
# is refused first, and a start goes on from the newest sound checkpoint.


@dataclass(frozen=True)
class TrainingAdapter:
    """What one kind of training does in its own way.

    Attributes:
        main: The module of Levanter's whose main function trains.
        check: Refuses what Levanter's config alone shows to be wrong.
        prepared: From our config to the one that Levanter runs.
        check_data: Refuses data, of the prepared config, that cannot be trained on.
        check_models: Refuses stored models, given also the folders of our checkpoints, that are not of the same shape.
        facts: What the log and the result say of the size.
        beginning: The log's lines at the start.
        losses: From what was measured at the last step to parts of the result.
        ending: The log's lines at the end, of the result.
        also_kept: Patterns of what is kept besides the losses.
    """

    main: str
    check: Callable[[Any], None]
    prepared: Callable[[Any], Any]
    check_data: Callable[[Any], None]
    check_models: Callable[[Any, list[str]], None]
    facts: Callable[[Any], TrainingSummary]
    beginning: Callable[[TrainingSummary, Any], list[str]]
    losses: Callable[[Mapping[str, Any]], dict[str, Any]]
    ending: Callable[[Mapping[str, Any]], list[str]]
    also_kept: Callable[[Any], tuple[str, ...]] = lambda made: ()

    def preflight_checks(self, config: Any, devices: int, num_slices: int) -> None:
        """Look at everything that the training needs, on a CPU, for a run on that many devices over all slices.

        Raises:
            ValueError: For what cannot work, with its field and what to do.
        """
        self.check(config.train_config)
        check_places(config)
        output_of(config).check_newest()
        made = self.prepared(config)
        check_batches(made.trainer, devices, num_slices)
        self.check_data(made)
        check_initial_checkpoint(config, made)
        if can_lay_out(made):  # else the training itself compares
            check_model(made, len(made.data.the_tokenizer), "train_config.model")
            self.check_models(made, output_of(config).roots)
        else:
            check_hub_is_there(made, output_of(config).roots)
        first_step(config, made)

    def run(self, config: Any) -> dict[str, Any]:
        """Train to the last step, and return the result. Raises ``ValueError`` for what ``preflight_checks`` would
        refuse.
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
        made = with_batch_size(with_simulated_slices(self.prepared(config)))
        check_batches(made.trainer, levanter_parts.device_count(), made.trainer.num_slices)
        self.check_data(made)
        self.check_models(made, output.roots)
        facts = resumed_summary(self.facts(made), made, first_step(config, made))
        if output.newest_step() < output.num_train_steps - 1:
            self._train(made, output, facts)  # never of a complete run: it would write the last checkpoint again
        output.keep_last_checkpoint()
        return self._finish(output, facts)

    def _train(self, made: Any, output: TrainingOutput, facts: TrainingSummary) -> None:
        import jax

        newest = output.newest_step()
        if jax.process_index() == 0:
            goes_on = [f"goes on after step {newest + 1}/{facts.steps}"] if newest >= 0 else []
            exports = [] if made.hf_save_path else ["  writes no Hugging Face export"]
            print("\n".join([*self.beginning(facts, made), *exports, *goes_on]), flush=True)
        with own_scratch() if missing_caches(made) else nullcontext():
            expect_steps()
            tracked = with_all_trackers(made, output.path, newest + 1, facts.together, self.also_kept(made))
            train(tracked, self.main, 0 if made.trainer.initialize_from else facts.first_step)
        output.await_last_checkpoint()

    def _finish(self, output: TrainingOutput, facts: TrainingSummary) -> dict[str, Any]:
        import jax

        export = join(output.path, "hf", f"step-{facts.steps - 1}")
        result = facts.numbers() | {
            "checkpoint": output.last_checkpoint,
            "export": export if exists(join(export, "config.json")) else None,
        }
        if jax.process_index() == 0:
            result |= self.losses(output.last_metrics())
            print("\n".join(self.ending(result)), flush=True)
        output.write_result(result)
        return result


_LM: Final = TrainingAdapter(
    main=LM,
    check=check_train_config,
    prepared=prepare_config,
    check_data=check_data,
    check_models=check_models,
    facts=training_summary,
    beginning=start_lines,
    losses=losses,
    ending=end_lines,
)


def preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Look at everything that the training needs, on a CPU, for a run on that many devices over all slices.

    Raises:
        ValueError: For what cannot work, with its field and what to do.
    """
    _LM.preflight_checks(config, devices, num_slices)
    check_tasks(config.train_config.eval_harness)


def run_levanter_train_lm(config: Any) -> dict[str, Any]:
    """Train to the last step, from the newest sound checkpoint on.

    Args:
        config: A ``LevanterTrainConfig``, or Marin's ``TrainLmOnPodConfig``.

    Returns:
        ``run_id``, ``first_step`` (0, unless it goes on with another training), ``steps``, ``parameters``, ``tokens``,
        ``flops``, ``devices``, ``device_kind``, ``device_flops`` (a second, of one, at most; None where nobody knows),
        the losses of the last step in nats per token (``train_loss``, ``eval_loss`` and by validation set
        ``eval_losses``; None where nothing was measured), ``checkpoint`` and ``export`` (None without one).

    Raises:
        ValueError: For what ``preflight`` would have refused.
    """
    return _LM.run(config)


run_levanter_train_lm.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved
run_levanter_train_lm.warm_imports = (LM, "jax.experimental.multihost_utils")  # type: ignore[attr-defined]
