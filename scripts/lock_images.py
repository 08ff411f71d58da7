"""Resolve what each image installs into ``docker/requirements-NAME.lock``, with hashes.

These are the extras that pyproject.toml names in ``[tool.tradewind.images]``, at the versions of ``requirements.lock``;
``scripts/check_lock.py`` checks the locks. A lock names no index: each builder of an image uses its own.
"""

from __future__ import annotations

import argparse
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from scripts.check_lock import BUILD, ROOT, SETTLES_ITS_OWN, image_lock, images, locks, pins

OPTIONS: Final = (
    "--quiet", "--prerelease=if-necessary-or-explicit", "--no-header", "--no-annotate", "--no-emit-index-url",
    "--no-emit-find-links", "--generate-hashes",
)  # fmt: skip


def lock_image(uv: str, name: str, arguments: Iterable[str]) -> None:
    """Write the lock of one image; keep its present versions where they are allowed."""
    print(f"Resolving {image_lock(name)} ...", flush=True)
    python = ["--python-version", next(iter(locks(ROOT)))]
    command = [uv, "pip", "compile", *OPTIONS, *python, "--output-file", str(image_lock(name)), *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def lock_images(uv: str) -> None:
    """Write the locks of all images.

    Raises:
        subprocess.CalledProcessError: The versions of an image cannot be resolved; uv has printed why.
    """
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ray = pins((ROOT / "requirements.lock").read_text())["ray"]
    with TemporaryDirectory() as folder:
        constraints, builders = Path(folder, "constraints.txt"), Path(folder, "build.in")
        constraints.write_text(f"ray=={ray}\n")
        for name, extras in images(pyproject).items():
            constraint = str(constraints) if name == SETTLES_ITS_OWN else "requirements.lock"
            options = [option for extra in extras for option in ("--extra", extra)]
            lock_image(uv, name, ["pyproject.toml", *options, "--constraints", constraint])
        builders.write_text("\n".join(pyproject["build-system"]["requires"]) + "\n")
        lock_image(uv, BUILD, [str(builders)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Resolve what each image installs.")
    parser.add_argument("uv", help="the uv that resolves")
    lock_images(parser.parse_args().uv)
