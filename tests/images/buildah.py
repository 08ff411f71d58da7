"""Debian's Buildah with its own storage, substitutes for the public base images, and registries on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import requests

from tradewind.rehearsal.local.processes import free_port

VARIABLE: Final = "BUILD_IMAGES"
"""Set by ``make images-test``."""
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Buildah:
    """Run Buildah without a daemon and without namespaces, which a CI container may not create."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which Buildah finds its storage, registries and credentials."""
        own = {
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "REGISTRY_AUTH_FILE": str(self.folder / "auth.json"),
        }
        return os.environ | own

    def __call__(self, *arguments: str | Path) -> str:
        """Return the output of ``buildah ARGUMENTS``; raise if the command fails."""
        ended = subprocess.run(["buildah", *arguments], env=self.environment, stdout=subprocess.PIPE, text=True)
        assert ended.returncode == 0, f"buildah {arguments[0]} ended with {ended.returncode}"
        return ended.stdout.strip()

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """Run a container of the image for the length of the block."""
        name = self("from", "--pull-never", image)
        try:
            yield name
        finally:
            self("rm", name)

    def output(self, image: str, *command: str) -> str:
        """Return the output of a command that runs in the image as the image's user."""
        with self.container(image) as container:
            return self("run", container, "--", *command)

    def size_bytes(self, image: str) -> int:
        number, unit = json.loads(self("images", "--json", image))[0]["size"].split()
        return int(float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit])


@contextmanager
def storage(folder: Path) -> Iterator[Buildah]:
    """Yield a Buildah whose images are below ``folder``, and delete them at the end."""
    driver = "overlay" if _has_overlay(folder) else "vfs"
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    (folder / "registries.conf").write_text("")
    (folder / "auth.json").write_text("{}")
    buildah = Buildah(folder)
    try:
        yield buildah
    finally:
        for command in (["rm", "--all"], ["rmi", "--all", "--force"]):
            subprocess.run(["buildah", *command], env=buildah.environment, capture_output=True)
        subprocess.run(["umount", folder / "graph" / "overlay"], capture_output=True)
        shutil.rmtree(folder / "graph", ignore_errors=True)


def _has_overlay(folder: Path) -> bool:
    """Return whether this file system can be an overlay's lower one; full copies (vfs) take much longer."""
    parts = [folder / name for name in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir()
    lower, upper, work, merged = parts
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounted = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True)
    if mounted.returncode == 0:
        subprocess.run(["umount", merged], check=True)
    return mounted.returncode == 0


def debian(folder: Path) -> Path:
    """Create a small Debian with Python below ``folder``."""
    root = folder / "debian"
    packages = "--include=python3,python3-venv,sudo,ca-certificates"
    command = ["debootstrap", "--variant=minbase", packages, "bookworm", root]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return root


def make_base(buildah: Buildah, debian_root: Path, name: str, user: str, numbers: Sequence[int]) -> None:
    """Build an image with Debian, a user and that user's Python environment, like the public bases."""
    number, group = map(str, numbers)
    home = f"/home/{user}"
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, debian_root, "/")
    add_user = f"useradd -m -u {number} -g {group} -s /bin/bash {user} && su {user} -c 'python3 -m venv {home}/venv'"
    buildah("run", container, "--", "sh", "-c", add_user)
    path = f"PATH={home}/venv/bin:/usr/local/bin:/usr/bin:/bin"
    buildah("config", "--user", user, "--env", path, "--workingdir", home, container)
    buildah("commit", "--quiet", "--rm", container, name)


# ---- registries on loopback


SALT = "$2b$05$abcdefghijklmnopqrstuu"


@contextmanager
def docker_registry(folder: Path, user: str, password: str) -> Iterator[str]:
    """Run a registry that requires this user; yield its address. Its certificate is ``registry.pem``."""
    certificate, key = folder / "registry.pem", folder / "registry.key"
    subject = ["-subj", "/CN=loopback", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", key, "-out", certificate]
    make_key = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *subject]
    subprocess.run(make_key, check=True, capture_output=True)
    address = f"127.0.0.1:{free_port()}"
    encrypt = ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", password, SALT]
    entry = subprocess.run(encrypt, capture_output=True, text=True, check=True)
    (folder / "htpasswd").write_text(f"{user}:{entry.stdout}\n")
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address, "tls": {"certificate": str(certificate), "key": str(key)}},
        "auth": {"htpasswd": {"realm": "loopback", "path": str(folder / "htpasswd")}},
    }
    (folder / "registry.json").write_text(json.dumps(config))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "registry.json"], stdout=log, stderr=log)
        try:
            _wait_for_registry(process, f"https://{address}/v2/", certificate)
            yield address
        finally:
            process.terminate()
            process.wait()


def _wait_for_registry(process: subprocess.Popen[bytes], url: str, certificate: Path) -> None:
    while process.poll() is None:
        try:
            requests.get(url, timeout=5, verify=str(certificate))
        except requests.ConnectionError:
            continue
        return
    raise AssertionError("docker-registry ended at once")


class ArtifactRegistry(ThreadingHTTPServer):
    """The part of ``artifactregistry.googleapis.com/v1`` that finds and creates repositories."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Any] = {}
        self.created: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ArtifactRegistry

    def do_GET(self) -> None:
        name = self.path.removeprefix("/v1/").partition("?")[0]
        if "/operations/" in name:
            created = self.server.repositories[self.server.created[-1]]
            self._answer(200, {"name": name, "done": True, "response": {"@type": "type.googleapis.com/x", **created}})
        elif name in self.server.repositories:
            self._answer(200, self.server.repositories[name])
        else:
            error = {"code": 404, "message": "Requested entity was not found.", "status": "NOT_FOUND"}
            self._answer(404, {"error": error})

    def do_POST(self) -> None:
        parent, _, query = self.path.removeprefix("/v1/").partition("?")
        identifier = dict(pair.split("=") for pair in query.split("&"))["repositoryId"]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = f"{parent}/{identifier}"
        self.server.repositories[name] = {"name": name, "format": body["format"]}
        self.server.created.append(name)
        self._answer(200, {"name": f"{parent.rpartition('/')[0]}/operations/1", "done": False})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
