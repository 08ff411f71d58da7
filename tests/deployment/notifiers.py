"""A notifier that posts to an HTTP server, as notifiers of chat services do."""

from __future__ import annotations

import urllib.request

from airflow.sdk import BaseNotifier, Context


class PostNotifier(BaseNotifier):
    """Post a text to a URL."""

    template_fields = ("text", "url")

    def __init__(self, *, url: str, text: str = "{{ announcement }}") -> None:
        super().__init__()
        self.url = url
        self.text = text

    def notify(self, context: Context) -> None:
        with urllib.request.urlopen(self.url, data=self.text.encode()):
            pass
