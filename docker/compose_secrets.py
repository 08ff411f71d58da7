"""Make the passwords and tokens of ``docker/compose.yaml`` once: into a volume, as files for the services' user alone.

Run by the service ``secrets`` before all others, as root, with the standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from pathlib import Path

USER = 1000
"""Who runs Airflow and Ray there; files in the shared store belong to both."""


def contents() -> dict[str, str]:
    """File → what it holds; every call makes others."""
    password = secrets.token_urlsafe(24)
    token = secrets.token_hex(32)
    return {
        "database_password": password,
        "database_url": f"postgresql+psycopg2://airflow:{password}@database/airflow",
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_urlsafe(48),
        "api_secret": secrets.token_urlsafe(48),
        "ray_token": token,
        "passwords.json": json.dumps({"admin": secrets.token_urlsafe(12)}),
    }


def make(folder: Path) -> bool:
    """Fill ``folder`` unless it is filled; whether that was done. What is half made is made again."""
    done = folder / "done"
    if done.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents().items():
        file = folder / name
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(text)
        own(file)
    own(folder)
    done.touch()
    return True


def own(path: Path) -> None:
    """Give ``path`` to the services' user, where this may be done."""
    if os.geteuid() == 0:
        os.chown(path, USER, 0)


if __name__ == "__main__":
    secret_folder, *shared = map(Path, sys.argv[1:])
    make(secret_folder)
    for folder in shared:
        folder.mkdir(parents=True, exist_ok=True)
        own(folder)
