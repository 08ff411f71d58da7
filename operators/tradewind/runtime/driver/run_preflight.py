"""Preflight: a step's own check of its config, on CPUs, before the driver reserves a slice.

The driver runs ``python -m tradewind.runtime.driver.run_preflight ATTEMPT_FILE SPEC_SHA256 DEVICES:SLICES ...`` with
every size that the pod may have. The step's function may have an attribute ``preflight``. It is called for each size
with the config and the number of devices over all slices, and with ``num_slices`` if it has that parameter. An
exception that it raises is the step's failure. A function without the attribute passes.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from tradewind.attempts.spec_digest import load_spec_from_argv
from tradewind.runtime.driver.child import write_error
from tradewind.runtime.driver.run_function import describe_error, masker_of
from tradewind.runtime.pods.on_host.standby_process import import_quickly
from tradewind.serialization.spec import STEP_VARIABLE


def main() -> NoReturn:
    """Check the config of the attempt that the first two arguments name; exit with 1 after writing an error."""
    attempt, spec = load_spec_from_argv(sys.argv[1:])
    os.environ[STEP_VARIABLE] = spec.version
    code, masker = 0, masker_of(spec)
    try:
        function = spec.load_function()
        preflight = getattr(function, "preflight", None)
        if preflight is not None:
            import_quickly(getattr(function, "warm_imports", ()))
            sizes = (size.partition(":") for size in sys.argv[3:])
            check_sizes(preflight, spec.load_config(), [(int(devices), int(slices)) for devices, _, slices in sizes])
    except BaseException as error:
        write_error(spec.output_path, attempt.number, describe_error(error, spec, masker))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # libraries that abort in their teardown cannot change it


def check_sizes(preflight: Callable[..., Any], config: Any, sizes: Iterable[tuple[int, int]]) -> None:
    """Call ``preflight`` for each number of devices and slices; the first exception passes through."""
    takes_slices = "num_slices" in inspect.signature(preflight).parameters
    for devices, slices in sizes:
        preflight(config, devices, **({"num_slices": slices} if takes_slices else {}))


if __name__ == "__main__":
    main()
