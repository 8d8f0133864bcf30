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
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate import Approve, Gate, Options
from callgate.errors import StoreError
from callgate.hooks import Audit
from callgate.jobs import EmbeddedJobs
from callgate.stores import JobState, SqlStore
from tests.providers.stores.backends import POSTGRES, place, schema
from tests.runtime.effects.scene_desk import ANN, BOB, KEY, LEAD, Desk, asked, call

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/upgrade.md"
PEER = Path(__file__).parent / "version_peer.py"
PARTS = ("hooks", "providers", "runtime", "tools")
MIGRATION = "providers/stores/migrations/versions/v0006_aliases.py"


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def version_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as it was before the last migration."""
    folder = tmp_path_factory.mktemp("before")
    try:
        added = git("log", "--diff-filter=A", "--format=%H", "-1", "--", MIGRATION).decode().strip()
        packed = git("archive", f"{added}^", "src", *PARTS)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NO HISTORY of git, so there is no version before to run: {error}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True, timeout=60)
    for part in PARTS:  # a checkout links them; see CONTRIBUTING.md
        (folder / "src/callgate" / part).symlink_to(folder / part)
    assert not (folder / MIGRATION).exists()
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
def test_calls_jobs_and_approvals_cross_two_versions_both_ways(kind: str, version_before: Path, tmp_path: Path) -> None:
    """Issue 16 A7: the old process runs on while the new one migrates, and both serve."""
    with place(kind, tmp_path) as (address, _), ExitStack() as ends:
        old = Peer("old", version_before, address)
        ends.callback(old.end)
        assert old("call", "before")[0] == "old paid 5"
        waiting = old("ask")
        new = Peer("new", ROOT, address)
        ends.callback(new.end)
        assert new("approve", waiting) == "new transferred 7"
        assert (old.revision, new.revision >= "0006") == ("0005", True)
        for one, other in ((old, new), (new, old)):
            key = f"of {one.name}"
            assert one("call", key) == [f"{one.name} paid 5", False]
            assert other("call", key) == [f"{one.name} paid 5", True]
            assert other("call", "before") == ["old paid 5", True]
            job = one("submit", f"job {key}")
            assert other("run") == "done"
            assert one("result", job) == f"{other.name} paid 5"
            assert other("approve", one("ask")) == f"{other.name} transferred 7"
            order = [key, len(one.name)]
            assert one("refund", order) == ["success", f"{one.name} refunded {order[1]}", False]
            assert other("refund", order) == ["success", f"{one.name} refunded {order[1]}", True]
            assert other("refund", [key, 99]) == ["conflict", None, False]
            assert one("refund", [key, 99]) == ["conflict", None, False]
            assert one("write", key) is None
            assert other("read", key) == ["1", 2, [True, False], 1, "digest", 2, 1]
            assert one("read", key) == [None, 2, [True, False], False, "digest", 2, 0]
        assert new("refund", ["another", len("new")]) == ["success", "new refunded 3", True]


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
