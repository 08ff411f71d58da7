"""Errors between a resolved step and its function on the cluster. Messages are one sentence each."""


class StepRuntimeError(Exception):
    """Base of the errors of this package."""


class SpecError(StepRuntimeError, ValueError):
    """A step cannot be serialized for the cluster; raised before any submission."""


class FunctionImportError(StepRuntimeError, ImportError):
    """The cluster cannot import what a step names."""


class TranslationError(StepRuntimeError, ValueError):
    """The library installed on the cluster has no counterpart for a value of an older library's config."""


class LazyBuildError(StepRuntimeError):
    """The cluster cannot build a ``lazy`` object from the DAG file's arguments."""


class SecretError(StepRuntimeError):
    """A secret of a step or a job is unavailable on the cluster. The message never holds its value."""


class ResultError(StepRuntimeError):
    """The result of a function cannot be sent to Airflow."""
