"""What goes wrong in the simulated Cloud TPU on demand: calls that are refused, and operations that end in an error.

Google says no in two places. A call is refused at once and changes nothing. An operation that was accepted can fail
later; what it was about may be done all the same, so its error proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.rehearsal.tpu.refusals import RefusedCallError


@dataclass
class _Refusals:
    """The next ``count`` calls of this name, or of any, are refused."""

    count: int
    call: str
    error: RefusedCallError


@dataclass
class OperationFault:
    """The next ``count`` operations of this verb end in an error; ``is_done``: what they are about happens."""

    count: int
    verb: str
    error: RefusedCallError
    is_done: bool


class TpuFaults:
    """The faults that are still to come, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._refusals: list[_Refusals] = []
        self._operations: list[OperationFault] = []

    def refuse(self, count: int, error: RefusedCallError, call: str) -> None:
        """Refuse so many calls; without a name, of whatever call. A count of 0 ends it."""
        self._refusals = [refusals for refusals in self._refusals if refusals.call != call] + [
            _Refusals(count, call, error)
        ]

    def fail_operations(self, fault: OperationFault) -> None:
        """Let so many operations of one verb fail. A count of 0 ends it."""
        self._operations = [other for other in self._operations if other.verb != fault.verb] + [fault]

    def refusal_of(self, call: str) -> RefusedCallError | None:
        """What this call is refused with, if it is."""
        for refusals in self._refusals:
            if refusals.count > 0 and refusals.call in ("", call):
                refusals.count -= 1
                return refusals.error
        return None

    def of_operation(self, verb: str) -> OperationFault | None:
        """What an operation that begins now will fail with, if it will."""
        for fault in self._operations:
            if fault.count > 0 and fault.verb == verb:
                fault.count -= 1
                return fault
        return None
