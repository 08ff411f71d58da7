"""The results of a speedrun, as one JSON file: who ran what, what it cost, how good it got.

The file has the fields of Marin's ``speedrun_results.json`` of November 2025, so its leaderboard reads it. What Marin
asks W&B for comes from the training's own output here; nobody is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import basename, join, parent, write_text
from tradewind.datasets.one_line import in_a_line
from tradewind.recipes.speedruns.measures import C4_BITS_PER_BYTE, TrainingMeasures, measures_of
from tradewind.steps.values.fields import PATH, SOME_TEXT, TEXT, check_fields

RESULTS_FILE: Final = "speedrun_results.json"
_TOLD: Final = ("author", "description")
"""Of the file, beside the numbers, what the step returns: for the board."""


@dataclass(frozen=True)
class SpeedrunReportConfig:
    """Whose training ``report_speedrun`` reports."""

    train_path: str
    """Output of a training."""
    output_path: str
    """Gets ``speedrun_results.json``."""
    author: str = ""
    affiliation: str = ""
    url: str | None = None
    """Of the author."""
    summary: str = ""
    """What is new in it, in a sentence."""

    def __post_init__(self) -> None:
        names = dict.fromkeys(("affiliation", "summary"), TEXT)
        check_fields(self, train_path=PATH, output_path=PATH, author=SOME_TEXT, **names, url=TEXT.or_none())


def report_speedrun(config: SpeedrunReportConfig) -> dict[str, Any]:
    """Write the file; returns author, description and the numbers, by the names that they have there.

    Raises:
        ValueError: ``train_path`` is no output of a finished training, or of one too short to be timed.
    """
    measured = measures_of(config.train_path)
    settings = measured.settings
    about = {
        "author": {"name": config.author, "affiliation": config.affiliation, "url": config.url},
        "description": config.summary,
        "model_config": {name: settings.get(name) for name in ("model_size", "model")},
        "train_config": settings,
        "tokenized_dataset": settings.get("cache_path"),
        "resources": {"device_kind": measured.device_kind, "num_devices": measured.devices},
        "wandb_run_link": None,
    }
    return _write(join(config.output_path, RESULTS_FILE), about, measured)


def report_marins_speedrun(config: Any) -> dict[str, Any]:
    """The same for Marin's ``SpeedrunResultsConfig``, whose file goes into the output of the training.

    The numbers are those of the training that ran, on the devices that it ran on, and not of those in the config.

    Raises:
        ValueError: There is no finished training at that path, or one too short to be timed.
    """
    measured = measures_of(parent(config.output_path))
    run = basename(config.wandb_run_id)
    about = {
        **config.speedrun_config.as_json_dict(),
        "wandb_run_link": f"https://wandb.ai/{config.wandb_entity}/{config.wandb_project}/runs/{run}",
    }
    return _write(config.output_path, about, measured)


def _write(path: str, about: Mapping[str, Any], measured: TrainingMeasures) -> dict[str, Any]:
    run_info = {**about, **measured.numbers()}
    told = json.dumps({"runs": [{"run_info": run_info}]}, indent=2, sort_keys=True, default=str)
    write_text(path, f"{told}\n")
    bits = run_info[C4_BITS_PER_BYTE]
    print("\n".join(_lines(measured) + ([] if bits is None else [f"  C4: {bits:.4f} bits per byte"])), flush=True)
    return {name: about[name] for name in _TOLD} | measured.numbers()


def _lines(measured: TrainingMeasures) -> list[str]:
    """For the task's log."""
    flops = "unknown" if measured.model_flops is None else f"{measured.model_flops:.3g}"
    share = "" if measured.utilisation is None else f", {measured.utilisation:.1%} of what the devices can do"
    loss = "not measured" if measured.eval_loss is None else f"{measured.eval_loss:.4f}"
    devices = f"{measured.devices} × {in_a_line(measured.device_kind)}"
    return [
        f"{measured.parameters:,} parameters, {measured.tokens:,} tokens, validation loss {loss}",
        f"  {measured.seconds:.1f} s on {devices}; model FLOPs: {flops}{share}",
    ]
