"""Secrets by reference: ``secrets={NAME: reference}`` states where the cluster finds the value of ``NAME``.

A reference is ``projects/PROJECT/secrets/SECRET`` in Secret Manager, with the latest version unless
``/versions/VERSION`` follows. Or it is ``env:VARIABLE``: a variable of the cluster's own environment, as last copied to
the host. Any other text is refused without being shown, because it may be the secret itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tradewind.steps.errors import SecretReferenceError

ENV_PREFIX = "env:"
FORMS = "'projects/PROJECT/secrets/SECRET', the same with '/versions/VERSION', or 'env:VARIABLE'"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"projects/[a-z0-9][a-z0-9.:-]{0,98}/secrets/[A-Za-z0-9_-]{1,255}(/versions/[A-Za-z0-9_-]{1,63})?")
_RESERVED = re.compile(
    r"TRADEWIND_.*|(DY)?LD_.*|PYTHON[A-Z0-9]*|BASH_.*|ENV|IFS|SHELLOPTS|BASHOPTS|HOME|PATH|GCONV_PATH|GLIBC_TUNABLES"
)
"""Variables that decide which code the loader, Python or a shell runs first, or that belong to the driver."""


@dataclass(frozen=True)
class SecretReference:
    """Location of a value; exactly one of the two is set.

    Attributes:
        version: A version in Secret Manager, by its full name.
        variable: A variable of the cluster's own environment.
    """

    version: str | None = None
    variable: str | None = None

    @staticmethod
    def parse(text: object) -> SecretReference | None:
        """Parse the reference in ``text``; None if it is not one."""
        if not isinstance(text, str):
            return None
        if text.startswith(ENV_PREFIX):
            variable = text.removeprefix(ENV_PREFIX)
            return SecretReference(variable=variable) if _VARIABLE.fullmatch(variable) else None
        match = _SECRET.fullmatch(text)
        if match is None:
            return None
        return SecretReference(version=text if match[1] else f"{text}/versions/latest")

    def __str__(self) -> str:
        return self.version or f"{ENV_PREFIX}{self.variable}"


def check_secrets(secrets: object, whose: str) -> dict[str, str]:
    """Check every name and reference of ``secrets`` and return it unchanged.

    Raises:
        SecretReferenceError: A name is not a variable, or its entry is not a reference.
    """
    if secrets is None:
        return {}
    if not isinstance(secrets, Mapping):
        raise SecretReferenceError(f"{whose}: secrets is a {type(secrets).__name__}; give {{NAME: reference}}.")
    for name, reference in secrets.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise SecretReferenceError(
                f"{whose}: a name in secrets is no name of an environment variable (not shown here, since it may be a "
                "secret): use letters, digits and '_'."
            )
        if _RESERVED.fullmatch(name):
            raise SecretReferenceError(f"{whose}: secrets cannot set {name}, which the driver itself depends on.")
        if SecretReference.parse(reference) is None:
            raise SecretReferenceError(
                f"{whose}: the value of {name!r} in secrets is no reference (not shown here, since it may be the "
                f"secret itself): write {FORMS}."
            )
    return dict(secrets)
