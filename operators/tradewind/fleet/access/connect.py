"""Connections from a laptop to a cluster: an ``ssh`` tunnel to its head, and the cluster's token.

The tunnel ends with this process in any case, because the remote end reads a pipe of it. The token is fetched from
Secret Manager once, cached for its owner alone, and used until a cluster refuses it. Its file is
``tokens/PROJECT/SECRET`` below ``$XDG_CACHE_HOME/tradewind`` or ``~/.cache/tradewind``.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tradewind.cloud_tpu.secret_manager import SecretManagerError, SecretManagerUnreachableError, read_secret
from tradewind.fleet.access.ssh import (
    SshError,
    SshHost,
    connection_loss_reason,
    end_ssh,
    find_ssh_head,
    ssh_to,
    start_ssh,
)
from tradewind.fleet.cloud.google_api import CloudError, CloudUnreachableError, google_api
from tradewind.fleet.cloud.token_secret import TokenSecret, TokenSecretError, check_token
from tradewind.fleet.clusters import FleetCluster
from tradewind.machine import free_port, write_private_file
from tradewind.ray_jobs.cluster import BadTokenFileError, RayCluster, read_token_file
from tradewind.ray_jobs.errors import RayAuthenticationError, RayUnreachableError
from tradewind.ray_jobs.probe import check_connection

DASHBOARD_VARIABLE: Final = "TRADEWIND_HEAD_DASHBOARD"
_DASHBOARD: Final = "127.0.0.1:8265"
_OPEN_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


@contextmanager
def tunnel(head: SshHost, port: int | None = None, *, to: str | None = None) -> Iterator[str]:
    """Yield the loopback address at which the dashboard of a cluster answers in the block.

    Args:
        port: Port of the address; default: a free one.
        to: Another address than the dashboard's, as the head sees it.

    Raises:
        SshError: ``ssh`` or its key is missing, or the head refuses the login.
    """
    port = port or free_port()
    far = to or os.environ.get(DASHBOARD_VARIABLE, _DASHBOARD)
    # ``cat`` ends with this process, and ``ssh`` with ``cat``; with -N, ``ssh`` would continue.
    with ssh_to(head, "-T", "-L", f"127.0.0.1:{port}:{far}") as words:
        # In a session of its own, so that Ctrl-C reaches only this command.
        ssh = start_ssh(
            [*words, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait(ssh, port, head)
            yield f"http://127.0.0.1:{port}"
        finally:
            end_ssh(ssh)


def _wait(ssh: subprocess.Popen[str], port: int, head: SshHost) -> None:
    deadline = time.monotonic() + _OPEN_TIMEOUT_S
    while not _answers(port):
        if ssh.poll() is not None:
            assert ssh.stderr is not None
            raise SshError(connection_loss_reason(ssh.stderr.read(), head))
        if time.monotonic() > deadline:
            raise SshError(f"Cluster {head.cluster}: ssh to {head.name} did not come up in {_OPEN_TIMEOUT_S:.0f} s.")
        time.sleep(_POLL_S)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def token_file(cluster: FleetCluster) -> Path:
    """Return the file with the cached token of ``cluster``; clusters that share a secret share it."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return folder / "tradewind" / "tokens" / cluster.project / cluster.token_secret


def cached_token(cluster: FleetCluster) -> str | None:
    """Return the cached token of ``cluster``, if it is valid and other users cannot read it."""
    with suppress(OSError, BadTokenFileError, TokenSecretError):
        return check_token(read_token_file(token_file(cluster)))
    return None


def fetch_token(cluster: FleetCluster, version: str = "latest") -> str:
    """Fetch the token of ``cluster`` from Secret Manager and cache it. Raises as ``read_token`` does."""
    token = read_token(cluster, version)
    cache_token(cluster, token)
    return token


def read_token(cluster: FleetCluster, version: str) -> str:
    """Read one version of the token of ``cluster`` from Secret Manager.

    Raises:
        CloudUnreachableError: Secret Manager does not answer.
        CloudError: The token does not exist, is not readable, or is invalid. It was not used in any request.
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


def cache_token(cluster: FleetCluster, token: str) -> Path:
    """Cache ``token`` for ``cluster`` in a private file, and return the file."""
    file = token_file(cluster)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private_file(file, f"{token}\n")
    return file


def clear_cached_token(cluster: FleetCluster) -> None:
    """Delete the cached token of ``cluster``."""
    token_file(cluster).unlink(missing_ok=True)


_GCS: Final = "127.0.0.1:6379"
_EARLIER: Final = 2
"""Number of tokens before the newest that are tried."""


@contextmanager
def connected(
    cluster: FleetCluster, port: int | None = None, *, is_any_token_good: bool = False
) -> Iterator[RayCluster]:
    """Connect to ``cluster`` by a tunnel for the length of the block.

    Args:
        port: Local port; default: a free one.
        is_any_token_good: Also try earlier tokens, which a cluster has until its restart in a rotation.

    Raises:
        FleetError: The cluster has no head, or Google Cloud or the head denies access.
        RayJobsError: Ray on the head does not answer, or refuses the token in Secret Manager.
    """
    with tunnel(find_ssh_head(cluster, google_api("compute")), port) as address:
        there = RayCluster(cluster.name, address)
        try:
            yield with_token(there, cluster, is_any_good=is_any_token_good)
        except RayUnreachableError as error:
            raise RayUnreachableError(translated_cluster_errors(str(error), there)) from None


def translated_cluster_errors(text: str, there: RayCluster) -> str:
    """Return an error text about a cluster without the tunnel's address and connection, unknown to users."""
    text = text.replace(str(there), f"Ray on the head of cluster {there.name}")
    mend = f"start the cluster, or correct the host of connection {there.name!r}"
    return text.replace(mend, f"'tradewind cluster status {there.name}' shows how the head is")


def connected_with_any_token(cluster: FleetCluster) -> AbstractContextManager[RayCluster]:
    """Connect like ``connected``, also with an earlier token. Raises the same."""
    return connected(cluster, is_any_token_good=True)


@contextmanager
def connected_gcs(cluster: FleetCluster) -> Iterator[str]:
    """Yield the local address, ``HOST:PORT``, of the GCS on ``cluster``'s head, valid in the block.

    Raises:
        FleetError: The cluster has no head, or Google Cloud or the head denies access.
    """
    with tunnel(find_ssh_head(cluster, google_api("compute")), to=_GCS) as address:
        yield address.removeprefix("http://")


def with_token(there: RayCluster, cluster: FleetCluster, *, is_any_good: bool) -> RayCluster:
    """Return ``there`` with the cached token if the cluster accepts it, else with the one in Secret Manager now.

    Args:
        is_any_good: If it refuses both, try earlier tokens, which are never cached.

    Raises:
        RayAuthenticationError: The cluster accepts none of them.
        RayJobsError: The cluster does not answer.
        CloudError: The token cannot be read.
    """
    for token in _tokens(cluster, is_any_good=is_any_good):
        try:
            tried = replace(there, token=token)
            check_connection(tried)
            return tried
        except RayAuthenticationError:
            continue
    raise RayAuthenticationError(
        f"Cluster {cluster.name} refuses the token in projects/{cluster.project}/secrets/{cluster.token_secret}: it "
        "was changed since the cluster started: restart the cluster, or put the old token back."
    )


def _tokens(cluster: FleetCluster, *, is_any_good: bool) -> Iterator[str]:
    """Yield the tokens to try, each fetched only after the one before was refused."""
    if token := cached_token(cluster):
        yield token
    yield fetch_token(cluster)
    if is_any_good:
        with suppress(CloudError):  # a user without access to old versions has tried the newest
            for version in TokenSecret(cluster.project, cluster.token_secret).versions()[1 : 1 + _EARLIER]:
                if version.state == "ENABLED":
                    yield read_token(cluster, str(version.number))
