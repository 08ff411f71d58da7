"""Fixture that runs commands in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tradewind.cli.main import main


class Ended(NamedTuple):
    """Exit code and output of an ended command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def run(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command; ``COMMAND`` of the test's module has the command's first words."""
    first_words = getattr(request.module, "COMMAND", ())

    def command(*words: str) -> Ended:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*first_words, *words])
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, *capfd.readouterr())

    return command
