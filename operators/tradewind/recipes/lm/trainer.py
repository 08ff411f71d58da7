"""Levanter's training, with two things done in another way.

The checkpoint of a step comes after all else the step does. Levanter saves a step before it evaluates it, so a training
that is killed in between never has that step's validation loss: its successor goes on after the checkpoint. With the
checkpoint last, what was measured up to it is complete.

A training that begins with a checkpoint of another begins with its weights, or goes on with all of it. Levanter loads
all of it and sets the step to 0 (since December 2025; before, it went on). The optimizer's counts stay, and the
schedule of the learning rate goes by those: it would stand where the other training left it, mostly at its end.
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
"""Levanter's name for what saves a step."""


def train(config: Any, main: str = LM, goes_on_at: int = 0) -> None:
    """Levanter's training, up to the last step. The last checkpoint may not be complete yet when this returns.

    Args:
        config: A ``TrainLmConfig``, or what else the main function takes.
        main: The module of Levanter's that has the main function.
        goes_on_at: The step after that of ``initialize_from_checkpoint_path``, for a training that goes on with the
            whole of it, on its own data from their beginning; 0 for one that begins with its weights.
    """
    module: Any = importlib.import_module(main)
    if config.trainer.quantization is not None:
        _let_quantized_states_load()
    is_begun = bool(config.initialize_from_hf or config.initialize_from_checkpoint_path)
    weights = None
    if loads_whole_models(config, main) and (begin := config.initialize_from_checkpoint_path):
        trainer = dataclasses.replace(config.trainer, initialize_from=begin) if goes_on_at else config.trainer
        config = dataclasses.replace(config, initialize_from_checkpoint_path=None, trainer=trainer)
        weights = None if goes_on_at else begin
    levanters = module.Trainer
    # Its main function makes its trainer itself, and takes no other.
    module.Trainer = partial(_trainer_class(), begins_with=weights, is_begun=is_begun, data_begin_at=goes_on_at)
    try:
        module.main(config)
    finally:
        module.Trainer = levanters


def loads_whole_models(config: Any, main: str = LM) -> bool:
    """Whether it is a training of a language model and no adapter, which needs the model below it at every start."""
    return main == LM and type(config.adapter).__name__ == "NoAdaptorConfig"


@cache
def _trainer_class() -> Any:
    """Made on first use, since its base class needs Levanter."""
    from levanter.trainer import Trainer

    class OurTrainer(Trainer):
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
            """Whether the averages are not of the weights: at the begin with other ones, or a partial checkpoint's."""
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
            if force:  # at the end the hooks run once more
                self._save(info, force=True)

        def train_step(self, state: Any, *batch: Any, **named: Any) -> Any:
            info = super().train_step(state, *batch, **named)
            if 1 < info.step < self.num_train_steps - 1:  # Levanter runs no hook after its first two steps
                self._save(info, force=False)
            return info

    return OurTrainer


def _weights(model: Any, checkpoint: str) -> Any:
    """The weights of a checkpoint, in the precision of the model in whose place they come."""
    import equinox as eqx
    import jax
    from levanter.checkpoint import load_checkpoint

    # With subpath= it could not load quantized layers, which have parts without a name.
    loaded = load_checkpoint({"model": model}, checkpoint)["model"]
    return jax.tree.map(lambda new, old: new.astype(old.dtype) if eqx.is_array(old) else new, loaded, model)


def _with_averages(state: Any, averaging: Any) -> Any:
    """The same with averages that begin with the weights, in the place of those that are there.

    Levanter's begin with the weights of nobody, wherever it loads others after it has made its state.
    """
    import equinox as eqx
    import jax

    new, others = eqx.partition(state.trainable_model, eqx.is_array)
    # A copy, since a step gives away the arrays of the state, each once.
    copied = jax.jit(lambda tree: jax.tree.map(jax.numpy.copy, tree))(new)
    for array in jax.tree.leaves(eqx.filter(state.model_averaging, eqx.is_array)):
        array.delete()  # Levanter's main function holds the state with which it calls to the end
    return dataclasses.replace(state, model_averaging=averaging.create(eqx.combine(copied, others)))


class _LaterData:
    """A data loader whose first batch is that of step ``first``."""

    def __init__(self, loader: Any, first: int) -> None:
        self._loader, self._first = loader, first

    def iter_from_step(self, step: Any) -> Any:
        return self._loader.iter_from_step(int(step) - self._first)


@cache
def _let_quantized_states_load() -> None:
    """For the rest of this process.

    The operations of a quantized layer are part of the state and hold no arrays. Levanter gives such a part one name
    where it has many empty places, so it saves such a state and cannot load it. Here each place has its own, or none.
    """
    import jax
    from levanter.utils import jax_utils

    levanters = jax_utils.leaf_key_paths

    def leaf_key_paths(pytree: Any, *arguments: Any, **options: Any) -> Any:
        if pytree is None or jax.tree_util.tree_leaves(pytree):
            return levanters(pytree, *arguments, **options)
        return pytree  # what is empty is its own tree of names

    jax_utils.leaf_key_paths = leaf_key_paths


# A mesh with axes over several slices, on devices that only stand for slices: in a rehearsal all of them are CPUs.
#
# Levanter asks the devices which slice they are on, and CPUs do not say. Such a mesh has the axes over slices within
# one.

NUM_SLICES_VARIABLE = "TRADEWIND_NUM_SLICES"


def with_simulated_slices(made: TrainLmConfig) -> TrainLmConfig:
    """The same config, if need be with such a mesh."""
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
    """Made on first use, since its base class needs Levanter."""
    from levanter.utils.mesh import MeshConfig

    @dataclasses.dataclass(frozen=True)
    class SimulatedSlices(MeshConfig):
        simulated_slices: int = 1

        def axis_shapes(self, num_devices: int, num_slices: int) -> tuple[dict[str, int], dict[str, int]]:
            ici, dcn = super().axis_shapes(num_devices, self.simulated_slices)
            return {**ici, **dcn}, {}

    return SimulatedSlices
