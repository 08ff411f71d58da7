"""The child: calls a step's function with its config in its own process, one on each host of a slice.

The driver runs ``python -m tradewind.runtime.driver.run_function ATTEMPT_FILE SPEC_SHA256``. The child exits with 0
when the function returned. Otherwise it writes the error beside the attempt, where the driver reads it, and exits with
1. It never writes the status. If the spec differs from the claimed one, it runs nothing and exits with 77.
"""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import sys
from typing import Any, NoReturn

from tradewind.attempts.spec_digest import load_spec_from_argv
from tradewind.attempts.store_retry import retry_store
from tradewind.records.attempts import AttemptError
from tradewind.records.manifests import RESULT_FILE
from tradewind.runtime.driver.child import EXIT_GAVE_UP, write_error
from tradewind.runtime.driver.function_call import call_and_await, user_error
from tradewind.runtime.pods.on_host.heartbeat import start_heartbeat
from tradewind.runtime.pods.on_host.standby_process import import_quickly
from tradewind.serialization.errors import StepRuntimeError
from tradewind.serialization.masking import Masker
from tradewind.serialization.references import find_legacy_modules
from tradewind.serialization.spec import OUTPUT_VARIABLE, STEP_VARIABLE, StepSpec
from tradewind.steps import AttemptLostError, Hosts, TpuSlice, plain_function
from tradewind.storage.errors import StoreError
from tradewind.storage.files import write_text


def main() -> NoReturn:
    """Run the function of the attempt; the arguments are its file and the digest of its spec."""
    start_heartbeat()
    attempt, spec = load_spec_from_argv(sys.argv[1:])
    os.environ[STEP_VARIABLE] = spec.version
    os.environ[OUTPUT_VARIABLE] = spec.output_path
    masker = masker_of(spec)  # the function may change the environment
    find_legacy_modules()
    process_id = int(os.environ.get("TRADEWIND_PROCESS_ID", "0"))
    processes = int(os.environ.get("TRADEWIND_NUM_PROCESSES", "1"))  # one, outside a slice
    try:
        _join_slice(process_id, processes)
        result = _call(spec)
        text = _result_text(result, masker) if process_id == 0 else None
    except BaseException as error:
        if isinstance(user_error(error)[0], AttemptLostError):
            print(masker.text(str(user_error(error)[0])), flush=True)
            _leave(EXIT_GAVE_UP, processes)
        restart, number = int(os.environ.get("TRADEWIND_RESTARTS", "0")), attempt.number
        described = describe_error(error, spec, masker)
        retry_store(lambda: write_error(spec.output_path, number, described, process_id, restart))
        _leave(1, processes)
    if text is not None and not _is_saved(spec, text):
        _leave(EXIT_GAVE_UP, processes)
    _leave(0, processes)


def _join_slice(process_id: int, processes: int) -> None:
    if processes > 1:
        import jax

        jax.distributed.initialize(os.environ["TRADEWIND_COORDINATOR"], processes, process_id)


def _call(spec: StepSpec) -> Any:
    function, ray_task = spec.load_function(print), spec.ray_task
    if spec.function.startswith("marin.") and str(getattr(function, "__module__", "")).startswith("tradewind."):
        ray_task = None  # Tradewind's replacement needs none of the Ray resources that Marin's function requests
    import_quickly(getattr(function, "warm_imports", ()))
    if isinstance(spec.load_resources(), (TpuSlice, Hosts)):  # each host would submit a task that Ray may run elsewhere
        function, ray_task = plain_function(function), None
    return call_and_await(function, [spec.load_config()], {}, ray_task, _secrets(spec))


def _secrets(spec: StepSpec) -> dict[str, str]:
    """Return the step's secrets, which the driver put into this process's environment."""
    return {name: os.environ[name] for name in spec.secrets if name in os.environ}


def masker_of(spec: StepSpec) -> Masker:
    """Return a masker of the step's secrets."""
    return Masker(_secrets(spec).values())


def _result_text(result: Any, masker: Masker) -> str | None:
    """Return the result as JSON, without the values of secrets; None if JSON cannot hold it."""
    try:
        return masker.json(json.dumps(result, default=_as_json))
    except (TypeError, ValueError, RecursionError):
        print(f"The step's result is a {type(result).__qualname__}, which JSON cannot hold: it is not kept.")
        return None


def _is_saved(spec: StepSpec, text: str) -> bool:
    """Save the result; return whether the store took it. A refusal is not the function's failure."""
    try:
        retry_store(lambda: write_text(posixpath.join(spec.output_path, RESULT_FILE), text))
    except StoreError as error:
        print(f"tradewind: the step's result cannot be saved: {error}", file=sys.stderr)
        return False
    return True


def _as_json(value: Any) -> Any:
    """Return dataclasses and pydantic models as JSON objects, as Marin's executor saves them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


def describe_error(error: BaseException, spec: StepSpec, masker: Masker) -> AttemptError:
    """Print the error and return it as a record holds it, both without the values of secrets."""
    own, text = user_error(error)
    text = masker.text(text)
    print(text, end="", file=sys.stderr)
    message = masker.text(str(own))
    if isinstance(own, StepRuntimeError):  # raised by tradewind: name the step
        message = f"Step {spec.name!r}: {message}"
    return AttemptError(masker.text(type(own).__qualname__), message, text)


def _leave(code: int, processes: int) -> NoReturn:
    """Exit at once, so that libraries which abort in their teardown cannot spoil a written result."""
    if code == 0 and processes > 1:
        import jax

        jax.distributed.shutdown()  # waits for every host
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
