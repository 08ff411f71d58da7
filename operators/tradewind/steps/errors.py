"""What can be wrong with an experiment. Every message names the step and, where there is one, the config path."""


class ExperimentError(ValueError):
    """The steps, or what they are resolved with, cannot make a valid experiment."""


class StepConfigError(ExperimentError):
    """A value in a step's config cannot be given a version, or cannot be filled in."""


class StepConfigTypeError(StepConfigError, TypeError):
    """A versioned value that JSON has no form for; also a ``TypeError``, as in Marin."""


class UnknownRunValueError(StepConfigError):
    """A config asks for a value that this run does not have, such as a DAG param with another name."""


class OutputPathConflictError(ExperimentError):
    """Two different steps would write to one output path."""


class MissingPrefixError(ExperimentError):
    """Nothing says where outputs go."""


class RelativePrefixError(ExperimentError):
    """Outputs would go to a place that depends on who looks."""


class SecretReferenceError(ExperimentError):
    """A ``secrets`` entry is no reference, or its name no environment variable. The text never shows the entry."""
