"""Profiles of Hypothesis: few examples, the same in every run, by default; many random ones in the nightly profile."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

PROFILE: Final = "TRADEWIND_HYPOTHESIS"
"""Environment variable that names the profile: ``ci`` or ``nightly``."""
_ANYWHERE: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

settings.register_profile("ci", _ANYWHERE, max_examples=75, derandomize=True)
settings.register_profile("nightly", _ANYWHERE, max_examples=400, print_blob=True)
settings.load_profile(os.environ.get(PROFILE, "ci"))
