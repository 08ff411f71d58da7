"""The process on each host of ``run_on_pod``: calls one pickled function and sends its result or error.

The host runs ``python -m tradewind.runtime.pods.on_host.call_function``. It exits with 0 when the function returned,
with the function's own code when it called ``sys.exit``, and otherwise with 1.
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from typing import Any, NoReturn

from tradewind.runtime.driver.function_call import user_error
from tradewind.runtime.pods.on_host import mailbox
from tradewind.runtime.pods.on_host.heartbeat import start_heartbeat
from tradewind.serialization.references import find_legacy_modules


def main() -> NoReturn:
    """Make the call of this process's pod."""
    start_heartbeat()
    try:
        _send_result(_call())
        code = 0
    except SystemExit as leaving:
        code = _code_of(leaving)
        if code == 0:
            _send_result(None)
    except BaseException as error:
        _send_error(error)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # libraries that abort in their teardown cannot spoil a sent result


def _call() -> Any:
    from ray import cloudpickle

    function, folders, is_legacy = pickle.loads(mailbox.fetch_call())
    sys.path += [folder for folder in folders if folder not in sys.path and os.path.isdir(folder)]
    find_legacy_modules(with_names=is_legacy)
    return cloudpickle.loads(function)()


def _send_result(result: Any) -> None:
    from ray import cloudpickle

    mailbox.answer("result", cloudpickle.dumps(result))


def _send_error(error: BaseException) -> None:
    own, text = user_error(error)
    print(text, end="", file=sys.stderr)
    with suppress(OSError, EOFError):  # the driver still has the last lines and the exit code
        mailbox.answer("error", {"type": type(own).__qualname__, "message": str(own), "traceback": text})


def _code_of(leaving: SystemExit) -> int:
    """Return the exit code: ``sys.exit`` takes a number, nothing, or a text, which is printed."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
