"""Run a plain job with secrets: fetch them, run the job's own entrypoint and mask their values in its output.

The job runs ``python -m tradewind.runtime.with_secrets ENTRYPOINT``; ``TRADEWIND_SECRETS_REF`` holds the references as
JSON. This process passes its signals to the entrypoint and ends as the entrypoint does. If a secret cannot be read, the
entrypoint does not start: the last line names the reason, and the exit code is ``NO_SECRET_EXIT_CODE``.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from tradewind.runtime.driver.log_capture import StoredLog, pump
from tradewind.runtime.driver.process_guard import exit_like
from tradewind.runtime.driver.secrets import fetch_secrets
from tradewind.serialization.errors import SecretError
from tradewind.serialization.masking import NAMES_VARIABLE, Masker, StreamMasker
from tradewind.steps import SecretReferenceError, check_secrets

SECRETS_VARIABLE = "TRADEWIND_SECRETS_REF"
NO_SECRET_EXIT_CODE = 78
"""EX_CONFIG of sysexits.h: a configuration error."""
_DRAIN_S: Final = 2.0
"""How long to wait for a process that is left and still holds the output."""


def with_secrets(
    entrypoint: str, secrets: Mapping[str, str], whose: str, kept: Iterable[str] = ()
) -> tuple[str, dict[str, str]]:
    """Return the entrypoint that runs ``entrypoint`` with ``secrets``, and the ``env_vars`` that it needs.

    The references are in the environment, where any API client can read them; they are no secrets. ``kept`` are texts
    of the output that contain no secret.

    Raises:
        SecretReferenceError: A name is no variable, or its text is no reference.
    """
    checked = check_secrets(secrets, whose)
    if not checked:
        return entrypoint, {}
    wrapped = f"python -u -m tradewind.runtime.with_secrets {shlex.quote(entrypoint)}"
    return wrapped, {SECRETS_VARIABLE: json.dumps({"whose": whose, "secrets": checked, "kept": list(kept)})}


def main() -> NoReturn:
    """Run the entrypoint, the only argument."""
    given = json.loads(os.environ.pop(SECRETS_VARIABLE))
    try:
        values = fetch_secrets(given["secrets"], given["whose"])
    except (SecretError, SecretReferenceError) as error:
        print(error, flush=True)
        sys.exit(NO_SECRET_EXIT_CODE)
    environment = {**os.environ, **values, NAMES_VARIABLE: ",".join(values)}
    exit_like(_run(sys.argv[1], environment, Masker(values.values(), given.get("kept", ()))))


def _run(entrypoint: str, environment: Mapping[str, str], masker: Masker) -> int:
    """Run ``entrypoint`` and pass on its output, masked; return its return code."""
    outputs = [1] if os.path.sameopenfile(1, 2) else [1, 2]
    pipes = {output: os.pipe() for output in outputs}
    pumps = [
        threading.Thread(target=pump, args=(reader, output, StoredLog(None, ""), StreamMasker(masker)), daemon=True)
        for output, (reader, _) in pipes.items()
    ]
    writers = {output: pipes[output][1] for output in outputs}
    process = subprocess.Popen(
        ["/bin/sh", "-c", entrypoint], env=environment, stdout=writers[1], stderr=writers[outputs[-1]]
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda got, frame: process.send_signal(got))
    for writer in writers.values():
        os.close(writer)
    for thread in pumps:
        thread.start()
    code = process.wait()
    for thread in pumps:
        thread.join(_DRAIN_S)
    return code


if __name__ == "__main__":
    main()
