"""Cluster side: decode written configs with the installed Levanter and print the results.

Runs as a separate program, which takes a folder of the user's files as argument.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from tests.marin.shown import shown
from tradewind.serialization.errors import StepRuntimeError
from tradewind.serialization.spec import decode

VOCAB = 128256


def decoded(written: Any) -> dict[str, Any]:
    """Decode a written value; return its JSON form or the error."""
    try:
        value = decode(written)
    except StepRuntimeError as fault:
        return {"error": f"{type(fault).__name__}: {fault}"}
    except Exception:
        return {"error": traceback.format_exc()}
    answer: dict[str, Any] = {"value": shown(value)}
    if hasattr(value, "flops_per_token") and hasattr(value, "max_seq_len"):
        answer["flops_per_token"] = repr(value.flops_per_token(VOCAB, value.max_seq_len))
        answer["total_trainable_params"] = repr(value.total_trainable_params(VOCAB))
    return answer


def main() -> None:
    """Decode the values on standard input: name -> written value."""
    sys.path[:0] = sys.argv[1:]
    answers = {name: decoded(written) for name, written in json.load(sys.stdin).items()}
    unwanted = ("airflow", "tradewind.marin.loading", "tradewind.marin.sandbox")
    imported = [name for name in sys.modules if f"{name}.".startswith(tuple(f"{each}." for each in unwanted))]
    print(json.dumps({"answers": answers, "imported": imported}))


if __name__ == "__main__":
    main()
