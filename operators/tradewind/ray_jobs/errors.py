"""What can be wrong between us and a Ray cluster. Messages name the cluster and say what to do."""


class RayJobsError(Exception):
    """Base of the errors of this package."""


class RayUnreachableError(RayJobsError):
    """The cluster does not answer. It says nothing about its jobs."""


class RayAuthenticationError(RayJobsError):
    """The cluster answers, but refuses the token."""


class RayJobRefusedError(RayJobsError):
    """The cluster refuses a job."""


class BadAddressError(RayJobsError, ValueError):
    """The address is no URL of a Ray dashboard."""
