"""SQL probes against real servers started for the test; protocol failures against a socket."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from probe_kit import Server, closed_port, reset, take

from controller.probes.outcome import Outcome

ENGINES = ["postgresql", "mysql"]


def _tool(name: str, *folders: str) -> str | None:
    found = shutil.which(name)
    paths = [p for folder in folders for p in sorted(Path("/").glob(folder.lstrip("/")))]
    return found or next((str(p / name) for p in paths if (p / name).exists()), None)


PG_FOLDER = "/usr/lib/postgresql/*/bin"
INITDB = _tool("initdb", PG_FOLDER)
MARIADB = _tool("mariadbd", "/usr/sbin")
MARIADB_INSTALL = _tool("mariadb-install-db")


def _unprivileged() -> str | None:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait(port: int, child: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert child.poll() is None, "the server did not start"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@pytest.fixture(scope="module")
def postgres() -> Iterator[dict[str, Any]]:
    if INITDB is None:
        pytest.skip("PostgreSQL is not installed")
    user = _unprivileged()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if user:
            shutil.chown(path, user)
        quiet: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
        (path / "password").write_text("secret\n")
        (path / "password").chmod(0o644)
        command = [INITDB, "-D", f"{folder}/db", "-U", "me", "-A", "scram-sha-256", "--no-sync"]
        subprocess.run([*command, f"--pwfile={folder}/password"], check=True, **quiet)
        port = closed_port()
        server = [str(Path(INITDB).resolve().parent / "postgres"), "-D", f"{folder}/db"]
        options = ["-p", str(port), "-k", folder, "-F", "-c", "listen_addresses=127.0.0.1"]
        child = subprocess.Popen([*server, *options], stderr=subprocess.DEVNULL, **quiet)
        try:
            _wait(port, child)
            time.sleep(0.5)
            yield {
                "engine": "postgresql",
                "host": "127.0.0.1",
                "port": port,
                "user": "me",
                "database": "postgres",
                "password_file": f"{folder}/password",
            }
        finally:
            child.terminate()
            child.wait(30)


@pytest.fixture(scope="module")
def mysql() -> Iterator[dict[str, Any]]:
    if MARIADB is None or MARIADB_INSTALL is None:
        pytest.skip("MariaDB is not installed")
    with tempfile.TemporaryDirectory() as folder:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        port = closed_port()
        user = ["--user=root"] if os.geteuid() == 0 else []
        install = [MARIADB_INSTALL, "--no-defaults", f"--datadir={folder}/db", *user]
        subprocess.run([*install, "--auth-root-authentication-method=normal"], check=True, **quiet)
        options = [f"--datadir={folder}/db", f"--socket={folder}/s", f"--port={port}", *user]
        extra = ["--bind-address=127.0.0.1", "--skip-name-resolve=1"]
        child = subprocess.Popen([MARIADB, "--no-defaults", *options, *extra], **quiet)
        try:
            _wait(port, child)
            yield {"engine": "mysql", "host": "127.0.0.1", "port": port, "user": "root"}
        finally:
            child.terminate()
            child.wait(30)


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest) -> dict[str, Any]:
    name = "postgres" if request.param == "postgresql" else "mysql"
    found: dict[str, Any] = request.getfixturevalue(name)
    return found


def ask(place: dict[str, Any], query: str = "SELECT 1", **more: Any) -> Outcome:
    return take({"type": "sql", "timeout": "5s", **place, "query": query, **more})


def test_answers(server: dict[str, Any]) -> None:
    found = ask(server, "SELECT 1")
    assert found.verdict == "pass", found
    assert found.data == {"rows": 1, "value": "1"}
    assert ask(server, "SELECT 41 + 1", expect="42").verdict == "pass"
    wrong = ask(server, "SELECT 41", expect="42")
    assert (wrong.verdict, wrong.reason) == ("fail", "the answer is '41', not '42'")
    assert ask(server, "SELECT NULL", expect="1").verdict == "fail"
    assert ask(server, "SELECT 1 WHERE 1 = 0", at_least_rows=1).verdict == "fail"
    assert ask(server, "SELECT 1 UNION SELECT 2", at_least_rows=2).verdict == "pass"


def test_failures_and_what_is_the_probes_own_fault(server: dict[str, Any]) -> None:
    assert ask(server, "SELECT * FROM gone").verdict == "fail", "somebody dropped the table"
    assert ask(server, "SELEKT 1").verdict == "unknown"
    assert ask(server | {"database": "nowhere"}).verdict == "fail"
    assert ask(server | {"user": "stranger", "password_file": None}).verdict == "fail"
    assert ask(server | {"password_file": "/nonexistent"}).verdict == "unknown"


def test_a_slow_query_is_a_time_out(server: dict[str, Any]) -> None:
    slow = "SELECT pg_sleep(20)" if server["engine"] == "postgresql" else "SELECT SLEEP(20)"
    began = time.monotonic()
    found = ask(server, slow, timeout="1s")
    assert (found.verdict, found.data["cause"]) == ("fail", "time-out")
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("engine", ENGINES)
def test_servers_that_are_down_mute_or_mad(engine: str) -> None:
    place: dict[str, Any] = {"engine": engine, "host": "127.0.0.1", "user": "me"}
    refused = ask(place | {"port": closed_port()}, timeout="1s")
    assert (refused.verdict, refused.data["cause"]) == ("fail", "refused")
    for handler in (lambda c: time.sleep(3), reset, lambda c: c.sendall(b"\x00\xff" * 500)):
        with Server(handler) as server:
            assert ask(place | {"port": server.port}, timeout="1s").verdict == "fail"
