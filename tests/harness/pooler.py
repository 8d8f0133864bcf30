"""A PgBouncer of a test: a process on loopback, in front of one schema of PostgreSQL."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.providers.stores.backends import POSTGRES

SERVER_SESSIONS = 3
"""Sessions of the server that all clients of a pooler share."""


@contextmanager
def pgbouncer(folder: Path, schema: str, *, mode: str = "transaction", ignores: str = "") -> Generator[str]:
    """The address of a PgBouncer whose sessions begin in *schema*; skipped loudly where there is no PgBouncer."""
    binary = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        pytest.skip("NO PGBOUNCER: install the package pgbouncer")
    server = conninfo_to_dict(POSTGRES)
    server.setdefault("user", getpass.getuser())
    reached = " ".join(f"{name}={value}" for name, value in server.items())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ini = folder / f"pgbouncer-{port}.ini"
    ini.write_text(
        f"""[databases]
pooled = {reached} connect_query='SET search_path TO "{schema}"'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {SERVER_SESSIONS}
max_client_conn = 200
server_login_retry = 1
query_wait_timeout = 60
ignore_startup_parameters = extra_float_digits{"," * bool(ignores)}{ignores}
"""
    )
    root = ["--user=nobody"] if os.geteuid() == 0 else []  # PgBouncer does not run as root
    process = subprocess.Popen([binary, *root, str(ini)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    log = list[str]()
    up = threading.Event()  # it takes clients when it says that it is up
    reader = threading.Thread(target=_keep, args=(process.stdout, log, up), daemon=True)
    reader.start()
    try:
        up.wait(10)
        if process.poll() is not None or not up.is_set():
            pytest.fail(f"PgBouncer has not started: {''.join(log)}")
        yield f"postgresql://127.0.0.1:{port}/pooled"
    except BaseException:
        print(sessions_of_the_server())
        raise
    finally:
        process.terminate()
        process.wait(10)
        reader.join(10)
        process.stdout.close()
        print("".join(log))  # pytest shows it where a test fails


def _keep(output: IO[str], log: list[str], up: threading.Event) -> None:
    """Read all that a process prints, so that it never waits for a reader."""
    for line in output:
        log.append(line)
        if "process up" in line:
            up.set()
    up.set()


def sessions_of_the_server() -> str:
    """What PostgreSQL says about its sessions, a line each."""
    query = """SELECT pid, application_name, state, wait_event, now() - state_change, left(query, 120)
        FROM pg_stat_activity WHERE backend_type = 'client backend'"""
    with psycopg.connect(POSTGRES) as connection:
        return "\n".join(map(str, connection.execute(query).fetchall()))


def ask(address: str, *statements: str) -> list[str]:
    """Run statements on a connection of another client, in autocommit mode, and return the values of the last one."""
    with psycopg.connect(address, autocommit=True, prepare_threshold=None) as other:
        for statement in statements[:-1]:
            other.execute(statement.encode())
        return [str(value) for value in other.execute(statements[-1].encode()).fetchone() or ()]
