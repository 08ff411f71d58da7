"""Tiny wheels, written as zip files, and projects that need them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> None:
    """Write a wheel whose module ``name`` has a ``__version__``."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD"
    files[record] = "".join(f"{path},,\n" for path in (*files, record))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def write_lock(project: Path, wheels: Path) -> None:
    """Let uv write the ``uv.lock`` of ``project`` from nothing but ``wheels``."""
    options = ["--offline", "--no-index", "--find-links", str(wheels), "--python", sys.executable, "--no-config"]
    cache = ["--cache-dir", str(project.parent / "uv-cache")]
    command = [sys.executable, "-m", "uv", "lock", "--quiet", "--project", str(project), *options, *cache]
    subprocess.run(command, check=True, capture_output=True, text=True)
