"""Cloud TPU API of a Google Cloud connection. Loads Google's libraries: import only in running tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

from tradewind.cloud_tpu.api import TpuApi
from tradewind.cloud_tpu.client import ENDPOINT_VARIABLE, tpu_endpoint
from tradewind.cloud_tpu.errors import BadEndpointError


class CloudTpuHook(GoogleBaseHook):
    """Creates, lists and deletes TPU slices with the credentials of a Google Cloud connection.

    Besides Google's own extras, the connection may have ``tpu_endpoint`` (a URL; one on this machine is used without
    credentials) and ``tpu_transport`` (``rest`` or ``grpc``).

    Args:
        gcp_conn_id: The connection.
        impersonation_chain: The service account to act as, or the chain of accounts that leads to it.
        endpoint: Overrides the connection's endpoint.
        transport: Overrides the connection's transport: ``rest`` or ``grpc``.
    """

    hook_name = "Google Cloud TPU"

    def __init__(
        self,
        gcp_conn_id: str = GoogleBaseHook.default_conn_name,
        impersonation_chain: str | Sequence[str] | None = None,
        *,
        endpoint: str | None = None,
        transport: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain, **kwargs)
        extras = self.extras
        self.endpoint = endpoint or extras.get("tpu_endpoint") or os.environ.get(ENDPOINT_VARIABLE)
        self.transport = transport or extras.get("tpu_transport") or "rest"

    def tpu_api(
        self, zone: str, project_id: str | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> TpuApi:
        """Return the API of a zone; the default project is the connection's.

        Raises:
            BadEndpointError: The endpoint or the transport is invalid, or no project is known.
            TpuDeniedError: There are no credentials.
        """
        is_here = self.endpoint is not None and tpu_endpoint(self.endpoint)[2]
        project = project_id or self._get_field("project") or (None if is_here else self.project_id)
        if not project:
            raise BadEndpointError(f"Name a project, in the task or in connection {self.gcp_conn_id!r}.")
        credentials = None if is_here else self.get_credentials()
        return TpuApi(
            project, zone, endpoint=self.endpoint, transport=self.transport, credentials=credentials, sleep=sleep
        )
