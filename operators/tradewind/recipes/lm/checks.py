"""Checks of a Levanter config before a slice is reserved; errors name the field.

Tasks of the evaluation harness are left out where ``lm-eval`` is not installed.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tradewind.datasets.files import exists, join
from tradewind.recipes.checkpoints.resume import newest_checkpoint
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.cache_integrity import LEDGER
from tradewind.recipes.lm.data_locations import cache_path, cached_components, has_weight
from tradewind.recipes.lm.field_types import check_values
from tradewind.recipes.lm.stored_models import (
    AVERAGED,
    check_hub_model,
    check_same_model,
    described_on_hub,
    first_line_of,
    has_arrays,
)
from tradewind.steps.fields import integer
from tradewind.text import did_you_mean, truncated_repr

_INTERVAL: Final = ("every", "until")
"""Keys of a permanent checkpoint's interval, in steps."""
_FIRST_READ: Final = 128
"""Conversations in the first read: in nearly all data one of them counts, and the check ends."""
_MAX_READ: Final = 8192
"""Conversations per read."""


def check_train_config(given: Any) -> None:
    """Check the config alone.

    Raises:
        ValueError: With the field and the remedy.
    """
    check_values(given)
    check_initialization(given)
    _check_begin(given)
    check_length(given)
    check_schedules(given)
    check_weights(given.data)
    check_keys(given)
    _check_stages(given)


def check_data(made: Any) -> None:
    """Raise ``ValueError`` for a tokenizer or a format that does not fit, or for chats without tokens in the loss."""
    check_tokenizer(made)
    for name, component in cached_components(made.data):
        if hasattr(component.format, "chat_template"):
            check_format(made.data, name, component)
    check_chats(made)


def check_format(data: Any, name: str, component: Any) -> None:
    """Raise ``ValueError`` for a format that does not fit the tokenizer, such as chats without a template."""
    try:
        component.format.build_preprocessor(load_tokenizer(data))
    except ValueError as error:
        raise ValueError(f"train_config.data.components[{name!r}].format: {error}") from error


def check_tokenizer(made: Any) -> None:
    """Raise ``ValueError`` for a tokenizer that fails to load, or lacks the end of text that the data needs."""
    tokenizer, name = load_tokenizer(made.data), made.data.tokenizer
    if made.data.enforce_eos and name != "passthrough" and tokenizer.eos_token_id is None:
        raise ValueError(
            f"train_config.data.tokenizer={name!r} has no end-of-text token, so texts would run into each other: give "
            "it an eos_token, or set train_config.data.enforce_eos=False."
        )


def check_chats(made: Any) -> None:
    """Check that a sequence of the training includes words of the assistant.

    Without any, Levanter would train with a loss of 0.

    Raises:
        ValueError: The template marks no words, all come after the end of a sequence, or the data is no chats.
    """
    from levanter.data.text import ChatLmDatasetFormat

    max_length = made.train_seq_len or made.model.max_seq_len
    for name, component in made.data.components.items():
        chats = getattr(component, "format", None)
        if isinstance(chats, ChatLmDatasetFormat) and chats.mask_user_turns and has_weight(made.data, name):
            path = cache_path("data", made.data, name, component, "train")
            if exists(join(path, LEDGER)):
                _check_counted(f"train_config.data.components[{name!r}]", path, max_length)


def _check_counted(field: str, path: str, max_length: int) -> None:
    import numpy as np
    from levanter.store.tree_store import TreeStore

    try:
        masks = TreeStore.open({"assistant_masks": np.zeros(0, np.int32)}, path, mode="r").tree["assistant_masks"]
    except FileNotFoundError as error:
        raise ValueError(
            f"{field}: the token cache at {path} is not of chats, as its format says: give it the format that it was "
            "tokenized with."
        ) from error
    ends = masks.offsets[1 : masks.num_rows + 1].read().result()
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1]])
    is_marked, first, size = False, 0, _FIRST_READ
    while first < len(ends):
        begin, end = starts[first], ends[min(first + size, len(ends)) - 1]
        marked = begin + np.flatnonzero(masks.data[begin:end].read().result())
        if (marked - starts[np.searchsorted(ends, marked, side="right")] < max_length).any():
            return
        is_marked |= marked.size > 0
        first, size = first + size, min(2 * size, _MAX_READ)
    if not len(ends):
        return
    if not is_marked:
        raise ValueError(
            f"{field}: in none of its {len(ends):,} conversations does the chat template mark words of the assistant, "
            "so nothing would count in the loss: look at the roles that it asks for."
        )
    raise ValueError(
        f"{field}: in each of its {len(ends):,} conversations the assistant's words come after the first "
        f"{max_length:,} tokens, where a sequence ends, so nothing would count in the loss: give a model with a "
        "longer context, or shorter conversations."
    )


def load_tokenizer(data: Any) -> Any:
    """Load the tokenizer of a config of data; raises ``ValueError`` if that fails."""
    name = data.tokenizer
    try:
        return data.the_tokenizer
    except Exception as error:  # the hub's client and the tokenizer's reader raise many types
        raise ValueError(
            f"train_config.data.tokenizer={name!r} cannot be loaded ({first_line_of(error)}): give a folder with a "
            "tokenizer.json, or a name on the Hugging Face hub that the cluster may read."
        ) from error


def check_batches(trainer: Any, devices: int, num_slices: int) -> None:
    """Raise ``ValueError`` for a batch, in any stage of the schedule, that the devices do not divide.

    Levanter accepts one only in a schedule with ``allow_nondivisible_batch_size``, which Marin's trainings have.
    """
    sizes, per_device = trainer.train_batch_size, trainer.per_device_parallelism
    takes_any = trainer.allow_nondivisible_batch_size and per_device == -1 and not isinstance(sizes, int)
    if takes_any or sizes == -1:
        return
    stages = {"": sizes} if isinstance(sizes, int) else {f"[{i}].value": each.value for i, each in enumerate(sizes)}
    for stage, size in stages.items():
        levanter_parts.check_batch_size(
            size,
            devices,
            trainer.mesh,
            num_slices,
            per_device=per_device,
            field=f"train_config.trainer.train_batch_size{stage}",
            mesh_field="train_config.trainer.mesh",
        )


def check_hub_is_there(made: Any, roots: list[str]) -> None:
    """Raise ``ValueError`` if the Hugging Face model to begin with does not exist."""
    if made.initialize_from_hf and newest_checkpoint(roots) is None:
        described_on_hub(made, made.initialize_from_hf, "train_config.initialize_from_hf")


def check_models(made: Any, roots: list[str]) -> None:
    """Raise ``ValueError`` if this training's newest checkpoint, or else its initial one, is of another model."""
    newest = newest_checkpoint(roots)
    if newest is None and made.initialize_from_hf:
        check_hub_model(made, made.initialize_from_hf, "train_config.initialize_from_hf")
    if made.trainer.allow_partial_checkpoint or not trains_whole_model(made):
        return  # a checkpoint may hold parts of a model
    vocab_size = len(made.data.the_tokenizer)
    begins = {
        "train_config.initialize_from_checkpoint_path": made.initialize_from_checkpoint_path,
        "train_config.trainer.initialize_from": made.trainer.initialize_from,
        "train_config.trainer.load_checkpoint_path": made.trainer.load_checkpoint_path,
    }
    for field, path in (begins if newest is None else {"output_path": newest.path}).items():
        if path is not None:
            check_same_model(made, vocab_size, path, field)
            if path != made.initialize_from_checkpoint_path:
                check_averages(made.trainer, path, field)


def can_lay_out(made: Any) -> bool:
    """Whether the arrays have the same shapes on this process's devices as in the training."""
    trainer = made.trainer
    try:
        trainer.mesh.axis_shapes(levanter_parts.device_count(), trainer.num_slices)
    except ValueError:
        return False
    return "vocab" not in trainer.parameter_axis_mapping  # else the devices round it up


def trains_whole_model(given: Any) -> bool:
    """Whether the model itself is trained, and not an adapter."""
    return type(given.adapter).__name__ == "NoAdaptorConfig"


def check_averages(trainer: Any, checkpoint: str, field: str) -> None:
    """Raise ``ValueError`` for a checkpoint without averaged weights if the training continues it and averages.

    Levanter does not create arrays that a checkpoint lacks.
    """
    if trainer.model_averaging is not None and not has_arrays(checkpoint, AVERAGED):
        raise ValueError(
            f"{field}: the checkpoint {checkpoint} has no averaged weights, and train_config.trainer.model_averaging "
            "asks for some: leave it out, or set train_config.trainer.allow_partial_checkpoint=True."
        )


def check_initialization(given: Any) -> list[str]:
    """Return the field with the initial weights, if there is one; raises ``ValueError`` for several."""
    begins = [
        name
        for name, value in {
            "initialize_from_hf": given.initialize_from_hf,
            "initialize_from_checkpoint_path": given.initialize_from_checkpoint_path,
            "trainer.initialize_from": given.trainer.initialize_from,
        }.items()
        if value
    ]
    if len(begins) > 1:
        raise ValueError(
            f"train_config.{begins[0]} and train_config.{begins[1]} both say what to begin with: give one of them."
        )
    return begins


def check_length(given: Any) -> None:
    """Raise ``ValueError`` for sequences longer than the model's context."""
    length, max_length = given.train_seq_len, given.model.max_seq_len
    if length is not None and not 2 <= length <= max_length:
        raise ValueError(
            f"train_config.train_seq_len={length}: give at least 2 and at most the model's max_seq_len, {max_length}."
        )


def check_weights(data: Any) -> None:
    """Check that each component has a weight, each weight a component, and each block a sequence of each component.

    Raises:
        ValueError: With the field and the remedy.
    """
    if not data.components:
        raise ValueError("train_config.data.components is empty: give components to train on.")
    weights = data.train_weights
    stages = [weights] if isinstance(weights, Mapping) else [stage for _, stage in weights or ()]
    for stage in stages:
        for name in stage:
            if name not in data.components:
                known = ", ".join(data.components)
                raise ValueError(
                    f"train_config.data.train_weights has {name!r}, which is no component: there are {known}."
                )
        for name in data.components:
            if name not in stage:
                raise ValueError(
                    f"train_config.data.train_weights has no weight for {name!r}: give it one, or 0 if it is only for "
                    "validation."
                )
        if min(stage.values()) < 0 or not any(stage.values()):
            raise ValueError(f"train_config.data.train_weights={stage}: give weights of at least 0, and one above 0.")
        check_shares(stage, data.mixture_block_size)


def check_shares(weights: Mapping[str, float], block: int) -> None:
    """Raise ``ValueError`` for a component of which a block of sequences would never have one.

    Levanter rounds each share down, so it would not train on this component and only warn
    (``levanter.data.mixture.MixtureDataset``).
    """
    total, largest = sum(weights.values()), max(weights, key=lambda name: weights[name])
    for name, weight in weights.items():
        if weight > 0 and name != largest and int(weight / total * block) == 0:
            raise ValueError(
                f"the weight of {name!r} is {weight:g} of {total:g}, so a block of {block:,} sequences "
                f"(mixture_block_size) has none of it, and the training would never read it: raise its weight to at "
                f"least {total / block:.2g}, or set it to 0."
            )


def check_keys(given: Any) -> None:
    """Raise ``ValueError`` for unknown keys of Levanter's plain dictionaries.

    Levanter would refuse the intervals of checkpoints only on the slice, and ignore unknown components.
    """
    for number, interval in enumerate(given.trainer.checkpointer.keep or ()):
        _check_interval(f"trainer.checkpointer.keep[{number}]", interval)
    for field in ("max_train_batches", "num_validation_sequences"):
        for name in getattr(given.data, field, None) or ():
            _check_key(f"data.{field}", name, given.data.components)


def _check_interval(field: str, interval: Any) -> None:
    if not isinstance(interval, Mapping):
        raise ValueError(f"train_config.{field}={truncated_repr(interval)}: give steps, such as {{'every': 1000}}.")
    for name in interval:
        _check_key(field, name, _INTERVAL)
    for name in _INTERVAL:
        value = interval.get(name)
        if name == "every" or value is not None:
            integer(1).check(f"train_config.{field}[{name!r}]", value)


def _check_key(field: str, name: Any, known: Collection[str]) -> None:
    if name not in known:
        meant = did_you_mean(name, known)
        raise ValueError(f"train_config.{field} has {truncated_repr(name)}, which is none of its keys; {meant}")


def check_schedules(given: Any) -> None:
    """Raise ``ValueError`` for stages that do not ascend from step 0, or an impossible learning rate schedule."""
    sizes, weights = given.trainer.train_batch_size, given.data.train_weights
    if not isinstance(sizes, int):
        _check_starts("trainer.train_batch_size", [stage.start for stage in sizes])
    if isinstance(weights, list):
        _check_starts("data.train_weights", [start for start, _ in weights])
    try:
        given.optimizer.lr_scheduler(given.trainer.num_train_steps)
    except Exception as error:  # optimizers raise various types
        raise ValueError(
            f"train_config.optimizer has no learning rate for {given.trainer.num_train_steps} steps "
            f"({first_line_of(error)}): check its schedule, warmup and decay."
        ) from error


def _check_starts(field: str, starts: Sequence[Any]) -> None:
    if not starts or starts[0] != 0 or any(later <= start for start, later in zip(starts, starts[1:], strict=False)):
        raise ValueError(
            f"train_config.{field} has stages from steps {list(starts)}: begin the first at step 0, and each later "
            "than the one before."
        )


def _check_stages(given: Any) -> None:
    """Check that weights change between two blocks of sequences, as Levanter requires."""
    weights, block = given.data.train_weights, given.data.mixture_block_size
    for start, _ in weights if isinstance(weights, list) else ():
        first = given.trainer.batch_schedule.global_data_offset_by_step(start)
        if first % block:
            raise ValueError(
                f"train_config.data.train_weights change at step {start}, which is sequence {first} and no multiple of "
                f"data.mixture_block_size={block}: give a step that is one, or another block size."
            )


def _check_begin(given: Any) -> None:
    """Refuse quantization of a Hugging Face model, which would replace it, and an adapter on a checkpoint.

    With an adapter, Levanter expects the adapter and its optimizer in the checkpoint, too.
    """
    if given.initialize_from_hf and given.trainer.quantization is not None:
        raise ValueError(
            "train_config.trainer.quantization does not go with train_config.initialize_from_hf in Levanter: begin "
            "with initialize_from_checkpoint_path, or leave it out."
        )
    if given.initialize_from_checkpoint_path and not trains_whole_model(given):
        raise ValueError(
            "train_config.initialize_from_checkpoint_path does not go with train_config.adapter in Levanter: give "
            "initialize_from_hf instead, such as the export of that training under hf/."
        )


def usable_harness(given: Any) -> Any:
    """Return the config of the harness; None with a log line if it is not installed."""
    if given is not None and not _is_installed():
        print("train_config.eval_harness is left out: lm-eval is not installed on this cluster.", flush=True)
        return None
    return given


def check_tasks(given: Any) -> None:
    """Check that the harness, if installed, has the tasks: Levanter would retry an unknown one on the slice.

    Raises:
        ValueError: With the nearest names.
    """
    if given is None or not _is_installed():
        return
    tasks: Any = importlib.import_module("lm_eval.tasks")
    refuse_unknown(given.task_spec, tasks.TaskManager().all_tasks)


def _is_installed() -> bool:
    return importlib.util.find_spec("lm_eval") is not None


def refuse_unknown(
    tasks: Iterable[Any], known: Collection[str], field: str = "train_config.eval_harness.task_spec"
) -> None:
    """Raise ``ValueError`` with the field for a task that is neither known nor has its own data set."""
    for task in tasks:
        name = task if isinstance(task, str) else task.task
        if name not in known and getattr(task, "dataset_path", None) is None:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see 'lm-eval ls tasks'."
            raise ValueError(f"{field} has {name!r}, which lm-eval does not know: {hint}")
