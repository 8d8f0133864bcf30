"""Several workers on one ledger: one of them runs an effect, and one that was thought dead changes nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callgate import (
    Effects,
    Gate,
    Hook,
    Options,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    User,
    tool,
)
from callgate.hooks import Audit, verify_audit
from callgate.providers.stores.effects import EffectRecord, EffectState
from tests.providers.stores.backends import Backend
from tests.providers.stores.conftest import Places, at
from tests.runtime.effects.fault_stories import KEYS, LEASE, OnClock, another

WORKERS, GATES = 8, 3
KINDS = ("memory", "sqlite-file", "postgresql")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Places, ExitStack, Path]]:
    """Where the stores lie; each test has a tenant of its own."""
    with ExitStack() as stack:
        yield {}, stack, tmp_path_factory.mktemp("stores")


@pytest.fixture(params=KINDS)
async def backend(
    request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Path]
) -> AsyncGenerator[Backend, None]:
    async for each in at(request.param, places):
        yield each


class Shop(Hook):
    """Tools that note that they ran and go on when they are told to; a policy that notes who has come so far."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.came = 0
        self.running, self.all_here, self.go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def will_authorize_input(self, ctx: Any) -> None:
        self.came += 1
        if self.came == WORKERS:
            self.all_here.set()

    async def take_effect(self, ctx: ToolContext, waits_for: asyncio.Event) -> int:
        self.ran.append(ctx.fencing_token or 0)
        self.running.set()
        await waits_for.wait()
        return self.ran[-1]

    def make(self) -> list[Any]:
        @tool(effect="irreversible")
        async def pay(how: str, ctx: ToolContext) -> int:
            """Pay, when all are here."""
            token = await self.take_effect(ctx, self.all_here)
            if how == "tells":
                raise ToolError("The bank says no.")
            if how == "breaks":
                raise ValueError("nobody knows")
            return token

        @tool(effect="irreversible")
        async def pause(ctx: ToolContext) -> int:
            """Pay, when it is told to go on."""
            return await self.take_effect(ctx, self.go_on)

        @tool(effect="irreversible", requires_approval=True)
        async def pause_approved(ctx: ToolContext) -> int:
            """The same, when somebody has approved it."""
            return await self.take_effect(ctx, self.go_on)

        @tool(effect="idempotent")
        async def put(ctx: ToolContext) -> int:
            """Put something; only the first time it takes long."""
            first = not self.ran
            return await self.take_effect(ctx, self.go_on if first else self.running)

        return [pay, pause, pause_approved, put]


class Office:
    """Gates on one store, as many processes would have them."""

    def __init__(self, backend: Backend, *, gates: int, audit: bool = False, wait: float = 30.0) -> None:
        self.backend, self.shop, self.user = backend, Shop(), User("ann", tenant=backend.tenant)
        self._stack = AsyncExitStack()
        self.gates = [
            Gate(
                self.shop.make(),
                [self.shop, Audit()] if audit else [self.shop],
                store=another(backend),
                options=Options(clock=OnClock(backend.now)),
                effects=Effects(durable=False, lease=LEASE, wait=wait),
                signing_keys=KEYS,
            )
            for _ in range(gates)
        ]

    async def __aenter__(self) -> list[Gate]:
        return [await self._stack.enter_async_context(gate) for gate in self.gates]

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def call(self, gate: Gate, name: str, **arguments: Any) -> ToolResult:
        """What comes of a call with the one key; where it asks for approval, that is given."""
        result = await gate.call(ToolCall(id="c1", name=name, arguments=arguments), user=self.user, idempotency_key="k")
        if result.pending is None:
            return result
        return await gate.resume(result.pending.handle, "approve", approver=User("bob", tenant=self.user.tenant))

    async def row(self) -> EffectRecord:
        [(_, found)] = await self.backend.store.effects.list(self.backend.tenant)
        return found


def told(result: ToolResult) -> tuple[str, Any]:
    """What a caller sees of it."""
    return str(result.outcome), result.output if result.error is None else (result.error.code, result.error.public)


@pytest.mark.parametrize("audit", [False, True], ids=["", "audited"])
@pytest.mark.parametrize("how", ["returns", "tells", "breaks"])
async def test_of_eight_workers_with_one_key_one_runs_it_and_all_are_told_the_same(
    backend: Backend, how: str, audit: bool
) -> None:
    """Contract I4. Only who ran what broke is told how; nobody else can know what came of it."""
    office = Office(backend, gates=GATES, audit=audit)
    async with office as gates:
        results = await asyncio.gather(
            *(office.call(gates[worker % GATES], "pay", how=how) for worker in range(WORKERS))
        )
        late = await office.call(gates[0], "pay", how=how)
        assert len(office.shop.ran) == 1
        if how == "breaks":
            assert sorted(result.outcome for result in results) == ["error"] + ["unknown"] * (WORKERS - 1)
            assert late.outcome == "unknown"
            return
        assert {told(result) for result in results} == {told(late)}
        assert sum(not result.replayed for result in results) == 1
        assert told(late)[0] == ("success" if how == "returns" else "error")


# ---------------------------------------------------------------------- dead, or asleep

SHARED = pytest.mark.parametrize("backend", KINDS[1:], indirect=True)  # memory belongs to one process, which lives
WOKE = {"pause": ["success"], "pause_approved": ["suspended", "success"]}
AUDITED = pytest.mark.parametrize("audit", [False, True], ids=["", "audited"])


async def fall_asleep(office: Office, gate: Gate, name: str) -> asyncio.Task[ToolResult]:
    """A call that has claimed and is in its body, past its lease."""
    zombie = asyncio.create_task(office.call(gate, name))
    await office.shop.running.wait()
    row = await office.row()
    assert (row.state, row.token) == (EffectState.RUNNING, 1)
    office.backend.now.move(LEASE)
    return zombie


@SHARED
@AUDITED
@pytest.mark.parametrize("name", ["pause", "pause_approved"])
async def test_a_worker_that_was_thought_dead_settles_what_nobody_claimed_since(
    backend: Backend, name: str, audit: bool
) -> None:
    """Contract I3, I4. It slept past its lease, and wakes after another was told that nobody knows: it knows."""
    office = Office(backend, gates=2, audit=audit)
    async with office as (asleep, awake):
        zombie = await fall_asleep(office, asleep, name)
        assert (await office.call(awake, name)).outcome == "unknown"
        lost = await office.row()
        assert (lost.state, lost.token) == (EffectState.UNKNOWN, 2)
        office.shop.go_on.set()
        await zombie
        await asleep.maintain()
        row = await office.row()
        assert (row.state, row.token) == (EffectState.COMMITTED, lost.token)
        for gate in (asleep, awake):
            assert told(await office.call(gate, name)) == ("success", 1)
        assert office.shop.ran == [1]
        if audit:  # how its call ended is recorded all the same
            rows = [row.body async for row in backend.store.audit.read(backend.tenant)]
            [intent] = [row["request_id"] for row in rows if row["kind"] == "intent"]
            assert [row["outcome"] for row in rows if row["kind"] == "outcome" and row["request_id"] == intent] == WOKE[
                name
            ]
            assert (await verify_audit(backend.store.audit)).ok


@SHARED
@AUDITED
async def test_what_may_run_twice_is_taken_over_and_the_first_has_no_say_any_more(
    backend: Backend, audit: bool
) -> None:
    """Contract I4. The second has the next fencing token, and its receipt is everybody's."""
    office = Office(backend, gates=2, audit=audit)
    async with office as (asleep, awake):
        zombie = await fall_asleep(office, asleep, "put")
        second = await office.call(awake, "put")
        assert told(second) == ("success", 2)
        taken = await office.row()
        office.shop.go_on.set()
        await zombie
        assert await office.row() == taken
        assert {told(await office.call(gate, "put")) for gate in (asleep, awake)} == {told(second)}
        assert office.shop.ran == [1, 2]


@SHARED
async def test_a_worker_that_lives_is_not_taken_for_dead(backend: Backend) -> None:
    """Contract I3. Its gate renews what it has claimed, however long the body takes."""
    office = Office(backend, gates=2, wait=0.0)
    async with office as (busy, other):
        running = asyncio.create_task(office.call(busy, "pause"))
        await office.shop.running.wait()
        for _ in range(20):
            backend.now.move(Effects(lease=LEASE).every)
            await busy.maintain()
            await other.maintain()
            assert (await office.call(other, "pause")).outcome == "in_flight"
        office.shop.go_on.set()
        assert told(await running) == told(await office.call(other, "pause")) == ("success", 1)


@SHARED
@AUDITED
@pytest.mark.parametrize(("name", "outcome", "ran"), [("pause", "unknown", [1]), ("put", "success", [1, 2])])
async def test_eight_workers_that_find_a_dead_one_run_nothing_again_unless_it_may_run_twice(
    backend: Backend, name: str, outcome: str, ran: list[int], audit: bool
) -> None:
    """Contract I4. And then one of them does."""
    office = Office(backend, gates=GATES, audit=audit)
    async with office as (dead, *others):
        zombie = await fall_asleep(office, dead, name)
        found = await asyncio.gather(*(office.call(others[worker % 2], name) for worker in range(WORKERS)))
        assert [result.outcome for result in found] == [outcome] * WORKERS
        assert office.shop.ran == ran
        zombie.cancel()
        await asyncio.wait([zombie])


@SHARED
async def test_a_ledger_without_fencing_is_found_out(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract I4: the control. Whoever settles does so, whatever the token."""
    office = Office(backend, gates=2)
    async with office as (asleep, awake):
        zombie = await fall_asleep(office, asleep, "pause")
        assert (await office.call(awake, "pause")).outcome == "unknown"
        store: Any = asleep.store
        settle = store.ledger.settle

        async def settle_anyhow(tenant: str, outcome: Any, rows: Any) -> Any:
            return await settle(tenant, replace(outcome, token=(await office.row()).token, of=list(EffectState)), rows)

        monkeypatch.setattr(store.ledger, "settle", settle_anyhow)
        office.shop.go_on.set()
        await zombie
        assert (await office.row()).state is EffectState.COMMITTED
