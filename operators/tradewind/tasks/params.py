"""Params of the trigger form: which steps to run, which to rerun, or only to plan.

These params are Tradewind's own. They are not run values: they never reach a config or a version. Those of a group in
a user's own DAG begin with the group's ID, such as ``train.force``: a DAG may have several groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context
from airflow.sdk import Param as AirflowParam

from tradewind.plans.selection import Selection
from tradewind.steps import ExperimentError

if TYPE_CHECKING:
    from airflow.sdk import DAG

FORM_SECTION: Final = "Tradewind"
_GROUP_SECTION: Final = f"{FORM_SECTION}: "
DRY_RUN: Final = "dry_run"
VERIFY: Final = "verify"
PREFIX: Final = "prefix"
_REGEXES: Final = {"type": ["array", "null"], "items": {"type": "string", "format": "regex"}}
"""The form shows a text with one entry per line, and sends null when it is emptied."""

_FORM: Final[Mapping[str, tuple[str, dict[str, Any], str]]] = {
    "run_only": (
        "Run only",
        _REGEXES,
        "Run only these steps and the steps that they require. One regular expression per line, searched for in the "
        "steps' names. Empty: all steps.",
    ),
    "force": (
        "Force",
        _REGEXES,
        "Rerun these steps even if their outputs exist. One regular expression per line, searched for in the steps' "
        "names.",
    ),
    "force_downstream": (
        "Force downstream",
        {"type": "boolean"},
        "Also rerun every step that reads the output of a forced step, at any depth.",
    ),
    "force_run_failed": (
        "Run failed steps again",
        {"type": "boolean"},
        "Rerun steps that failed in an earlier run. Off: these steps and those that read them are blocked.",
    ),
    VERIFY: (
        "Verify",
        {"type": "boolean"},
        "Compare every output that would be reused with its manifest, file by file, and rerun the steps of damaged "
        "ones. This reads local outputs completely.",
    ),
    DRY_RUN: (
        "Dry run",
        {"type": "boolean"},
        "Only plan: no step runs. The table is in the log of the plan task.",
    ),
}
"""Param -> title, schema and description, in the form's order."""

RUN_PARAMS: Final = frozenset(_FORM)
_SELECTION_PARAMS: Final = tuple(name for name in _FORM if name not in (VERIFY, DRY_RUN))


def param_name(group: str, field: str) -> str:
    """Return the name of a field's param in the form; ``group`` is empty in a DAG that is one experiment."""
    return f"{group}.{field}" if group else field


def add_run_params(dag: DAG, defaults: Selection, group: str = "") -> None:
    """Add the params of an experiment to ``dag``.

    Call it after the tasks exist: Airflow serializes a copy of the DAG's params with every task added later.

    Raises:
        ExperimentError: The DAG has a param with the name of a Tradewind param.
    """
    form = {param_name(group, field): param for field, param in _form(defaults, group).items()}
    if taken := sorted(form.keys() & set(dag.params)):
        raise ExperimentError(
            f"DAG {dag.dag_id!r}: every experiment has {', '.join(map(repr, taken))} in its trigger form already. "
            "Rename your own param, or give its default as an argument of the experiment."
        )
    dag.params.update(form)
    if (prefix := param_name(group, PREFIX)) not in dag.params:
        dag.params.update({prefix: _prefix_param(group)})


def is_builtin_param(param: AirflowParam) -> bool:
    """Whether Tradewind adds this param to the form."""
    section = param.schema.get("section") or ""
    return section == FORM_SECTION or section.startswith(_GROUP_SECTION)


def selection_of(context: Context, group: str = "") -> Selection:
    """Return the selection in the run's trigger form.

    Raises:
        SelectionError: An expression is not a regular expression.
    """
    return selection_in(context["params"], group)


def selection_in(params: Mapping[str, Any], group: str = "") -> Selection:
    """Return the selection in a run's params; missing ones take the defaults of ``Selection``.

    Raises:
        SelectionError: An expression is not a regular expression.
    """
    given = {name: value for name in _SELECTION_PARAMS if (value := params.get(param_name(group, name))) is not None}
    for name in ("run_only", "force"):
        if isinstance(given.get(name), list):
            given[name] = [line for line in given[name] if line.strip()]  # empty lines of the form
    return Selection(**given)


def is_dry_run(context: Context, group: str = "") -> bool:
    """Whether the run of the experiment ends with its plan."""
    return bool(context["params"].get(param_name(group, DRY_RUN), False))


def is_verified(context: Context, group: str = "") -> bool:
    """Whether reused outputs are compared with their manifests."""
    return bool(context["params"].get(param_name(group, VERIFY), False))


def _section(group: str) -> str:
    return f"{_GROUP_SECTION}{group}" if group else FORM_SECTION


def _form(defaults: Selection, group: str) -> dict[str, AirflowParam]:
    values = {name: getattr(defaults, name) for name in _SELECTION_PARAMS} | {VERIFY: False, DRY_RUN: False}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {
        name: AirflowParam(plain[name], description, source="dag", title=title, section=_section(group), **schema)
        for name, (title, schema, description) in _FORM.items()
    }


def _prefix_param(group: str) -> AirflowParam:
    """Return the param of this run's prefix. It is a param of the experiment, since an author may declare it too."""
    description = "The prefix of this run's outputs, if not the usual one: a path below an allowed root."
    schema = {"section": _section(group), "type": ["string", "null"], "maxLength": 4096}
    return AirflowParam(None, description, source="dag", title="Prefix", **schema)
