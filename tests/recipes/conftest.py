"""One fork server for all trainings: importing Levanter costs as much CPU as a tiny training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recipes.lm.model_hub import ModelHub
from tests.support.fork_server import PreparedPython, prepared_to_train
from tests.support.http_server import serving


@pytest.fixture(scope="package")
def hub() -> Iterator[ModelHub]:
    """Start a hub whose model has no files; the trainings request missing files from it."""
    with serving(ModelHub()) as server:
        yield server


@pytest.fixture(scope="package")
def python(tmp_path_factory: pytest.TempPathFactory, hub: ModelHub) -> Iterator[PreparedPython]:
    """Yield a fork server for trainings; each training gets its ``HOME`` from the test."""
    with prepared_to_train(tmp_path_factory.mktemp("home"), HF_ENDPOINT=hub.url) as prepared:
        yield prepared
