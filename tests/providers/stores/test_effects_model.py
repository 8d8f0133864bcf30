"""The effect ledger against a model of it: whatever is done in whatever order, both say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from callgate.errors import StoreError
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import ENDED_STATES, OPEN_STATES, EffectState
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import opened, place
from tests.providers.stores.ledger import CLAIMED, RUNNING, Grouped, Model, effect, empty

EXAMPLES = {"memory": 50, "sqlite-memory": 12, "sqlite-file": 8, "postgresql": 8}
GROUPED = {"sqlite-file": 8, "postgresql": 8}
SOAK = {"memory": 500, "sqlite-memory": 75, "sqlite-file": 50, "postgresql": 50}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

TENANTS = st.sampled_from(["", "acme"])
KEYS = st.sampled_from("abc")
OWNERS = st.sampled_from(["one", "other"])
HASHES = st.sampled_from(["h", "g"])
STATES = st.sampled_from(list(EffectState))
SECONDS = st.sampled_from([-1.0, 0.0, 0.5, 5.0, 20.0])


class Machine(RuleBasedStateMachine):
    """A store, and the model beside it; *sabotage* takes the place of the store's ledger."""

    runner: asyncio.Runner
    store: Store
    ledger: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.model = Model()
        self.highest: dict[tuple[str, str], int] = {}  # of each key, since it was last forgotten
        self.did(empty(self.store))

    def did(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += max(0.0, seconds)

    @rule(
        tenant=TENANTS,
        key=KEYS,
        owner=OWNERS,
        input_hash=HASHES,
        lease=SECONDS,
        state=st.sampled_from([CLAIMED, RUNNING, RUNNING]),
        again=st.booleans(),
    )
    def claim(self, tenant: str, key: str, again: bool, **facts: Any) -> None:
        before = self.highest.get((tenant, key), 0)
        new = effect(self.now, key, **facts)
        told = self.did(self.ledger.claim(tenant, new, retry=again))
        assert told == self.model.claim(tenant, new, retry=again)
        mine, found = told
        assert found.token > before if mine else found.token >= before, "tokens grow with every claim"

    @rule(
        tenant=TENANTS,
        key=KEYS,
        back=st.sampled_from([0, 0, 0, 1, 2, -1]),
        state=STATES,
        of=st.sampled_from([OPEN_STATES, OPEN_STATES, [EffectState.UNKNOWN], list(EffectState), ENDED_STATES, []]),
        receipt=st.sampled_from([None, b"{}"]),
        lasts=st.none() | SECONDS,
    )
    def settle(self, tenant: str, key: str, back: int, state: EffectState, of: Any, receipt: Any, lasts: Any) -> None:
        held = self.model.rows.get((tenant, key))
        token = (held.token if held else 1) - back
        end: dict[str, Any] = {"at": self.now, "receipt": receipt, "note": f"{state}"}
        end["expires_at"] = None if lasts is None else self.now + lasts
        done = self.did(self.ledger.settle(tenant, key, token, state, of=of, **end))
        assert done is self.model.settle(tenant, key, token, state, of, **end)
        assert not (done and back), "only the last token settles"

    @rule(owner=OWNERS, seconds=SECONDS)
    def renew(self, owner: str, seconds: float) -> None:
        assert self.did(self.ledger.renew(owner, self.now + seconds)) == self.model.renew(owner, self.now + seconds)

    @rule()
    def expire(self) -> None:
        assert self.did(self.ledger.expire(self.now)) == self.model.expire(self.now)

    @rule(seconds=SECONDS)
    def prune(self, seconds: float) -> None:
        assert self.did(self.ledger.prune(self.now - seconds)) == self.model.prune(self.now - seconds)

    @rule(
        tenant=st.none() | TENANTS,
        states=st.sets(STATES, max_size=2),
        limit=st.sampled_from([1, 2, 100]),
    )
    def list(self, tenant: str | None, states: set[EffectState], limit: int) -> None:
        found = [row for row in self.model.list(tenant) if not states or row[1].state in states]
        assert [*self.did(self.ledger.list(tenant, states=states, limit=limit))] == found[:limit]

    @rule(tenant=TENANTS, key=KEYS)
    def get(self, tenant: str, key: str) -> None:
        assert self.did(self.ledger.get(tenant, key)) == self.model.rows.get((tenant, key))

    @rule(tenant=TENANTS, key=KEYS, owner=OWNERS)
    def take_back(self, tenant: str, key: str, owner: str) -> None:
        """A transaction that fails changes nothing."""

        async def fail() -> None:
            async with self.store.transaction() as within:
                mine, found = await within.effects.claim(tenant, effect(self.now, key, owner=owner), retry=True)
                await within.effects.renew(owner, self.now + 50.0)
                if mine:
                    assert await within.effects.settle(tenant, key, found.token, EffectState.COMMITTED, at=self.now)
                await within.effects.expire(self.now)
                await within.effects.prune(self.now)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.did(fail())

    @invariant()
    def both_are_the_same(self) -> None:
        assert [*self.did(self.store.effects.list(None))] == self.model.list(None)
        self.highest = {at: row.token for at, row in self.model.rows.items()}


def search(kind: str, at: tuple[str, str], examples: int, sabotage: Any = None, *, grouped: bool = False) -> None:
    """Look for steps after which a store and the model differ."""
    with asyncio.Runner() as runner:
        manager = opened(kind, at)
        backend = runner.run(manager.__aenter__())
        ledger: Any = backend.store.effects if sabotage is None else sabotage(backend.store.effects)
        if grouped:
            assert isinstance(backend.store, SqlStore)
            ledger = Grouped(backend.store)
        try:
            made = type("Made", (Machine,), {"runner": runner, "store": backend.store, "ledger": ledger})
            run_state_machine_as_test(
                made,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=SLOW,
                    database=None,
                    phases=[Phase.generate] if sabotage else [Phase.generate, Phase.shrink],
                ),
            )
        finally:
            runner.run(manager.__aexit__(None, None, None))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_ledger_does_what_its_model_does_whatever_the_order(kind: str, tmp_path: Path) -> None:
    """Contract I4, I20."""
    with place(kind, tmp_path) as at:
        search(kind, at, EXAMPLES[kind])


@pytest.mark.parametrize("kind", GROUPED)
def test_group_commit_does_what_the_model_does_whatever_the_order(kind: str, tmp_path: Path) -> None:
    """Issue 16 A2, contract I4."""
    with place(kind, tmp_path) as at:
        search(kind, at, GROUPED[kind], grouped=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", SOAK)
def test_a_ledger_does_what_its_model_does_over_many_more_orders(kind: str, tmp_path: Path) -> None:
    """Contract I4, I20."""
    with place(kind, tmp_path) as at:
        search(kind, at, SOAK[kind])


class Sabotaged:
    """A ledger with one promise broken."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class KeepsTokens(Sabotaged):
    async def claim(self, tenant: str, new: Any, *, retry: bool) -> Any:
        mine, found = await self.inner.claim(tenant, new, retry=retry)
        if mine and found.token > 1:
            found = self.inner._live[tenant, new.key] = replace(found, token=found.token - 1)
        return mine, found


class IgnoresTokens(Sabotaged):
    async def settle(self, tenant: str, key: str, token: int, *rest: Any, **more: Any) -> bool:
        found = await self.inner.get(tenant, key)
        return bool(await self.inner.settle(tenant, key, found.token if found else token, *rest, **more))


class ForgetsUnknown(Sabotaged):
    async def prune(self, before: float) -> int:
        for tenant, row in await self.inner.list(None, states=[EffectState.UNKNOWN]):
            del self.inner._live[tenant, row.key]
        return int(await self.inner.prune(before))


class RepeatsAlways(Sabotaged):
    async def claim(self, tenant: str, new: Any, *, retry: bool) -> Any:
        return await self.inner.claim(tenant, new, retry=True)


class RenewsAll(Sabotaged):
    async def renew(self, owner: str, until: float) -> int:
        await self.inner.renew("one", until)
        return int(await self.inner.renew(owner, until))


@pytest.mark.parametrize("sabotage", [KeepsTokens, IgnoresTokens, ForgetsUnknown, RepeatsAlways, RenewsAll])
def test_a_ledger_that_breaks_one_promise_is_found_out(sabotage: Any, tmp_path: Path) -> None:
    """The control of the test above."""
    with place("memory", tmp_path) as at, pytest.raises((AssertionError, StoreError)):
        search("memory", at, 1000, sabotage)
