"""Serve a model for a group of tasks: a task before them starts its pool, and one after them ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context, conf

from tradewind.deployment.fleet import deployment_roots
from tradewind.deployment.ray_connection import RayHook
from tradewind.operators.ray_job import RayJobOperator
from tradewind.serving import start_pool
from tradewind.serving.config import ServingConfig
from tradewind.serving.weights import check_model
from tradewind.steps.amounts import check_amount
from tradewind.steps.paths import HUB_PREFIX
from tradewind.steps.resources import Cpu
from tradewind.tasks.errors import BadInputError, failing_without_retry
from tradewind.tasks.jobs.following import as_seconds
from tradewind.text import truncated_repr

if TYPE_CHECKING:
    from airflow.sdk.definitions.xcom_arg import XComArg

    from tradewind.steps.resources import Gpu, TpuSlice

START_TIMEOUT: Final = timedelta(hours=1)
"""Limit of a pool's start: the weights of a large model take a while."""
_OF_BOTH: Final = (
    "dag", "task_group", "deferrable", "owner", "queue", "pool", "retries", "retry_delay", "connect_timeout",
    "runtime_env", "ship_tradewind",
)  # fmt: skip
"""Options of ``served_model`` for the task that ends the pool as well."""
_STARTED: Final = "started_pool"
"""Key in Airflow's task state store, which survives a Clear."""


class ServeModelOperator(RayJobOperator):
    """Starts the pool that serves a model, and succeeds once it answers; or uses the one that the cluster has already.

    Give it a ``StopModelOperator`` as teardown, as ``served_model`` does. If Airflow is gone, the pool ends by its own
    limits.

    XComs, also together as return value: ``name`` of the pool, ``address`` of its API on the cluster's network,
    ``model``, its name there, and ``started``, whether this task has started it. There is no token in them: a process
    on the cluster joins the pool by ``tradewind.serving.start_pool.join_pool``.

    Args:
        model: Path of an export, of a training's output or of a checkpoint, or ``hub:ORG/NAME@COMMIT``.
        engine: ``levanter``, ``vllm``, or ``command``.
        engine_options: Options of the engine.
        command: Of engine ``command``: the program and its arguments, with ``{model}`` and ``{port}``.
        runs_on: ``Cpu``, ``Gpu`` or ``TpuSlice`` of one host, for each engine.
        replicas: How many engines run, at least.
        max_replicas: How many run while requests wait.
        max_concurrent: Requests that one engine works on at a time.
        timeout: Time from its start after which the pool ends (``timedelta`` or seconds).
        idle_timeout: Time without requests after which it ends. The default is ``timeout``: the tasks may be far apart.
        served_name: The model's name in requests.
        secrets: Variables of the engines → references to their values; never values.
        start_timeout: Time after which the start is given up.
        ray_conn_id: Connection of the cluster.
        kwargs: Of ``RayJobOperator``, for the job that starts the pool.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = (
        "model",
        "engine",
        "engine_options",
        "command",
        "replicas",
        "max_replicas",
        "max_concurrent",
        "served_name",
        "secrets",
        "ray_conn_id",
        "runtime_env",
        "metadata",
    )
    template_fields_renderers = {"runtime_env": "json", "metadata": "json", "engine_options": "json"}

    def __init__(
        self,
        *,
        model: Any,
        engine: str = "levanter",
        engine_options: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        runs_on: Cpu | Gpu | TpuSlice | None = None,
        replicas: int | str = 1,
        max_replicas: int | str | None = None,
        max_concurrent: int | str = 64,
        timeout: timedelta | float = timedelta(hours=2),
        idle_timeout: timedelta | float | None = None,
        served_name: str | None = None,
        secrets: Mapping[str, str] | None = None,
        start_timeout: timedelta | float = START_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=start_pool.start,
            secrets=secrets,
            timeout=start_timeout,
            wait_for_completion=True,
            multiple_outputs=True,
            **kwargs,
        )
        self.model = model
        self.engine = engine
        self.engine_options = engine_options or {}
        self.command = command
        self.engines_run_on = runs_on or Cpu()
        self.replicas = replicas
        self.max_replicas = max_replicas
        self.max_concurrent = max_concurrent
        self.served_name = served_name
        idle_timeout = timeout if idle_timeout is None else idle_timeout
        self._limits_s = _seconds("timeout", timeout), _seconds("idle_timeout", idle_timeout)

    def execute(self, context: Context) -> Any:
        """Start the pool, or use the one that is there."""
        self.op_args = [self._config().to_json()]
        return self._result_of(super().execute(context), context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Act on the end of the job that starts the pool."""
        self.op_args = [self._config().to_json()]  # the job may have been lost
        return self._result_of(super().execute_complete(context, event), context)

    def _config(self) -> ServingConfig:
        """Return the config of the rendered fields.

        Raises:
            BadInputError: A field is wrong, or the model is below no allowed root.
        """
        timeout_s, idle_timeout_s = self._limits_s
        with failing_without_retry():
            self._check_root()
        try:
            config = ServingConfig(
                self.model,
                engine=self.engine,
                engine_options=self.engine_options,
                command=tuple(self.command),
                resources=self.engines_run_on,
                replicas=_integer("replicas", self.replicas),
                max_replicas=None if self.max_replicas in (None, "") else _integer("max_replicas", self.max_replicas),
                max_concurrent=_integer("max_concurrent", self.max_concurrent),
                timeout_s=timeout_s,
                idle_timeout_s=idle_timeout_s,
                served_name=self.served_name or None,
                secrets=self.secrets or {},
            )
            check_model(config.model)
            return config
        except ValueError as error:
            raise BadInputError(f"{self._subject}: {error}") from error

    def _check_root(self) -> None:
        """Refuse a model below no root of the deployment, nor below the cluster's bucket if it names no roots."""
        if str(self.model).startswith(HUB_PREFIX):
            return
        roots = deployment_roots()
        if not conf.get("tradewind", "allowed_roots", fallback=None):
            bucket = RayHook(self.ray_conn_id).bucket()
            roots = roots.also([bucket] if bucket else [])
        roots.check(self.model, f"{self._subject}: model")

    def _result_of(self, pool: dict[str, Any], context: Context) -> dict[str, Any]:
        """Return what the tasks of the group need to know; note in the task's state which pool is this task's own.

        A cleared task finds the pool that its earlier try has started. The pool's deadline tells it from a later one.
        """
        own: Any = {"name": pool["name"], "ends_at": pool["ends_at"]}
        store = context["task_state_store"]
        if pool["started"]:
            store.set(_STARTED, own)
        until = datetime.fromtimestamp(pool["ends_at"], UTC)
        self.log.info("Pool %s serves %s at %s, at most until %s.", pool["name"], pool["model"], pool["address"], until)
        return {
            **{name: pool[name] for name in ("name", "address", "model")},
            "started": store.get(_STARTED) == own,
        }


class StopModelOperator(RayJobOperator):
    """Ends the pool that a ``ServeModelOperator`` has started.

    A pool that the task found continues, and so does one that works on requests of others: until it is idle.

    XCom: ``stopped``, ``absent``, ``in use``, or ``not started here``.

    Args:
        served: The XCom of the ``ServeModelOperator``.
        ray_conn_id: Connection of the cluster.
        kwargs: Of ``RayJobOperator``, for the job that ends the pool.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("served", "ray_conn_id", "runtime_env", "metadata")
    template_fields_renderers = {"served": "json", "runtime_env": "json", "metadata": "json"}

    def __init__(self, *, served: Any, **kwargs: Any) -> None:
        super().__init__(python_callable=start_pool.stop, wait_for_completion=True, **kwargs)
        self.served = served

    def execute(self, context: Context) -> Any:
        """End the pool."""
        if not self._prepare():
            self.log.info("The pool is not this run's own, so it continues until it is idle.")
            return "not started here"
        return self._result_of(super().execute(context))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Act on the end of the job that ends the pool."""
        self._prepare()
        return self._result_of(super().execute_complete(context, event))

    def _prepare(self) -> bool:
        """Set the arguments of the call; return whether there is something to end."""
        if not isinstance(self.served, Mapping) or "name" not in self.served:
            raise BadInputError(
                f"{self._subject}: served is {truncated_repr(self.served)}: give a ServeModelOperator's output."
            )
        self.op_args, self.op_kwargs = [[self.served["name"]]], {"only_unused": True}
        return bool(self.served.get("started"))

    def _result_of(self, results: Mapping[str, str]) -> str:
        [(name, result)] = results.items()
        self.log.info("Pool %s: %s.", name, result)
        return result


@contextmanager
def served_model(
    task_id: str, *, model: Any, ray_conn_id: str = RayHook.default_conn_name, **options: Any
) -> Iterator[XComArg]:
    """Serve a model for the tasks that are made in the block, and end it when all of them have ended.

    with served_model("serve", model="gs://my-bucket/checkpoints/small-1a2b3c", runs_on=TpuSlice("v4-8")) as served:
        ask = RayJobOperator(task_id="ask", python_callable=ask_questions, op_args=[served["address"]])

    The first task is ``task_id``, the last ``{task_id}_end``, a teardown: it runs also if tasks in the block fail.

    Args:
        task_id: Id of the task that starts the pool.
        model: As of ``ServeModelOperator``.
        ray_conn_id: Connection of the cluster.
        options: Of ``ServeModelOperator``; those such as ``owner`` and ``retries`` count for the last task as well.
    """
    start = ServeModelOperator(task_id=task_id, model=model, ray_conn_id=ray_conn_id, **options)
    shared = {name: options[name] for name in _OF_BOTH if name in options}
    end = StopModelOperator(task_id=f"{task_id}_end", served=start.output, ray_conn_id=ray_conn_id, **shared)
    with end.as_teardown(setups=start):
        yield start.output


def _integer(name: str, value: Any) -> int:
    """Parse a templated whole number."""
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"{name}={truncated_repr(value)}: give a whole number.") from None


def _seconds(name: str, value: timedelta | float) -> float:
    seconds = as_seconds(value)
    if seconds is None:
        raise ValueError(f"{name} is None: a pool always has this limit.")
    check_amount(seconds, name)
    return seconds
