"""HELM's clients of a gateway: a request that the model refuses is an error of its document, not of the whole run.

HELM repeats each failed request for minutes and then discards the run. The gateway has waited already if the model is
lost, so here nothing is repeated.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from helm.clients.openai_client import OpenAIClient  # type: ignore[import-not-found]
from helm.common.request import ErrorFlags, Request, RequestResult  # type: ignore[import-not-found]

_CODE: Final = re.compile(r"Error code: (\d+)")
_REFUSED: Final = ("400", "413", "422")
_TIMEOUT_S: Final = 7 * 24 * 3600


class CompletionsClient(OpenAIClient):
    """Client of ``/completions``.

    Args:
        generation: Fields of HELM's requests to use instead of those of its task.
    """

    def __init__(self, cache_config: Any, generation: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(cache_config, **options, max_retries=0, timeout=_TIMEOUT_S)
        self.generation = dict(generation or {})

    def make_request(self, request: Request) -> RequestResult:
        if request.embedding or request.multimodal_prompt is not None:
            return _failure("The served model takes only text, and gives only text.", is_fatal=True)
        request = dataclasses.replace(request, **self.generation)
        try:
            result = self.send(request)
        except Exception as error:  # HELM expects more of an answer than the API promises
            return _failure(f"The answer is of no known form: {type(error).__name__}: {error}", is_fatal=False)
        if result.success:
            return result
        code = _CODE.search(result.error or "")
        return _failure(result.error or "", is_fatal=code is None or code[1] not in _REFUSED)

    def send(self, request: Request) -> RequestResult:
        return self._make_completion_request(request)

    def _to_raw_completion_request(self, request: Request) -> dict[str, Any]:
        raw: dict[str, Any] = super()._to_raw_completion_request(request)
        del raw["best_of"]  # engines refuse it beside temperature 0
        return raw | {"logprobs": 1}


class ChatClient(CompletionsClient):
    """Client of ``/chat/completions``."""

    def send(self, request: Request) -> RequestResult:
        return self._make_chat_request(request)


def _failure(error: str, *, is_fatal: bool) -> RequestResult:
    flags = ErrorFlags(is_retriable=False, is_fatal=is_fatal)
    return RequestResult(success=False, cached=False, error=error, error_flags=flags, completions=[], embedding=[])
