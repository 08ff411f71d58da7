"""``python -m benchmarks.run [--quick] [NAME...]``: measure, and print each figure beside its peer or bound."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from collections.abc import Sequence

# In the order in which they run. Imported when asked for, because not all of them need Airflow.
BENCHMARKS = ("parse", "resolve", "reuse")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all, if none is given")
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: shows that it works")
    arguments = parser.parse_args(argv)
    if unknown := sorted(set(arguments.names) - set(BENCHMARKS)):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.")
    print(machine(), end="\n\n", flush=True)
    for name in arguments.names or BENCHMARKS:
        measure = getattr(importlib.import_module(f"benchmarks.{name}"), f"bench_{name}")
        for table in measure(quick=arguments.quick):
            print(table.text(), flush=True)


def machine() -> str:
    """What the figures were measured on."""
    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load at start {load:.1f}"


if __name__ == "__main__":
    main()
