"""``python -m callgate stores``: what it says of a store's tables, and that it brings them up to date."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Generator
from io import StringIO
from pathlib import Path

import psycopg
import pytest

from callgate.providers.stores.sql.database.database import HEAD
from callgate.runtime.commands.stores import main
from tests.providers.stores.backends import REDIS, keyspace, place


@pytest.fixture(params=["sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """A database without tables; the one of PostgreSQL is skipped loudly where there is no server."""
    with place(request.param, tmp_path, bare=True) as (at, _):
        yield at


def stores(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    return main(arguments, out), out.getvalue()


def tables(address: str) -> set[str]:
    if address.startswith("sqlite"):
        path = Path(address.removeprefix("sqlite:///"))
        if not path.exists():
            return set()
        file = sqlite3.connect(path)
        try:
            return {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        finally:
            file.close()
    with psycopg.connect(address) as server:
        rows = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        return {name for (name,) in rows}


def write_revision(address: str, revision: str, serves: str) -> None:
    statement = f"UPDATE callgate_schema SET version_num = '{revision}', serves = '{serves}'"
    if address.startswith("sqlite"):
        file = sqlite3.connect(address.removeprefix("sqlite:///"))
        with file:
            file.execute(statement)
        file.close()
    else:
        with psycopg.connect(address) as server:
            server.execute(statement.encode())


def test_upgrade_makes_the_tables_and_says_from_where_to_where(address: str) -> None:
    code, told = stores("upgrade", "--store", address)
    assert (code, f"from no tables to revision {HEAD}" in told) == (0, True)
    assert {"callgate_audit", "callgate_schema"} <= tables(address)
    code, told = stores("upgrade", "--store", address)
    assert (code, "nothing was changed" in told) == (0, True)


def test_check_says_whether_they_are_current_and_changes_nothing(address: str) -> None:
    code, told = stores("check", "--store", address)
    assert (code, "no tables; current is" in told) == (1, True)
    assert tables(address) == set()
    assert stores("upgrade", "--store", address)[0] == 0
    code, told = stores("check", "--store", address)
    assert (code, f"at revision {HEAD}, which is current" in told) == (0, True)


def test_check_says_what_to_stop_before_an_upgrade(address: str) -> None:
    stores("upgrade", "--store", address)
    write_revision(address, "0006", serves="0005")
    code, told = stores("check", "--store", address)
    assert (code, "stop all processes of that version, and then run" in told) == (1, True)


def test_tables_of_a_newer_version_are_told_and_left_alone(address: str) -> None:
    stores("upgrade", "--store", address)
    write_revision(address, "9999", serves="9998")
    code, told = stores("check", "--store", address)
    assert (code, f"revision 9999; current is {HEAD}" in told) == (1, True)
    code, told = stores("upgrade", "--store", address)
    assert (code, "newer Callgate" in told) == (2, True)
    assert stores("check", "--store", address)[0] == 1


def test_tables_of_a_newer_version_that_serve_this_one_are_current(address: str) -> None:
    """Issue 16 A7: after a downgrade of the code."""
    stores("upgrade", "--store", address)
    write_revision(address, "9999", serves=HEAD)
    for verb in ("check", "upgrade"):
        code, told = stores(verb, "--store", address)
        assert (code, "revision 9999, which also serves this version" in told) == (0, True)


def test_a_check_of_a_file_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    assert stores("check", "--store", f"sqlite:///{tmp_path / 'none.db'}")[0] == 1
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_tables_is_current() -> None:
    assert stores("check", "--store", "memory://")[0] == 0
    assert stores("upgrade", "--store", "memory://")[0] == 0


def test_redis_is_asked_whether_it_answers() -> None:
    with keyspace():
        assert stores("check", "--store", REDIS)[0] == 0


@pytest.mark.parametrize("verb", ["check", "upgrade"])
@pytest.mark.parametrize(
    "at",
    [
        "nothing://here",
        "sqlite:////no/such/folder/file.db",
        "postgresql://u:hunter22@127.0.0.1:1/none?connect_timeout=1",
    ],
    ids=["no store", "no folder", "no server"],
)
def test_a_store_out_of_reach_is_one_line_without_its_password(verb: str, at: str) -> None:
    code, told = stores(verb, "--store", at)
    if verb == "check" and "folder" in at:
        assert (code, told.count("\n")) == (1, 1)  # nothing is there: not current
    else:
        assert (code, told.count("\n")) == (2, 1)
    assert "hunter22" not in told


def test_it_runs_as_an_operator_runs_it(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "callgate", "stores", "upgrade", "--store", f"sqlite:///{tmp_path / 'hooks.db'}"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"to revision {HEAD}" in done.stdout
    missing = subprocess.run(asked[:-2], capture_output=True, text=True, timeout=300, check=False)
    assert missing.returncode == 2
    assert "--store" in missing.stderr
