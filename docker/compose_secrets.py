"""Make the passwords and tokens of ``docker/compose.yaml`` once, as files of the services' user alone.

The service ``secrets`` runs this before all others, as root, with a volume. It needs only the standard library.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from pathlib import Path

USER = 1000
"""User of both Airflow and Ray, so that both own files in the shared store."""


def contents() -> dict[str, str]:
    """Return file → content, with new secrets in each call."""
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
    """Fill ``folder`` unless it is complete; return whether it was filled. Replace incomplete files."""
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
    """Give ``path`` to the services' user, if this process is root."""
    if os.geteuid() == 0:
        os.chown(path, USER, 0)


if __name__ == "__main__":
    secret_folder, *shared = map(Path, sys.argv[1:])
    make(secret_folder)
    for folder in shared:
        folder.mkdir(parents=True, exist_ok=True)
        own(folder)
