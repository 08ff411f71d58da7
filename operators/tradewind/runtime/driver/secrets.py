"""Fetch the values of secrets: on the cluster, in the driver, just before it starts the function's process.

The values exist only in that process's environment: no record, line of output, command line or ``runtime_env`` holds
them. ``masking`` hides them in what the function prints, raises and returns. References may be written anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tradewind.cloud_tpu.host_files import host_variable
from tradewind.cloud_tpu.secret_manager import SecretManagerError, read_secret
from tradewind.serialization.errors import SecretError
from tradewind.steps import SecretReference, check_secrets


def fetch_secrets(secrets: Mapping[str, str], whose: str) -> dict[str, str]:
    """Return the value of every name in ``secrets``; ``whose`` names the step or job in errors.

    Raises:
        SecretError: A secret cannot be read.
        SecretReferenceError: A text is no reference.
    """
    values: dict[SecretReference, str] = {}
    for name, text in check_secrets(secrets, whose).items():
        reference = SecretReference.parse(text)
        assert reference is not None, "checked above"
        if reference not in values:
            values[reference] = _fetch(name, reference, whose)
    return {name: values[SecretReference.parse(text)] for name, text in secrets.items()}  # type: ignore[index]


def _fetch(name: str, reference: SecretReference, whose: str) -> str:
    if reference.version is not None:
        try:
            return read_secret(reference.version)
        except SecretManagerError as error:
            raise SecretError(f"{whose}: secret {name} cannot be read from {reference}: {error}.") from None
    value = host_variable(reference.variable or "")
    if not value:
        raise SecretError(
            f"{whose}: secret {name} cannot be read from {reference}: the cluster's environment does not set "
            f"{reference.variable}; set it where Ray is started on the nodes."
        )
    if "\0" in value:
        raise SecretError(
            f"{whose}: secret {name} from {reference} holds a NUL, which no variable can: add a version without one to "
            "its secret, then run 'tradewind cluster push-env'."
        )
    return value


@contextmanager
def in_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set ``values`` in this process's environment for the length of the block, then restore the old values."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
