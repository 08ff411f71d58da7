"""What all tests share."""

from __future__ import annotations

import signal

# Told to end, pytest still tears its fixtures down, and with them the clusters and the Airflows that it started.
signal.signal(signal.SIGTERM, signal.default_int_handler)
