"""The audit log in partitions on PostgreSQL: the SQL of the documentation, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from callgate.errors import StoreConflict
from callgate.hooks import prune_audit, verify_audit
from tests.providers.stores.audit_log import KEY, chained
from tests.providers.stores.backends import Backend
from tests.providers.stores.test_audit_retention import Kept, stored

PAGE = Path(__file__).parents[3] / "docs/how-to/hooks/audit.md"
pytestmark = pytest.mark.parametrize("fresh", ["postgresql"], indirect=True)
OLD, NEW, LATE = "20261101T120000.a", "20270105T120000.b", "20280101T120000.c"


def partition(address: str) -> None:
    found = re.search(r"```sql\n(BEGIN;\nALTER TABLE callgate_audit RENAME.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    with psycopg.connect(address, autocommit=True) as owner:
        owner.execute(found[1].encode())


def number_in(address: str, table: str) -> int:
    with psycopg.connect(address) as server:
        row = server.execute(f"SELECT count(*) FROM ONLY {table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


async def test_rows_go_to_the_partition_of_their_time_and_verification_and_pruning_pass(fresh: Backend) -> None:
    """Issue 16 A8: an emptied partition can be dropped."""
    audit, old = fresh.store.audit, chained(4, name=OLD)
    await audit.append("t", old[:2])
    partition(fresh.address)
    await audit.append("t", old[2:])
    await audit.append("t", chained(3, name=NEW, at=2_000.0))
    await audit.append("t", chained(2, name=LATE, at=2_000.0))
    await audit.anchor(OLD, 4, old[-1].hash, 1.0)
    tables = ["callgate_audit", "callgate_audit_before", "callgate_audit_2027_01", "callgate_audit_later"]
    assert [number_in(fresh.address, table) for table in tables] == [0, 4, 3, 2]
    report = await verify_audit(audit, signing_keys=[KEY])
    assert (report.ok, report.rows) == (True, 9), str(report)
    done = await prune_audit(audit, 1_500.0, Kept(), signing_keys=[KEY])
    assert (done.rows, number_in(fresh.address, "callgate_audit_before")) == (4, 0)
    with psycopg.connect(fresh.address) as owner:
        owner.execute(b"DROP TABLE callgate_audit_before")
    assert (await verify_audit(audit, signing_keys=[KEY])).ok
    assert {segment for segment, _ in await stored(audit)} == {NEW, LATE}


async def test_no_row_of_a_partition_is_changed_removed_or_doubled(fresh: Backend) -> None:
    await fresh.store.audit.append("t", chained(2, name=OLD))
    partition(fresh.address)
    await fresh.store.audit.append("t", chained(2, name=NEW))
    for table in ("callgate_audit", "callgate_audit_before", "callgate_audit_2027_01"):
        for change in (f"UPDATE {table} SET body = ''", f"DELETE FROM {table}"):
            with psycopg.connect(fresh.address) as server, pytest.raises(psycopg.errors.RaiseException):
                server.execute(change.encode())
    with psycopg.connect(fresh.address) as server, pytest.raises(psycopg.errors.RaiseException):
        server.execute(b"TRUNCATE callgate_audit")
    for tenant in ("t", "other"):
        with pytest.raises(StoreConflict):
            await fresh.store.audit.append(tenant, chained(2, name=NEW))
