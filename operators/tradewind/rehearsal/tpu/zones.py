"""The Cloud TPU of several projects and zones at one address, as Google has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.refusals import RefusedCallError, code_of
from tradewind.rehearsal.tpu.service import WRITES

_PLACE: Final = re.compile(r"/v2/(projects/[^/]+/locations/[^/]+)/")


class ZonedTpuCloud(LoopbackServer):
    """Hands each request on to the cloud of its zone, which need not be served itself."""

    writes = WRITES

    def __init__(self, clouds: Iterable[LocalTpuCloud]) -> None:
        super().__init__()
        self._clouds = {cloud.service.state.place.path: cloud for cloud in clouds}

    def answer(self, call: HttpRequest) -> Answer:
        found = _PLACE.match(call.path)
        if found is None or found[1] not in self._clouds:
            return self.refusal("unknown", 403, f"Permission denied on '{call.path}' (or it may not exist)")
        return self._clouds[found[1]].answer(call)

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        refused = RefusedCallError(code_of(status), message, status)
        body = json.dumps(refused.body()).encode()
        return Answer(kind, status, body, {"Content-Type": "application/json; charset=UTF-8"})
