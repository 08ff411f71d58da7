"""Kill the process of an Airflow worker at a call, for operators that tests kill once."""

import os
import signal
from collections.abc import Callable
from typing import Any


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(function: Callable[..., Any], when: Callable[..., bool] = lambda *_, **__: True) -> Callable[..., Any]:
    """Wrap ``function`` so that the process dies after a call whose arguments match ``when``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return die() if when(*args, **kwargs) else result

    return call
