"""What a step is: placeholders, versions and output paths. Standard library only; no I/O, no clock."""

from tradewind.steps.errors import (
    CyclicPathsError,
    CyclicStepsError,
    ExperimentError,
    MissingPrefixError,
    OutputPathConflictError,
    RelativePrefixError,
    SecretReferenceError,
    StepConfigError,
    UnknownRunValueError,
)
from tradewind.steps.remote import RemoteFunction, remote
from tradewind.steps.resolution import ResolvedExperiment, ResolvedStep, resolve, wanted_steps
from tradewind.steps.resources import (
    RESOURCE_KINDS,
    AirflowWorker,
    Cpu,
    Gpu,
    HeadNode,
    Hosts,
    Resources,
    TpuSlice,
    kind_of_resources,
    on_airflow_worker,
    on_head_node,
)
from tradewind.steps.secrets import SecretReference, check_secrets
from tradewind.steps.step import ExecutorStep
from tradewind.steps.values.bounds import UnboundedValueError, check_bounded
from tradewind.steps.values.lazy import Lazy, lazy
from tradewind.steps.values.on_cluster import Called, Named, OnCluster, Taken, way_to
from tradewind.steps.values.params import Param, coerce_param
from tradewind.steps.values.placeholders import (
    THIS_OUTPUT_PATH,
    InputName,
    MirroredValue,
    OutputName,
    VersionedValue,
    ensure_versioned,
    mirrored,
    output_path_of,
    this_output_path,
    versioned,
)
from tradewind.steps.values.run_values import (
    ParseTimeValues,
    RunValues,
    data_interval_end,
    data_interval_start,
    night,
    partition_key,
    run_param,
)
from tradewind.steps.values.shortened import shortened
from tradewind.steps.version_recipe import Recipe

__all__ = [
    "RESOURCE_KINDS",
    "THIS_OUTPUT_PATH",
    "AirflowWorker",
    "Called",
    "Cpu",
    "CyclicPathsError",
    "CyclicStepsError",
    "ExecutorStep",
    "ExperimentError",
    "Gpu",
    "HeadNode",
    "Hosts",
    "InputName",
    "Lazy",
    "MirroredValue",
    "MissingPrefixError",
    "Named",
    "OnCluster",
    "OutputName",
    "OutputPathConflictError",
    "Param",
    "ParseTimeValues",
    "Recipe",
    "RelativePrefixError",
    "RemoteFunction",
    "ResolvedExperiment",
    "ResolvedStep",
    "Resources",
    "RunValues",
    "SecretReference",
    "SecretReferenceError",
    "StepConfigError",
    "Taken",
    "TpuSlice",
    "UnboundedValueError",
    "UnknownRunValueError",
    "VersionedValue",
    "check_bounded",
    "check_secrets",
    "coerce_param",
    "data_interval_end",
    "data_interval_start",
    "ensure_versioned",
    "kind_of_resources",
    "lazy",
    "mirrored",
    "night",
    "on_airflow_worker",
    "on_head_node",
    "output_path_of",
    "partition_key",
    "remote",
    "resolve",
    "run_param",
    "shortened",
    "this_output_path",
    "versioned",
    "wanted_steps",
    "way_to",
]
