"""The audit record, the same on every store that keeps one."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.errors import StoreConflict, StoreError, StoreUnsupported
from callgate.providers.stores.base import AuditRow, AuditStore
from callgate.providers.stores.redis.store import RedisStore
from callgate.providers.stores.sql.audit_statements import body_json
from tests.providers.stores.backends import Backend


def row(segment: str, number: int, at: float = 1.0, **body: Any) -> AuditRow:
    return AuditRow(segment, number, at, body, f"before {number}", f"hash {number}")


def segment() -> str:
    return f"segment-{uuid.uuid4().hex[:8]}"


async def read(audit: AuditStore, tenant: str | None, **between: Any) -> list[AuditRow]:
    return [each async for each in audit.read(tenant, **between)]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["null", 2**70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=6))
def test_a_body_is_written_as_ascii_json_or_refused(body: dict[str, object]) -> None:
    """A database may have any encoding; and a float that is not finite never becomes null in silence."""
    try:
        expected = json.dumps(body, allow_nan=False)
    except ValueError:
        with pytest.raises(StoreError, match="is not JSON"):
            body_json(body)
        return
    written = body_json(body)
    assert written.isascii()
    assert json.loads(written) == json.loads(expected)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), {1, 2}, b"", object(), math.nan, [math.inf]])
def test_a_body_that_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(StoreError, match="is not JSON"):
        body_json({"a": None, "b": value})


async def test_rows_come_back_as_they_were_by_time_segment_and_number(durable: Backend) -> None:
    audit, first, second = durable.store.audit, "A" + segment(), "a" + segment()
    body = {"text": "ü\u0000\U0001f600'", "deep": {"list": [1, 2.5, None, True, {}]}, "big": 10**30, "": ""}
    rows = [
        row(second, 1, 5.0),
        row(second, 2, 3.0, **body),
        row(first, 1, 5.0),
        row(first, 2, 5.0),
        row(first, 3, 1.5),
    ]
    await audit.append(durable.tenant, rows[:3])
    await audit.append(durable.tenant, rows[3:])
    await audit.append(durable.tenant, [])
    found = await read(audit, durable.tenant)
    assert found == [rows[4], rows[1], rows[2], rows[3], rows[0]]
    assert [*found[1].body] == [*body], "the order of keys is part of what was hashed"
    assert await read(audit, durable.tenant, since=3.0, until=5.0) == [rows[1]]
    assert await read(audit, durable.tenant, since=5.0) == [rows[2], rows[3], rows[0]]
    assert await read(audit, durable.tenant + "2") == []
    assert [each for each in await read(audit, None) if each.segment in {first, second}] == found


async def test_a_place_in_a_segment_is_taken_once_and_rows_go_in_all_or_none(durable: Backend) -> None:
    audit, name = durable.store.audit, segment()
    await audit.append(durable.tenant, [row(name, 1), row(name, 2)])
    for rows in ([row(name, 3), row(name, 2)], [row(name, 3), row(name, 3)], [row(name, 1, 9.0)]):
        with pytest.raises(StoreConflict):
            await audit.append(durable.tenant, rows)
        with pytest.raises(StoreConflict):
            await audit.append(durable.tenant + "2", rows)
    assert [each.number for each in await read(audit, durable.tenant)] == [1, 2]
    await audit.append(durable.tenant, [row(name, 3)])


async def test_of_many_who_write_one_row_one_succeeds(durable: Backend) -> None:
    name = segment()
    done = await asyncio.gather(
        *(durable.store.audit.append(durable.tenant, [row(name, 1, who=who)]) for who in range(20)),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in done) == ["NoneType", *["StoreConflict"] * 19]
    assert len(await read(durable.store.audit, durable.tenant)) == 1


async def test_more_rows_than_a_page_are_read_and_may_be_added_meanwhile(durable: Backend) -> None:
    audit, name = durable.store.audit, segment()
    await audit.append(durable.tenant, [row(name, number, float(number // 300)) for number in range(1, 1_202)])
    numbers: list[int] = []
    async for each in audit.read(durable.tenant):
        numbers.append(each.number)
        if len(numbers) == 5:
            await audit.append(durable.tenant, [row(name, 2_000, 0.0)])
    assert [number for number in numbers if number != 2_000] == list(range(1, 1_202))


async def test_anchors_come_back_in_order(durable: Backend) -> None:
    name = segment()
    for number in (3, 9):
        await durable.store.audit.anchor(name, number, f"hash {number}", number + 0.5)
    found = [anchor for anchor in await durable.store.audit.anchors() if anchor[0] == name]
    assert found == [(name, 3, "hash 3", 3.5), (name, 9, "hash 9", 9.5)]


async def test_a_transaction_is_kept_whole_or_not_at_all(durable: Backend) -> None:
    """Rows of a transaction."""
    store, name = durable.store, segment()
    async with store.transaction() as transaction:
        await transaction.audit.append(durable.tenant, [row(name, 1)])
        await transaction.audit.append(durable.tenant, [row(name, 2)])
        await transaction.audit.anchor(name, 2, "h", 1.0)
        assert len(await read(transaction.audit, durable.tenant)) == 2, "seen inside"
    assert len(await read(store.audit, durable.tenant)) == 2
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as transaction:
            await transaction.audit.append(durable.tenant, [row(name, 3)])
            await transaction.audit.anchor(name, 3, "h", 1.0)
            _ = 1 / 0
    with pytest.raises(StoreConflict):
        async with store.transaction() as transaction:
            await transaction.audit.append(durable.tenant, [row(name, 3)])
            await transaction.audit.append(durable.tenant, [row(name, 1)])
    assert [each.number for each in await read(store.audit, durable.tenant)] == [1, 2]
    assert [anchor[1] for anchor in await store.audit.anchors() if anchor[0] == name] == [2]
    await store.audit.append(durable.tenant, [row(name, 3)])


async def test_a_transaction_that_fails_takes_back_nobody_elses_rows(durable: Backend) -> None:
    store, mine, theirs = durable.store, segment(), segment()
    inside, written = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        async with store.transaction() as transaction:
            await transaction.audit.append(durable.tenant, [row(mine, 1)])
            inside.set()
            if durable.kind in {"memory", "postgresql"}:  # SQLite has one writer at a time
                await written.wait()
            raise ZeroDivisionError

    failing = asyncio.create_task(fail())
    await inside.wait()
    await store.audit.append(durable.tenant, [row(theirs, 1)])
    written.set()
    with pytest.raises(ZeroDivisionError):
        await failing
    assert [each.segment for each in await read(store.audit, durable.tenant)] == [theirs]


@pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file"], indirect=True)
async def test_a_task_cannot_wait_for_its_own_transaction(durable: Backend) -> None:
    """It would wait for ever: SQLite has one writer."""
    async with durable.store.transaction():
        with pytest.raises(StoreError, match="use the parts of the transaction"):
            await durable.store.semaphores.acquire(durable.tenant, "k", 1, "t", 1.0)
    assert await durable.store.semaphores.acquire(durable.tenant, "k", 1, "t", 1.0)


@pytest.mark.parametrize("body", [{"n": float("nan")}, {"o": object()}, {"b": b"secret"}])
@pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file", "postgresql"], indirect=True)
async def test_a_body_that_is_not_json_is_refused_and_not_quoted(durable: Backend, body: dict[str, Any]) -> None:
    with pytest.raises(StoreError) as refused:
        await durable.store.audit.append(durable.tenant, [row(segment(), 1, **body)])
    assert "secret" not in str(refused.value)


def test_redis_says_which_store_keeps_records() -> None:
    store = RedisStore("redis://localhost")
    for ask in (lambda: store.audit, store.transaction):
        with pytest.raises(StoreUnsupported, match=r"sqlite:// or postgresql://"):
            ask()
