"""Local Cloud TPU API v2 over gRPC: the calls of a ``TpuService``, and the polling of operations."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
from google.longrunning import operations_pb2  # type: ignore[import-untyped]

from tradewind.rehearsal.tpu.requests import RefusedCallError
from tradewind.rehearsal.tpu.service import GET_OPERATION, REQUESTS, WRITES, TpuService

_SERVICE: Final = "google.cloud.tpu.v2.Tpu"
_OPERATIONS: Final = "google.longrunning.Operations"
_THREADS: Final = 8


class TpuGrpcServer:
    """One server, from ``start`` to ``stop``; the service's state survives it.

    Attributes:
        lost_answers: How many of the next writes are applied but return UNAVAILABLE, as when a connection ends.
    """

    def __init__(self, service: TpuService) -> None:
        self.lost_answers = 0
        self._service = service
        self._server: grpc.Server | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Address of the server, as ``HOST:PORT``."""
        assert self._port, "started first"
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve on a free loopback port; after a ``stop``, on the same one."""
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-grpc"))
        calls = {name: self._handler(name, kind.deserialize) for name, kind in REQUESTS.items()}
        polls = {GET_OPERATION: self._handler(GET_OPERATION, operations_pb2.GetOperationRequest.FromString)}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, calls),
             grpc.method_handlers_generic_handler(_OPERATIONS, polls))
        )  # fmt: skip
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self._server.start()

    def stop(self) -> None:
        """Cut all connections and stop serving."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def _handler(self, name: str, deserialize: Callable[[bytes], Any]) -> grpc.RpcMethodHandler:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                response = self._service.call(name, request, "grpc")
            except RefusedCallError as error:
                context.abort(grpc.StatusCode[error.code], error.message)
            if self.lost_answers > 0 and name in WRITES:
                self.lost_answers -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return response

        return grpc.unary_unary_rpc_method_handler(answer, deserialize, _serialize)


def _serialize(answer: Any) -> bytes:
    if isinstance(answer, operations_pb2.Operation):
        return bytes(answer.SerializeToString())
    return bytes(type(answer).serialize(answer))
