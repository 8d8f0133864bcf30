"""The evidence of the executions of a tool decides the outcome of its effect; contract I3, I4."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from callgate.errors import ControlRespond, RetryLater, ToolError
from callgate.hooks.effects import Claim, Evidence
from callgate.providers.stores.effects import EffectState

NONE, COMMITTED, UNKNOWN = EffectState.NO_EFFECT, EffectState.COMMITTED, EffectState.UNKNOWN


class RolledBack(Exception):
    no_effect = True


FAILED = OSError()


@dataclass
class Attempted:
    executed: bool = False
    error: BaseException | None = FAILED


def claimed(*, started: bool = True) -> Claim:
    effect: Any = SimpleNamespace(token=1)
    return Claim(None, "", effect, (), started)


ENDS: dict[str, Any] = {
    "returns": None,
    "fails": FAILED,
    "fails, no effect": RolledBack(),
    "answers": ControlRespond(1),
    "a tool error": ToolError("no"),
    "cancelled": asyncio.CancelledError(),
}


async def execute(claim: Claim, end: BaseException | None) -> None:
    """Run one execution of the tool, as an attempt does."""

    async def body() -> None:
        claim.begin()
        if end is not None:
            raise end

    with suppress(Exception, asyncio.CancelledError, ControlRespond):
        await claim.watch(body())


async def outcome_after(deeds: tuple[str, ...], *, started: bool = True) -> EffectState:
    claim, executed = claimed(started=started), False
    for deed in deeds:
        before = claim.known
        if deed in ENDS:
            await execute(claim, ENDS[deed])
            executed = executed or deed == "returns"
        elif deed == "no JSON form":
            await execute_unconvertible(claim)
        elif deed == "no thread":
            await take_back(claim)
        elif deed == "undone":
            claim.wrapper_failed(RolledBack())
        elif deed == "unclear end":
            claim.wrapper_failed(OSError())
        else:
            await execute(claim, None if "commits" in deed else OSError())
            claim.roll_back(before, sure="surely" in deed)
            executed = executed or "commits" in deed
    return claim.outcome(Attempted(executed))


async def execute_unconvertible(claim: Claim) -> None:
    async def body() -> None:
        claim.begin()
        claim.returned()
        raise ValueError

    with pytest.raises(ValueError):
        await claim.watch(body())


async def take_back(claim: Claim) -> None:
    async def body() -> None:
        claim.begin()
        claim.take_back()
        raise RetryLater(1, "no thread")

    with pytest.raises(RetryLater):
        await claim.watch(body())


@pytest.mark.parametrize(
    ("deeds", "outcome"),
    [
        ((), NONE),
        (("returns",), COMMITTED),
        (("fails",), UNKNOWN),
        (("cancelled",), UNKNOWN),
        (("fails, no effect",), NONE),
        (("answers",), COMMITTED),
        (("a tool error",), COMMITTED),
        (("no JSON form",), COMMITTED),
        (("no thread",), NONE),
        (("fails", "no thread"), UNKNOWN),
        (("fails", "fails, no effect"), UNKNOWN),
        (("fails", "returns"), COMMITTED),
        (("a tool error", "no thread"), COMMITTED),
        (("a tool error", "fails"), UNKNOWN),
        (("returns", "undone"), NONE),
        (("returns", "unclear end"), UNKNOWN),
        (("fails", "returns", "undone"), UNKNOWN),
        (("returns", "undone", "fails, no effect"), NONE),
        (("returns", "undone", "returns"), COMMITTED),
        (("returns", "returns", "undone"), UNKNOWN),  # nothing says whether the first was rolled back, too
        (("fails and is surely rolled back",), NONE),
        (("commits and is surely rolled back",), NONE),
        (("commits and is perhaps rolled back",), UNKNOWN),
        (("fails", "fails and is surely rolled back"), UNKNOWN),
        (("a tool error", "commits and is surely rolled back"), COMMITTED),
    ],
)
async def test_the_outcome_of_an_effect(deeds: tuple[str, ...], outcome: EffectState) -> None:
    assert await outcome_after(deeds) is outcome
    assert await outcome_after(deeds, started=False) is outcome


async def test_no_order_of_executions_hides_an_unclear_one() -> None:
    """Without a rollback, the outcome is ``no_effect`` only if each execution stated it, or did not start."""
    harmless = {"fails, no effect", "no thread"}
    for deeds in itertools.product([*ENDS, "no JSON form", "no thread"], repeat=3):
        outcome = await outcome_after(deeds)
        assert (outcome is NONE) is (set(deeds) <= harmless), deeds
        assert outcome is COMMITTED or not {"returns", "no JSON form"} & set(deeds), deeds


async def test_a_body_that_did_not_start_had_no_effect() -> None:
    claim = claimed(started=False)
    claim.failed(OSError())
    assert claim.known == (Evidence.NOT_STARTED, Evidence.NOT_STARTED)
    assert claim.outcome(Attempted()) is NONE


def test_a_call_on_the_fast_path_watches_no_body() -> None:
    assert claimed().outcome(Attempted(executed=True)) is COMMITTED
    assert claimed().outcome(Attempted(executed=False)) is NONE


def test_an_unclear_effect_of_a_call_that_a_hook_answered_is_committed_and_a_transaction_has_the_last_word() -> None:
    claim = claimed()
    claim.failed(OSError())
    assert claim.outcome(Attempted(error=None)) is COMMITTED
    claim.decided = NONE
    assert claim.outcome(Attempted(error=None)) is NONE
