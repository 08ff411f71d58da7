"""Google's own Cloud TPU client, made for an endpoint and a transport. Only an endpoint on this machine gets no
credentials, and only it may be reached without TLS."""

from __future__ import annotations

from typing import Any, Final

from tradewind.cloud_tpu.endpoints import parse_endpoint
from tradewind.cloud_tpu.tpu_errors import BadEndpointError, TpuDeniedError

ENDPOINT_VARIABLE: Final = "TRADEWIND_TPU_ENDPOINT"
TRANSPORTS: Final = ("rest", "grpc")


def make_client(endpoint: str | None, transport: str, credentials: Any) -> Any:
    """A ``tpu_v2.TpuClient``.

    Raises:
        BadEndpointError: The endpoint or the transport is no good.
        TpuDeniedError: No credentials were given, and none can be found.
    """
    if transport not in TRANSPORTS:
        raise BadEndpointError(f"There is no transport {transport!r} to the Cloud TPU API: say 'rest' or 'grpc'.")
    from google.api_core.client_options import ClientOptions
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.tpu_v2 import TpuClient

    try:
        if endpoint is None:
            return TpuClient(transport=transport, credentials=credentials)
        scheme, host, is_here = tpu_endpoint(endpoint)
        if is_here:
            return TpuClient(transport=_local_transport(scheme, host, transport))
        return TpuClient(transport=transport, credentials=credentials, client_options=ClientOptions(api_endpoint=host))
    except GoogleAuthError as error:
        raise TpuDeniedError(
            f"No Google credentials for the Cloud TPU API were found here ({type(error).__name__}): name a connection "
            "that has some, or give the machine a service account."
        ) from None


def tpu_endpoint(endpoint: str) -> tuple[str, str, bool]:
    """Scheme, host with port, and whether it is on this machine.

    Raises:
        BadEndpointError: It is no URL, or asks for http to another machine.
    """
    parsed = parse_endpoint(endpoint)
    if parsed is None:
        raise BadEndpointError(
            f"{endpoint!r} is no endpoint of the Cloud TPU API: write https://HOST (http only on the loopback)."
        )
    return parsed


def _local_transport(scheme: str, host: str, transport: str) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport, TpuRestTransport

    anonymous: Any = AnonymousCredentials()
    if transport == "rest":
        return TpuRestTransport(host=host, credentials=anonymous, url_scheme=scheme)
    import grpc  # type: ignore[import-untyped]

    options = [("grpc.max_receive_message_length", -1)]  # as Google's own transport has it: a page can be large
    channel = grpc.insecure_channel(host, options) if scheme == "http" else grpc.secure_channel(host, _tls(), options)
    return TpuGrpcTransport(host=host, channel=channel)


def _tls() -> Any:
    import grpc

    return grpc.ssl_channel_credentials()
