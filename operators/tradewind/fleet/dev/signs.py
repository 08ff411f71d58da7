"""Signs of life for the holder of a slice, over one ``ssh`` to the head that is opened again when it is lost.

They end with this process, however it ends: the far end reads what this process holds open.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from tradewind.cloud_tpu.on_hosts.dev_slices import sign_of
from tradewind.fleet.access.bounded_lines import end_of
from tradewind.fleet.access.remote import RunEnv, remote_command
from tradewind.fleet.access.ssh import SshError, SshHost, ssh_to, why_lost
from tradewind.fleet.errors import FleetError

_AGAIN_S: Final = 3.0
_GRACE_S: Final = 10.0
_BEAT: Final = b"beat\n"
_BYE: Final = b"bye\n"
_FAR_END: Final = (
    'file=~/{file}; mkdir -p -m 700 "${{file%/*}}"; '
    'while read -r word; do case $word in beat) touch "$file" ;; bye) rm -f "$file"; exit 0 ;; esac; done'
)


class SignsSender:
    """Gives signs of life from ``__enter__`` on until ``__exit__``, which says that the person is done.

    Args:
        head: Where the head is; asked anew each time that the way to it is lost.
        every_s: How often.
        tell: Given a sentence when the way is lost.
    """

    def __init__(
        self, session: str, head: Callable[[], SshHost], *, every_s: float, tell: Callable[[str], None]
    ) -> None:
        self._line = _FAR_END.format(file=shlex.quote(sign_of(session)))
        self._head = head
        self._every_s = every_s
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="signs-of-life")

    def __enter__(self) -> SignsSender:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * _GRACE_S)

    def _keep(self) -> None:
        while not self._is_over.is_set():
            try:
                why = self._send(self._head())
            except (FleetError, OSError) as error:
                why = str(error)
            if not self._is_over.wait(_AGAIN_S):
                self._tell(f"{why} Trying again: the slice is given back if that lasts.")

    def _send(self, head: SshHost) -> str:
        """Give signs until that does not work any more; why."""
        command = remote_command(self._line, RunEnv.AUTO, is_terminal=False)
        with tempfile.TemporaryFile() as said, ssh_to(head, "-T") as words:
            ssh = _started([*words, command], said)
            try:
                assert ssh.stdin is not None
                while ssh.poll() is None:
                    ssh.stdin.write(_BEAT)
                    ssh.stdin.flush()
                    if self._is_over.wait(self._every_s):
                        ssh.stdin.write(_BYE)
                        ssh.stdin.flush()
                        break
            except OSError:  # the pipe's other end has gone
                pass
            finally:
                _ended(ssh)
            return why_lost(end_of(said), head)


def _started(words: list[str], said: Any) -> subprocess.Popen[bytes]:
    try:  # in a session of its own, so that Ctrl-C is for the command alone
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
    except FileNotFoundError:
        raise SshError("There is no ssh on this machine: install OpenSSH's client.") from None


def _ended(ssh: subprocess.Popen[bytes]) -> None:
    """It ends by itself once its input does."""
    with suppress(OSError):
        assert ssh.stdin is not None
        ssh.stdin.close()
    try:
        ssh.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        ssh.kill()
        ssh.wait()
