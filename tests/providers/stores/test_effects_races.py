"""The effect ledger under many at once, and with operations that fail, the same on every store that keeps one."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any, Literal

import pytest

from callgate.errors import StoreError
from callgate.providers.stores.effects import EffectRecord, EffectState
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.providers.stores.backends import Backend, made
from tests.providers.stores.ledger import COMMITTED, NO_EFFECT, RUNNING, UNKNOWN, effect, found_in, kept


async def winners(claims: list[Any], tenant: str, new: EffectRecord, *, again: bool = False) -> list[EffectRecord]:
    """Return the effects of the winners; each of *claims* is one attempt, all at once."""
    told = await asyncio.gather(
        *(claim(tenant, replace(new, request_id=f"r{number}"), retry=again) for number, claim in enumerate(claims))
    )
    won = [found for mine, found in told if mine]
    for mine, found in told:
        assert mine or found.token == (won[0].token if won else found.token)
    return won


async def test_of_fifty_who_claim_one_key_one_has_it(ledger: Backend) -> None:
    """Contract I4."""
    for round_ in range(3):
        new = effect(ledger.now(), f"k{round_}")
        won = await winners([ledger.store.effects.claim] * 50, ledger.tenant, new)
        assert len(won) == 1
        assert await found_in(ledger, new.key) == won[0]


@pytest.mark.parametrize("durable", ["sqlite-file", "postgresql"], indirect=True)
async def test_of_fifty_in_two_stores_on_one_database_who_claim_one_key_one_has_it(ledger: Backend) -> None:
    """Contract I4."""
    other = made(ledger.kind, ledger.address, ledger.prefix, ledger.now)
    await other.open()
    try:
        for round_ in range(3):
            claims = [ledger.store.effects.claim, other.effects.claim] * 25
            won = await winners(claims, ledger.tenant, effect(ledger.now(), f"k{round_}"))
            assert len(won) == 1
    finally:
        await other.close()


@pytest.mark.parametrize("again", [True, False])
async def test_of_fifty_who_find_a_dead_effect_one_takes_it_over_or_all_see_it_unknown(
    ledger: Backend, again: bool
) -> None:
    """Contract I4. The token grows once, for any winner."""
    old = await kept(ledger, RUNNING)
    ledger.now.move(10.0)
    won = await winners([ledger.store.effects.claim] * 50, ledger.tenant, effect(ledger.now()), again=again)
    assert len(won) == again
    unknown = replace(old, state=UNKNOWN, token=2, ended_at=ledger.now())
    assert await found_in(ledger) == (won[0] if again else unknown)
    assert (await found_in(ledger)).token == 2


async def test_a_claim_that_looks_first_and_writes_then_is_found_out(ledger: Backend) -> None:
    """The control: two steps in the place of one."""
    effects, looked = ledger.store.effects, asyncio.Barrier(50)

    async def get_then_put(tenant: str, new: EffectRecord, *, retry: bool) -> tuple[bool, EffectRecord]:
        found = await effects.get(tenant, new.key)
        await looked.wait()
        if found is not None:
            return False, found
        await effects.claim(tenant, new)
        return True, new

    assert len(await winners([get_then_put] * 50, ledger.tenant, effect(ledger.now()))) == 50


async def test_of_many_who_settle_one_effect_one_is_told_that_he_did(ledger: Backend) -> None:
    """Contract I4."""
    effects = ledger.store.effects
    for round_ in range(3):
        key = f"k{round_}"
        await kept(ledger, RUNNING, key=key)
        ends = [COMMITTED, NO_EFFECT, UNKNOWN] * 7
        told = await asyncio.gather(
            *(effects.settle(ledger.tenant, key, 1, state, at=1.0, note=str(n)) for n, state in enumerate(ends))
        )
        assert sum(told) == 1
        assert (await found_in(ledger, key)).note == str(told.index(True))


async def test_never_do_two_hold_one_key_and_every_claim_has_a_higher_token(ledger: Backend) -> None:
    """Contract I4. Claims, ends and sweeps, all at once."""
    effects, inside, tokens, swept = ledger.store.effects, 0, list[int](), asyncio.Event()

    async def work(who: int) -> None:
        nonlocal inside
        while len(tokens) < 30:
            mine, found = await effects.claim(ledger.tenant, effect(ledger.now(), owner=str(who)))
            if not mine:
                await asyncio.sleep(0)
                continue
            inside += 1
            assert inside == 1
            tokens.append(found.token)
            await effects.renew(str(who), ledger.now() + 20.0)
            inside -= 1
            assert await effects.settle(ledger.tenant, "k", found.token, NO_EFFECT, at=ledger.now())

    async def sweep() -> None:
        while not swept.is_set():
            await effects.expire(ledger.now())
            await asyncio.sleep(0)

    sweeper = asyncio.create_task(sweep())
    await asyncio.gather(*(work(who) for who in range(8)))
    swept.set()
    await sweeper
    assert all(later > earlier for earlier, later in itertools.pairwise(tokens))


@pytest.mark.parametrize("durable", ["memory", "postgresql"], indirect=True)  # SQLite has one writer at a time
async def test_a_sweep_leaves_what_somebody_is_just_changing_to_him_and_does_not_wait(ledger: Backend) -> None:
    """Contract I3. Two that change many rows can never wait for each other."""
    store, tenant, now = ledger.store, ledger.tenant, ledger.now()
    for key in ("ends late", "dead"):
        await kept(ledger, RUNNING, key=key, lease=-1.0)
    async with store.transaction() as within:
        assert await within.effects.settle(tenant, "ends late", 1, COMMITTED, at=now)
        assert await store.effects.expire(now) == 1
    assert [(await found_in(ledger, key)).state for key in ("ends late", "dead")] == [COMMITTED, UNKNOWN]
    assert (await store.effects.claim(tenant, effect(now, "ends late", request_id="r2")))[1].state is COMMITTED


# ---------------------------------------------------------------------- faults


class Life:
    """Three calls with one key: what ran, and what is in the ledger."""

    def __init__(self, backend: Backend, key: str) -> None:
        self.backend, self.key = backend, key
        self.ran: list[int] = []

    async def run(self, store: Any) -> None:
        for _ in range(3):
            try:
                mine, found = await store.effects.claim(self.backend.tenant, effect(self.backend.now(), self.key))
                if mine:
                    self.ran.append(found.token)
                    await store.effects.settle(self.backend.tenant, self.key, found.token, COMMITTED, at=1.0)
            except (InjectedFault, StoreError):
                pass

    async def hold(self) -> None:
        found = await self.backend.store.effects.get(self.backend.tenant, self.key)
        assert len(self.ran) <= 1, "it ran twice"
        assert found is not None, "it ran, or may have, and nothing says so"
        assert found.state in {RUNNING, COMMITTED}
        assert found.state is RUNNING or self.ran == [found.token]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whichever_operation_fails_nothing_runs_twice_or_without_a_record(
    ledger: Backend, when: Literal["before", "after"]
) -> None:
    """Contract I3, I4, I20."""
    n = 0
    while True:
        n += 1
        life = Life(ledger, f"k{n}")
        faulty = FaultyStore(ledger.store, n, when=when)
        await life.run(faulty)
        await life.hold()
        if not faults_of(faulty).injected:
            break
    assert n == 5, "three claims and an end"


# ---------------------------------------------------------------------- between the two statements of one claim

BETWEEN = pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file", "postgresql"], indirect=True)


def meanwhile(ledger: Backend, monkeypatch: pytest.MonkeyPatch, *, before: Any = None, after: Any = None) -> None:
    """Others act just before, or just after, a claim that was refused reads what is there."""
    effects: Any = ledger.store.effects
    row = effects._row

    async def interrupted(tenant: str, key: str) -> Any:
        if before is not None:
            await before()
        found = await row(tenant, key)
        if after is not None:
            await after()
        return found

    monkeypatch.setattr(effects, "_row", interrupted)


@BETWEEN
async def test_a_key_that_is_freed_or_forgotten_while_it_is_claimed_is_taken(
    ledger: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract I4."""
    effects, tenant, now = ledger.store.effects, ledger.tenant, ledger.now()
    for key, forgotten in (("freed", False), ("forgotten", True)):
        await kept(ledger, RUNNING, key=key)

        async def free(key: str = key, forgotten: bool = forgotten) -> None:
            await effects.settle(tenant, key, 1, NO_EFFECT, at=now)
            if forgotten:
                await effects.prune(now + 1.0)

        with monkeypatch.context() as patch:
            meanwhile(ledger, patch, before=free)
            mine, found = await effects.claim(tenant, effect(now, key, request_id="second"))
        assert (mine, found.token) == (True, 1 if forgotten else 2)
        assert await found_in(ledger, key) == found


@BETWEEN
async def test_a_process_that_wakes_up_while_its_effect_is_given_up_keeps_it(
    ledger: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract I4."""
    effects, tenant, now = ledger.store.effects, ledger.tenant, ledger.now()
    await kept(ledger, RUNNING, lease=-1.0)
    with monkeypatch.context() as patch:
        meanwhile(ledger, patch, after=lambda: effects.renew("o", now + 5.0))
        mine, found = await effects.claim(tenant, effect(now, request_id="second"))
    assert not mine
    assert found == replace(effect(now), lease_until=now + 5.0)
    assert await effects.settle(tenant, "k", 1, COMMITTED, at=now)


@BETWEEN
async def test_a_claim_that_never_sees_the_same_effect_twice_gives_up(
    ledger: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects, tenant, now = ledger.store.effects, ledger.tenant, ledger.now()
    await kept(ledger, RUNNING)

    async def of(*states: EffectState) -> None:
        assert await effects.settle(tenant, "k", 1, states[1], at=now, of=[states[0]])

    meanwhile(ledger, monkeypatch, before=lambda: of(RUNNING, NO_EFFECT), after=lambda: of(NO_EFFECT, RUNNING))
    with pytest.raises(StoreError, match="times while it was claimed"):
        await effects.claim(tenant, effect(now, request_id="second"))
