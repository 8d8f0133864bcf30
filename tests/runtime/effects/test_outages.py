"""An outage of the store that is longer than a lease: a living process knows how its effects ended, and says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, Gate, ToolCall, tool
from callgate.errors import StoreError
from callgate.hooks import Audit
from callgate.runtime.effects.ledger import Ledger
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import ANN, KEY

LEASE, RUNNING = 60.0, 20
STATES = ["", "control: no settling of one's own"]


@pytest.fixture(params=["sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


class Cut:
    """A part of a store that fails while the store is down."""

    def __init__(self, inner: Any, office: Office) -> None:
        self._inner, self._office = inner, office

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def asked(*args: Any, **more: Any) -> Any:
            if self._office.down:
                raise StoreError("the store is down")
            return await found(*args, **more)

        return asked


class Office:
    """Gates on one database and one clock, a tool that runs until it is told to end, and an outage."""

    def __init__(self, address: str, *, audit: bool = False) -> None:
        self.clock, self.down = FakeClock(), False
        self._address, self._hooks = address, [Audit()] if audit else []
        self.ran: Counter[int] = Counter()
        self.all_run = asyncio.Event()
        self.ends = [asyncio.Event() for _ in range(RUNNING)]

    def _tool(self) -> Any:
        @tool(effect="irreversible")
        async def pay(n: int) -> int:
            """Pay."""
            self.ran[n] += 1
            if len(self.ran) == RUNNING:
                self.all_run.set()
            await self.ends[n].wait()
            return n

        return pay

    @asynccontextmanager
    async def gate(self, *, cut: bool = True, **more: Any) -> AsyncGenerator[Gate]:
        options: dict[str, Any] = {"effects": Effects(lease=LEASE, wait=0.0), "clock": self.clock}
        options |= {"signing_keys": [KEY], "open": True, "store": self._address} | more
        async with Gate([self._tool()], self._hooks, **gate_options(**options)) as gate:
            ledger: Any = gate._records.ledger
            if cut:
                ledger.effects, ledger.writer = Cut(ledger.effects, self), Cut(ledger.writer, self)
            yield gate

    def call(self, gate: Gate, n: int) -> Any:
        asked = ToolCall(id=f"c{n}", name="pay", arguments={"n": n})
        return gate.call(asked, user=ANN, idempotency_key=f"k{n}")

    async def start(self, gate: Gate) -> list[asyncio.Task[Any]]:
        """Calls that are in their bodies."""
        calls = [asyncio.create_task(self.call(gate, n)) for n in range(RUNNING)]
        await self.all_run.wait()
        return calls

    async def outage(self, *gates: Gate) -> None:
        """Two leases without a store, while the gates try to renew."""
        self.down = True
        for _ in range(10):
            self.clock.advance(Effects(lease=LEASE).every)
            for gate in gates:
                await gate.maintain()
        self.down = False

    async def states(self, gate: Gate) -> Counter[str]:
        return Counter([effect.state.value for _, effect in await gate.store.effects.list(None, limit=1000)])


@pytest.mark.parametrize("audit", [False, True], ids=["", "audited"])
@pytest.mark.parametrize("settles", [True, False], ids=STATES)
async def test_what_became_unknown_in_an_outage_is_settled_by_the_process_that_knows(
    address: str, settles: bool, audit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 B1: half of them end while the store is down, half after another process has given them up."""
    if not settles:
        monkeypatch.setattr(Ledger, "_settle_own", lambda *_: asyncio.sleep(0, result=False))
    office = Office(address, audit=audit)
    async with office.gate() as owner:
        calls = await office.start(owner)
        office.down = True
        for end in office.ends[: RUNNING // 2]:
            end.set()
        await asyncio.wait(calls[: RUNNING // 2])
        await office.outage(owner)
        async with office.gate(cut=False) as started_after:  # it knows of no outage
            await started_after.maintain()
            assert await office.states(started_after) == {"unknown": RUNNING}
        for end in office.ends:
            end.set()
        await asyncio.wait(calls)
        await owner.maintain()
        assert await office.states(owner) == {"committed" if settles else "unknown": RUNNING}
        if settles:
            repeats = [await office.call(owner, n) for n in range(RUNNING)]
            assert [(one.output, one.replayed) for one in repeats] == [(n, True) for n in range(RUNNING)]
        if audit:
            rows = [row.body async for row in owner.store.audit.read("acme")]
            ended = Counter([row["request_id"] for row in rows if row["kind"] == "outcome"])
            assert set(ended.values()) == {1}, "each end is recorded once"
    assert set(office.ran.values()) == {1}


@pytest.mark.parametrize("waits", [True, False], ids=["", "control: no grace"])
async def test_after_an_outage_a_process_waits_a_lease_until_it_gives_up_the_effects_of_others(
    address: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 B1: the owner could not renew, and does so once the store is back. The dead are given up later."""
    office = Office(address)
    async with office.gate() as owner, office.gate() as other:
        calls = await office.start(owner)
        await office.outage(owner, other)
        if not waits:
            other._records.ledger._expires_from = float("-inf")
            monkeypatch.setattr(Ledger, "renew", lambda *_: asyncio.sleep(0))
        await other.maintain()  # before the owner has renewed
        assert await office.states(other) == {"running" if waits else "unknown": RUNNING}
        if waits:
            await owner.maintain()
            for _ in range(10):
                office.clock.advance(Effects(lease=LEASE).every)
                await owner.maintain()
                await other.maintain()
            assert await office.states(other) == {"running": RUNNING}
            for _ in range(5):  # the owner is dead now
                office.clock.advance(Effects(lease=LEASE).every)
                await other.maintain()
            assert await office.states(other) == {"unknown": RUNNING}, "the grace has ended"
        for end in office.ends:
            end.set()
        await asyncio.wait(calls)
        assert await office.states(owner) == {"committed": RUNNING}


@pytest.mark.parametrize("settled", ["no_effect", "committed"])
async def test_an_effect_that_was_settled_by_others_meanwhile_stays_as_it_is(address: str, settled: str) -> None:
    """Contract I4: such as by `callgate effects settle`, or by a hook that asked the service."""
    from callgate.providers.stores.effects import EffectState

    office = Office(address)
    async with office.gate() as owner:
        calls = await office.start(owner)
        office.clock.advance(2 * LEASE)
        async with office.gate(cut=False) as other:
            await other.maintain()
            for tenant, effect in await other.store.effects.list(None):
                of = (EffectState.UNKNOWN,)
                done = other.store.effects.settle(
                    tenant, effect.key, effect.token, EffectState(settled), at=office.clock.time(), of=of, note="mine"
                )
                assert await done
        for end in office.ends:
            end.set()
        await asyncio.wait(calls)
        await owner.maintain()
        assert await office.states(owner) == {settled: RUNNING}
        assert {effect.note for _, effect in await owner.store.effects.list(None)} == {"mine"}


class Silent:
    """A writer of the ledger that does not answer about outcomes until ``answers`` is set."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.answers = inner, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def settle(self, *args: Any) -> Any:
        await self.answers.wait()
        return await self._inner.settle(*args)


LEFT = ["", "control: nothing is recorded at the end"]


@pytest.mark.parametrize("records", [True, False], ids=LEFT)
@pytest.mark.parametrize("fault", ["down", "silent"])
async def test_a_gate_that_closes_records_the_outcomes_that_it_could_not_record_before(
    address: str, fault: str, records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 5: calls that had succeeded were `unknown`, since no round of maintenance came before the end."""
    if not records:
        monkeypatch.setattr(Ledger, "close", lambda _: asyncio.sleep(0))
    office = Office(address)
    async with office.gate(closing=0.5) as owner:
        calls = await office.start(owner)
        ledger: Any = owner._records.ledger
        silent = Silent(ledger.writer)
        if fault == "silent":
            ledger.writer = silent
        office.down = fault == "down"
        for end in office.ends:
            end.set()
        assert {one.outcome for one in await asyncio.gather(*calls)} == {"success"}
        office.down = False
        silent.answers.set()
    async with office.gate() as later:
        assert await office.states(later) == {"committed" if records else "running": RUNNING}


@pytest.mark.parametrize("fault", ["down", "silent"])
async def test_a_gate_that_closes_without_its_store_says_how_many_outcomes_are_left(
    address: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No effect stays unsettled in silence, and one line is enough."""
    office = Office(address)
    gate = office.gate(closing=0.5, drain=0.5)
    owner = await gate.__aenter__()
    calls = await office.start(owner)
    ledger: Any = owner._records.ledger
    if fault == "silent":
        ledger.writer = Silent(ledger.writer)
    office.down = fault == "down"
    for end in office.ends:
        end.set()
    await asyncio.gather(*calls)
    caplog.clear()
    with suppress(TimeoutError):
        await gate.__aexit__(None, None, None)
    lines = [one.getMessage() for one in caplog.records if "effect.unsettled" in one.getMessage()]
    assert len(lines) == 1
    assert f"number={RUNNING}" in lines[0]
