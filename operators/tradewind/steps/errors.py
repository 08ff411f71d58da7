"""Errors of an experiment. Every message names the step and, if there is one, the config path."""


class ExperimentError(ValueError):
    """The steps, or the values they are resolved with, are not a valid experiment."""


class StepConfigError(ExperimentError):
    """A value in a step's config has no version, or cannot be filled in."""


class StepConfigTypeError(StepConfigError, TypeError):
    """A versioned value that JSON cannot represent; also a ``TypeError``, as in Marin."""


class UnknownRunValueError(StepConfigError):
    """A config requires a value that this run lacks, such as a DAG param with another name."""


class OutputPathConflictError(ExperimentError):
    """Two different steps have the same output path."""


class MissingPrefixError(ExperimentError):
    """No source gives a prefix."""


class RelativePrefixError(ExperimentError):
    """The prefix is relative: its meaning depends on the process."""


class SecretReferenceError(ExperimentError):
    """A ``secrets`` entry is not a reference, or its name is not a variable. The message omits the entry."""


class AttemptLostError(Exception):
    """A step's function cannot continue, though it did not fail: what it worked with was lost.

    The attempt is lost, so Airflow's next try makes another, which finds the step's resumable files.
    """
