"""An operator who presses Ctrl-C while a call runs or closes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, User, tool
from callgate.hooks import Retry
from callgate.runtime.pipeline import closing, interrupts

ANN = User("ann")


class Permit(Hook):
    """A lease that says that its release is harmless twice; Ctrl-C comes in its middle."""

    concern = "concurrency"
    releases_by_token = True

    def __init__(self, error: KeyboardInterrupt, waits: bool) -> None:
        self.errors, self.waits, self.held = [error], waits, 0

    def _release(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.held = 0


class Waiting(Permit):
    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        self.held = 1

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        if self.waits:
            await asyncio.sleep(0)
        self._release()


class Plain(Permit):
    def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        self.held = 1

    def did_release_semaphore(self, ctx: InvokeContext) -> None:
        self._release()


@tool(effect="read")
async def work() -> int:
    """Work."""
    return 1


async def called(hook: Any) -> tuple[Any, list[str]]:
    """Return the output or Ctrl-C, and the stages that ran after the release."""
    later: list[str] = []

    class Later(Hook):
        async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            later.append("finals")

    gate = Gate([work], [hook, Later()], allow_unguarded=True, effects=Effects(durable=False))
    async with gate:
        try:
            return await gate.invoke("work", {}, user=ANN), later
        except KeyboardInterrupt as pressed:
            return pressed, later


CASES = [(Plain, False), (Waiting, False), (Waiting, True)]


@pytest.mark.parametrize(("kind", "waits"), CASES)
async def test_ctrl_c_in_a_release_is_raised_after_the_call_has_closed_and_no_lease_leaks(
    kind: type[Permit], waits: bool
) -> None:
    pressed = KeyboardInterrupt()
    hook = kind(pressed, waits)
    assert await called(hook) == (pressed, ["finals"])
    assert hook.held == 0


@pytest.mark.parametrize(("kind", "waits"), CASES)
async def test_an_interrupt_that_a_hook_makes_itself_is_a_failure_of_its_release(
    kind: type[Permit], waits: bool
) -> None:
    assert await called(kind(KeyboardInterrupt("mine"), waits)) == (1, ["finals"])


@pytest.mark.parametrize(("kind", "waits"), CASES)
async def test_control_without_the_rule_the_interrupt_is_swallowed_and_the_lease_leaks(
    kind: type[Permit], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "needs_repeat", lambda *_: False)
    hook = kind(KeyboardInterrupt(), waits)
    assert await called(hook) == (1, ["finals"])
    assert hook.held == 1


class Call(Hook):
    """A lease, a record and a retry around a call, in one of whose places Ctrl-C comes."""

    def __init__(self, place: str, presses: int) -> None:
        self.place, self.presses = place, presses
        self.held, self.ran, self.outcomes = 0, 0, list[str]()

    def press(self, place: str) -> None:
        """Press Ctrl-C at this place; ``asyncio.run`` cancels the task at the first, and raises at the second."""
        if place == self.place:
            for _ in range(self.presses):
                signal.raise_signal(signal.SIGINT)

    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.held += 1

    def did_release_quota(self, ctx: InvokeContext) -> None:
        self.held -= 1

    async def will_authorize(self, ctx: InvokeContext) -> None:
        self.press("a hook before the body")

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self.press("a wrapper")
        return await next()

    async def did_execute(self, ctx: InvokeContext) -> None:
        self.press("a hook after the body")

    async def on_error(self, ctx: InvokeContext) -> None:
        self.press("a hook of errors")

    async def will_audit(self, ctx: InvokeContext) -> None:
        self.outcomes.append(f"{ctx.outcome}")

    def gate(self, hard: bool) -> Gate:
        """Make the gate."""

        @tool(effect="read", hard_deadline=hard, deadline=60.0)
        async def work() -> int:
            """Work."""
            self.ran += 1
            self.press("the body")
            if self.place == "a hook of errors":
                raise ValueError("x")
            return 1

        return Gate([work], [self, Retry(max_attempts=3)], allow_unguarded=True, effects=Effects(durable=False))


RAN = {"a hook before the body": 0, "a wrapper": 0, "a hook of errors": 3}
"""How often the body has run: hooks of errors see the last of three failed attempts."""
PLACES = ("the body", "a hook before the body", "a wrapper", "a hook after the body", "a hook of errors")


@pytest.fixture
def in_the_foreground() -> Generator[None]:
    """A shell lets the processes that it starts in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressed_in(call: Call, hard: bool) -> str:
    """Make a call in an event loop of its own, and return how it ended."""

    async def main() -> str:
        async with call.gate(hard) as gate:
            return (await gate.call("work", {}, user=ANN)).outcome.value

    try:
        if call.presses == 2:
            return asyncio.run(main())
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(main())
        finally:
            loop.close()
    except KeyboardInterrupt:
        return "raised"


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "control that tells no Ctrl-C from a crash"])
@pytest.mark.parametrize("presses", [1, 2], ids=["a plain loop", "the second one under asyncio.run"])
@pytest.mark.parametrize("hard", [False, True], ids=["in place", "with a time limit"])
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_in_a_body_or_a_hook_ends_the_call_and_is_raised(
    place: str, hard: bool, presses: int, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release has run, the outcome is recorded, nothing was repeated, and the program does not go on."""
    if not marked:
        monkeypatch.setattr(interrupts, "mark_pressed", lambda _: None)
    call = Call(place, presses)
    ended = pressed_in(call, hard)
    assert call.held == 0
    assert len(call.outcomes) == 1
    if marked:
        assert (ended, call.ran) == ("raised", RAN.get(place, 1))
    elif presses == 1:
        assert ended != "raised"
