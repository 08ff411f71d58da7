"""TLS terminator on loopback before a plain HTTP server, with a certificate made on start."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@contextmanager
def tls_in_front_of(port: int, certificate: Path) -> Iterator[int]:
    """Forward TLS connections to ``port``; yield the server's port. Writes ``certificate``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, _write_certificate(certificate))
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(lambda read, write: _relay(read, write, port), "127.0.0.1", 0, ssl=context)
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()


async def _relay(read: asyncio.StreamReader, write: asyncio.StreamWriter, port: int) -> None:
    there_read, there_write = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_copy(read, there_write), _copy(there_read, write), return_exceptions=True)


async def _copy(read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
    try:
        while data := await read.read(65536):
            write.write(data)
            await write.drain()
    finally:
        write.close()


def _write_certificate(path: Path) -> Path:
    """Write a self-signed certificate for 127.0.0.1; return the path of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's own")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=12))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path = path.with_suffix(".key")
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return key_path
