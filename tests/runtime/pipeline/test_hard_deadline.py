"""What outlives its deadline: it is named in the log, or abandoned after a grace where ``hard_deadline`` is set."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Options, Outcome, Provide, Scoped, Stage, User, tool
from callgate.errors import RegistrationError
from callgate.runtime.pipeline.bodies import ABANDON_GRACE
from callgate.tools.declaring.declare import as_tool
from tests.harness.steploop import StepLoop, on_virtual_time

USER = User("u")
DEADLINE, LONG, SLACK = 1.0, 30.0, 0.05
"""Seconds of virtual time: of a call, of what swallows its cancellation, and of the timers."""


async def swallow(seconds: float = LONG) -> None:
    """Swallow each cancellation, for so long."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def wait_in_finally(seconds: float = LONG) -> None:
    """Wait after the cancellation, and raise it."""
    try:
        await asyncio.sleep(1e9)
    finally:
        await asyncio.sleep(seconds)


WAYS: dict[str, Callable[..., Awaitable[None]]] = {"swallows": swallow, "waits in finally": wait_in_finally}


async def settled(gate: Gate) -> None:
    """Wait for the end of what was left behind."""
    while gate._services.left_behind.tasks:
        await asyncio.wait(gate._services.left_behind.tasks)


# ---------------------------------------------------------------------- the option of the gate


def plain_function(**options: Any) -> Any:
    """A tool whose plain function returns what is to be awaited."""

    @tool(effect="read", inline=True, **options)
    def stubborn() -> Any:
        """Swallow."""
        return swallow()

    return stubborn


def coroutine(**options: Any) -> Any:
    return tool(effect="read", name="stubborn", **options)(swallow_all)


async def swallow_all() -> None:
    """Swallow."""
    await swallow()


@pytest.mark.parametrize(
    ("own", "of_gate", "hard"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False), (True, True, True)],
)
@pytest.mark.parametrize("kind", [coroutine, plain_function])
@on_virtual_time
async def test_the_gate_has_a_hard_deadline_for_tools_that_state_none(
    loop: StepLoop, kind: Callable[..., Any], own: bool | None, of_gate: bool, hard: bool
) -> None:
    """Contract I12."""
    async with Gate([kind(hard_deadline=own)], deadline=DEADLINE, options=Options(hard_deadline=of_gate)) as gate:
        began = loop.time()
        result = await gate.call("stubborn", {}, user=USER)
        assert result.outcome is (Outcome.UNKNOWN if hard else Outcome.ERROR)
        assert loop.time() - began <= DEADLINE + SLACK + (ABANDON_GRACE if hard else LONG)
        assert (loop.time() - began < LONG) == hard
        await settled(gate)


@pytest.mark.parametrize("value", [1, "yes", None, 0.5])
def test_a_hard_deadline_of_the_gate_is_true_or_false(value: Any) -> None:
    """A number would be taken for seconds."""
    with pytest.raises(RegistrationError, match=r"hard_deadline is .*; write True or False"):
        Options(hard_deadline=value)
    with pytest.raises(TypeError, match=r"options=Options\(hard_deadline=True\)"):
        Gate(hard_deadline=True)  # type: ignore[call-arg]


# ---------------------------------------------------------------------- what outlives a deadline


class Instance:
    """A dependency."""


class Around(Hook):
    def __init__(self, way: Callable[..., Awaitable[None]], seconds: float) -> None:
        self.way, self.seconds = way, seconds

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        await self.way(self.seconds)
        return await next()


class AtStage(Around):
    leaves_out = (Stage.AROUND_EXECUTE,)

    async def will_authorize(self, ctx: InvokeContext) -> None:
        await self.way(self.seconds)


def scene(place: str, name: str, over: float) -> tuple[Any, list[Any], dict[Any, Any]]:
    """Return a tool, hooks and providers, of which one outlives the deadline by *over* seconds."""
    way, seconds = WAYS[name], over + DEADLINE * (name == "swallows")

    @tool(effect="read", name="t")
    async def quick() -> None:
        """End at once."""

    @tool(effect="read", name="t")
    async def body() -> None:
        """Outlive."""
        await way(seconds)

    @tool(effect="read", name="t")
    async def generator() -> AsyncIterator[int]:
        """Outlive after a part."""
        yield 1
        await way(seconds)

    async def instance() -> AsyncIterator[Instance]:
        try:
            yield Instance()
        finally:
            await (swallow if name == "swallows" else asyncio.sleep)(over)

    @tool(effect="read", name="t")
    async def provided(*, it: Annotated[Instance, Provide[Instance]]) -> None:
        """Outlive before the provider ends."""
        await asyncio.sleep(1e9)

    if place == "provider exit":
        return provided, [], {Instance: Scoped("execution", instance)}
    if place in ("body", "generator"):
        return (body if place == "body" else generator), [], {}
    return quick, [(Around if place == "around hook" else AtStage)(way, seconds)], {}


NAMED = {
    "body": "stage='will_execute' hook='tool",
    "generator": "stage='will_execute' hook='tool",
    "around hook": "stage='around_execute' hook='Around",
    "stage hook": "stage='will_authorize' hook='AtStage",
    "provider exit": "stage='around_execute' hook='close",
}


@pytest.mark.parametrize("place", NAMED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seconds", [0.01, 3.0])
@pytest.mark.parametrize("mode", ["production", "development"])
@on_virtual_time
async def test_the_log_names_what_outlived_its_deadline(
    loop: StepLoop,
    place: str,
    way: str,
    seconds: float,
    mode: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Contract I12. Once, with the step and the seconds; a call that ends at once is not named."""
    caplog.set_level("WARNING")
    outlives, hooks, provide = scene(place, way, seconds)
    async with Gate([outlives], hooks, provide=provide, mode=mode, deadline=DEADLINE, allow_unguarded=True) as gate:
        began = loop.time()
        result = await gate.call("t", {}, user=USER)
        assert not result.ok
        overrun = loop.time() - began - DEADLINE
    told = [one.getMessage() for one in caplog.records if "call.overran" in one.getMessage()]
    if seconds < 1:
        assert told == []
        return
    assert [NAMED[place] in one for one in told] == [True], told
    assert 2.5 < overrun < 4.5
    seen = float(told[0].split("seconds=")[1].split()[0])
    assert abs(seen - overrun) < SLACK
    assert ("after its deadline" in capsys.readouterr().err) == (mode == "development")


# ---------------------------------------------------------------------- what is abandoned


ENDS = {"around hook": Outcome.ERROR, "stage hook": Outcome.DENIED}  # their body has not begun


class Lease(Hook):
    def __init__(self) -> None:
        self.held = 0

    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.held += 1

    def did_release_quota(self, ctx: InvokeContext) -> None:
        self.held -= 1


@pytest.mark.parametrize("place", ["body", "generator", "around hook", "stage hook"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", ["gate", "own", None])
@on_virtual_time
async def test_a_hard_deadline_bounds_the_call_and_keeps_the_leases(
    loop: StepLoop, place: str, way: str, by: str | None
) -> None:
    """Contract I12, I1b. Without it, the call ends when the step ends."""
    lease = Lease()
    outlives, hooks, _ = scene(place, way, LONG)
    if by == "own" and hooks:
        vars(hooks[0])["hard_deadline"] = True
    elif by == "own":
        outlives = dataclasses.replace(as_tool(outlives), hard_deadline=True)
    async with Gate(
        [outlives], [lease, *hooks], deadline=DEADLINE, options=Options(hard_deadline=by == "gate")
    ) as gate:
        began = loop.time()
        result = await gate.call("t", {}, user=USER)
        took = loop.time() - began
        assert not result.ok
        if by is None:
            assert took >= LONG
        else:
            assert took <= DEADLINE + ABANDON_GRACE + SLACK
            assert result.outcome is ENDS.get(place, Outcome.UNKNOWN)
            assert lease.held == (place != "stage hook")
        await settled(gate)
        assert loop.time() - began >= LONG
        assert lease.held == 0


@on_virtual_time
async def test_a_body_that_ends_within_its_grace_counts_inside_of_hard_hooks(loop: StepLoop) -> None:
    """Its hooks run in the task and the context of the call, and none is abandoned."""
    seen: list[Any] = []

    @tool(effect="read", hard_deadline=True)
    async def late() -> int:
        """End after the deadline, within the grace."""
        await swallow(DEADLINE + ABANDON_GRACE / 2)
        return 7

    class Passes(Hook):
        hard_deadline = True

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            task = asyncio.current_task()
            try:
                return await next()
            finally:
                seen.append(task is asyncio.current_task())

    async with Gate([late], [Passes(), Passes()], deadline=DEADLINE) as gate:
        assert await gate.invoke("late", {}, user=USER) == 7
        assert seen == [True, True]
        assert not gate._services.left_behind.tasks
