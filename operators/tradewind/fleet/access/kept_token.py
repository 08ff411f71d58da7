"""The token of a cluster on a laptop: fetched from Secret Manager once, and kept in a file for its owner alone.

The file is ``tokens/PROJECT/SECRET`` below ``$XDG_CACHE_HOME/tradewind``, or ``~/.cache/tradewind``. What is in it is
used until a cluster refuses it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tradewind.cloud_tpu.secret_manager import SecretManagerError, SecretManagerUnreachableError, read_secret
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError
from tradewind.fleet.cloud.token_secret import TokenSecretError, check_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.ray_jobs.token_file import BadTokenFileError, read_token_file


def token_file(cluster: FleetCluster) -> Path:
    """Where the token of ``cluster`` is kept; clusters that share a secret share the file."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return folder / "tradewind" / "tokens" / cluster.project / cluster.token_secret


def kept_token(cluster: FleetCluster) -> str | None:
    """The token that is kept for ``cluster``, if there is one that nobody else could have read, and that is one."""
    with suppress(OSError, BadTokenFileError, TokenSecretError):
        return check_token(read_token_file(token_file(cluster)))
    return None


def fetched_token(cluster: FleetCluster, version: str = "latest") -> str:
    """The token of ``cluster`` from Secret Manager, which is kept from now on. Raises as ``read_token`` does."""
    token = read_token(cluster, version)
    keep_token(cluster, token)
    return token


def read_token(cluster: FleetCluster, version: str) -> str:
    """One version of the token of ``cluster`` from Secret Manager.

    Raises:
        CloudUnreachableError: Secret Manager does not answer.
        CloudError: The token is not there, not ours to read, or none. Nothing was sent with it.
    """
    name = f"projects/{cluster.project}/secrets/{cluster.token_secret}"
    try:
        token = read_secret(f"{name}/versions/{version}").strip()
    except SecretManagerUnreachableError as error:
        raise CloudUnreachableError(f"Cluster {cluster.name}: the token cannot be read from {name}: {error}.") from None
    except SecretManagerError as error:
        raise CloudError(f"Cluster {cluster.name}: the token cannot be read from {name}: {error}.") from None
    if not token:
        raise CloudError(f"Cluster {cluster.name}: {name} is empty: add a version that holds the token.")
    try:
        return check_token(token)
    except TokenSecretError:
        raise CloudError(
            f"Cluster {cluster.name}: what version {version} of {name} holds is no token (it is not shown): run "
            f"'tradewind cluster rotate-token {cluster.name}', or add a version with 16 to 4096 letters, digits, signs."
        ) from None


def keep_token(cluster: FleetCluster, token: str) -> Path:
    """Keep ``token`` for ``cluster``, for its owner alone; the file."""
    file = token_file(cluster)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = file.with_name(f"{file.name}.{os.getpid()}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(f"{token}\n")
    os.replace(aside, file)
    return file


def forget_token(cluster: FleetCluster) -> None:
    """Keep no token for ``cluster`` any more."""
    token_file(cluster).unlink(missing_ok=True)
