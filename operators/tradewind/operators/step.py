"""One step as an Airflow task: claim, follow the job deferred, and read its ending from the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, BaseOperatorLink, Context, conf

from tradewind.links.ray import RayJobLink, RayLogLink
from tradewind.ray_jobs.follow.outcomes import Ending
from tradewind.steps import ExecutorStep
from tradewind.tasks.attempt_runner import StepAttemptRunner
from tradewind.tasks.context import ExperimentSettings
from tradewind.tasks.errors import translated_store_errors
from tradewind.tasks.plan_wait import await_plan
from tradewind.tasks.step_try import Progress, StepTask, StepTry
from tradewind.triggers.in_line import waits_in_line

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

_DEFERS_BY_DEFAULT = conf.getboolean("operators", "default_deferrable", fallback=False)


class StepOperator(BaseOperator):
    """Makes one step's output, unless it exists already.

    Args:
        step: The step.
        settings: Settings that the experiment's tasks share.
        plan_task_id: The task whose XCom holds the run's plan; empty in a DAG without one.
        index: The step's index in the plan.
        deferrable: Follow the Ray job in the triggerer, which needs no worker slot.
    """

    ui_color = "#ffe5d9"
    template_fields: Sequence[str] = ()
    operator_extra_links: tuple[BaseOperatorLink, ...] = (RayJobLink(), RayLogLink())

    def __init__(
        self,
        *,
        step: ExecutorStep,
        settings: ExperimentSettings | None = None,
        plan_task_id: str = "plan",
        index: int = 0,
        deferrable: bool = _DEFERS_BY_DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.settings = settings or ExperimentSettings()
        self.plan_task_id = plan_task_id
        self.index = index
        self.deferrable = deferrable
        self._runner: StepAttemptRunner | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run an attempt or wait for another task's; return the output's path and its attempt."""
        if self._may_overtake_plan:
            await_plan(context, self.plan_task_id)
        with self._translated_errors():
            return self._new_runner(context, Progress()).result()

    def execute_waited(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue once no other attempt is running."""
        with self._translated_errors():
            return self._new_runner(context, Progress.after_wait(event)).result()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Act on the end of an attempt's job, by its lease."""
        ending, progress = Ending.from_json(event["ending"]), Progress(**event["progress"])
        with self._translated_errors():
            return self._new_runner(context, progress).result_after(event["job"], ending)

    def on_kill(self) -> None:
        """Stop the job that this worker follows, if a user marked or cleared the task."""
        if self._runner is not None:
            self._runner.stop_if_user_acted()

    def _new_try(self, context: Context, progress: Progress) -> StepTry:
        """Create one try of this task."""
        defers = self.deferrable or waits_in_line()
        # A waiting task does not run: ``max_concurrent`` does not count it.
        waits_deferred = defers or _DEFERS_BY_DEFAULT
        arguments = StepTask(
            self.step,
            self.settings,
            self.plan_task_id,
            self.index,
            self._may_overtake_plan,
            frozenset(self.upstream_task_ids - {self.plan_task_id}),
            self.log,
            partial(self._defer_to, self.execute_complete) if defers else None,
            partial(self._defer_to, self.execute_waited) if waits_deferred else None,
        )
        return StepTry(arguments, context, progress)

    def _new_runner(self, context: Context, progress: Progress) -> StepAttemptRunner:
        self._runner = StepAttemptRunner(self._new_try(context, progress))
        return self._runner

    def _defer_to(self, method: Callable[..., Any], trigger: BaseTrigger) -> NoReturn:
        self.defer(trigger=trigger, method_name=method.__name__)

    @property
    def _may_overtake_plan(self) -> bool:
        """Whether Airflow may start this task before the plan's task has ended: no edge connects them."""
        return bool(self.plan_task_id) and self.plan_task_id not in self.upstream_task_ids

    def _translated_errors(self) -> AbstractContextManager[None]:
        return translated_store_errors(f"Step {self.step.name!r}")
