"""Call one Python function as a Ray job and print its result as the last line.

The job runs ``python -m tradewind.runtime.run_callable``; ``shipping`` defines where the call is stored. It needs only
the standard library, and Ray only if the function does. Exit code 0: the function returned, and the line is printed. 1:
the function raised, or its result cannot be sent back; the traceback starts at the function.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import NoReturn

from tradewind.runtime.driver.function_call import call_and_await, user_error
from tradewind.serialization.errors import StepRuntimeError
from tradewind.serialization.masking import NAMES_VARIABLE, Masker
from tradewind.serialization.references import find_legacy_modules
from tradewind.serialization.shipping import CALL_VARIABLE, read_call, result_line
from tradewind.serialization.spec import STEP_VARIABLE


def main() -> NoReturn:
    """Make the call of this job."""
    try:
        line = _call()
    except StepRuntimeError as fault:  # raised by tradewind: needs no traceback
        _leave(1, f"{type(fault).__name__}: {fault}\n")
    except SystemExit:
        raise  # the function's own exit code
    except BaseException as error:
        _leave(1, user_error(error)[1])
    sys.stdout.flush()
    print("" if _is_at_line_start() else "\n", line, sep="", flush=True)
    _leave(0)


def _call() -> str:
    call, masker = read_call(), Masker.of_environment(os.environ)
    os.environ.pop(NAMES_VARIABLE, None)
    os.environ.pop(CALL_VARIABLE)  # not for the function and its processes
    os.environ.setdefault(STEP_VARIABLE, str(call.function))  # a DAG file that is imported here makes no DAG
    sys.argv = [str(call.function)]
    find_legacy_modules()
    function = call.function.load()
    args, kwargs = call.load_arguments()
    try:
        result = call_and_await(function, args, kwargs, call.function.ray_task)
    except SystemExit as leaving:
        if leaving.code:
            raise
        result = None  # a function may end with sys.exit()
    return result_line(result, call.marker, masker)


def _is_at_line_start() -> bool:
    """Whether the job's log, which is stdout on a cluster, ends with a whole line; the function may have left half."""
    try:
        status = os.fstat(1)
        if not stat.S_ISREG(status.st_mode):
            return False
        with open("/proc/self/fd/1", "rb") as log:
            log.seek(max(0, status.st_size - 1))
            return log.read(1) in (b"", b"\n")
    except OSError:
        return False


def _leave(code: int, error: str = "") -> NoReturn:
    sys.stdout.flush()
    if error:
        print(error, end="", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
