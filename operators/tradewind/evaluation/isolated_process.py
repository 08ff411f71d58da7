"""Run a program of a harness's own Python, with an environment that has no secrets."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tradewind.evaluation.environments import HarnessPython
from tradewind.text import escape_control_characters, truncate_middle

_PROGRAMS: Final = Path(__file__).parent / "isolated"
_PASSED: Final = (
    "PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HF_HOME", "HF_ENDPOINT", "NLTK_DATA",
)  # fmt: skip
"""Variables that find programs, certificates and data. None holds a secret, and no other variable is passed."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
OFFLINE: Final = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit): ")
_SHOWN_LINES: Final = 4
_SHOWN_CHARS: Final = 400
_TAIL_BYTES: Final = 64 << 10


def isolated_environment(home: str, *, network: bool) -> dict[str, str]:
    """Return the variables of a harness's process.

    Args:
        home: Its home folder, where it finds no token of the user's.
        network: Whether it may download, with the deployment's proxies.
    """
    names = [*_PASSED, *(_PROXIES if network else ())]
    passed = {name: os.environ[name] for name in names if name in os.environ}
    no_token = {"HF_TOKEN_PATH": os.path.join(home, "no-token"), "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return passed | {"HOME": home} | no_token | quiet | ({} if network else OFFLINE)


def run_isolated(
    python: HarnessPython, program: str, arguments: Sequence[str], *, log: Path, home: str, network: bool
) -> int:
    """Run a program of ``isolated`` to its end; return its exit code. What it prints is appended to ``log``."""
    command = [python.executable, str(_PROGRAMS / program), *arguments]
    environment = isolated_environment(home, network=network)
    with log.open("ab") as output:
        done = subprocess.run(
            command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    return done.returncode


def causes(log: Path) -> str:
    """Return the exceptions in the tail of a log, or its last lines without one, for a message."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    exceptions = list(dict.fromkeys(line for line in lines if _EXCEPTION.match(line)))
    shown = (exceptions or lines)[-_SHOWN_LINES:]
    return escape_control_characters("\n".join(truncate_middle(line, _SHOWN_CHARS) for line in shown))


def exit_of(code: int) -> str:
    """Say how a process ended."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
