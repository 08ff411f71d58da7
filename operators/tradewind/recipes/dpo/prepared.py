"""The ``TrainDpoConfig`` that Levanter runs: the one that was given, with the places of a training on our pods."""

from __future__ import annotations

import dataclasses
from typing import Any

from tradewind.datasets.files import join
from tradewind.recipes.lm.config import output_path_of
from tradewind.recipes.lm.prepared import data_with_places, reference_of, with_places


def prepared_for_dpo(config: Any) -> Any:
    """A ``TrainDpoConfig`` with its checkpoints and exports under the output path.

    Raises:
        ValueError: The tokenizer's folder, the checkpoint to begin with or that of the reference is not there.
    """
    made = with_places(config)
    beside, reference, asked = made.lm_validation_data, made.reference, made.reference_eval_cache
    if (checkpoint := reference_of(config)) is not None:
        reference = dataclasses.replace(reference, model_path=checkpoint)
    ours = join(output_path_of(config), "reference_logprobs")  # Levanter's own place is the output of another step
    return dataclasses.replace(
        made,
        reference=reference,
        reference_eval_cache=dataclasses.replace(asked, cache_dir=asked.cache_dir or ours),
        lm_validation_data=beside and data_with_places(config, beside, "lm_validation_data"),
    )
