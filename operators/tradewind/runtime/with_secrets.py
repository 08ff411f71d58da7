"""A plain job with secrets: fetch them, then become the job's own entrypoint.

Run as ``python -m tradewind.runtime.with_secrets ENTRYPOINT``; ``TRADEWIND_SECRETS_REF`` holds the references as JSON.
The entrypoint takes this process over, so its signals and its exit code are its own. If a secret cannot be had, it
does not start: the last line says why, and the exit code is ``NO_SECRET_EXIT_CODE``.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from typing import NoReturn

from tradewind.runtime.errors import SecretError
from tradewind.runtime.secrets import fetch_secrets
from tradewind.steps import SecretReferenceError, check_secrets

SECRETS_VARIABLE = "TRADEWIND_SECRETS_REF"
NO_SECRET_EXIT_CODE = 78
"""EX_CONFIG of sysexits.h: something is not set up as it should be."""


def with_secrets(entrypoint: str, secrets: Mapping[str, str], whose: str) -> tuple[str, dict[str, str]]:
    """The entrypoint that runs ``entrypoint`` with ``secrets``, and the ``env_vars`` that it needs.

    The references go through the environment, where any API client can read them; they are no secrets.

    Raises:
        SecretReferenceError: A name is no variable, or what stands for its value is no reference.
    """
    checked = check_secrets(secrets, whose)
    if not checked:
        return entrypoint, {}
    wrapped = f"python -u -m tradewind.runtime.with_secrets {shlex.quote(entrypoint)}"
    return wrapped, {SECRETS_VARIABLE: json.dumps({"whose": whose, "secrets": checked})}


def main() -> NoReturn:
    """Become the entrypoint that is the only argument."""
    given = json.loads(os.environ.pop(SECRETS_VARIABLE))
    try:
        values = fetch_secrets(given["secrets"], given["whose"])
    except (SecretError, SecretReferenceError) as error:
        print(error, flush=True)
        sys.exit(NO_SECRET_EXIT_CODE)
    os.execve("/bin/sh", ["/bin/sh", "-c", sys.argv[1]], {**os.environ, **values})


if __name__ == "__main__":
    main()
