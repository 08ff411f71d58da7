"""Training on TPU slices as one task of a hand-written DAG, without an experiment.

It is still a step: it has a version, an output path and a record, and an existing result is not trained again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow.sdk import Context
from jinja2 import Environment

from tradewind.cloud_tpu.slice_types import slice_type as named_slice_type
from tradewind.operators.step import StepOperator
from tradewind.recipes.train_lm import RESUMABLE, train_lm
from tradewind.steps import ExecutorStep, TpuSlice
from tradewind.tasks.assets import step_asset
from tradewind.tasks.context import DAG_TAG, ExperimentSettings
from tradewind.tasks.errors import failing_without_retry
from tradewind.tasks.xcom_texts import check_xcom_texts


class TpuPodTrainOperator(StepOperator):
    """Trains a language model with Levanter on TPU slices, and continues by itself after the loss of a slice.

    Args:
        name: The name of the step, which begins its output path and names its asset.
        config: A ``LmTrainConfig``, or ``lazy(...)`` of one. It may hold placeholders, such as ``run_param("lr")`` and
            ``this_output_path()``, and references to steps whose outputs exist.
        slice_type: The slice type, for example ``"v4-16"``.
        num_slices: Number of slices at once; several numbers as in ``TpuSlice``.
        max_preemptions: How often it continues after the loss of a slice; None for the default of ``TpuSlice``.
        max_failures: How often it continues after a failure; None for the default of ``TpuSlice``.
        secrets: Environment variable -> the reference to its value.
        ray_conn_id: The connection of the cluster; None for the deployment's default cluster.
        prefix: The prefix of the output; None for the deployment's.
        kwargs: Arguments of any operator, and ``deferrable``: follow the training in the triggerer.
    """

    template_fields: Sequence[str] = ("slice_type", "ray_conn_id", "prefix")

    def __init__(
        self,
        *,
        name: str,
        config: Any,
        slice_type: str,
        num_slices: int | Sequence[int] = 1,
        max_preemptions: int | None = None,
        max_failures: int | None = None,
        secrets: Mapping[str, str] | None = None,
        ray_conn_id: str | None = None,
        prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        limits = {"max_preemptions": max_preemptions, "max_failures": max_failures}
        counts = num_slices if isinstance(num_slices, int) else tuple(num_slices)
        budgets: dict[str, Any] = {key: value for key, value in limits.items() if value is not None}
        resources = TpuSlice(slice_type, counts, **budgets)
        if "{{" not in slice_type:
            named_slice_type(slice_type)
        step = ExecutorStep(
            name, train_lm, config, resources=resources, resumable=RESUMABLE, secrets=dict(secrets or {})
        )
        super().__init__(step=step, plan_task_id="", **{"outlets": [step_asset(name)], **kwargs})
        if (dag := self.get_dag()) is not None:
            dag.tags.add(DAG_TAG)
        self.slice_type = slice_type
        self.ray_conn_id = ray_conn_id
        self.prefix = prefix
        self._has_own_prefix = "{" not in (prefix or "")  # a template may contain values of the run

    def prepare_template(self) -> None:
        """Refuse texts that need another task's XCom without waiting for it."""
        check_xcom_texts(self)

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the templates, and apply slice type, cluster and prefix to the step."""
        super().render_template_fields(context, jinja_env)
        assert isinstance(self.step.resources, TpuSlice), "__init__ sets it"
        with failing_without_retry():
            slice_type = named_slice_type(self.slice_type).name
        self.step = replace(self.step, resources=replace(self.step.resources, slice_type=slice_type))
        self.settings = ExperimentSettings(self.prefix, self.ray_conn_id, has_own_prefix=self._has_own_prefix)
