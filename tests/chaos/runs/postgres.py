"""A PostgreSQL server for one test, on loopback; production Airflow uses PostgreSQL too."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.waiting import until
from tradewind.rehearsal.local.processes import LocalStack, free_port

INSTALL = Path(__file__).parents[3] / "scripts" / "install_postgresql.sh"
OWNER = "postgres"


class LocalPostgres:
    """One server with temporary files.

    PostgreSQL refuses to run as root, so root starts it as another user.
    """

    def __init__(self, stack: LocalStack) -> None:
        subprocess.run([str(INSTALL)], check=True)
        [*_, self._binaries] = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        self._stack = stack
        self._as_owner = ["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups"] if _is_root() else []
        self._folder = Path(tempfile.mkdtemp(prefix="tw-pg-"))
        self._port = free_port()

    @property
    def url(self) -> str:
        """Return the URL for SQLAlchemy."""
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Create the database and start the server."""
        if _is_root():
            owner = pwd.getpwnam(OWNER)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        data = self._folder / "data"
        subprocess.run(
            [*self._as_owner, self._tool("initdb"), "-D", data, "-U", "airflow", "-A", "trust", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=self._folder,
        )
        # No data outlives the test, so the server need not flush to disk.
        settings = [f"port={self._port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._folder}"]
        settings += ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200"]
        options = [word for setting in settings for word in ("-c", setting)]
        command = [*self._as_owner, self._tool("postgres"), "-D", str(data), *options]
        self._stack.start("postgres", command, {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"})
        until(self._is_ready, "PostgreSQL", (self._stack.logs / "postgres.log").read_text)

    def remove(self) -> None:
        """Remove the server's files; the stack ends its processes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        asked = [self._tool("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asked, check=False).returncode == 0

    def _tool(self, name: str) -> str:
        return str(self._binaries / name)


def _is_root() -> bool:
    return os.geteuid() == 0
