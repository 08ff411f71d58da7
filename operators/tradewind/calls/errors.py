"""What can go wrong between a resolved step and its function on the cluster. Messages are one sentence each."""


class RuntimeFault(Exception):
    """Base of the errors of this package."""


class SpecError(RuntimeFault, ValueError):
    """A step cannot be written down for the cluster; raised before anything is submitted."""


class FunctionImportError(RuntimeFault, ImportError):
    """What a step names cannot be imported on the cluster."""


class TranslationError(RuntimeFault, ValueError):
    """A config of an older library has a value for which the library that is installed on the cluster has nothing."""


class LazyBuildError(RuntimeFault):
    """A ``lazy`` object cannot be built from what the DAG file gave."""


class SecretError(RuntimeFault):
    """A secret that a step or a job names cannot be had on the cluster. The text never holds its value."""


class ResultError(RuntimeFault):
    """What a function returned cannot be carried back to Airflow."""
