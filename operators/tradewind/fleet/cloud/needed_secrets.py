"""The secrets that each node of a cluster fetches before it starts Ray: one that cannot be had ends the start there."""

from __future__ import annotations

from typing import Any

from tradewind.fleet.cloud.token_secret import TokenSecret
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError


class NoSecretError(FleetError):
    """A secret of the cluster is not there, or its newest version cannot be had."""


def check_secrets(cluster: FleetCluster, client: Any) -> None:
    """See that the token and each variable of ``cluster`` has a value.

    Raises:
        NoSecretError: One has none.
        CloudError: Google Cloud does not say.
    """
    wanted = {secret: f"variable {name}" for name, secret in sorted(cluster.environment.items())}
    for secret, what in {**wanted, cluster.token_secret: "the token"}.items():
        versions = TokenSecret(cluster.project, secret, client).versions()
        if versions and versions[0].state == "ENABLED":
            continue
        state = f"is {versions[0].state.lower()} in its newest version" if versions else "has no value"
        mend = "add a version to it, or take the variable out of the fleet file"
        if secret == cluster.token_secret:
            command = "set-token --rotate" if versions else "init-token"
            mend = f"make one with 'tradewind cluster {command} {cluster.name}'"
        raise NoSecretError(
            f"Cluster {cluster.name}: secret {secret} of project {cluster.project}, {what}, {state}: {mend}. Nothing "
            "was started."
        )
