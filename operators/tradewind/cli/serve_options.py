"""Options of ``tradewind serve``, as plain data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from tradewind.cli.options import (
    WHERE,
    Command,
    CommandGroup,
    amount,
    count,
    name_or_path,
    option,
    pair,
    port,
)

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_JSON: Final = option("--json", action="store_true", help="as JSON")


def duration(text: str) -> float:
    """Convert ``90s``, ``30m``, ``2h`` or ``1d`` to seconds."""
    try:
        number = float(text[:-1]) * _UNITS[text[-1:]]
    except (KeyError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 90s, 30m, 2h or 1d")
    return number


def engine_option(text: str) -> tuple[str, Any]:
    """Split ``NAME=VALUE``; parse a value that is JSON, such as ``4096`` or ``true``."""
    name, value = pair(text)
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


_RESOURCES: Final = (
    option("--num-cpus", metavar="N", type=amount, help="CPUs of each engine; default 1"),
    option("--num-gpus", metavar="N", type=amount, help="GPUs of each engine"),
    option("--memory", metavar="BYTES", type=count, help="memory of each engine's host"),
    option("--tpu", metavar="TYPE", help="a TPU slice of one host for each engine, such as v4-8"),
)

START: Final = Command(
    "start",
    "serve a model at an OpenAI-compatible address until Ctrl-C; 'tradewind serve MODEL' is the same",
    (
        *WHERE,
        option(
            "model", metavar="MODEL", type=name_or_path,
            help="a training's output, an export or a checkpoint, or hub:ORG/NAME@COMMIT",
        ),
        option(
            "--engine", choices=("levanter", "vllm"), default="levanter", help="what computes; default: levanter",
        ),
        option(
            "--engine-option", metavar="NAME=VALUE", type=engine_option, action="append", default=[],
            dest="engine_options", help="an option of the engine, such as max_seq_len=4096; repeatable",
        ),
        option(
            "--engine-command", metavar="COMMAND",
            help="a server of your own as the engine, such as 'python serve.py {model} {port}'",
        ),
        option("--name", metavar="NAME", help="the model's name in requests; default: that of its folder"),
        *_RESOURCES,
        option("--replicas", metavar="N", type=count, default=1, help="engines to begin with; default 1"),
        option("--max-replicas", metavar="N", type=count, help="engines when many requests wait; default: --replicas"),
        option(
            "--timeout", metavar="TIME", type=duration, default="2h",
            help="when the pool ends in any case: 90s, 30m, 2h, 1d; default 2h",
        ),
        option(
            "--idle-timeout", metavar="TIME", type=duration, default="10m",
            help="when it ends without requests and without this command; default 10m",
        ),
        option(
            "--secret", metavar="NAME=REFERENCE", type=pair, action="append", default=[], dest="secrets",
            help="a variable that the engines fetch, such as HF_TOKEN: projects/PROJECT/secrets/SECRET or "
            "env:VARIABLE; repeatable",
        ),
        option("--port", metavar="N", type=port, default=0, help="local port of the tunnel; default: a free one"),
        option("--keep", action="store_true", help="leave the pool to its time limits when this command ends"),
    ),
    "Ends with 0 after Ctrl-C, and 1 if the model cannot be served or the pool has ended.",
)  # fmt: skip
LIST: Final = Command(
    "list",
    "list the models that a cluster serves",
    (*WHERE, _JSON),
)
STOP: Final = Command(
    "stop",
    "end pools, and wait until their engines have ended",
    (*WHERE, option("names", metavar="NAME", nargs="+", help="the pool's name, such as pool-0123456789ab")),
    is_destructive=True,
)
SERVE: Final = CommandGroup("serve ", "Serve a model on a cluster.", (START, LIST, STOP))


def with_command(argv: Sequence[str]) -> list[str]:
    """Return ``argv`` with the word ``start`` in ``serve MODEL``."""
    known = {*(command.name for command in SERVE.commands), "-h", "--help"}
    if len(argv) > 1 and argv[0] == SERVE.prefix.strip() and argv[1] not in known:
        return [argv[0], START.name, *argv[1:]]
    return [*argv]
