"""A real PostgreSQL in a lab node, for the demo and the tests of the main job."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from controller.lab.errors import NodeFailed
from controller.lab.guestio import Process
from controller.lab.node import Node

ROWS = 20_000
TEMPLATE = "/run/pg-template"
SETUP = f"""
CREATE EXTENSION pg_buffercache;
CREATE TABLE orders AS SELECT i AS id, md5(i::text) AS item FROM generate_series(1, {ROWS}) i;
CREATE TABLE customers AS SELECT i AS id, md5((-i)::text) AS name FROM generate_series(1, {ROWS}) i;
"""
SETTLE = ("VACUUM (FREEZE) orders", "VACUUM (FREEZE) customers", "CHECKPOINT")
"""A first read of a row writes hint bits to its page, and a write heals a bad sector."""
CHECK = "SELECT count(*), md5(string_agg(t::text, ',' ORDER BY id)) FROM {table} t"
EVICT = """
SELECT count(*), count(*) FILTER (WHERE pg_buffercache_evict(bufferid))
FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('{table}')
"""


@dataclass(frozen=True)
class Answer:
    """What psql said: `ok` with its output, or the server's error."""

    ok: bool
    text: str


class Database:
    """One PostgreSQL cluster below `directory`, run by the user postgres."""

    def __init__(self, node: Node, directory: str, sockets: str = "/tmp") -> None:  # noqa: S108
        self._node = node
        self.directory = directory
        self._sockets = sockets
        self._bin = node.sh("ls -d /usr/lib/postgresql/*/bin | tail -1").strip()

    def _argv(self, command: str) -> list[str]:
        argv = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        argv += ["env", "HOME=/tmp", f"PGHOST={self._sockets}", f"PATH={self._bin}:/usr/bin:/bin"]
        return [*argv, "sh", "-c", command]

    def _as_postgres(self, command: str, timeout: float = 60.0, check: bool = True) -> Answer:
        result = self._node.run(self._argv(command), timeout=timeout, check=check)
        return Answer(result.code == 0, (result.out + result.err).strip())

    def begin_initdb(self) -> Process:
        """Make an empty cluster in memory, while the caller does something else."""
        self._node.sh(f"install -d -m 700 -o postgres -g postgres {TEMPLATE}")
        options = "-A trust --no-locale -E UTF8 --no-sync --no-instructions --wal-segsize=1"
        command = self._argv(f"initdb -D {TEMPLATE} {options}")
        return self._node.popen(command, timeout=180)

    def create(self, initdb: Process | None = None) -> None:
        """A cluster on the volume, started, with two tables of known content."""
        (initdb or self.begin_initdb()).wait(self._node.deadline(200)).check()
        home = shlex.quote(self.directory)
        settings = (
            f"unix_socket_directories='{self._sockets}'\nlisten_addresses=''\nautovacuum=off\n"
            "data_sync_retry=on\nmax_parallel_workers_per_gather=0\njit=off\n"
        )
        self._node.put("/run/demo.conf", settings.encode())
        self._node.sh(
            f"cat /run/demo.conf >> {TEMPLATE}/postgresql.conf && cp -a {TEMPLATE} {home} && "
            f"rm -rf {TEMPLATE}",
            timeout=60,
        )
        self.start()
        for statement in (SETUP, *SETTLE):
            done = self.query(statement, timeout=60.0)
            if not done.ok:
                raise NodeFailed("PostgreSQL did not take the demo's tables", done.text)
        self._node.sh("sync")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        log = f"{self._sockets}/postgres.log"
        self._as_postgres(
            f"pg_ctl -D {shlex.quote(self.directory)} -l {log} -w start >/dev/null", timeout=60
        )

    def stop(self) -> None:
        """A fast shutdown, with its checkpoint."""
        self._as_postgres(f"pg_ctl -D {shlex.quote(self.directory)} -m fast -w stop", timeout=60)

    def query(self, sql: str, timeout: float = 30.0) -> Answer:
        """Run SQL; an error of the server is an answer."""
        command = f"psql -X -q -A -t -v ON_ERROR_STOP=1 -d postgres -c {shlex.quote(sql)}"
        return self._as_postgres(command, timeout=timeout, check=False)

    def fingerprint(self, table: str) -> Answer:
        """Row count and checksum of a whole table."""
        return self.query(CHECK.format(table=table))

    def heap_file(self, table: str) -> str:
        """Absolute path of the first segment of a table's heap."""
        path = self.query(f"SELECT pg_relation_filepath('{table}')")
        return f"{self.directory}/{path.text}"

    def evict(self, table: str) -> str:
        """Drop a table's pages from the shared buffers: `had|dropped`."""
        return self.query(EVICT.format(table=table)).text
