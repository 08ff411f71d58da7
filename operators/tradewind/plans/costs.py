"""What earlier attempts at the steps of a plan took, where their files say so: the newest that succeeded counts.

An attempt counts from its claim to its end, so a queue before it is in it. The work is bounded, since an estimate is
worth less than a quick plan: steps beyond the bound go without.
"""

from __future__ import annotations

import datetime
import logging
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from tradewind.plans.estimates import Estimate, resources_in_words
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.why.stored_versions import list_folders
from tradewind.records.attempts import BadAttemptError, attempt_path, parse_attempt
from tradewind.records.leases.lease import Lease, Phase
from tradewind.records.reading import read_leases
from tradewind.storage.bounded import Content
from tradewind.storage.files import read_contents

logger = logging.getLogger(__name__)

MOST_STEPS: Final = 200
MOST_VERSIONS: Final = 8
"""Of one step."""


def read_estimates(plan: Plan) -> dict[str, Estimate]:
    """Output path -> what the step took when it, or another version of it, was made last.

    A store that does not answer costs the estimates, not the plan.
    """
    steps = plan.decided(Decision.RUN)[:MOST_STEPS]
    try:
        versions = _versions_of(steps)
        leases = read_leases(list({path for paths in versions.values() for path in paths}))
        newest = {path: lease for path, lease in leases.items() if lease.phase is Phase.COMMITTED}
        files = {path: attempt_path(path, lease.attempt) for path, lease in newest.items()}
        contents = read_contents(list(files.values()))
    except Exception as error:  # each store has its own
        logger.warning("What earlier attempts took could not be read: %s", error)
        return {}
    found = {
        path: estimate for path, file in files.items() if (estimate := _estimate(file, contents.get(file))) is not None
    }
    return {
        step.output_path: found[best]
        for step in steps
        if (best := _best(step, versions[step.output_path], newest, found)) is not None
    }


def _versions_of(steps: Iterable[PlannedStep]) -> dict[str, list[str]]:
    """Output path -> the outputs of the same name beside it, its own included."""
    paths = [step.output_path for step in steps]
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for folder, names in list_folders(sorted({posixpath.dirname(path) for path in paths})).items():
        for name in names:
            alike[posixpath.join(folder, name.rpartition("-")[0])].append(posixpath.join(folder, name))
    return {path: list(dict.fromkeys([path, *alike[path.rpartition("-")[0]][:MOST_VERSIONS]])) for path in paths}


def _best(
    step: PlannedStep, versions: Iterable[str], leases: Mapping[str, Lease], found: Mapping[str, Estimate]
) -> str | None:
    known = [path for path in versions if path in found]
    return max(known, key=lambda path: (path == step.output_path, leases[path].timestamp), default=None)


def _estimate(file: str, found: Content | None) -> Estimate | None:
    """What the attempt in a file took; None for one that does not say."""
    try:
        if found is None:
            return None
        attempt = parse_attempt(file, found)
        took = datetime.datetime.fromisoformat(attempt.ended_at) - datetime.datetime.fromisoformat(attempt.started_at)
        return Estimate(took.total_seconds() / 3600, resources_in_words(attempt.spec["resources"]))
    except (BadAttemptError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
