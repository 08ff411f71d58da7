"""What can go wrong between a resolved step and its function on the cluster. Messages are one sentence each."""


class StepRuntimeError(Exception):
    """Base of the errors of this package."""


class SpecError(StepRuntimeError, ValueError):
    """A step cannot be written down for the cluster; raised before anything is submitted."""


class FunctionImportError(StepRuntimeError, ImportError):
    """What a step names cannot be imported on the cluster."""


class TranslationError(StepRuntimeError, ValueError):
    """A config of an older library has a value for which the library that is installed on the cluster has nothing."""


class LazyBuildError(StepRuntimeError):
    """A ``lazy`` object cannot be built from what the DAG file gave."""


class SecretError(StepRuntimeError):
    """A secret that a step or a job names cannot be had on the cluster. The text never holds its value."""


class ResultError(StepRuntimeError):
    """What a function returned cannot be carried back to Airflow."""
