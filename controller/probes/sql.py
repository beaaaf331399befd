"""SQL probes on PostgreSQL and MySQL, through their usual drivers."""

from __future__ import annotations

import asyncio
from typing import Any

from controller.probes.address import bare_host
from controller.probes.outcome import Outcome, failed, passed, timed_out, unknown
from controller.probes.spec import SqlProbe
from nodeagent.model.errors import InvalidSpec

MAX_ROWS = 1000
_SYNTAX = {"42601"}
"""SQLSTATEs that can only be the probe's own mistake."""
_MYSQL_SYNTAX = {1064, 1149}
_MYSQL_TIMEOUT = "timed out"


def password(spec: SqlProbe) -> str:
    """The password, or nothing. Raises InvalidSpec."""
    if spec.password_file is None:
        return ""
    try:
        return spec.password_file.read_text(encoding="utf-8").rstrip("\n")
    except OSError as exc:
        raise InvalidSpec("the password file cannot be read", str(exc)) from exc


def measure(spec: SqlProbe) -> Outcome:
    """Connect, ask, judge. Raises InvalidSpec."""
    return _postgresql(spec) if spec.engine == "postgresql" else _mysql(spec)


def judge(spec: SqlProbe, rows: list[tuple[Any, ...]]) -> Outcome:
    """The rows of an answer."""
    value = None if not rows or not rows[0] or rows[0][0] is None else str(rows[0][0])
    data = {"rows": len(rows), "value": value}
    if len(rows) < spec.at_least_rows:
        return failed(f"{len(rows)} rows, {spec.at_least_rows} are needed", **data)
    if spec.expect is not None and value != spec.expect:
        return failed(f"the answer is {value!r}, not {spec.expect!r}", **data)
    return passed(**data)


def _host(spec: SqlProbe) -> str:
    return spec.host if spec.host.startswith("/") else bare_host(spec.host)


async def postgresql_connection(spec: SqlProbe) -> Any:
    """An open connection. Raises psycopg.Error, and InvalidSpec."""
    import psycopg

    return await psycopg.AsyncConnection.connect(
        host=_host(spec),
        port=spec.port or 5432,
        dbname=spec.database or None,
        user=spec.user or None,
        password=password(spec) or None,
        application_name="probe",
        autocommit=True,
    )


def _postgresql(spec: SqlProbe) -> Outcome:
    import psycopg

    async def ask() -> list[tuple[Any, ...]]:
        async with asyncio.timeout(spec.timeout.total_seconds()):
            connection = await postgresql_connection(spec)
            try:
                cursor = await connection.execute(spec.query.encode())
                if cursor.description is None:
                    return []
                return list(await cursor.fetchmany(MAX_ROWS))
            finally:
                await connection.close()

    try:
        rows = asyncio.run(ask())
    except TimeoutError:
        return timed_out()
    except psycopg.Error as exc:
        words = " ".join(str(exc).split())
        state = exc.sqlstate or ""
        if state in _SYNTAX:
            return unknown(f"the query is wrong: {words}", sqlstate=state)
        cause = "refused" if "refused" in words else ""
        return failed(f"{state} {words}".strip(), sqlstate=state, cause=cause)
    return judge(spec, rows)


def _mysql(spec: SqlProbe) -> Outcome:
    import pymysql

    limit = max(1, round(spec.timeout.total_seconds()))
    place: dict[str, Any] = {"host": _host(spec), "port": spec.port or 3306}
    if spec.host.startswith("/"):
        place = {"unix_socket": spec.host}
    try:
        connection = pymysql.connect(
            **place,
            user=spec.user or None,
            password=password(spec),
            database=spec.database or None,
            connect_timeout=limit,
            read_timeout=limit,
            write_timeout=limit,
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(spec.query)
                rows = list(cursor.fetchmany(MAX_ROWS))
        finally:
            connection.close()
    except pymysql.Error as exc:
        code, words = (exc.args[0], str(exc.args[-1])) if exc.args else (0, type(exc).__name__)
        if _MYSQL_TIMEOUT in words:
            return timed_out(code=code)
        if code in _MYSQL_SYNTAX:
            return unknown(f"the query is wrong: {words}", code=code)
        cause = "refused" if "refused" in words else ""
        return failed(f"{code} {words}", code=code, cause=cause)
    return judge(spec, rows)
