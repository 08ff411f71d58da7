"""A Cloud Storage on loopback that refuses some writes, as after a token change."""

from __future__ import annotations

from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest


class RefusingStorage(LocalCloudStorage):
    """Refuse ``refusals`` writes of an object with 403, after ``let_through`` accepted writes."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: dict[str, int] = {}
        self.let_through: dict[str, int] = {}

    def answer(self, call: HttpRequest) -> Answer:
        head = f'"{call.query.get("name")}"'.encode() + call.body[:500]  # an upload request names the object here
        name = next((name for name, left in self.refusals.items() if left and f'{name}"'.encode() in head), None)
        if name is None or call.method != "POST":
            return super().answer(call)
        if self.let_through.get(name, 0):
            self.let_through[name] -= 1
            return super().answer(call)
        self.refusals[name] -= 1
        return self.refusal("write", 403, "no")
