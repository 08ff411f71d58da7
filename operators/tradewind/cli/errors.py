"""What ends a command before its time: each a sentence for standard error, and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot do what it was asked to do."""

    exit_code = 1


class UsageError(CommandError):
    """What was asked makes no sense as it stands; nothing was done."""

    exit_code = 2
