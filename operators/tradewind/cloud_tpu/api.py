"""Cloud TPU API of one project and zone: list, get, create and delete, with waits for completion.

A call without a response (503, a lost connection) or with too many requests is retried for a while, with jitter. A
refusal raises at once an error of its own type. Callers wait out stock-outs, which can last for hours. Everything here
blocks: an event loop runs it in a thread.

The API returns RESOURCE_EXHAUSTED (429) for three conditions with different remedies: no capacity in the zone, an
exhausted quota of the project, and too many requests in a minute. Only its text distinguishes them. The phrases come
from Google's documentation and users' reports, not from measurements. Only a creation can lack capacity or quota; for
any other call the code means too many requests, whatever the text.

Over REST, two codes may share one HTTP status (409: ALREADY_EXISTS and ABORTED), so the code is read from the response.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tradewind.cloud_tpu.client import ENDPOINT_VARIABLE, make_client
from tradewind.cloud_tpu.errors import (
    BadSliceError,
    OperationTimeoutError,
    QuotaError,
    StockOutError,
    TpuAbortedError,
    TpuApiError,
    TpuConflictError,
    TpuDeniedError,
    TpuNotFoundError,
    TpuPreconditionError,
    TpuUnreachableError,
)
from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode, check_place, is_name, is_queue_body

RETRY_TIMEOUT_S: Final = 60.0
"""How long a call without a response is retried."""
CALL_TIMEOUT_S: Final = 30.0
OPERATION_TIMEOUT_S: Final = 30 * 60.0
POLL_S: Final = 5.0
PAGE_SIZE: Final = 500
MAX_CONCURRENT_CALLS: Final = 16
"""Maximum number of concurrent calls, over all callers."""
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 15.0
_NO_CAPACITY: Final = ("no more capacity", "stockout", "insufficient capacity", "not enough resources")
_TOO_FAST: Final = ("per minute", "ratelimit", "rate limit", "too many requests", "e.g. check quota")
_QUOTA: Final = ("quota",)
_TAKEN: Final = ("already exist",)
_UNANSWERED: Final = frozenset({408, 499})
"""HTTP's Request Timeout, and CANCELLED: a proxy or the server gave up waiting."""

T = TypeVar("T")
Resource = TpuNode | QueuedTpu
R = TypeVar("R", TpuNode, QueuedTpu)


def is_retryable(error: Exception, *, is_creation: bool = True) -> bool:
    """Return whether the same call may succeed in a moment."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    if isinstance(error, exceptions.TooManyRequests):  # includes ResourceExhausted
        return is_rate_limited(error, is_creation=is_creation)
    if _says(error, _NO_CAPACITY):
        return False
    if getattr(error, "code", None) in _UNANSWERED:
        return True
    unanswered = (exceptions.ServiceUnavailable, exceptions.GatewayTimeout, exceptions.BadGateway)
    lost = (exceptions.RetryError, requests.ConnectionError, requests.Timeout, TransportError)
    return isinstance(error, (exceptions.InternalServerError, exceptions.Unknown, *unanswered, *lost))


def is_rate_limited(error: Exception, *, is_creation: bool) -> bool:
    """Return whether the error asks for fewer requests."""
    from google.api_core import exceptions

    if not isinstance(error, exceptions.TooManyRequests):
        return False
    return not is_creation or (_says(error, _TOO_FAST) and not _says(error, _NO_CAPACITY))


def translate_error(what: str, error: Exception, *, is_creation: bool = True) -> TpuApiError:
    """Return this package's error for ``error``, which ``what`` raised."""
    kind, advice = _kind(error, is_creation)
    words = str(getattr(error, "message", "") or error).strip().rstrip(".") or type(error).__name__
    return kind(f"Cloud TPU API, {what}: {words}. {advice}".strip())


def _kind(error: Exception, is_creation: bool) -> tuple[type[TpuApiError], str]:
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if is_creation and (isinstance(error, exceptions.TooManyRequests) or _says(error, _NO_CAPACITY)):
        return _exhausted(error)
    if isinstance(error, exceptions.TooManyRequests):
        return TpuUnreachableError, "Ask less often."
    if is_retryable(error, is_creation=is_creation):
        return TpuUnreachableError, "Try again later."
    if isinstance(error, exceptions.NotFound):
        return TpuNotFoundError, ""
    if isinstance(error, exceptions.Conflict):  # includes AlreadyExists and Aborted
        code = _code(error)
        is_taken = code == "ALREADY_EXISTS" if code else _says(error, _TAKEN)
        return (TpuConflictError, "") if is_taken else (TpuAbortedError, "Try again later.")
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized | GoogleAuthError):
        return TpuDeniedError, "Grant the account roles/tpu.admin."
    if isinstance(error, exceptions.BadRequest):
        is_precondition = _code(error) == "FAILED_PRECONDITION"
        return (TpuPreconditionError, "") if is_precondition else (BadSliceError, "Correct the body of the slice.")
    return TpuApiError, ""


def _code(error: Any) -> str:
    """Return the ``google.rpc`` code of the response; empty if there is none."""
    if (of_grpc := getattr(error, "grpc_status_code", None)) is not None:
        return str(of_grpc.name)
    try:
        return str(error.response.json()["error"]["status"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _exhausted(error: Exception) -> tuple[type[TpuApiError], str]:
    if _says(error, _NO_CAPACITY):
        return StockOutError, "Wait, or use another zone."
    if _says(error, _TOO_FAST):
        return TpuUnreachableError, "Ask less often."
    if _says(error, _QUOTA):
        return QuotaError, "Delete what is not needed, or ask Google for more quota."
    return StockOutError, "Wait, or use another zone."


def _says(error: Exception, phrases: tuple[str, ...]) -> bool:
    words = str(error).lower()
    return any(phrase in words for phrase in phrases)


@dataclass(frozen=True)
class TpuOperation:
    """An accepted creation or deletion; ``TpuApi.has_ended`` reports its progress."""

    what: str
    running: Any
    is_creation: bool


class TpuApi:
    """Slices of one project and zone.

    Args:
        project: The Google Cloud project.
        zone: The zone, such as ``us-central2-b``.
        endpoint: Another endpoint than Google's, as a URL; else that of ``TRADEWIND_TPU_ENDPOINT``. One on this machine
            gets no credentials.
        transport: ``rest`` or ``grpc``.
        credentials: Google credentials; None finds the default ones.
        poll_s: Interval between checks of an operation.
        retry_timeout_s: How long a call without a response is retried.
        clock: Monotonic clock, in seconds.
        sleep: Waits; it may raise, which ends the call.

    Raises (every method):
        TpuUnreachableError: The API does not answer.
        TpuApiError: The API refuses; the subclass names the reason.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        *,
        endpoint: str | None = None,
        transport: str = "rest",
        credentials: Any = None,
        poll_s: float = POLL_S,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_place(project, zone)
        self.project = project
        self.zone = zone
        self.poll_s = poll_s
        self.retry_timeout_s = retry_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._quiet_until = clock()
        self._client = make_client(
            endpoint or os.environ.get(ENDPOINT_VARIABLE), transport, credentials, MAX_CONCURRENT_CALLS
        )

    @property
    def parent(self) -> str:
        """Prefix of all names."""
        return f"projects/{self.project}/locations/{self.zone}"

    def nodes(self) -> list[TpuNode]:
        """Return every node of the zone."""
        return self._once([TpuNode.from_json(one) for one in self._list("nodes", "the nodes")], is_queue=False)

    def queued_resources(self) -> list[QueuedTpu]:
        """Return every queued resource of the zone."""
        listed = [QueuedTpu.from_json(one) for one in self._list("queued_resources", "the queued resources")]
        return self._once(listed, is_queue=True)

    def node(self, name: str) -> TpuNode:
        """Return the node ``name``; raise TpuNotFoundError if there is none."""
        return TpuNode.from_json(self._get("get_node", self._path(name, is_queue=False)))

    def queued_resource(self, name: str) -> QueuedTpu:
        """Return the queued resource ``name``; raise TpuNotFoundError if there is none."""
        return QueuedTpu.from_json(self._get("get_queued_resource", self._path(name, is_queue=True)))

    def create(self, name: str, body: Mapping[str, Any], timeout_s: float = OPERATION_TIMEOUT_S) -> None:
        """Create a node, or a queued resource if ``body`` has ``tpu``, and wait for the operation's end.

        It then exists, but may not be ACTIVE or READY yet.

        Raises:
            TpuConflictError: One of this name exists.
            StockOutError: There is no capacity now.
            QuotaError: The project's quota is used up.
            BadSliceError: The API does not accept ``body``.
        """
        self._wait_for(self.begin_create(name, body), self._clock() + timeout_s)

    def begin_create(self, name: str, body: Mapping[str, Any]) -> TpuOperation:
        """Do the same as ``create``, without waiting for the end."""
        from google.cloud import tpu_v2

        self._path(name, is_queue=is_queue_body(body))  # which checks the name
        kind = "queued_resource" if is_queue_body(body) else "node"
        message = tpu_v2.QueuedResource if is_queue_body(body) else tpu_v2.Node
        resource = self._parse(message, name, body)
        request = {"parent": self.parent, f"{kind}_id": name, kind: resource}
        return self._begin(f"creating {self._label(kind, name)}", f"create_{kind}", request, is_creation=True)

    def begin_delete(
        self, name: str, is_queue: bool, identity: str, may_send: Callable[[], bool] = lambda: True
    ) -> TpuOperation | None:
        """Start to delete a node, or a queued resource with its nodes, without waiting for the end.

        The API knows only names, so the caller must just have checked the present identity. A call without a response
        may still have succeeded, and a new resource may have this name. So the identity is checked again before each
        retry.

        Args:
            identity: Identity of the resource to delete.
            may_send: Called just before each try.

        Returns:
            None: it is gone, or being deleted.

        Raises:
            TpuConflictError: Another resource has this name by now.
            TpuAbortedError: ``may_send`` returned False.
        """
        kind = "queued_resource" if is_queue else "node"
        request = {"name": self._path(name, is_queue=is_queue), **({"force": True} if is_queue else {})}
        what, tries = f"deleting {self._label(kind, name)}", itertools.count()

        def check() -> None:
            if next(tries):
                self._check_identity(name, is_queue, identity, what)
            if not may_send():
                raise TpuAbortedError(f"Cloud TPU API, {what}: its state was read too long ago. Read it again.")

        try:
            return self._begin(what, f"delete_{kind}", request, check=check)
        except TpuNotFoundError:
            return None
        except (TpuUnreachableError, TpuConflictError):
            raise
        except TpuApiError:
            existing = self.find(name, is_queue)
            if existing is not None and existing.state != "DELETING":
                raise
            return None

    def has_ended(self, operation: TpuOperation) -> bool:
        """Return whether an operation has ended; raise its error if it failed."""
        if not self._call(operation.what, operation.running.done):
            return False
        if (error := operation.running.exception()) is not None:
            refused = translate_error(operation.what, error, is_creation=operation.is_creation)
            raise TpuApiError(str(refused)) if isinstance(refused, TpuUnreachableError) else refused  # it did answer
        return True

    def find(self, name: str, is_queue: bool) -> Resource | None:
        """Return the node or queued resource ``name``; None if there is none."""
        try:
            return self.queued_resource(name) if is_queue else self.node(name)
        except TpuNotFoundError:
            return None

    def pause(self, seconds: float) -> None:
        """Wait between checks; it may raise, which ends the current operation."""
        self._sleep(seconds)

    def delete_node(
        self,
        name: str,
        identity: str,
        timeout_s: float = OPERATION_TIMEOUT_S,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Delete a node that came from no queued resource; return when it is gone.

        The API knows only names, so the identity is checked again just before.

        Args:
            check: Called just before each try; raises when nothing may be deleted any more.

        Raises:
            TpuConflictError: Another node than the one with this ``identity`` has this name now.
        """
        self._delete(name, identity, timeout_s, check, is_queue=False)

    def delete_queued_resource(
        self,
        name: str,
        identity: str,
        timeout_s: float = OPERATION_TIMEOUT_S,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Delete a queued resource with its nodes in the same way, in any state."""
        self._delete(name, identity, timeout_s, check, is_queue=True)

    def wait_until_ready(self, name: str, timeout_s: float = OPERATION_TIMEOUT_S) -> TpuNode:
        """Wait for a node to be READY; the node may not exist yet."""
        deadline = self._clock() + timeout_s
        while True:
            try:
                node = self.node(name)
            except TpuNotFoundError:
                state = "missing"
            else:
                if node.state == "READY":
                    return node
                state = node.state
            self._pause_until(deadline, f"{self._label('node', name)} to be READY (it is {state})")

    def _list(self, kind: str, what: str) -> list[dict[str, Any]]:
        """Return all pages. A list without an unreachable zone is refused: missing resources may exist."""
        what = f"listing {what} of {self.parent}"

        def all_pages() -> list[dict[str, Any]]:
            found, method = [], self._method(f"list_{kind}")
            for page in method({"parent": self.parent, "page_size": PAGE_SIZE}, timeout=CALL_TIMEOUT_S).pages:
                if page.unreachable:
                    raise TpuUnreachableError(f"{what}: the API cannot reach {', '.join(page.unreachable)} now.")
                found += [_to_json(one) for one in getattr(page, kind)]
            return found

        return self._call(what, all_pages)

    def _path(self, name: str, *, is_queue: bool) -> str:
        if not is_name(name):
            raise BadSliceError(f"{name!r} is no name of a slice: at most 63 lowercase letters, digits and hyphens.")
        return f"{self.parent}/{'queuedResources' if is_queue else 'nodes'}/{name}"

    def _get(self, method: str, name: str) -> dict[str, Any]:
        return _to_json(self._call(f"reading {name}", lambda: self._method(method)(name=name, timeout=CALL_TIMEOUT_S)))

    def _delete(self, name: str, identity: str, timeout_s: float, check: Callable[[], None], *, is_queue: bool) -> None:
        """Delete, or wait for another client's deletion. A new resource of the same name is not waited for."""
        what = f"deleting {self._label('queued_resource' if is_queue else 'node', name)}"
        deadline = self._clock() + timeout_s
        if (existing := self.find(name, is_queue)) is None:
            return
        if existing.identity != identity:
            raise _another(what)

        def may_send() -> bool:
            check()
            return True

        if (operation := self.begin_delete(name, is_queue, identity, may_send)) is not None:
            self._wait_for(operation, deadline)
        while (existing := self.find(name, is_queue)) and existing.identity == identity:
            self._pause_until(deadline, f"{what}: it still exists")

    def _check_identity(self, name: str, is_queue: bool, identity: str, what: str) -> None:
        """Raise unless the resource to delete exists and is not being deleted."""
        existing = self.find(name, is_queue)
        if existing is None or existing.state == "DELETING":
            raise TpuNotFoundError(f"Cloud TPU API, {what}: it is gone.")
        if existing.identity != identity:
            raise _another(what)

    def _once(self, listed: Sequence[R], *, is_queue: bool) -> list[R]:
        """Return each name once. A change between pages may list a name twice; it is then read by itself."""
        by_name: dict[str, list[R]] = {}
        for one in listed:
            by_name.setdefault(one.name, []).append(one)
        found = [same[0] if same.count(same[0]) == len(same) else None for same in by_name.values()]
        if None in found:
            again = [one or self.find(name, is_queue) for name, one in zip(by_name, found, strict=True)]
            return [one for one in again if one is not None]  # type: ignore[misc]
        return found  # type: ignore[return-value]

    def _begin(
        self,
        what: str,
        method: str,
        request: Mapping[str, Any],
        *,
        is_creation: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> TpuOperation:
        """Start an operation; ``check`` is called before each try, and may raise."""

        def start() -> Any:
            check()
            return self._method(method)(request, timeout=CALL_TIMEOUT_S)

        return TpuOperation(what, self._call(what, start, is_creation=is_creation), is_creation)

    def _wait_for(self, operation: TpuOperation, deadline: float) -> None:
        while not self.has_ended(operation):
            self._pause_until(deadline, operation.what)

    def _call(self, what: str, call: Callable[[], T], *, is_creation: bool = False) -> T:
        """Return the result of ``call``, retried while the API does not answer; a rate limit delays all calls."""
        deadline, pause = self._clock() + self.retry_timeout_s, _FIRST_PAUSE_S
        while True:
            if (quiet_s := self._quiet_until - self._clock()) > 0:
                self._sleep(quiet_s * random.uniform(1.0, 1.5))
            try:
                return call()
            except TpuApiError:
                raise
            except Exception as error:
                if is_rate_limited(error, is_creation=is_creation):
                    self._quiet_until = max(self._quiet_until, self._clock() + pause)
                is_lost = is_retryable(error, is_creation=is_creation)
                if not is_lost or self._clock() + pause > deadline:
                    raise translate_error(what, error, is_creation=is_creation) from error
            self._sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _MAX_PAUSE_S)

    def _pause_until(self, deadline: float, what: str) -> None:
        if self._clock() >= deadline:
            raise OperationTimeoutError(f"Timeout while waiting for {what}. Check it in the Cloud console.")
        self._sleep(self.poll_s * random.uniform(0.8, 1.2))

    def _method(self, name: str) -> Any:
        return getattr(self._client, name)

    def _label(self, kind: str, name: str) -> str:
        return f"{kind.replace('_', ' ')} {name!r} in {self.zone}"

    def _parse(self, message: Any, name: str, body: Mapping[str, Any]) -> Any:
        from google.protobuf.json_format import ParseError

        if is_queue_body(body):
            specs = [{"parent": self.parent, **spec} for spec in body["tpu"].get("nodeSpec") or []]
            body = {**body, "tpu": {**body["tpu"], "nodeSpec": specs}}
        try:
            return message.from_json(json.dumps(body))
        except ParseError as error:
            raise BadSliceError(f"Slice {name!r} cannot be created: {error}") from error


def _another(what: str) -> TpuConflictError:
    return TpuConflictError(f"Cloud TPU API, {what}: another resource has this name by now. It stays.")


def _to_json(message: Any) -> dict[str, Any]:
    """Return the API's JSON of ``message``, set fields only."""
    from google.protobuf.json_format import MessageToDict

    fields: dict[str, Any] = MessageToDict(type(message).pb(message))
    return fields
