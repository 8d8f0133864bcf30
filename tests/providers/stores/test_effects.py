"""The effect ledger, the same on every store that keeps one."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from callgate.errors import StoreUnsupported
from callgate.providers.stores.effects import OLDEST, EffectRecord, EffectState
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.redis.store import RedisStore
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import DURABLE, Backend, made
from tests.providers.stores.conftest import Places, at
from tests.providers.stores.ledger import (
    CLAIMED,
    COMMITTED,
    FOREVER,
    NO_EFFECT,
    RUNNING,
    UNKNOWN,
    Grouped,
    effect,
    empty,
    found_in,
    kept,
)

# ---------------------------------------------------------------------- claims


@pytest.fixture(params=[*DURABLE, "sqlite-file in groups", "postgresql in groups"])
async def ledger(
    request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Path]
) -> AsyncGenerator[Backend, None]:
    """Each store that keeps a ledger, and the group commit of SQL."""
    kind, _, grouped = request.param.partition(" ")
    async for backend in at(kind, places):
        await empty(backend.store)
        if grouped:
            assert isinstance(backend.store, SqlStore)
            backend.store.effects = cast("Any", Grouped(backend.store))
        yield backend


async def test_a_new_key_is_claimed_and_every_fact_comes_back(ledger: Backend) -> None:
    """Contract I4."""
    effects, tenant, now = ledger.store.effects, ledger.tenant, ledger.now()
    plain = effect(now, "plain")
    full = EffectRecord(
        "full'\"; --",
        "tööl",
        "digest",
        "ann:\U0001f600",
        "hash",
        "request",
        "owner",
        now + 10.5,
        now,
        CLAIMED,
        7,
        "session",
        "call",
        "idempotency",
        now + 1.25,
        now + 99.5,
        bytes(range(256)),
        "a note",
    )
    for new in (plain, full):
        assert await effects.get(tenant, new.key) is None
        assert await effects.claim(tenant, new) == (True, new)
        assert await effects.get(tenant, new.key) == new
    assert await effects.get(tenant, "another") is None


FREE = [  # its state, whether its lease is over, whether its key may be taken: always, by who may repeat it, never
    (NO_EFFECT, False, "yes"),
    (NO_EFFECT, True, "yes"),
    (CLAIMED, False, "no"),
    (CLAIMED, True, "yes"),
    (RUNNING, False, "no"),
    (RUNNING, True, "again"),
    (UNKNOWN, False, "again"),
    (UNKNOWN, True, "again"),
    (COMMITTED, False, "no"),
    (COMMITTED, True, "no"),
]


async def test_a_key_is_taken_only_where_nothing_can_run_twice(ledger: Backend) -> None:
    """Contract I4."""
    effects, tenant = ledger.store.effects, ledger.tenant
    for number, ((state, lapsed, free), again, same) in enumerate(
        itertools.product(FREE, [False, True], [False, True])
    ):
        key = f"k{number}"
        old = await kept(ledger, state, key=key)
        ledger.now.move(10.0 if lapsed else 9.5)
        new = effect(ledger.now(), key, input_hash="h" if same else "other", request_id="second")
        mine, found = await effects.claim(tenant, new, retry=again)
        assert mine is (free == "yes" or (free == "again" and again and same)), (state, lapsed, again, same)
        if mine:
            assert found == replace(new, token=old.token + 1)
        elif state is RUNNING and lapsed:
            assert found == replace(old, state=UNKNOWN, token=old.token + 1, ended_at=ledger.now())
        else:
            assert found == old
        assert await found_in(ledger, key) == found


async def test_a_committed_key_is_free_again_when_its_receipt_has_expired(ledger: Backend) -> None:
    """Contract I4."""
    for lasts, free in ((None, False), (0.5, False), (0.0, True), (-1.0, True)):
        ends = None if lasts is None else ledger.now() + 20.0 + lasts
        old = await kept(ledger, COMMITTED, key=str(lasts), receipt=b'{"paid":1}', expires_at=ends)
        ledger.now.move(20.0)
        new = effect(ledger.now(), str(lasts), input_hash="other")
        mine, found = await ledger.store.effects.claim(ledger.tenant, new)
        assert (mine, found) == ((True, replace(new, token=2)) if free else (False, old))
        assert found.receipt == (None if free else b'{"paid":1}'), "the receipt goes with the effect"


async def test_the_end_of_a_receipt_frees_nothing_but_what_was_committed(ledger: Backend) -> None:
    """Contract I4."""
    for state in (UNKNOWN, CLAIMED, RUNNING):
        await kept(ledger, RUNNING, key=state)
        assert await ledger.store.effects.settle(ledger.tenant, state, 1, state, at=ledger.now(), expires_at=0.0)
        assert not (await ledger.store.effects.claim(ledger.tenant, effect(ledger.now(), state)))[0]


# ---------------------------------------------------------------------- ends


async def test_an_end_is_written_with_all_that_is_known_of_it(ledger: Backend) -> None:
    effects, tenant, now = ledger.store.effects, ledger.tenant, ledger.now()
    facts: dict[str, Any] = {"receipt": b"\x00{}", "expires_at": now + 7.5, "note": "by hand"}
    for key in (COMMITTED, NO_EFFECT, UNKNOWN):
        await kept(ledger, RUNNING, key=key)
        assert await effects.settle(tenant, key, 1, key, at=now + 0.5, **facts)
        assert await found_in(ledger, key) == replace(effect(now, key), state=key, ended_at=now + 0.5, **facts)
        assert not await effects.settle(tenant, key, 1, COMMITTED, at=now), "it has ended"
        assert await effects.settle(tenant, key, 1, COMMITTED, at=now + 1.0, of=[key])
        plain = replace(effect(now, key), state=COMMITTED, ended_at=now + 1.0)
        assert await found_in(ledger, key) == plain, "in the place of all that was known"


async def test_what_was_claimed_begins_to_run_and_has_not_ended(ledger: Backend) -> None:
    effects, tenant = ledger.store.effects, ledger.tenant
    await kept(ledger, CLAIMED)
    assert await effects.settle(tenant, "k", 1, RUNNING, at=ledger.now(), of=[CLAIMED])
    assert await found_in(ledger) == effect(ledger.now())
    assert not await effects.settle(tenant, "k", 1, RUNNING, at=ledger.now(), of=[CLAIMED])


async def test_nothing_is_settled_but_by_the_last_token_in_the_state_that_is_meant(ledger: Backend) -> None:
    """Contract I4."""
    old = await kept(ledger, RUNNING)
    for tenant, key, token, of in [
        ("", "other", 1, [RUNNING]),
        ("2", "k", 1, [RUNNING]),
        ("", "k", 0, [RUNNING]),
        ("", "k", 2, [RUNNING]),
        ("", "k", 1, [CLAIMED, COMMITTED, NO_EFFECT, UNKNOWN]),
        ("", "k", 1, []),
    ]:
        assert not await ledger.store.effects.settle(ledger.tenant + tenant, key, token, COMMITTED, at=1.0, of=of)
        assert await found_in(ledger) == old


async def test_who_lost_his_claim_settles_nothing(ledger: Backend) -> None:
    """Contract I4. A process that slept while others went on."""
    effects, tenant = ledger.store.effects, ledger.tenant
    await kept(ledger, RUNNING)
    ledger.now.move(10.0)
    await effects.expire(ledger.now())
    assert not await effects.settle(tenant, "k", 1, COMMITTED, at=0.0, of=list(EffectState))
    mine, found = await effects.claim(tenant, effect(ledger.now()), retry=True)
    assert (mine, found.token) == (True, 3)
    for old in (1, 2):
        assert not await effects.settle(tenant, "k", old, COMMITTED, at=0.0, of=list(EffectState))
    assert await effects.settle(tenant, "k", 3, COMMITTED, at=ledger.now())


# ---------------------------------------------------------------------- lists, leases, forgetting


async def test_effects_are_listed_the_newest_first_by_tenant_state_and_tool(ledger: Backend) -> None:
    effects, now = ledger.store.effects, ledger.now()
    tenants = [ledger.tenant, ledger.tenant + "2"]
    rows: list[tuple[str, EffectRecord]] = []
    for number, state in enumerate([COMMITTED, RUNNING, UNKNOWN, CLAIMED, NO_EFFECT, RUNNING]):
        tenant, tool = tenants[number % 2], "refund" if number < 4 else "mail"
        new = effect(now + number // 2, f"k{number}", tool=tool, state=CLAIMED if state is CLAIMED else RUNNING)
        await effects.claim(tenant, new)
        if state not in {CLAIMED, RUNNING}:
            assert await effects.settle(tenant, new.key, 1, state, at=now)
            new = replace(new, state=state, ended_at=now)
        rows.append((tenant, new))
    newest = sorted(rows, key=lambda row: (-row[1].began_at, row[0], row[1].key))
    assert list(await effects.list(None)) == newest
    assert list(await effects.list(tenants[1])) == [row for row in newest if row[0] == tenants[1]]
    assert list(await effects.list(None, limit=2)) == newest[:2]
    assert list(await effects.list(None, tool="mail")) == [row for row in newest if row[1].tool == "mail"]
    for states in ([RUNNING], (CLAIMED, UNKNOWN), {COMMITTED, NO_EFFECT}, list(EffectState)):
        expected = [row for row in newest if row[1].state in states]
        assert list(await effects.list(None, states=states)) == expected
    both = await effects.list(tenants[0], states=[COMMITTED, UNKNOWN], tool="refund")
    assert [row.key for _, row in both] == ["k2", "k0"]
    assert list(await effects.list("unknown")) == []


async def test_effects_are_listed_oldest_first_behind_a_position(ledger: Backend) -> None:
    """Issue 16 B6: pages that together have every effect once, also where many began at the same time."""
    effects, now = ledger.store.effects, ledger.now()
    tenants = [ledger.tenant, ledger.tenant + "2"]
    rows = [(tenants[number % 2], effect(now + number // 4, f"k{number}")) for number in range(11)]
    for tenant, new in rows:
        await effects.claim(tenant, new)
    expected = sorted(rows, key=lambda row: (row[1].began_at, row[0], row[1].key))
    after, seen = OLDEST, list[tuple[str, EffectRecord]]()
    while page := await effects.list(None, after=after, limit=3):
        assert len(page) <= 3
        seen += page
        after = (page[-1][1].began_at, page[-1][0], page[-1][1].key)
    assert seen == expected
    of_one = await effects.list(tenants[0], states=[RUNNING], tool="refund", after=(after[0], "", ""))
    assert list(of_one) == [row for row in expected if row[0] == tenants[0] and row[1].began_at >= after[0]]


async def test_a_process_that_lives_renews_all_that_it_holds_and_nothing_else(ledger: Backend) -> None:
    effects, now = ledger.store.effects, ledger.now()
    for state in EffectState:
        await kept(ledger, state, key=f"mine {state}", owner="me")
        await kept(ledger, state, key=f"other {state}", owner="other")
    await effects.claim(ledger.tenant + "2", effect(now, "elsewhere", owner="me"))
    assert await effects.renew("me", now + 99.5) == 3
    for tenant, row in await effects.list(None):
        renewed = row.owner == "me" and row.state in {CLAIMED, RUNNING}
        assert row.lease_until == (now + 99.5 if renewed else now + 10.0), (tenant, row)
        assert row.token == 1
    assert await effects.renew("unknown", now) == 0


async def test_a_lease_that_is_over_leaves_unknown_what_ran_and_frees_what_had_not_begun(ledger: Backend) -> None:
    """Contract I3."""
    effects, now = ledger.store.effects, ledger.now()
    before = {state: await kept(ledger, state, key=state, lease=10.0) for state in EffectState}
    late = await kept(ledger, RUNNING, key="later", lease=10.5)
    assert await effects.expire(now + 9.5) == 0
    assert await effects.expire(now + 10.0) == 2
    assert await effects.expire(now + 10.0) == 0
    expected = before | {
        RUNNING: replace(before[RUNNING], state=UNKNOWN, token=2, ended_at=now + 10.0),
        CLAIMED: replace(before[CLAIMED], state=NO_EFFECT, token=2, ended_at=now + 10.0),
    }
    assert {state: await found_in(ledger, state) for state in EffectState} == expected
    assert await found_in(ledger, "later") == late


async def test_only_what_is_over_and_old_is_forgotten(ledger: Backend) -> None:
    """Contract I3. An unknown effect stays until an operator settles it."""
    effects, now = ledger.store.effects, ledger.now()
    for age in (1.0, 2.0):
        for state in EffectState:
            await kept(ledger, state, key=f"{state} {age}", lease=1e9, at=now - age, expires_at=now + 99.0)
    assert await effects.prune(now - 2.0) == 0
    assert await effects.prune(now - 1.0) == 2
    left = {row.key for _, row in await effects.list(None)}
    gone = {f"{COMMITTED} 2.0", f"{NO_EFFECT} 2.0"}
    assert left == {f"{state} {age}" for state in EffectState for age in (1.0, 2.0)} - gone
    assert (await effects.claim(ledger.tenant, effect(now, f"{COMMITTED} 2.0")))[0], "a key that was forgotten is new"


async def test_what_is_asked_of_all_tenants_reaches_all_and_of_one_no_other(ledger: Backend) -> None:
    """Contract I8."""
    effects, now = ledger.store.effects, ledger.now()
    tenants = ["", ledger.tenant, ledger.tenant + "2"]
    for tenant in tenants:
        assert (await effects.claim(tenant, effect(now)))[0], "a key belongs to one tenant"
    assert await effects.settle(tenants[1], "k", 1, COMMITTED, at=now)
    assert [row[1].state for row in await effects.list(tenants[1])] == [COMMITTED]
    assert await effects.renew("o", now + 5.0) == 2
    assert await effects.expire(now + 5.0) == 2
    assert await effects.prune(FOREVER) == 1
    assert [(tenant, row.state) for tenant, row in await effects.list(None)] == [("", UNKNOWN), (tenants[2], UNKNOWN)]


# ---------------------------------------------------------------------- what only some stores promise


def test_redis_says_which_store_keeps_a_ledger() -> None:
    store = RedisStore("redis://localhost")
    for ask in (lambda: store.effects, lambda: store.suspensions, lambda: store.pins, lambda: store.jobs):
        with pytest.raises(StoreUnsupported, match=r"sqlite:// or postgresql://"):
            ask()


def test_a_store_says_whether_what_it_keeps_outlives_the_process() -> None:
    durable = {"sqlite:///file.db": True, "postgresql://localhost/db": True}
    others = ["memory://", "sqlite://", "sqlite:///:memory:", "redis://localhost", "rediss://localhost"]
    for address, expected in {**durable, **dict.fromkeys(others, False)}.items():
        assert made("any", address, "", time.time).durable is expected, address


async def test_memory_keeps_what_it_is_given_and_answers_without_waiting() -> None:
    effects, new = MemoryStore().effects, effect(1.0)
    mine, found = effects.claim_now("t", new)
    assert mine
    assert found is new
    assert await effects.get("t", "k") is new
    assert effects.claim_now("t", effect(2.0)) == (False, new)
    assert effects.settle_now("t", "k", 1, COMMITTED, 3.0, b"1")
    assert not effects.settle_now("t", "k", 1, COMMITTED, 3.0)
    assert effects.claim_now("t", effect(4.0)) == (False, replace(new, state=COMMITTED, ended_at=3.0, receipt=b"1"))


async def test_memory_forgets_first_what_ended_first_and_never_what_has_not() -> None:
    """Contract I3."""
    effects = MemoryStore(max_effects=3).effects
    for number in range(20):
        assert effects.claim_now("t", effect(1.0, f"open {number}"))[0]
        effects.claim_now("t", effect(1.0, f"unknown {number}"))
        assert effects.settle_now("t", f"unknown {number}", 1, UNKNOWN, 1.0)
        effects.claim_now("t", effect(1.0, f"over {number}"))
    for number in [*range(10, 20), *range(10)]:  # the order of their ends is not that of their claims
        state = COMMITTED if number % 2 else NO_EFFECT
        assert effects.settle_now("t", f"over {number}", 1, state, 2.0)
    left = {row.key for _, row in await effects.list(None, limit=1000)}
    last = {f"over {number}" for number in (7, 8, 9)}
    assert left == last | {f"{what} {number}" for what in ("open", "unknown") for number in range(20)}
    assert effects.claim_now("t", effect(3.0, "over 8"))[0], "it had no effect, and is open again: two are over"
    assert effects.settle_now("t", "over 8", 2, COMMITTED, 4.0)
    assert effects.settle_now("t", "unknown 0", 1, COMMITTED, 4.0, of=[UNKNOWN])
    assert {row.key for _, row in await effects.list("t", states=[COMMITTED, NO_EFFECT])} == {
        "over 9",
        "over 8",
        "unknown 0",
    }
