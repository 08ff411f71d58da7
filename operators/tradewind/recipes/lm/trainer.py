"""Run Levanter's training with two changes, and simulate slices on CPUs.

The checkpoint of a step comes last. Levanter saves a step before it evaluates it. A training that is killed in between
would never have that step's validation loss, since the next start continues after the checkpoint.

A training that begins with another's checkpoint takes its weights, or continues its whole state. Levanter loads the
whole state and sets the step to 0 (since December 2025; before, it continued). The optimizer's counts, and with them
the learning rate's schedule, would then stay where the other training left them, usually at the end.

A mesh with axes over several slices asks the devices for their slices. In a rehearsal, CPUs have none, so the mesh has
these axes within one slice.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from tradewind.recipes.checkpoints.resume import newest_checkpoint
from tradewind.recipes.lm.stored_models import AVERAGED, has_arrays

if TYPE_CHECKING:
    from levanter.main.train_lm import TrainLmConfig

LM: Final = "levanter.main.train_lm"
_SAVES: Final = "checkpoint_hook"
"""Levanter's name of the hook that saves a step."""
NUM_SLICES_VARIABLE = "TRADEWIND_NUM_SLICES"


def train(config: Any, main: str = LM, continues_at: int = 0) -> None:
    """Train to the last step; the last checkpoint may complete after this returns.

    Args:
        config: A ``TrainLmConfig``, or the config of another main function.
        main: Levanter's module of the main function.
        continues_at: The step after that of ``initialize_from_checkpoint_path``, if the training continues its whole
            state, on its own data from the beginning; 0 if it takes the weights alone.
    """
    module: Any = importlib.import_module(main)
    if config.trainer.quantization is not None:
        _let_quantized_states_load()
    is_begun = bool(config.initialize_from_hf or config.initialize_from_checkpoint_path)
    weights = None
    if loads_whole_models(config, main) and (begin := config.initialize_from_checkpoint_path):
        trainer = dataclasses.replace(config.trainer, initialize_from=begin) if continues_at else config.trainer
        config = dataclasses.replace(config, initialize_from_checkpoint_path=None, trainer=trainer)
        weights = None if continues_at else begin
    trainer_class = module.Trainer
    # The main function creates the trainer itself.
    module.Trainer = partial(_trainer_class(), begins_with=weights, is_begun=is_begun, data_begin_at=continues_at)
    try:
        module.main(config)
    finally:
        module.Trainer = trainer_class


def loads_whole_models(config: Any, main: str = LM) -> bool:
    """Whether the training is of a whole language model: an adapter needs its base model at every start."""
    return main == LM and type(config.adapter).__name__ == "NoAdaptorConfig"


@cache
def _trainer_class() -> Any:
    """Create the class on first use, since its base class needs Levanter."""
    from levanter.trainer import Trainer

    class TradewindTrainer(Trainer):
        _save: Any = None

        def __init__(self, *given: Any, begins_with: str | None, is_begun: bool, data_begin_at: int) -> None:
            super().__init__(*given)
            self._begins_with, self._is_begun, self._data_begin_at = begins_with, is_begun, data_begin_at

        def initial_state(self, *given: Any, **named: Any) -> Any:
            state = super().initial_state(*given, **named)
            if self._begins_with is None or int(state.step) > 0:
                return state
            return dataclasses.replace(state, model=_weights(state.model, self._begins_with))

        def train(self, state: Any, train_loader: Any) -> Any:
            if self.config.model_averaging is not None and self._lacks_averages(int(state.step)):
                state = _with_averages(state, self.config.model_averaging)
            return super().train(state, train_loader)

        def _lacks_averages(self, step: int) -> bool:
            """Whether the averages do not fit the weights: after initial weights, or in a partial checkpoint."""
            if step == 0 or not self.config.allow_partial_checkpoint:
                return step == 0 and self._is_begun
            own = newest_checkpoint(self.checkpoint_search_paths)
            return not has_arrays(self.config.initialize_from if own is None else own.path, AVERAGED)

        def data_loader(self, *given: Any, **named: Any) -> Any:
            loader = super().data_loader(*given, **named)
            return _LaterData(loader, self._data_begin_at) if self._data_begin_at else loader

        def add_hook(self, fn: Any = None, *, every: int = 1) -> Any:
            if getattr(fn, "__name__", None) != _SAVES:
                return super().add_hook(fn, every=every)
            self._save = fn
            return None

        def run_hooks(self, info: Any, force: bool = False) -> None:
            super().run_hooks(info, force=force)
            if force:  # the hooks run again at the end
                self._save(info, force=True)

        def train_step(self, state: Any, *batch: Any, **named: Any) -> Any:
            info = super().train_step(state, *batch, **named)
            if 1 < info.step < self.num_train_steps - 1:  # Levanter runs no hook after its first two steps
                self._save(info, force=False)
            return info

    return TradewindTrainer


def _weights(model: Any, checkpoint: str) -> Any:
    """Load the weights of a checkpoint, in the precision of the model that they replace."""
    import equinox as eqx
    import jax
    from levanter.checkpoint import load_checkpoint

    # With subpath=, it cannot load quantized layers, which have unnamed parts.
    loaded = load_checkpoint({"model": model}, checkpoint)["model"]
    return jax.tree.map(lambda new, old: new.astype(old.dtype) if eqx.is_array(old) else new, loaded, model)


def _with_averages(state: Any, averaging: Any) -> Any:
    """Restart the averages from the weights.

    Levanter's averages begin with the random weights, if it loads others after it has made its state.
    """
    import equinox as eqx
    import jax

    new, others = eqx.partition(state.trainable_model, eqx.is_array)
    # A copy, since a step donates each array of the state once.
    copied = jax.jit(lambda tree: jax.tree.map(jax.numpy.copy, tree))(new)
    for array in jax.tree.leaves(eqx.filter(state.model_averaging, eqx.is_array)):
        array.delete()  # Levanter's main function keeps a reference to the old state
    return dataclasses.replace(state, model_averaging=averaging.create(eqx.combine(copied, others)))


class _LaterData:
    """A data loader whose first batch is that of step ``first``."""

    def __init__(self, loader: Any, first: int) -> None:
        self._loader, self._first = loader, first

    def iter_from_step(self, step: Any) -> Any:
        return self._loader.iter_from_step(int(step) - self._first)


@cache
def _let_quantized_states_load() -> None:
    """Let Levanter load quantized states, for the rest of this process.

    A quantized layer has operations without arrays in the state. Levanter gives all empty places of such a part one
    name, so it cannot load what it saved. Here each place keeps its own empty tree.
    """
    import jax
    from levanter.utils import jax_utils

    original = jax_utils.leaf_key_paths

    def leaf_key_paths(pytree: Any, *arguments: Any, **options: Any) -> Any:
        if pytree is None or jax.tree_util.tree_leaves(pytree):
            return original(pytree, *arguments, **options)
        return pytree  # an empty tree is its own tree of names

    jax_utils.leaf_key_paths = leaf_key_paths


def with_simulated_slices(made: TrainLmConfig) -> TrainLmConfig:
    """Return the config, with a simulated mesh if several slices are CPUs."""
    import jax
    from levanter.utils.mesh import MeshConfig

    num_slices = int(os.environ.get(NUM_SLICES_VARIABLE) or 1)
    mesh = made.trainer.mesh
    if num_slices == 1 or mesh.dcn_axes == MeshConfig().dcn_axes or hasattr(jax.devices()[0], "slice_index"):
        return made
    fields = {field.name: getattr(mesh, field.name) for field in dataclasses.fields(mesh)}
    simulated = _mesh_class()(**fields, simulated_slices=num_slices)
    return dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, mesh=simulated))


@cache
def _mesh_class() -> Any:
    """Create the class on first use, since its base class needs Levanter."""
    from levanter.utils.mesh import MeshConfig

    @dataclasses.dataclass(frozen=True)
    class SimulatedSlices(MeshConfig):
        simulated_slices: int = 1

        def axis_shapes(self, num_devices: int, num_slices: int) -> tuple[dict[str, int], dict[str, int]]:
            ici, dcn = super().axis_shapes(num_devices, self.simulated_slices)
            return {**ici, **dcn}, {}

    return SimulatedSlices
