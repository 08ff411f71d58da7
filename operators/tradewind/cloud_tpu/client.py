"""Google's Cloud TPU client for an endpoint and a transport.

Only an endpoint on this machine gets no credentials, and only there is TLS optional.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.cloud_tpu.endpoints import parse_endpoint
from tradewind.cloud_tpu.errors import BadEndpointError, TpuDeniedError

ENDPOINT_VARIABLE: Final = "TRADEWIND_TPU_ENDPOINT"
TRANSPORTS: Final = ("rest", "grpc")


def make_client(endpoint: str | None, transport: str, credentials: Any, at_once: int) -> Any:
    """Return a ``tpu_v2.TpuClient`` for this many concurrent calls.

    Raises:
        BadEndpointError: The endpoint or the transport is invalid.
        TpuDeniedError: No credentials were given, and none can be found.
    """
    if transport not in TRANSPORTS:
        raise BadEndpointError(
            "The transport of the Cloud TPU API is invalid (not shown, for it may be a secret in the wrong field): "
            "write 'rest' or 'grpc'."
        )
    from google.api_core.client_options import ClientOptions
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.tpu_v2 import TpuClient

    try:
        if endpoint is None:
            return _with_connections(TpuClient(transport=transport, credentials=credentials), at_once)
        scheme, host, is_here = tpu_endpoint(endpoint)
        if is_here:
            return _with_connections(TpuClient(transport=_local_transport(scheme, host, transport)), at_once, scheme)
        options = ClientOptions(api_endpoint=host)
        client = TpuClient(transport=transport, credentials=credentials, client_options=options)
        return _with_connections(client, at_once)
    except GoogleAuthError as error:
        raise TpuDeniedError(
            f"There are no Google credentials for the Cloud TPU API here ({type(error).__name__}): name a connection "
            "that has some, or give the machine a service account."
        ) from None


def _with_connections(client: Any, at_once: int, scheme: str = "https") -> Any:
    """Keep one connection per concurrent call: by default, requests discards all but ten.

    Without TLS, that is on this machine, no proxy of the environment is used.
    """
    from requests.adapters import HTTPAdapter

    session = getattr(client.transport, "_session", None)  # REST only; gRPC has one connection for all calls
    if session is not None:
        session.mount(f"{scheme}://", HTTPAdapter(pool_maxsize=at_once))
        session.trust_env = scheme != "http"
    return client


def tpu_endpoint(endpoint: str) -> tuple[str, str, bool]:
    """Return scheme, host with port, and whether it is on this machine.

    Raises:
        BadEndpointError: It is no URL, or uses http to another machine.
    """
    parsed = parse_endpoint(endpoint)
    if parsed is None:
        raise BadEndpointError(
            "The endpoint of the Cloud TPU API is invalid (not shown, for it may contain a password): write "
            "https://HOST or https://HOST:PORT, nothing else (http only on the loopback)."
        )
    return parsed


def _local_transport(scheme: str, host: str, transport: str) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport, TpuRestTransport

    anonymous: Any = AnonymousCredentials()
    if transport == "rest":
        return TpuRestTransport(host=host, credentials=anonymous, url_scheme=scheme)
    import grpc  # type: ignore[import-untyped]

    options = [("grpc.max_receive_message_length", -1)]  # as in Google's own transport: a page can be large
    channel = (
        grpc.insecure_channel(host, options)
        if scheme == "http"
        else grpc.secure_channel(host, grpc.ssl_channel_credentials(), options)
    )
    return TpuGrpcTransport(host=host, channel=channel)
