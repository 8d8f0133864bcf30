"""Every cancel point of calls whose tools and hooks take scoped generators: nothing is left open, or closed twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, ToolContext, User, tool
from callgate.providers.scope import ProviderScope
from callgate.runtime.testing.cancel import SweepFailed, SweepReport
from callgate.runtime.testing.lease_ledger import LeaseLedger
from tests.harness.sweeps import swept

Sweep = Callable[..., SweepReport]
USER = User("u")
Outer = Annotated[int, Provide["outer"]]
Inner = Annotated[int, Provide["inner"]]


class Work:
    """A gate with three generators that wait as they open and close; one call a run. Call it with the run's ledger."""

    def __init__(self, name: str, session: str | None, *, fails: bool = False) -> None:
        self.ledger = LeaseLedger()
        self.name, self.session, self.fails = name, session, fails
        self.gate: Gate | None = None

    async def opened(self, name: str) -> AsyncIterator[int]:
        """One instance: a lease from its ``yield`` on."""
        ledger, lease = self.ledger, object()
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        ledger.acquired((name, id(lease)))
        try:
            yield 1
        finally:
            await asyncio.sleep(0.001)
            ledger.released((name, id(lease)))
            await asyncio.sleep(0)

    async def __call__(self, ledger: LeaseLedger) -> Any:
        self.ledger = ledger
        if self.gate is None:
            self.gate = self.made()
            await self.gate.__aenter__()
        if self.session is None:
            return await self.gate.invoke(self.name, {}, user=USER)
        async with self.gate.session(self.session, user=USER) as session:
            return await session.invoke(self.name, {})

    def made(self) -> Gate:
        """The gate."""
        case = self

        class Taking(Hook):
            async def will_authorize(self, ctx: InvokeContext, mine: int = Provide["mine"]) -> None:
                await asyncio.sleep(0)

            async def will_acquire_quota(self, ctx: InvokeContext) -> None:
                await asyncio.sleep(0)

            async def did_release_quota(self, ctx: InvokeContext, mine: int = Provide["mine"]) -> None:
                await asyncio.sleep(0)

        def outer() -> AsyncIterator[int]:
            return case.opened("outer")

        def inner(outer: Outer) -> AsyncIterator[int]:
            return case.opened("inner")

        def mine(outer: Outer) -> AsyncIterator[int]:
            return case.opened("mine")

        @tool(effect="read")
        async def work(*, inner: Inner) -> int:
            await asyncio.sleep(0)
            if case.fails:
                raise ValueError
            return inner

        @tool(effect="read")
        async def nests(*, outer: Outer, ctx: ToolContext) -> int:
            held: Any = ctx
            found = await asyncio.gather(held.call("work", {}), held.resolve("inner"))
            return int(found[0])

        @tool(effect="read", hard_deadline=True)
        async def apart(*, inner: Inner, ctx: ToolContext) -> int:
            held: Any = ctx
            await asyncio.sleep(0)
            return int(await held.resolve("mine"))

        provided = {
            "outer": Scoped("session", outer),
            "inner": Scoped("request", inner),
            "mine": Scoped("request", mine),
        }
        return Gate([work, nests, apart], [Taking()], provide=provided)


CASES = {
    "a call": lambda: Work("work", None),
    "a tool that fails": lambda: Work("work", None, fails=True),
    "nested calls that ask at once": lambda: Work("nests", None),
    "a body in a task of its own": lambda: Work("apart", None),
    "a session": lambda: Work("work", "s"),
    "a session, nested calls": lambda: Work("nests", "s"),
}


@swept
@pytest.mark.parametrize("name", CASES)
def test_no_instance_is_left_open_or_closed_twice_at_any_cancel_point(
    name: str, sweep: dict[str, Any], every_cancel_point: Sweep
) -> None:
    """Contract 84, C26, C1d. I1, I1b, I13, I19."""
    report = every_cancel_point(CASES[name](), **sweep)
    assert report.findings == []
    assert report.points >= 100
    assert report.leases == 3


def test_instances_that_are_not_closed_are_found(every_cancel_point: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the control."""
    end = ProviderScope.end
    monkeypatch.setattr(ProviderScope, "end", lambda self: end(self)[:-1])
    with pytest.raises(SweepFailed, match=r"late release|leak"):
        every_cancel_point(CASES["a call"](), pairs=5)
