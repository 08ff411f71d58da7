"""A reader's process: answers requests on its standard input, with bounded memory.

The kernel refuses memory beyond the limit, and ends the process if it blocks for longer than its request may take. So
a file made to exhaust a reader ends at most this process, never the server that shows the page.

Messages are a line of JSON each; the answer's line gives the length of the body that follows it. A first line says that
the process is ready.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any, Final

from tradewind.browsing import packed
from tradewind.browsing.access import Access
from tradewind.browsing.limits import GRACE_S, MEMORY_BYTES
from tradewind.browsing.memory import bounded, memory_of_process
from tradewind.browsing.pool import READY
from tradewind.browsing.refusals import BrowsingError, TooLargeError, UnreadableError
from tradewind.storage import Roots
from tradewind.storage.confinement import confined_to

IDLE_S: Final = 300.0
"""A process without requests ends after so long, and gives back its memory and restart points."""
_KEPT_BYTES: Final = 512 << 20
"""A process ends when it keeps more: modules, tokenizers, restart points and what the allocator does not give back."""
_STACK_BYTES: Final = 1 << 20
_MAX_OPEN: Final = 4096
"""Files that are open at a time: those of a checkpoint are."""
MEDIA_TYPE: Final = "application/json"


def main() -> None:
    """Answer requests until the input ends or nothing has come for a while."""
    _prepare()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    answers.write(READY)
    answers.flush()
    while _awaited(requests):
        line = requests.readline()
        if not line:
            return
        head, body = _answer(json.loads(line))
        answers.write(json.dumps({**head, "length": len(body)}).encode() + b"\n" + body)
        answers.flush()
        del head, body
        gc.collect()
        trim(0)  # give the kernel back what the request took
        if memory_of_process("VmRSS") > _KEPT_BYTES:
            return


def _awaited(requests: IO[bytes]) -> bool:
    """Wait for a request, and prepare for the next ones meanwhile; return whether there is one."""
    while not select.select([requests], [], [], 0)[0]:
        if not packed.index_step():
            return bool(select.select([requests], [], [], IDLE_S)[0])
    return True


def _prepare() -> None:
    gc.disable()  # between requests only: a page is many small objects, none of them in a cycle
    threading.stack_size(_STACK_BYTES)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (_MAX_OPEN if most == resource.RLIM_INFINITY else min(most, _MAX_OPEN), most)
    )
    import msgspec  # noqa: F401
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    import tradewind.browsing.look  # noqa: F401

    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    gc.freeze()  # a collection after each request need not look at the modules


def _answer(request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the head of the answer and its body."""
    timeout_s = float(request["timeout_s"])
    signal.setitimer(signal.ITIMER_REAL, timeout_s + GRACE_S)  # ends this process, also if its parent is gone
    roots = None if request["roots"] is None else Roots(tuple(request["roots"]))
    access = Access(roots, time.monotonic() + timeout_s)
    try:
        with bounded(), confined_to(roots):
            return _called(request["call"], access, request["arguments"])
    except MemoryError:
        return _refused(TooLargeError(_too_much(request["arguments"]["path"]))), b""
    except BrowsingError as error:
        return _refused(error), b""
    except TimeoutError:
        return _refused(TooLargeError(f"{request['arguments']['path']} took longer than {timeout_s:.0f} s.")), b""
    except Exception as error:
        what = f"{request['arguments']['path']} cannot be read: {type(error).__name__}: {error}"
        return _refused(UnreadableError(what[:500])), b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _called(call: str, access: Access, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    from tradewind.browsing.look import CALLS

    answer = CALLS[call](access, **arguments)
    if call == "image":
        return {"type": answer[0]}, answer[1]
    if call == "piece":
        return {"type": "", "size": answer[0].size, "state": answer[0].state}, answer[1]
    return {"type": MEDIA_TYPE}, _json_of(answer)


def _json_of(answer: Any) -> bytes:
    """Encode with msgspec, which each API server has: it takes a sixth of the time that ``json`` takes."""
    import msgspec

    try:
        return msgspec.json.encode(answer)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can name and UTF-8 cannot
        return json.dumps(answer, ensure_ascii=False, default=vars).encode("utf-8", "replace")


def _refused(error: BrowsingError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}


def _too_much(path: str) -> str:
    return (
        f"{path} needs more than {MEMORY_BYTES >> 20} MB of memory to show this: ask for fewer rows or columns, or "
        "download it."
    )


if __name__ == "__main__":
    main()
