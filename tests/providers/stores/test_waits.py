"""Suspended calls, the same on every store that keeps them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from callgate.errors import StoreConflict
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from tests.providers.stores.backends import Backend, made
from tests.providers.stores.ledger import FOREVER, wait

WAITING, USED, DENIED, EXPIRED, VOID = SuspensionState


def changed(old: SuspensionRecord, state: SuspensionState = USED, **more: Any) -> SuspensionRecord:
    """The next version."""
    return replace(old, number=old.number + 1, state=state, **more)


async def test_every_fact_of_a_suspended_call_comes_back(ledger: Backend) -> None:
    waits, tenant, now = ledger.store.suspensions, ledger.tenant, ledger.now()
    plain = wait(now, "plain", lasts=None)
    full = SuspensionRecord(
        "id'\"; --", "kïnd", "tool", "ann:\U0001f600", now, now + 0.5, bytes(range(256)), "mac", DENIED, 9
    )
    for each in (plain, full):
        assert await waits.get(tenant, each.id) is None
        await waits.put(tenant, each)
        assert await waits.get(tenant, each.id) == each
    assert await waits.get(tenant + "2", "plain") is None


async def test_an_id_is_given_once_and_what_is_there_stays(ledger: Backend) -> None:
    waits, tenant, old = ledger.store.suspensions, ledger.tenant, wait(ledger.now())
    await waits.put(tenant, old)
    for other in (old, replace(old, body=b"other"), changed(old)):
        with pytest.raises(StoreConflict):
            await waits.put(tenant, other)
    assert await waits.get(tenant, "w") == old
    await waits.put(tenant + "2", old)


async def test_a_version_takes_the_place_of_the_one_before_it_and_of_no_other(ledger: Backend) -> None:
    """Contract I5, I16."""
    waits, tenant, first = ledger.store.suspensions, ledger.tenant, wait(ledger.now())
    assert not await waits.replace(tenant, changed(first)), "there is none"
    await waits.put(tenant, first)
    second = changed(first, WAITING, body=b"two", mac="m2", user="bob", expires_at=None, kind="consent", tool="t")
    for number in (0, 1, 3, 4):
        assert not await waits.replace(tenant, replace(second, number=number))
    assert not await waits.replace(tenant + "2", second)
    assert await waits.get(tenant, "w") == first
    assert await waits.replace(tenant, second)
    assert await waits.get(tenant, "w") == second
    assert not await waits.replace(tenant, second), "it is there already"


async def test_what_does_not_wait_any_more_is_replaced_only_by_a_call_that_was_put_off(ledger: Backend) -> None:
    """Contract I5, I16. It is used once; a used one may wait again, as its next version."""
    waits, tenant = ledger.store.suspensions, ledger.tenant
    for state in (USED, DENIED, EXPIRED, VOID):
        first = wait(ledger.now(), state)
        await waits.put(tenant, first)
        over = changed(first, state)
        assert await waits.replace(tenant, over)
        for after in SuspensionState:
            if (state, after) != (USED, WAITING):
                assert not await waits.replace(tenant, changed(over, after))
        assert await waits.get(tenant, state) == over
        again = changed(over, WAITING)
        assert not await waits.replace(tenant, replace(again, number=over.number))
        assert await waits.replace(tenant, again) is (state is USED)
        assert await waits.get(tenant, state) == (again if state is USED else over)
        assert [row.id for row in await waits.list(tenant)] == ([USED] if state is USED else [])
        if state is USED:
            assert await waits.replace(tenant, changed(again, DENIED))


async def test_suspended_calls_are_listed_by_state_and_user_the_oldest_first(ledger: Backend) -> None:
    waits, tenant, now = ledger.store.suspensions, ledger.tenant, ledger.now()
    rows = [
        wait(
            now - number // 2, f"w{number}", user="ann" if number % 3 else "bob", state=USED if number > 6 else WAITING
        )
        for number in range(10)
    ]
    for row in rows:
        await waits.put(tenant, row)
    await waits.put(tenant + "2", wait(now, "elsewhere"))
    oldest = sorted(rows, key=lambda row: (row.made_at, row.id))
    assert list(await waits.list(tenant)) == [row for row in oldest if row.state is WAITING]
    assert list(await waits.list(tenant, limit=2)) == [row for row in oldest if row.state is WAITING][:2]
    newest, shown, after = oldest[::-1], list[Any](), None
    while page := await waits.list(tenant, limit=2, after=after, newest=True):
        shown += page
        after = page[-1].made_at, page[-1].id
    assert shown == [row for row in newest if row.state is WAITING]
    for user in ("ann", "bob", "carol"):
        mine = [row for row in oldest if row.user == user]
        for state in SuspensionState:
            found = await waits.list(tenant, state=state, user=user)
            assert list(found) == [row for row in mine if row.state is state]
    assert [row.id for row in await waits.list(tenant + "2")] == ["elsewhere"]


async def test_what_waits_for_a_user_is_counted_up_to_a_limit(ledger: Backend) -> None:
    """Rows of calls, or those of one kind; of this user and tenant, and in this state, only."""
    waits, tenant, now = ledger.store.suspensions, ledger.tenant, ledger.now()
    for number in range(4):
        await waits.put(tenant, replace(wait(now, f"call {number}"), user="eve", tool="pay"))
        await waits.put(tenant, replace(wait(now, f"task {number}"), user="eve", tool="", kind="a2a_task"))
    await waits.put(tenant, replace(wait(now, "other user"), user="ann", tool="pay"))
    await waits.put(tenant, replace(wait(now, "over"), user="eve", tool="pay", state=USED))
    await waits.put(tenant + "2", replace(wait(now, "other tenant"), user="eve", tool="pay"))
    assert [await waits.count(tenant, "eve", limit) for limit in (10, 3)] == [4, 3]
    assert await waits.count(tenant, "eve", 10, kind="a2a_task") == 4
    assert await waits.count(tenant, "ann", 10) == 1


async def test_what_is_due_is_found_for_all_tenants_the_longest_overdue_first(ledger: Backend) -> None:
    waits, now = ledger.store.suspensions, ledger.now()
    tenants = [ledger.tenant, ledger.tenant + "2"]
    for tenant in tenants:
        for id, lasts in (("early", 1.0), ("late", 2.0), ("later", 2.5), ("endless", None)):
            await waits.put(tenant, wait(now, id, lasts))
    assert await waits.replace(tenants[1], changed(wait(now, "early", 1.0), DENIED))
    assert list(await waits.due(now + 0.5)) == []
    early = (tenants[0], wait(now, "early", 1.0))
    assert list(await waits.due(now + 1.0)) == [early]
    due = [early, *((tenant, wait(now, "late", 2.0)) for tenant in tenants)]
    assert list(await waits.due(now + 2.0)) == due
    assert list(await waits.due(now + 2.0, limit=2)) == due[:2]
    assert len(await waits.due(FOREVER)) == 5


async def test_only_what_waits_no_more_and_is_old_is_forgotten(ledger: Backend) -> None:
    waits, tenant, now = ledger.store.suspensions, ledger.tenant, ledger.now()
    for age in (1.0, 2.0):
        for state in SuspensionState:
            await waits.put(tenant, wait(now - age, f"{state} {age}", state=state))
    await waits.put(tenant + "2", wait(now - 9.0, state=USED))
    assert await waits.prune(now - 2.0) == 1
    assert await waits.prune(now - 1.0) == 4
    left = {row.id for state in SuspensionState for row in await waits.list(tenant, state=state)}
    assert left == {f"{state} 1.0" for state in SuspensionState} | {f"{WAITING} 2.0"}


async def used_by(replacements: list[Any], ledger: Backend, old: SuspensionRecord) -> int:
    """Return the number of winners among concurrent users of a suspended call."""
    told = await asyncio.gather(
        *(replace_(ledger.tenant, changed(old, mac=f"m{number}")) for number, replace_ in enumerate(replacements))
    )
    kept = await ledger.store.suspensions.get(ledger.tenant, old.id)
    assert kept is not None
    assert sum(told) != 1 or kept.mac == f"m{told.index(True)}"
    return sum(told)


async def test_of_fifty_who_use_a_suspended_call_one_does(ledger: Backend) -> None:
    """Contract I5, I16."""
    for number in range(3):
        old = wait(ledger.now(), str(number))
        await ledger.store.suspensions.put(ledger.tenant, old)
        assert await used_by([ledger.store.suspensions.replace] * 50, ledger, old) == 1


@pytest.mark.parametrize("durable", ["sqlite-file", "postgresql"], indirect=True)
async def test_of_fifty_in_two_stores_on_one_database_who_use_a_suspended_call_one_does(ledger: Backend) -> None:
    """Contract I5, I16."""
    other = made(ledger.kind, ledger.address, ledger.prefix, ledger.now)
    await other.open()
    try:
        old = wait(ledger.now())
        await ledger.store.suspensions.put(ledger.tenant, old)
        assert await used_by([ledger.store.suspensions.replace, other.suspensions.replace] * 25, ledger, old) == 1
    finally:
        await other.close()


async def test_a_use_that_looks_first_and_writes_then_is_found_out(ledger: Backend) -> None:
    """The control: two steps in the place of one."""
    waits, old, looked = ledger.store.suspensions, wait(ledger.now()), asyncio.Barrier(50)
    await waits.put(ledger.tenant, old)

    async def get_then_put(tenant: str, new: SuspensionRecord) -> bool:
        found = await waits.get(tenant, new.id)
        await looked.wait()
        if found is None or found.number != new.number - 1 or found.state is not WAITING:
            return False
        await waits.replace(tenant, new)
        return True

    assert await used_by([get_then_put] * 50, ledger, old) == 50


async def test_of_fifty_who_put_one_id_one_does(ledger: Backend) -> None:
    told = await asyncio.gather(
        *(ledger.store.suspensions.put(ledger.tenant, wait(ledger.now(), mac=str(number))) for number in range(50)),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in told) == ["NoneType", *["StoreConflict"] * 49]
    kept = await ledger.store.suspensions.get(ledger.tenant, "w")
    assert kept is not None
    assert kept.mac == str(told.index(None))
