"""What goes wrong in the simulated Cloud TPU on demand: calls that are refused, and operations that end in an error.

Google says no in two places. A call is refused at once and changes nothing. An operation that was accepted can fail
later; what it was about may be done all the same, so its error proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.rehearsal.tpu_refusals import RefusedCallError


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
        self._refusals = [one for one in self._refusals if one.call != call] + [_Refusals(count, call, error)]

    def fail_operations(self, fault: OperationFault) -> None:
        """Let so many operations of one verb fail. A count of 0 ends it."""
        self._operations = [one for one in self._operations if one.verb != fault.verb] + [fault]

    def refusal_of(self, call: str) -> RefusedCallError | None:
        """What this call is refused with, if it is."""
        for one in self._refusals:
            if one.count > 0 and one.call in ("", call):
                one.count -= 1
                return one.error
        return None

    def of_operation(self, verb: str) -> OperationFault | None:
        """What an operation that begins now will fail with, if it will."""
        for one in self._operations:
            if one.count > 0 and one.verb == verb:
                one.count -= 1
                return one
        return None
