"""The n-th operation of the store fails, or is done and says that it failed, for all n: no effect runs twice, none is lost."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path as Folder
from typing import Any, Literal, Self

import pytest

from callgate.errors import StoreError
from callgate.hooks import verify_audit
from callgate.providers.stores.effects import EffectRecord
from callgate.providers.stores.memory.store import MemoryStore
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.providers.stores.backends import Backend, opened, place
from tests.providers.stores.conftest import Places, at
from tests.runtime.effects.fault_paths import PATHS
from tests.runtime.effects.fault_stories import LEASE, Broken, Path, Shop, Story, another, gate_on
from tests.runtime.effects.faulty_batches import fail_batches

MANY = 10_000
DATABASES = ("sqlite-file", "postgresql")
TURNS = ((False, False),), ((True, True),)
ALL = tuple(itertools.product((False, True), repeat=2))
"""Whether all operations fail from the n-th on, and whether the process is another afterwards."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Places, ExitStack, Folder]]:
    """Where the stores lie; each story has a tenant of its own."""
    with ExitStack() as stack:
        yield {}, stack, tmp_path_factory.mktemp("stores")


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
async def backend(
    request: pytest.FixtureRequest, places: tuple[Places, ExitStack, Folder]
) -> AsyncGenerator[Backend, None]:
    async for each in at(request.param, places):
        yield each


def errors() -> Generator[Exception]:
    """What a store says that fails: one kind after the other."""
    while True:
        yield InjectedFault("broken")
        yield TimeoutError()
        yield StoreError("the connection is lost")


class Bad:
    """A gate whose store fails when told to, and another on the same data whose store does not."""

    def __init__(self, backend: Backend, when: Literal["before", "after"] = "before") -> None:
        self.backend, self.shop = backend, Shop()
        store: Any = another(backend)
        self.store = FaultyStore(store, when=when, error=errors().__next__)
        self.faults = faults_of(self.store)
        if getattr(store, "ledger", None) is not None:  # its statements are sent in batches
            fail_batches(store.ledger._batches, self.faults)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        now, other = self.backend.now, another(self.backend)
        self.shaky = await self._stack.enter_async_context(gate_on(self.store, now, self.shop))
        self.steady = await self._stack.enter_async_context(gate_on(other, now, self.shop))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def live(self, path: Path, n: int = 0, *, outage: bool = False, restarts: bool = False) -> bool:
        """One story, with the n-th operation struck, or all from there on; whether any was."""
        tenant = f"{self.backend.tenant}-{self.faults.calls}"
        story, clock = Story(self.shop, self.backend.store, tenant), self.backend.now
        if path.before is not None:
            await path.before(story, self.shaky)
        clock.move(1.0)
        begun = self.faults.calls
        if n:
            self.faults.at = frozenset(range(begun + n, begun + n + (MANY if outage else 1)))
        await path.act(story, self.shaky)
        self.faults.at = frozenset()
        acts = self.faults.log[begun:]
        if not restarts:
            await self.shaky.maintain()
        gate = self.steady if restarts else self.shaky
        clock.move(LEASE)
        await gate.maintain()
        await story.find_waiting(gate)
        for _ in range(2):
            await path.again(story, gate)
        try:
            await story.check(path, repaired=not outage and not restarts)
        except Broken as broken:
            told = [(one.outcome, one.output) for one in story.told]
            raise Broken(f"{path.name}, fault {n} of {acts}: {broken}; told {told}, ran {story.ran}") from None
        return 0 < n <= len(acts)


def cases() -> list[Any]:
    """Every path in each way: in memory all that can happen afterwards; on one of the databases, by turns, one end of it.

    All of it on both is a soak.
    """
    found = []
    for number, (path, when) in enumerate(itertools.product(PATHS, ("before", "after"))):
        turn = DATABASES[(number + number // 2) % 2], "some", TURNS[number // 4 % 2], False
        soak = [(kind, "soak", ALL, True) for kind in DATABASES]
        for kind, name, ways, long in [("memory", "all", ALL, False), turn, *soak]:
            marks = pytest.mark.soak if long else ()
            found.append(pytest.param(kind, ways, path, when, marks=marks, id=f"{path.name}-{when}-{kind}-{name}"))
    return found


@pytest.mark.parametrize(("backend", "ways", "path", "when"), cases(), indirect=["backend"])
async def test_whichever_operation_of_the_store_fails_nothing_runs_twice_and_no_success_is_lost(
    backend: Backend, ways: tuple[tuple[bool, bool], ...], when: Literal["before", "after"], path: Path
) -> None:
    """Contract I3, I4, I5, I20. Nothing runs for ever, and the audit record is whole, either."""
    async with Bad(backend, when) as bad:
        for outage, restarts in ways:
            n = 1
            while await bad.live(path, n, outage=outage, restarts=restarts):
                n += 1
            assert n > (path.least if backend.store.durable else 2), "operations that were struck"
        report = await verify_audit(backend.store.audit)
        assert report.ok, str(report)


# ---------------------------------------------------------------------- controls

PATH = {path.name: path for path in PATHS}


class Forgets(MemoryStore):
    """A store that says it has done what it has not."""

    def __init__(self, now: Any, *, claims: bool) -> None:
        super().__init__(now)
        effects: Any = self.effects
        if claims:
            effects.claim = self._claimed
        else:
            effects.settle = self._settled

    async def _claimed(self, _tenant: str, effect: EffectRecord, *, retry: bool = False) -> tuple[bool, EffectRecord]:
        return True, effect

    async def _settled(self, *_: Any, **__: Any) -> bool:
        return True


@pytest.mark.parametrize(("claims", "found"), [(False, "an effect stays running"), (True, "3 effects under one key")])
async def test_a_store_that_forgets_an_end_or_a_claim_is_found_out(claims: bool, found: str, tmp_path: Folder) -> None:
    """Contract I3, I4: the control."""
    with place("memory", tmp_path) as at:
        async with opened("memory", at) as backend:
            backend.store = Forgets(backend.now, claims=claims)
            async with Bad(backend) as bad:
                with pytest.raises(Broken, match=found):
                    await bad.live(PATH["call"])
