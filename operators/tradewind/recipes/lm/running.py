"""The course of a training with Levanter on the hosts of a pod, whatever is trained.

Levanter's own main function trains. Ours is what a slice that can vanish needs, as in ``train_lm``: what cannot work is
refused first, and a start goes on from the newest sound checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tradewind.datasets.files import exists, join
from tradewind.recipes.checkpoints.newest import settle_checkpoints
from tradewind.recipes.checkpoints.stored_shapes import check_model
from tradewind.recipes.levanter import parts
from tradewind.recipes.levanter.quiet import quiet_libraries
from tradewind.recipes.levanter.simulated_slices import on_these_devices
from tradewind.recipes.levanter.trainer import train
from tradewind.recipes.lm.checks import can_lay_out, check_batches, check_hub_is_there
from tradewind.recipes.lm.config import set_variables
from tradewind.recipes.lm.facts import TrainingFacts, going_on
from tradewind.recipes.lm.output import TrainingOutput
from tradewind.recipes.lm.places import check_places, missing_caches
from tradewind.recipes.lm.prepared import check_sound_begin, first_step, output_of, settle_begin, sized
from tradewind.recipes.lm.trackers import with_all_trackers
from tradewind.recipes.token_cache import own_scratch
from tradewind.runtime.pods.on_host.heartbeat import expect_steps


@dataclass(frozen=True)
class KindOfTraining:
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
    facts: Callable[[Any], TrainingFacts]
    beginning: Callable[[TrainingFacts, Any], list[str]]
    losses: Callable[[Mapping[str, Any]], dict[str, Any]]
    ending: Callable[[Mapping[str, Any]], list[str]]
    also_kept: Callable[[Any], tuple[str, ...]] = lambda made: ()

    def look_at(self, config: Any, devices: int, num_slices: int) -> None:
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
        check_sound_begin(config, made)
        if can_lay_out(made):  # else the training itself compares
            check_model(made, len(made.data.the_tokenizer), "train_config.model")
            self.check_models(made, output_of(config).roots)
        else:
            check_hub_is_there(made, output_of(config).roots)
        first_step(config, made)

    def run(self, config: Any) -> dict[str, Any]:
        """Train to the last step, and return the result. Raises ``ValueError`` for what ``look_at`` would refuse."""
        set_variables(config)
        quiet_libraries()
        output = output_of(config)
        if result := output.result():
            return result
        parts.keep_compilations(output.path)
        self.check(config.train_config)
        output.remove_unfinished()
        settle_checkpoints(output.roots)
        output.check_newest()
        settle_begin(config)
        made = sized(on_these_devices(self.prepared(config)))
        check_batches(made.trainer, parts.device_count(), made.trainer.num_slices)
        self.check_data(made)
        self.check_models(made, output.roots)
        facts = going_on(self.facts(made), made, first_step(config, made))
        if output.newest_step() < output.num_train_steps - 1:
            self._train(made, output, facts)  # never of a complete run: it would write the last checkpoint again
        output.keep_last_checkpoint()
        return self._finish(output, facts)

    def _train(self, made: Any, output: TrainingOutput, facts: TrainingFacts) -> None:
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

    def _finish(self, output: TrainingOutput, facts: TrainingFacts) -> dict[str, Any]:
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
