"""``CircuitBreaker``: when it opens, how it closes again, and that probes are few and never lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, RetryLater, ToolContext, ToolError, User, tool
from callgate.errors import HookError
from callgate.hooks.stock.capacity.concurrency import Concurrency
from callgate.hooks.stock.capacity.rate_limit import Quota
from callgate.hooks.stock.resilience.circuit_breaker import CircuitBreaker
from callgate.hooks.stock.resilience.retry import Retry
from callgate.hooks.stock.resilience.timeout import Deadline, Timeout
from callgate.providers.circuits import Circuit, LocalCircuits, Refused
from callgate.providers.clock import SystemClock
from callgate.providers.stores.base import CacheEntry
from callgate.providers.stores.memory.store import MemoryStore
from callgate.testing import FAR, LeaseLedger, SweepFailed, every_cancel_point, run_virtual
from tests.harness.sweeps import swept
from tests.hooks.stock.capacity.limiting import (
    USER,
    Desk,
    FailingStore,
    WaitingStore,
    ask,
    key_in,
    places_held,
    taken,
    work,
)

BOB = User("bob", tenant="acme")


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    with made.time:
        yield made


class Patient:
    """A tool that fails while it is ill."""

    def __init__(self) -> None:
        self.ill = True
        self.calls = 0
        self.error: BaseException = ConnectionError("ill")

        @tool(effect="read", name="patient")
        async def patient(seconds: float = 0.0) -> str:
            """Works when it is well."""
            self.calls += 1
            await asyncio.sleep(seconds)
            if self.ill:
                raise self.error
            return "well"

        self.tool = patient


async def treat(gate: Gate, *calls: dict[str, Any], **options: Any) -> str:
    """The outcomes of some calls, a letter each."""
    ends = [await ask(gate, arguments, tool="patient", **options) for arguments in calls]
    return "".join(str(end.outcome)[0] for end in ends)


both = pytest.mark.parametrize("shared", [False, True], ids=["local", "shared"])


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"failure_threshold": 0},
        {"max_probes": 0},
        {"window": 0},
        {"open_for": -1},
        {"refresh": -1},
        {"on": 7},
        {"on": KeyboardInterrupt},
        {"by": "tol"},
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(settings: dict[str, Any]) -> None:
    """Contract C33."""
    with pytest.raises(HookError):
        CircuitBreaker(**settings)


# ---------------------------------------------------------------------- its life


@both
def test_it_opens_refuses_with_the_right_time_probes_and_closes(desk: Desk, shared: bool) -> None:
    """Contract 88."""
    patient = Patient()

    async def main() -> None:
        hook = CircuitBreaker(3, window=60, open_for=30, shared=shared)
        async with desk.gate(hook, tools=[patient.tool]) as gate:
            assert await treat(gate, {}, {}, {}, {}, {}) == "eeerr"
            assert patient.calls == 3
            await asyncio.sleep(10)
            refused = await ask(gate, tool="patient")
            assert refused.error is not None
            assert refused.error.code == "circuit_open"
            assert refused.retry_after is not None
            assert 19_000 < refused.retry_after <= 20_000
            await asyncio.sleep(refused.retry_after / 1000)
            assert await treat(gate, {}, {}) == "er"  # the probe failed: open again
            await asyncio.sleep(30)
            patient.ill = False
            assert await treat(gate, {}, {}) == "ss"
            patient.ill = True
            assert await treat(gate, {}, {}, {}, {}) == "eeer"  # it counts anew
        assert places_held(desk.store) == 0

    desk.run(main())


@both
def test_failures_that_lie_apart_do_not_open_it(desk: Desk, shared: bool) -> None:
    """Contract 88."""
    patient = Patient()

    async def main() -> None:
        async with desk.gate(CircuitBreaker(3, window=10, shared=shared), tools=[patient.tool]) as gate:
            for _ in range(9):
                assert await treat(gate, {}) == "e"
                await asyncio.sleep(11 if not shared else 20)  # the store's window slides in two halves

    desk.run(main())


@both
@pytest.mark.parametrize("half_open", [1, 3])
def test_no_more_probes_run_than_may(desk: Desk, shared: bool, half_open: int) -> None:
    """I11."""
    patient = Patient()

    async def main() -> None:
        hook = CircuitBreaker(1, open_for=5, max_probes=half_open, shared=shared)
        async with desk.gate(hook, tools=[patient.tool]) as gate:
            assert await treat(gate, {}) == "e"
            await asyncio.sleep(5)
            patient.calls = 0
            patient.ill = False
            ends = await asyncio.gather(*(treat(gate, {"seconds": 1}) for _ in range(9)))
            assert patient.calls == half_open
            assert ends.count("s") == half_open
            assert await treat(gate, {}, {}) == "ss"

    desk.run(main())


@both
def test_a_probe_that_is_cancelled_gives_its_place_back(desk: Desk, shared: bool) -> None:
    """I11: it says nothing about the tool."""
    patient = Patient()

    async def main() -> None:
        async with desk.gate(CircuitBreaker(1, open_for=5, shared=shared), tools=[patient.tool]) as gate:
            assert await treat(gate, {}) == "e"
            await asyncio.sleep(5)
            for _ in range(3):
                probe = asyncio.create_task(treat(gate, {"seconds": 9}))
                await asyncio.sleep(1)
                assert await treat(gate, {}) == "r"
                probe.cancel()
                await asyncio.wait([probe])
            patient.ill = False
            assert await treat(gate, {}, {}) == "ss"

    desk.run(main())


@both
def test_each_key_has_its_own_circuit(desk: Desk, shared: bool) -> None:
    """I8."""
    patient = Patient()

    async def main() -> None:
        async with desk.gate(CircuitBreaker(1, by="user", shared=shared), tools=[patient.tool, work]) as gate:
            assert await treat(gate, {}, {}) == "er"
            assert await treat(gate, {}, user=BOB) == "e"
            assert str((await ask(gate, user=BOB)).outcome) == "retry_later"
        async with desk.gate(CircuitBreaker(1, shared=shared), tools=[patient.tool, work]) as gate:
            assert await treat(gate, {}) == "e"
            assert await treat(gate, {}, user=BOB) == "r"
            assert str((await ask(gate)).outcome) == "success"

    desk.run(main())


# ---------------------------------------------------------------------- what counts


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (ConnectionError("ill"), True),
        (KeyboardInterrupt(), True),
        (ToolError("There is no such order."), False),
        (RetryLater(5), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_tool_means_for_the_model_is_no_failure(desk: Desk, error: BaseException, opens: bool) -> None:
    """Contract 88."""
    patient = Patient()
    patient.error = error

    async def main() -> None:
        async with desk.gate(CircuitBreaker(2), tools=[patient.tool]) as gate:
            await treat(gate, {}, {}, {})
        assert patient.calls == (2 if opens else 3)

    desk.run(main())


def test_what_counts_as_a_failure_can_be_declared(desk: Desk) -> None:
    """Contract 88."""

    async def main() -> None:
        declared: list[tuple[Any, int]] = [
            (ValueError, 5),
            (ConnectionError, 2),
            (lambda error: "ill" in str(error), 2),
        ]
        for on, calls in declared:
            patient = Patient()
            async with desk.gate(CircuitBreaker(2, on=on), tools=[patient.tool]) as gate:
                await treat(gate, *[{}] * 5)
            assert patient.calls == calls

    desk.run(main())


@both
@pytest.mark.parametrize(
    "on", [lambda error: 1 / 0, lambda error: None, lambda error: "no"], ids=["raises", "none", "text"]
)
def test_a_declaration_that_fails_opens_the_circuit_and_hides_no_error(desk: Desk, shared: bool, on: Any) -> None:
    """I10: a probe closed a shared circuit, and the call ended with the error of the declaration."""
    patient = Patient()

    async def main() -> None:
        breaker = CircuitBreaker(1, open_for=5, shared=shared, on=on)
        async with desk.gate(breaker, tools=[patient.tool]) as gate:
            assert await treat(gate, {}, {}) == "er"
            await asyncio.sleep(5)
            assert await treat(gate, {}, {}) == "er"
            patient.ill = False
            await asyncio.sleep(5)
            assert await treat(gate, {}, {}) == "ss"

    desk.run(main())


def test_a_refusal_further_inside_is_neither_failure_nor_success(desk: Desk) -> None:
    """Contract 88."""
    patient = Patient()

    class Refuses(Hook):
        on_now = False

        def will_execute(self, ctx: InvokeContext) -> None:
            if self.on_now:
                ctx.abort("no")

    refuses = Refuses()

    async def main() -> None:
        async with desk.gate(CircuitBreaker(2, open_for=5), refuses, tools=[patient.tool]) as gate:
            refuses.on_now = True
            assert await treat(gate, {}, {}, {}) == "ddd"
            refuses.on_now = False
            assert await treat(gate, {}, {}) == "ee"
            await asyncio.sleep(5)
            refuses.on_now = True
            assert await treat(gate, {}, {}) == "dd"  # a probe that did not get there gives its place back
            refuses.on_now = patient.ill = False
            assert await treat(gate, {}) == "s"

    desk.run(main())


@pytest.mark.parametrize("hooks", [(Timeout(1),), (Deadline(1),), ()], ids=["attempt", "total", "gate"])
@both
def test_a_tool_that_hangs_until_its_time_is_over_has_failed(desk: Desk, hooks: Any, shared: bool) -> None:
    """I12: whoever set the limit, a hook inside or outside, or the gate."""
    patient = Patient()

    async def main() -> None:
        async with desk.gate(CircuitBreaker(2, shared=shared), *hooks, tools=[patient.tool], deadline=1) as gate:
            await treat(gate, *[{"seconds": 60}] * 4)
        assert patient.calls == 2

    desk.run(main())


def test_a_call_with_all_its_attempts_is_one_failure(desk: Desk) -> None:
    """Design 4: the bands."""
    patient = Patient()

    async def main() -> None:
        hooks = [Retry(3, wait=lambda retry: 0.0), CircuitBreaker(2)]
        async with desk.gate(*hooks, tools=[patient.tool]) as gate:
            assert await treat(gate, {}, {}, {}) == "eer"
            assert gate.lint() == []
        assert patient.calls == 6

    desk.run(main())


def test_a_response_of_the_tool_is_a_success(desk: Desk) -> None:
    """Contract 99."""

    @tool(effect="read", name="patient")
    async def responds(ctx: ToolContext) -> str:
        ctx.respond("well")

    async def main() -> None:
        hook = CircuitBreaker(1)
        async with desk.gate(hook, tools=[responds]) as gate:
            assert hook.local is not None
            opened = hook.local.known[key_in(hook, "patient")] = Circuit(hook.local.settings)
            opened.open_until = 0.0
            assert await treat(gate, {}, {}) == "ss"
            assert hook.local.known == {}

    desk.run(main())


@both
@pytest.mark.parametrize("half_open", [1, 3])
@pytest.mark.parametrize("late", ["success", "failure", "cancelled"])
def test_probes_that_hang_do_not_keep_the_circuit_open(desk: Desk, shared: bool, half_open: int, late: str) -> None:
    """I11: their permits expire; whatever they end with later takes no permit from others and gives none back twice."""
    patient = Patient()

    async def main() -> None:
        hook = CircuitBreaker(1, open_for=5, max_probes=half_open, shared=shared, refresh=0.0)
        async with desk.gate(hook, tools=[patient.tool]) as gate:
            assert await treat(gate, {}) == "e"
            await asyncio.sleep(5)
            hung = [asyncio.create_task(treat(gate, {"seconds": 1_000})) for _ in range(half_open)]
            await asyncio.sleep(4.9)
            assert await treat(gate, {}) == "r", "they hold all permits"
            await asyncio.sleep(0.2)
            assert await treat(gate, {}) == "e", "another call probes, and the tool is still ill"
            assert await treat(gate, {}) == "r", "the circuit is open again"
            await asyncio.sleep(5)
            patient.ill = False
            assert await treat(gate, {}, {}) == "ss", "it has recovered, and they still hang"
            patient.ill = late == "failure"
            if late == "cancelled":
                for task in hung:
                    task.cancel()
            await asyncio.wait(hung)
            if hook.local is not None:
                assert all(len(circuit.probing) == 0 for circuit in hook.local.known.values())
            patient.ill = False
            await asyncio.sleep(5)
            assert await treat(gate, {}, {}) == "ss"
        assert places_held(desk.store) == 0

    desk.run(main())


def test_the_breaker_agrees_with_a_model_of_it() -> None:
    """Contract 88: random calls against twenty lines that say what a circuit is."""
    for seed in range(200):
        rolls = random.Random(seed)
        hook = CircuitBreaker(rolls.randint(1, 4), window=rolls.choice([3, 10]), open_for=rolls.choice([2, 5]))
        assert hook.local is not None
        circuits, settings = hook.local, hook.local.settings
        now, failed, open_until = 0.0, list[float](), None
        for _ in range(60):
            now += rolls.choice([0.1, 0.5, 1.0, 3.0])
            verdict = rolls.choice([True, True, False, None])
            passes = open_until is None or now >= open_until
            try:
                probe = circuits.enter(("", "k"), now)
            except Refused:
                assert not passes
                continue
            assert passes
            assert (probe is not None) == (open_until is not None)
            circuits.leave(("", "k"), probe, verdict, now)
            if open_until is not None:
                if verdict is not None:
                    open_until, failed = (now + settings.open_for, []) if verdict else (None, [])
            elif verdict:
                failed.append(now)
                if len([at for at in failed if now - at <= settings.window]) >= settings.failures:
                    open_until, failed = now + settings.open_for, []


def test_circuits_without_recent_failures_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 8: memory has a bound that users cannot lift."""
    monkeypatch.setattr("callgate.providers.circuits.MAX_CIRCUITS", 100)
    hook = CircuitBreaker(5, window=10)
    circuits: Any = hook.local
    assert isinstance(circuits, LocalCircuits)
    for n in range(1000):
        circuits.leave(("", str(n)), None, True, float(n))
    assert len(circuits.known) <= 100


# ---------------------------------------------------------------------- through a store


def test_what_one_gate_learns_another_knows(desk: Desk) -> None:
    """Design 8."""
    patient = Patient()

    async def main() -> None:
        def made() -> CircuitBreaker:
            return CircuitBreaker(4, open_for=30, shared=True, refresh=1)

        async with (
            desk.gate(made(), tools=[patient.tool]) as one,
            desk.gate(made(), tools=[patient.tool]) as two,
        ):
            assert await treat(one, {}, {}) + await treat(two, {}, {}) == "eeee"
            await asyncio.sleep(1)
            assert await treat(one, {}) + await treat(two, {}) == "rr"
            await asyncio.sleep(30)
            patient.ill = False
            assert await treat(one, {}) == "s"
            await asyncio.sleep(1)
            assert await treat(two, {}) == "s"
        assert patient.calls == 6

    desk.run(main())


def test_while_the_store_fails_calls_pass(desk: Desk) -> None:
    """Availability: a breaker that does not know is no reason to refuse."""
    patient = Patient()

    async def main() -> None:
        store = FailingStore(desk.now)
        async with desk.gate(CircuitBreaker(1, store=store), tools=[patient.tool]) as gate:
            assert await treat(gate, {}, {}, {}) == "eee"
            patient.ill = False
            assert await treat(gate, {}) == "s"

    desk.run(main())


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("nth", range(1, 12))
def test_whichever_operation_of_the_store_fails_it_gets_over_it(desk: Desk, nth: int, commits: bool) -> None:
    """I10."""
    patient = Patient()

    async def main() -> None:
        store = FailingStore(desk.now, nth, commits=commits)
        async with desk.gate(CircuitBreaker(2, open_for=5, store=store), tools=[patient.tool]) as gate:
            assert set(await treat(gate, {}, {}, {}, {})) <= {"e", "r"}
            await asyncio.sleep(6)
            await treat(gate, {})
            await asyncio.sleep(11)
            patient.ill = False
            assert (await treat(gate, {}))[0] in "sr"
            await asyncio.sleep(11)
            assert await treat(gate, {}) == "s"
        assert places_held(store) == 0

    desk.run(main())


# ---------------------------------------------------------------------- cancellation: quota, places and breaker together


def sweeping(shared: bool, *, ill: bool = False, hooks: Any = (), **options: Any) -> Any:
    """A call under all three, its circuit half open; everything is given back, so that a leak or a double shows."""

    async def scenario(ledger: LeaseLedger) -> Any:
        loop = asyncio.get_running_loop()
        store, patient = WaitingStore(loop.time), Patient()
        patient.ill = ill
        quota = Quota("9/minute; 99/hour", refund_on=lambda ctx: True)
        places = Concurrency(2, shared=shared, queue=1, queue_timeout=1)
        breaker = CircuitBreaker(1, open_for=5, shared=shared)
        key = key_in(breaker, "patient")
        inside: Any = store.inside
        for limit in quota.limits:  # so that a second refund would show
            await inside[0].take(*key_in(quota, "patient"), limit, 5)
        circuit: Circuit | None = None
        if breaker.local is not None:
            circuit = breaker.local.known[key] = Circuit(breaker.local.settings)
            circuit.open_until = SystemClock.monotonic() - 1  # the gate's clock: the machine's
        else:
            await inside[2].put(*key, CacheEntry(b"{}", 0.0, loop.time() - 1, loop.time() + 1e6))
        ledger.watch("units", lambda: taken(store))
        ledger.watch("places", lambda: (places.in_use(), places_held(store)))
        ledger.watch("probes", lambda: len(circuit.probing) if circuit is not None else 0)
        async with Gate([patient.tool], [quota, places, breaker, *hooks], allow_unguarded=True, store=store) as gate:
            return await gate.invoke("patient", {"seconds": 0.01}, user=USER, **options)

    return scenario


@both
@pytest.mark.parametrize("ill", [False, True])
@swept
def test_cancelled_at_any_point_nothing_of_the_three_leaks_or_comes_back_twice(
    shared: bool, ill: bool, sweep: dict[str, Any]
) -> None:
    """I1, I1b, I11, I13."""
    assert every_cancel_point(sweeping(shared, ill=ill), **sweep).points > 100
    every_cancel_point(sweeping(shared, ill=ill, deadline=FAR), deadline=True, pairs=sweep["pairs"])


def test_control_a_probe_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: control."""

    def forgets(self: Any, key: Any, probe: Any, failed: Any, now: float) -> None:
        if failed is not None and probe is not None:
            probe.circuit.probing.remove(probe.until)

    monkeypatch.setattr(LocalCircuits, "leave", forgets)
    with pytest.raises(SweepFailed, match="probes"):
        every_cancel_point(sweeping(False), stop_after=1)


def test_one_machine_needs_no_store() -> None:
    """Performance: in process nothing is asked of the store."""
    patient = Patient()
    patient.ill = False

    async def main() -> None:
        store = FailingStore(asyncio.get_running_loop().time)
        hooks = [CircuitBreaker(), Concurrency(3)]
        async with Gate([patient.tool], hooks, store=store) as gate:
            assert await treat(gate, {}) == "s"
        assert store.counter == [0]
        assert isinstance(store, MemoryStore)

    run_virtual(main())
