"""Keep task logs readable: Levanter and what it builds on report every internal step at INFO."""

from __future__ import annotations

import logging
import os

CHATTY = ("levanter", "rigging", "tqdm_loggable", "jax._src.distributed")
CRYING_WOLF = (
    "zephyr",  # at the start of every stage: all its workers are dead (it has started none yet)
    "fray",  # no peak speed is known for this CPU
    "levanter.tensorstore_serialization",  # a leaf of the optimizer state is None
    "levanter.compat.hf_checkpoints",  # no model to copy the config from, though none is needed
)


def quiet_libraries() -> None:
    """Let only warnings of Levanter and its companions through, and of some of them only errors.

    Where a process computes on CPUs, XLA's errors too: for every kept compilation it logs one that is none.
    """
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in CRYING_WOLF:
        logging.getLogger(name).setLevel(logging.ERROR)
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when jaxlib is loaded


def quiet_console() -> None:
    """Let only warnings through to the console, and leave log files as they are.

    For training: Levanter sets the levels of its own loggers and keeps a detailed log file.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setLevel(max(handler.level, logging.WARNING))
