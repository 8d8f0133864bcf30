"""What outlives its deadline: it is named in the log, or abandoned after a grace where ``hard_deadline`` is set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callgate import Gate, Options, Outcome, User, tool
from callgate.errors import RegistrationError
from callgate.runtime.call.bodies import ABANDON_GRACE
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
    while gate._engine.left_behind:
        await asyncio.wait(gate._engine.left_behind)


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
