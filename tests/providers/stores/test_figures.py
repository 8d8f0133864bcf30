"""The figures of a store: what an operator has to look at, and how busy its connections are."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from callgate import Effects, Gate, Hook, User, tool
from callgate.hooks import Audit, Metrics
from callgate.providers.stores.effects import Alias, EffectState
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.commands import stores
from callgate.stores import JobState, StoreFigures
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import opened, place
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import effect, wait

KINDS = ["memory", "sqlite-memory", "sqlite-file", "postgresql"]


async def fill(store: Any, now: float) -> None:
    """Keep records in all states, of which two effects, one call and three jobs need attention."""
    for number in range(4):
        await store.effects.claim("t", effect(now, f"e{number}", lease=1.0), alias=Alias(f"a{number}", "given"))
    for number in range(2, 4):
        await store.effects.settle("t", f"e{number}", 1, EffectState.COMMITTED, at=now, aliases=True)
    assert await store.effects.expire(now + 2.0) == 2
    await store.suspensions.put("t", wait(now, "waits", lasts=None))
    await store.suspensions.put("u", wait(now, "used"))
    used = wait(now, "used", number=2, state="used")
    assert await store.suspensions.replace("u", used)
    for id, run_at, priority in (("a", now - 40.0, 0), ("b", now - 70.0, 5), ("later", now + 9.0, 0)):
        await store.jobs.add("t", job(now, id, run_at=run_at, priority=priority))
    await store.jobs.add("t", job(now, "done", run_at=now - 900.0))
    _, taken = await store.jobs.take("o", now, now + 60.0, id="done")
    assert await store.jobs.end("t", "done", taken.token, JobState.DONE, at=now, result=None, reason=None)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_counts_what_an_operator_has_to_look_at(kind: str, tmp_path: Path) -> None:
    """Issue 34, 6: of one namespace."""
    with place(kind, tmp_path) as where:
        async with opened(kind, where) as backend:
            store: Any = backend.store
            empty = await store.figures()
            assert (empty.unknown_effects, empty.suspended_calls, empty.oldest_job) == (0, 0, 0.0)
            await fill(store, backend.now())
            for one in (store, store.in_namespace("other")):
                found = await one.figures()
                counts = found.unknown_effects, found.suspended_calls, found.oldest_job
                assert counts == ((2, 1, 70.0) if one is store else (0, 0, 0.0))
            backend.now.move(10.0)
            assert (await store.figures()).oldest_job == 80.0


async def test_the_size_of_batches_and_the_wait_for_connections_are_counted(tmp_path: Path) -> None:
    """Issue 34, 6: of this process."""
    with place("postgresql", tmp_path) as (address, _):
        store = SqlStore(address, pool_size=2)
        await store.open()
        try:
            now = store.time()
            claims = [store.ledger.claim("t", effect(now, f"k{n}"), (), retry=False) for n in range(40)]
            await asyncio.gather(*claims)
            figures = await store.figures()
            assert figures.changes == 40
            assert 1 <= figures.transactions <= 20
            assert figures.connection_waits == 0
            await asyncio.gather(*(store.effects.get("t", "k1") for _ in range(20)))
            figures = await store.figures()
            assert figures.connection_waits == 18
            assert figures.connection_wait_time > 0.0
        finally:
            await store.close()


@tool(effect="irreversible")
async def pay(n: int) -> int:
    """Pay."""
    return n


@tool(effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data: Any = reader.get_metrics_data()
    every = (one for r in data.resource_metrics for scope in r.scope_metrics for one in scope.metrics) if data else ()
    return {
        one.name.removeprefix("callgate.store."): one.data.data_points[0].value
        for one in every
        if one.name.startswith("callgate.store.")
    }


@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
async def test_metrics_export_the_figures_of_the_store(kind: str, tmp_path: Path) -> None:
    """Issue 34, 6: with each maintenance. A hook without a provider asks the store for nothing."""
    reader = InMemoryMetricReader()
    asked = 0
    with place(kind, tmp_path) as (address, _):
        hooks = [Audit(), Metrics(), Metrics(MeterProvider([reader]))]
        options = gate_options(store=address, effects=Effects(durable=False), allow_unguarded=True)
        async with Gate([pay], hooks, **options) as gate:
            assert exported(reader) == {}
            await gate.call("pay", {"n": 1}, user=User("ann"))
            await gate.store.suspensions.put("t", wait(0.0, lasts=None))
            await gate.maintain()
            found = exported(reader)
            assert (found["suspended_calls"], found["unknown_effects"], found["oldest_job"]) == (1, 0, 0.0)
            assert (found["changes"], found["connection_waits"]) == (2 if kind != "memory" else 0, 0)
        async with Gate([pay], hooks[:2], **options) as gate:

            async def figures() -> None:
                nonlocal asked
                asked += 1

            gate.store.figures = figures  # type: ignore[attr-defined]
            await gate.maintain()
    assert asked == 0


class Noting(Hook):
    """A hook of an application, such as one for another system of metrics."""

    def __init__(self) -> None:
        self.noted: list[StoreFigures] = []

    def note_figures(self, figures: StoreFigures) -> None:
        """Take the figures."""
        self.noted.append(figures)


async def test_a_hook_of_the_application_gets_the_figures(tmp_path: Path) -> None:
    """As docs/how-to/choose-a-store.md says; once with each maintenance, on however many tools it is."""
    hook = Noting()
    with place("sqlite-file", tmp_path) as (address, _):
        async with Gate([pay, look], [Audit(), hook], **gate_options(store=address, allow_unguarded=True)) as gate:
            await gate.call("pay", {"n": 1}, user=User("ann"))
            await gate.maintain()
            await gate.maintain()
    assert [one.changes for one in hook.noted] == [2, 2]


async def test_the_command_shows_what_an_operator_has_to_look_at(tmp_path: Path) -> None:
    with place("sqlite-file", tmp_path) as where:
        async with opened("sqlite-file", where) as backend:
            await fill(backend.store, backend.now())
        out = io.StringIO()
        assert await asyncio.to_thread(stores.main, ["show", "--store", where[0]], out) == 0
        assert [line.split()[-2:] for line in out.getvalue().splitlines()][:2] == [["effects", "2"], ["calls", "1"]]
        assert await asyncio.to_thread(stores.main, ["show", "--store", "redis://127.0.0.1:1"], io.StringIO()) == 2
