"""One prepared Python for all trainings of a process: Levanter's imports take as much CPU as a tiny training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recipes.lm.model_hub import ModelHub
from tests.support.fork_server import PreparedPython, prepared_to_train
from tests.support.http_server import serving


@pytest.fixture(scope="package")
def hub() -> Iterator[ModelHub]:
    """A hub whose model has no files yet. The trainings ask it for what is not on this machine."""
    with serving(ModelHub()) as server:
        yield server


@pytest.fixture(scope="package")
def python(tmp_path_factory: pytest.TempPathFactory, hub: ModelHub) -> Iterator[PreparedPython]:
    """Starts trainings; each gets a ``HOME`` of its own from the test."""
    with prepared_to_train(tmp_path_factory.mktemp("home"), HF_ENDPOINT=hub.url) as prepared:
        yield prepared
