"""Where trackers show a training: links from the config that is stored beside its output."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import basename, join
from tradewind.recipes.metrics.trackers import tensorboard_path

if TYPE_CHECKING:  # it loads the file store, which no module of recipes does while a DAG file is parsed
    from tradewind.plans.stored_versions import StepConfig

_WANDB_NAME: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)


@dataclass(frozen=True)
class TrackerLink:
    """Where a tracker shows a training.

    Attributes:
        name: The tracker's.
        path: Folder of its files, if it writes some below the output.
        url: Its page on the web, if it has one.
        note: How to see the files.
    """

    name: str
    path: str | None = None
    url: str | None = None
    note: str | None = None


def tracker_links(config: StepConfig, output_path: str) -> tuple[TrackerLink, ...]:
    """Return the trackers that the stored config of a training names; the first of each kind."""
    values = {entry.path: _plain(entry.text) for entry in config.entries}
    links: dict[str, TrackerLink] = {}
    for path, value in values.items():
        key = path.rpartition(".")[2]
        if key == "tensorboard" and value is True:
            folder = tensorboard_path(output_path)
            links.setdefault("TensorBoard", TrackerLink("TensorBoard", folder, note=f"tensorboard --logdir {folder}"))
        elif key == "wandb" and isinstance(project := values.get(f"{path}.project"), str):
            entity, mode = values.get(f"{path}.entity"), values.get(f"{path}.mode")
            links.setdefault("W&B", _wandb_link(project, entity, mode, output_path))
    return tuple(links.values())


def _wandb_link(project: str, entity: Any, mode: Any, output_path: str) -> TrackerLink:
    run = basename(output_path)
    if mode == "offline":
        return TrackerLink("W&B", join(output_path, "wandb"), note="offline: wandb sync uploads it")
    names = (entity, project, run)
    if all(isinstance(name, str) and _WANDB_NAME.fullmatch(name) for name in names):
        return TrackerLink("W&B", url=f"https://wandb.ai/{entity}/{project}/runs/{run}")
    return TrackerLink("W&B", note=f"run {run} of project {project}")


def _plain(text: str | None) -> Any:
    """Return the value of a line, None if it was cut."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None
