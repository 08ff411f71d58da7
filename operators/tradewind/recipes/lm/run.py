"""Train any ``TrainLmConfig`` of Levanter's on the hosts of a pod: a person's own, or of one of Marin's experiments.

Levanter's own main function trains, so whatever it takes is taken: mixtures, schedules, several validation sets,
averaged weights, other models and optimizers. Ours is what a slice that can vanish needs, as in ``train_lm``.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tradewind.datasets.files import exists, join
from tradewind.recipes.checkpoints.newest import settle_checkpoints
from tradewind.recipes.levanter import parts
from tradewind.recipes.levanter.quiet import quiet_libraries
from tradewind.recipes.levanter.simulated_slices import on_these_devices
from tradewind.recipes.levanter.trainer import train
from tradewind.recipes.lm.checks import can_lay_out, check_batches, check_models, check_tokenizer, check_train_config
from tradewind.recipes.lm.config import LevanterTrainConfig, set_variables
from tradewind.recipes.lm.facts import TrainingFacts, beginning, ending, facts_of, losses
from tradewind.recipes.lm.output import TrainingOutput
from tradewind.recipes.lm.places import check_places, missing_caches
from tradewind.recipes.lm.prepared import output_of, prepared, sized
from tradewind.recipes.lm.trackers import with_all_trackers
from tradewind.recipes.token_cache import own_scratch
from tradewind.runtime.pods.on_host.heartbeat import expect_steps

__all__ = ["LevanterTrainConfig", "run_levanter_train_lm"]


def preflight(config: Any, devices: int, num_slices: int = 1) -> None:
    """Look at everything that the training needs, on a CPU, for a run on that many devices over all slices.

    Raises:
        ValueError: For what cannot work, with its field and what to do.
    """
    check_train_config(config.train_config)
    check_places(config)
    made = prepared(config)
    check_batches(made.trainer, devices, num_slices)
    check_tokenizer(made)
    if can_lay_out(made):  # else the training itself compares
        check_models(made, output_of(config).roots)


def run_levanter_train_lm(config: Any) -> dict[str, Any]:
    """Train to the last step, from the newest sound checkpoint on.

    Args:
        config: A ``LevanterTrainConfig``, or Marin's ``TrainLmOnPodConfig``.

    Returns:
        ``run_id``, ``steps``, ``parameters``, ``tokens``, ``flops``, ``devices``, ``device_kind``, ``device_flops`` (a
        second, of one, at most; None where nobody knows), the losses of the last step in nats per token
        (``train_loss``, ``eval_loss`` and by validation set ``eval_losses``; None where nothing was measured),
        ``checkpoint`` and ``export`` (None without one).

    Raises:
        ValueError: For what ``preflight`` would have refused.
    """
    set_variables(config)
    quiet_libraries()
    output = output_of(config)
    if result := output.result():
        return result
    parts.keep_compilations(output.path)
    check_train_config(config.train_config)
    output.remove_unfinished()
    settle_checkpoints(output.roots)
    made = sized(on_these_devices(prepared(config)))
    check_batches(made.trainer, parts.device_count(), made.trainer.num_slices)
    check_tokenizer(made)
    check_models(made, output.roots)
    facts = facts_of(made)
    if output.newest_step() < output.num_train_steps - 1:
        _train(made, output, facts)  # never of a complete run: it would write the last checkpoint again
    output.keep_last_checkpoint()
    return _finish(output, facts)


run_levanter_train_lm.preflight = preflight  # type: ignore[attr-defined]  # before a slice is reserved
run_levanter_train_lm.warm_imports = (  # type: ignore[attr-defined]
    "levanter.main.train_lm",
    "jax.experimental.multihost_utils",
)


def _train(made: Any, output: TrainingOutput, facts: TrainingFacts) -> None:
    import jax

    newest = output.newest_step()
    if jax.process_index() == 0:
        goes_on = [f"goes on after step {newest + 1}/{facts.steps}"] if newest >= 0 else []
        exports = [] if made.hf_save_path else ["  writes no Hugging Face export"]
        print("\n".join([*beginning(facts, made), *exports, *goes_on]), flush=True)
    with own_scratch() if missing_caches(made.data) else nullcontext():
        expect_steps()
        train(with_all_trackers(made, output.path, newest + 1))
    output.await_last_checkpoint()


def _finish(output: TrainingOutput, facts: TrainingFacts) -> dict[str, Any]:
    import jax

    export = join(output.path, "hf", f"step-{facts.steps - 1}")
    result = facts.numbers() | {
        "checkpoint": output.last_checkpoint,
        "export": export if exists(join(export, "config.json")) else None,
    }
    if jax.process_index() == 0:
        result |= losses(output.last_metrics())
        print("\n".join(ending(result)), flush=True)
    output.write_result(result)
    return result
