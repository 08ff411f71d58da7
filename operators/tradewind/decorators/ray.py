"""``@task.ray``: a Python function of a DAG file that runs as a Ray job and returns its result as XCom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from tradewind.operators.ray_job import RayJobOperator

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator


class RayDecoratedOperator(DecoratedOperator, RayJobOperator):  # type: ignore[misc]  # there it is never None
    """The task of a function that was decorated with ``@task.ray``."""

    custom_operator_name = "@task.ray"
    template_fields: Sequence[str] = RayJobOperator.template_fields

    def __init__(self, *, python_callable: Callable[..., Any], op_args: Any, op_kwargs: Any, **kwargs: Any) -> None:
        given = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(kwargs_to_upstream=given, **given, **kwargs)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Judge how the job ended; what it returned may become several XComs."""
        return self._handle_output(RayJobOperator.execute_complete(self, context, event))


def ray_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a function a task that runs on a Ray cluster; ``kwargs`` are those of ``RayJobOperator``."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=RayDecoratedOperator,
        **kwargs,
    )
