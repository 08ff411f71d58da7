"""Token secret of a cluster: created once, never overwritten, and never changed while a cluster runs.

A Ray cluster accepts only the token that it was started with. So a version is added only while no cluster that shares
the secret has a head; else it takes a restart (``rotate-token``).
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tradewind.fleet.cloud.google_api import (
    CloudConflictError,
    CloudNotFoundError,
    execute_request,
    google_api,
    list_all,
    readable_answer,
)
from tradewind.fleet.cloud.heads import NoHeadError, SeveralHeadsError, find_head
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError

_TOKEN: Final = re.compile(r"[\x21-\x7e]{16,4096}")
_VERSION: Final = re.compile(r"projects/[\w.:-]+/secrets/[\w-]+/versions/([0-9]{1,18})")
_ENABLED: Final = "ENABLED"


class TokenSecretError(FleetError):
    """The token's secret cannot be changed; the message says why."""


@dataclass(frozen=True)
class SecretVersion:
    """One version of a secret.

    Attributes:
        number: Its number, counted from 1 in order of addition.
        state: ``ENABLED``, ``DISABLED`` or ``DESTROYED``.
        created_at: Time of its addition, in seconds since the epoch; None if Google does not report it.
    """

    name: str
    number: int
    state: str
    created_at: float | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether clients can read its value."""
        return self.state == _ENABLED

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> SecretVersion:
        """Parse a version of the API."""
        created = fields.get("createTime")
        created_at = datetime.fromisoformat(created).timestamp() if created else None
        return SecretVersion(fields["name"], _number(fields["name"]), fields["state"], created_at)


class TokenSecret:
    """The secret of one or more clusters.

    Args:
        client: Client of Secret Manager; default: with this machine's credentials.
    """

    def __init__(self, project: str, secret: str, client: Any = None) -> None:
        self.name = f"projects/{project}/secrets/{secret}"
        self._project = project
        self._secret = secret
        self._secrets = (client or google_api("secretmanager")).projects().secrets()

    def versions(self) -> list[SecretVersion]:
        """Return its versions, the newest first; none if the secret does not exist.

        Raises:
            CloudError: Google Cloud does not answer.
        """
        what = f"The versions of {self.name}"
        try:
            found = list(list_all(self._secrets.versions().list, what, "versions", parent=self.name))
        except CloudNotFoundError:
            return []
        with readable_answer(what):
            versions = [SecretVersion.from_json(each) for each in found]
        return sorted(versions, key=lambda version: -version.number)

    def create(self, token: str) -> SecretVersion:
        """Create the secret with ``token`` as its first version.

        Raises:
            TokenSecretError: It has a version already, or another user has just added one.
            CloudError: Google Cloud refuses or does not answer.
        """
        if enabled := [version for version in self.versions() if version.state == _ENABLED]:
            raise TokenSecretError(
                f"{self.name} has a token (version {enabled[0].number}), which is never written over unasked: add a "
                "new one with --rotate."
            )
        body: dict[str, Any] = {"replication": {"automatic": {}}}
        request = self._secrets.create(parent=f"projects/{self._project}", secretId=self._secret, body=body)
        with suppress(CloudConflictError):  # it exists without a version
            execute_request(request, f"To create {self.name}", is_write=True)
        added = self.add(token)
        first = min(version.number for version in self.versions() if version.state == _ENABLED)
        if first != added.number:
            self.change(added, "destroy")
            raise TokenSecretError(f"{self.name} was just made by another user: theirs is the token.")
        return added

    def add(self, token: str) -> SecretVersion:
        """Add a version. Raises ``CloudError`` if Google Cloud refuses or does not answer."""
        body = {"payload": {"data": base64.b64encode(token.encode()).decode()}}
        request = self._secrets.addVersion(parent=self.name, body=body)
        what = f"To add a version to {self.name}"
        added = execute_request(request, what, is_write=True)
        with readable_answer(what):
            return SecretVersion(added["name"], _number(added["name"]), _ENABLED)

    def change(self, version: SecretVersion, how: str) -> None:
        """``enable``, ``disable`` or ``destroy`` a version. Raises ``CloudError`` if that fails."""
        call = getattr(self._secrets.versions(), how)
        execute_request(call(name=version.name, body={}), f"To {how} {version.name}", is_write=True)


def _number(name: str) -> int:
    """Return the number of the version with this name."""
    if not (found := _VERSION.fullmatch(name)):
        raise LookupError(name)
    return int(found[1])


def check_token(token: str) -> str:
    """Return ``token`` without surrounding white space. The error does not show it.

    Raises:
        TokenSecretError: The token is invalid in Ray or HTTP.
    """
    bare = token.strip()
    if not _TOKEN.fullmatch(bare):
        raise TokenSecretError(
            "What was given is no token (it is not shown): it has 16 to 4096 letters, digits and signs, and no spaces."
        )
    return bare


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_hex(32)


def check_no_head_running(clusters: Iterable[FleetCluster]) -> None:
    """Check that none of ``clusters`` has a head.

    Raises:
        TokenSecretError: A cluster has a head.
        CloudError: Google Cloud does not answer.
    """
    compute = google_api("compute")
    for cluster in clusters:
        try:
            head = find_head(cluster, compute).name
        except SeveralHeadsError:
            head = "more than one head"
        except NoHeadError:
            continue
        raise TokenSecretError(
            f"Cluster {cluster.name} runs ({head}) and knows only the token that it was started with: stop it first, "
            f"or run 'tradewind cluster rotate-token {cluster.name}', which restarts it. Nothing was changed."
        )


def clusters_sharing_token(fleet: Fleet, cluster: FleetCluster) -> list[FleetCluster]:
    """Return the clusters with the token of ``cluster``, itself included."""
    secret = (cluster.project, cluster.token_secret)
    return [other for other in fleet.clusters.values() if (other.project, other.token_secret) == secret]


def check_secrets(cluster: FleetCluster, client: Any) -> None:
    """Check that the token and each variable of ``cluster`` has a value.

    Raises:
        FleetError: One has no value.
        CloudError: Google Cloud does not answer.
    """
    wanted = {secret: f"variable {name}" for name, secret in sorted(cluster.environment.items())}
    for secret, what in {**wanted, cluster.token_secret: "the token"}.items():
        versions = TokenSecret(cluster.project, secret, client).versions()
        if versions and versions[0].state == _ENABLED:
            continue
        state = f"is {versions[0].state.lower()} in its newest version" if versions else "has no value"
        mend = "add a version to it, or take the variable out of the fleet file"
        if secret == cluster.token_secret:
            command = "set-token --rotate" if versions else "init-token"
            mend = f"make one with 'tradewind cluster {command} {cluster.name}'"
        raise FleetError(
            f"Cluster {cluster.name}: secret {secret} of project {cluster.project}, {what}, {state}: {mend}. Nothing "
            "was started."
        )
