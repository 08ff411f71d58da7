"""Announce planned changes of clusters to users through this deployment's Airflow notifiers.

``[tradewind] announce_notifiers`` names them, as JSON: ``[{"classpath": "...SlackWebhookNotifier", "kwargs": {"text":
"{{ announcement }}"}}]``. The template fields of a notifier's class can contain ``announcement``, ``clusters`` and
``announced_by``. The text itself is a value, so nothing in it is rendered as a template.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from airflow.sdk import BaseNotifier, conf

from tradewind.fleet.errors import FleetError
from tradewind.fleet.lock import this_user

OPTION: Final = "announce_notifiers"
MAX_MESSAGE_CHARS: Final = 4000
_FIELDS: Final = {"classpath", "kwargs"}
_EXAMPLE: Final = (
    '[{"classpath": "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", '
    '"kwargs": {"slack_webhook_conn_id": "slack", "text": "{{ announcement }}"}}]'
)


@dataclass(frozen=True)
class ConfiguredNotifier:
    """A configured notifier; its arguments are never displayed, because they may hold secrets."""

    classpath: str
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)

    def build(self) -> BaseNotifier:
        """Return an instance for one announcement.

        Raises:
            FleetError: There is no such class, it is no notifier, or it does not accept these arguments.
        """
        module, _, name = self.classpath.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError):
            raise FleetError(
                f"[tradewind] {OPTION}: {self.classpath} cannot be imported here: is its package installed?"
            ) from None
        if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
            raise FleetError(f"[tradewind] {OPTION}: {self.classpath} is not an Airflow notifier.")
        try:
            return kind(**self.kwargs)
        except (TypeError, ValueError) as error:
            raise FleetError(
                f"[tradewind] {OPTION}: {self.classpath} does not accept these kwargs ({type(error).__name__}; they "
                f"are not shown): {', '.join(sorted(self.kwargs)) or 'none'}."
            ) from None


def configured_notifiers() -> list[ConfiguredNotifier]:
    """Return the notifiers of this deployment, none of them built yet.

    Raises:
        FleetError: Their configuration cannot be read.
    """
    text = str(conf.get("tradewind", OPTION, fallback=None) or "").strip()
    try:
        entries = json.loads(text) if text else []
        if not isinstance(entries, list) or not all(map(_is_entry, entries)):
            raise ValueError
    except ValueError:
        raise FleetError(
            f"[tradewind] {OPTION} is not a JSON list of a classpath and kwargs each (it is not shown): write "
            f"{_EXAMPLE}."
        ) from None
    return [ConfiguredNotifier(entry["classpath"], entry.get("kwargs") or {}) for entry in entries]


def announce(
    announcement: str,
    clusters: Sequence[str],
    *,
    announced_by: str | None = None,
    notifiers: Callable[[], Sequence[ConfiguredNotifier]] = configured_notifiers,
) -> list[str]:
    """Send ``announcement`` about ``clusters`` through every notifier; return their class names.

    Args:
        announced_by: Its author; default: this user on this machine.
        notifiers: Returns the notifiers; default: those of this deployment.

    Raises:
        FleetError: The announcement is empty, there are no notifiers, or some failed; the others have sent it.
    """
    if not announcement.strip() or len(announcement) > MAX_MESSAGE_CHARS:
        raise FleetError(f"An announcement has 1 to {MAX_MESSAGE_CHARS} characters. Nothing was announced.")
    chosen = notifiers()
    if not chosen:
        raise FleetError(
            f"No notifier is configured, so nothing was announced: name some in [tradewind] {OPTION}, for "
            f"example {_EXAMPLE}."
        )
    built = [(one.classpath.rpartition(".")[2], one.build()) for one in chosen]
    context = {
        "announcement": announcement, "clusters": ", ".join(clusters), "announced_by": announced_by or this_user(),
    }  # fmt: skip
    sent, failed = [], []
    for name, notifier in built:
        try:
            notifier(dict(context))
            sent.append(name)
        except Exception as error:
            failed.append(f"{name} ({type(error).__name__})")  # its text may hold the address of a webhook
    if failed:
        also = f" {', '.join(sent)} did announce it." if sent else ""
        raise FleetError(f"These notifiers failed: {', '.join(failed)}.{also}")
    return sent


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() <= _FIELDS
        and isinstance(entry.get("classpath"), str)
        and isinstance(entry.get("kwargs") or {}, dict)
    )
