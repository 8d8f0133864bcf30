"""Two versions of the library on one database, as in a rolling deployment; and roles that own and use its tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate import Approve, Gate, Options
from callgate.errors import StoreError
from callgate.hooks import Audit
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.sql.database.database import HEAD
from callgate.runtime.commands.stores import main as stores_command
from callgate.stores import JobState, SqlStore
from tests.providers.stores.backends import POSTGRES, place, schema
from tests.runtime.effects.scene_desk import ANN, BOB, KEY, LEAD, Desk, asked, call

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/upgrade.md"
PEER = Path(__file__).parent / "version_peer.py"
PARTS = ("hooks", "providers", "runtime", "tools")
MIGRATION = "providers/stores/sql/database/migrations/versions/v0007_signed_rows.py"


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def version_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as it was before the last migration."""
    folder = tmp_path_factory.mktemp("before")
    try:
        added = git("log", "--follow", "--diff-filter=A", "--format=%H", "-1", "--", MIGRATION).decode().strip()
        packed = git("archive", f"{added}^", "src", *PARTS)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NO HISTORY of git, so there is no version before to run: {error}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True, timeout=60)
    for part in PARTS:  # a checkout links them; see CONTRIBUTING.md
        (folder / "src/callgate" / part).symlink_to(folder / part)
    assert not [*folder.rglob(Path(MIGRATION).name)]
    return folder


class Peer:
    """A process with one version of the library."""

    def __init__(self, name: str, code: Path, address: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), name, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(code / "src")},
            cwd=code,
        )
        self.revision = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended"
        return json.loads(line)

    def __call__(self, do: str, value: Any = None) -> Any:
        """Ask for one thing, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([do, value]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def started(code: Path, address: str) -> subprocess.CompletedProcess[bytes]:
    """Start one more process with that version, which ends at once."""
    return subprocess.run(
        [sys.executable, str(PEER), "more", address],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(code / "src")},
        cwd=code,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
def test_calls_jobs_and_approvals_of_the_version_before_go_on_after_the_upgrade(
    kind: str, version_before: Path, tmp_path: Path
) -> None:
    """Issue 16 A7, issue 37, 3: revision 0007 renames a table, so the old processes end before. No work of theirs is lost."""
    keys = tmp_path / "keys"
    keys.write_text("a key of the tests\n")
    with place(kind, tmp_path, bare=True) as (address, _), ExitStack() as ends:
        old = Peer("old", version_before, address)
        ends.callback(old.end)
        assert old("call", "before")[0] == "old paid 5"
        assert old("refund", ["order", 3]) == ["success", "old refunded 3", False]
        waiting, job, done = old("ask"), old("submit", "job"), old("submit", "done")
        assert old("write", "kept") is None
        early = started(ROOT, address)
        assert early.returncode != 0
        assert b"its processes cannot use" in early.stderr, "a new process changes nothing while old ones may run"
        assert old("call", "before") == ["old paid 5", True]
        old.end()
        assert stores_command(["upgrade", "--store", address], StringIO()) != 0, "not without a yes"
        for command in (["upgrade", "--yes"], ["sign", "--signing-keys", str(keys), "--yes"]):
            assert stores_command([*command, "--store", address], StringIO()) == 0
        new = Peer("new", ROOT, address)
        ends.callback(new.end)
        assert (old.revision, new.revision) == ("0006", HEAD)
        assert new("call", "before") == ["old paid 5", True]
        assert new("refund", ["order", 3]) == ["success", "old refunded 3", True]
        assert new("refund", ["order", 99]) == ["conflict", None, False]
        assert new("approve", waiting) == "new transferred 7"
        assert (new("run"), new("run")) == ("done", "done")
        assert (new("result", job), new("result", done)) == ("new paid 5", "new paid 5")
        assert new("read", "kept")[1:] == [2, [True, False], 1, "digest", 2, 1]
        late = started(version_before, address)
        assert late.returncode != 0
        assert b"StoreError" in late.stderr, "the version before does not open the tables"


# ---------------------------------------------------------------------- roles


@contextmanager
def roles() -> Generator[tuple[str, str, str]]:
    """The roles of the page about upgrades: a schema, and its address for the owner and for the service."""
    found = re.search(r"```sql\n(CREATE ROLE.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    tag = uuid.uuid4().hex[:10]
    names = {"callgate_owner": f"callgate_owner_{tag}", "callgate_service": f"callgate_service_{tag}"}
    name = f"callgate_test_{tag}"
    sql = re.sub(r"\bcallgate\b", name, found[1])
    for known, own in names.items():
        sql = sql.replace(known, own)
    owner, service = names.values()
    with schema(), psycopg.connect(POSTGRES, autocommit=True) as server:  # skipped without a server
        server.execute(sql.encode())
        try:
            at = f"{POSTGRES}?options=-csearch_path%3D{name}%20-crole%3D"
            yield name, f"{at}{owner}", f"{at}{service}"
        finally:
            for drop in (
                f"SCHEMA {name} CASCADE",
                f"OWNED BY {service}",
                f"OWNED BY {owner}",
                f"ROLE {owner}, {service}",
            ):
                server.execute(f"DROP {drop}".encode())


async def test_a_service_without_ddl_does_all_its_work_on_the_tables_of_the_owner() -> None:
    """Issue 16 A7: the SQL of the documentation, word for word."""
    desk = Desk()
    with roles() as (name, owner, service):

        def gate() -> Gate:
            return Gate(
                [desk.tool(), desk.tool("ask", requires_approval=LEAD)],
                [Audit()],
                allow_unguarded=True,
                signing_keys=[KEY],
                store=service,
                jobs=EmbeddedJobs(0),
                options=Options(migrate=False),
            )

        with pytest.raises(StoreError, match="callgate stores upgrade"):
            await gate().open()
        tables = SqlStore(owner)
        await tables.open()
        await tables.close()
        revoked = re.search(r"```sql\n(REVOKE.*?)```", PAGE.read_text(), re.DOTALL)
        assert revoked is not None
        service_role = service.rpartition("%3D")[2]
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(revoked[1].replace("callgate_service", service_role).encode())
        async with gate() as opened:
            assert (await opened.call(call(), user=ANN, idempotency_key="k")).output == "paid 1"
            handle = await asked(opened, wanted=call(tool="ask"))
            assert (await opened.resume(handle, Approve(), approver=BOB)).output == "paid 2"
            job = await opened.submit(call(), user=ANN)
            assert await opened.jobs.run_invocation() is JobState.DONE
            assert (await job).output == "paid 3"
            await opened.maintain()
            assert len([row async for row in opened.store.audit.read(None)]) >= 3
        with psycopg.connect(service, autocommit=True) as connection:
            for ddl in (
                "CREATE TABLE more (n int)",
                "DROP TABLE callgate_effects",
                "TRUNCATE callgate_effects",
                "DELETE FROM callgate_audit",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(ddl.encode())
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(b"CREATE TABLE more (n int)")  # the control
            found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", [name]).fetchone()
            assert found is not None
            assert found[0] > 10
