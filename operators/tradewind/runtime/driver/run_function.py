"""The child: calls a step's function with its config, in a process of its own (one on each host of a slice).

Run as ``python -m tradewind.runtime.driver.run_function ATTEMPT_FILE SPEC_SHA256``. It ends with 0 when the function
returned; otherwise it leaves the error beside the attempt, where the driver finds it, and ends with 1. It never touches
the status. What is not what was claimed is not run: it ends with 77 then.
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
from tradewind.runtime.driver.function_call import call_and_await, undecorated, user_error
from tradewind.runtime.pods.on_host.heartbeat import start_heartbeat
from tradewind.runtime.pods.on_host.standby_process import import_quickly
from tradewind.serialization.errors import StepRuntimeError
from tradewind.serialization.masking import Masker
from tradewind.serialization.spec import STEP_VARIABLE, StepSpec
from tradewind.steps import Hosts, TpuSlice
from tradewind.storage.errors import StoreError
from tradewind.storage.files import write_text


def main() -> NoReturn:
    """Run the function of the attempt whose file and spec's digest are the arguments."""
    start_heartbeat()
    attempt, spec = load_spec_from_argv(sys.argv[1:])
    os.environ[STEP_VARIABLE] = spec.version
    masker = masker_of(spec)  # the function may change the environment
    process_id = int(os.environ.get("TRADEWIND_PROCESS_ID", "0"))
    processes = int(os.environ.get("TRADEWIND_NUM_PROCESSES", "1"))  # one, outside a slice
    try:
        _join_slice(process_id, processes)
        result = _call(spec)
        text = _result_text(result, masker) if process_id == 0 else None
    except BaseException as error:
        restart, told, number = (
            int(os.environ.get("TRADEWIND_RESTARTS", "0")),
            described(error, spec, masker),
            attempt.number,
        )
        retry_store(lambda: write_error(spec.output_path, number, told, process_id, restart))
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
    if _is_ours_for_marins(spec, function):  # it runs where the step does; what Marin's asks Ray for is for others
        ray_task = None
    import_quickly(getattr(function, "warm_imports", ()))
    if isinstance(spec.load_resources(), (TpuSlice, Hosts)):  # each of its hosts would submit a task, to anywhere
        function, ray_task = undecorated(function), None
    return call_and_await(function, [spec.load_config()], {}, ray_task, _secrets(spec))


def _is_ours_for_marins(spec: StepSpec, function: Any) -> bool:
    return spec.function.startswith("marin.") and str(getattr(function, "__module__", "")).startswith("tradewind.")


def _secrets(spec: StepSpec) -> dict[str, str]:
    """The step's secrets, which the driver has put into this process's environment."""
    return {name: os.environ[name] for name in spec.secrets if name in os.environ}


def masker_of(spec: StepSpec) -> Masker:
    """Hides the values of the step's secrets."""
    return Masker(_secrets(spec).values())


def _result_text(result: Any, masker: Masker) -> str | None:
    """The result as JSON, without the values of secrets."""
    try:
        return masker.json(json.dumps(result, default=_as_json))
    except (TypeError, ValueError, RecursionError):
        print(f"The step's result is a {type(result).__qualname__}, which JSON cannot hold: it is not kept.")
        return None


def _is_saved(spec: StepSpec, text: str) -> bool:
    """Save the result; False when the store did not let us, which is no fault of the function."""
    try:
        retry_store(lambda: write_text(posixpath.join(spec.output_path, RESULT_FILE), text))
    except StoreError as error:
        print(f"tradewind: the step's result cannot be saved: {error}", file=sys.stderr)
        return False
    return True


def _as_json(value: Any) -> Any:
    """Dataclasses and pydantic models as JSON objects, as E20 saves them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


def described(error: BaseException, spec: StepSpec, masker: Masker) -> AttemptError:
    """Print the error, and say it as a record does; in neither form does it show a secret."""
    own, text = user_error(error)
    text = masker.text(text)
    print(text, end="", file=sys.stderr)
    message = masker.text(str(own))
    if isinstance(own, StepRuntimeError):  # ours: say whose fault it is
        message = f"Step {spec.name!r}: {message}"
    return AttemptError(masker.text(type(own).__qualname__), message, text)


def _leave(code: int, processes: int) -> NoReturn:
    """End at once: libraries that abort in their teardown must not spoil a result that is already written."""
    if code == 0 and processes > 1:
        import jax

        jax.distributed.shutdown()  # waits until every host is here
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
