"""Ctrl-C at each instruction of a release: it is not lost, and the lease is given back; issue 38, invariant I1."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from types import CodeType, FrameType
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Scoped, tool
from callgate.providers.scope import ProviderScope
from callgate.runtime.pipeline import interrupts
from callgate.runtime.pipeline.interrupts import DELAYED, INTERRUPTS, Interrupts
from callgate.runtime.pipeline.leases import enter_lease


@pytest.fixture(autouse=True)
def in_the_foreground() -> Generator[None]:
    """A shell lets the processes that it starts in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Permits:
    """Capacity of which each release has several steps; *codes* are the functions in which Ctrl-C comes."""

    codes: tuple[CodeType, ...]

    def __init__(self) -> None:
        self.held: list[str] = []
        self.is_closing = False
        self.log: list[str] = []

    def take(self) -> None:
        self.held = ["row", "permit"]

    def give_row(self) -> None:
        self.held.remove("row")

    def give_permit(self) -> None:
        self.held.remove("permit")
        self.log.append("released")


class Plain(Permits, Hook):
    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.take()

    def did_release_quota(self, ctx: InvokeContext) -> None:
        self.give_row()
        self.give_permit()

    codes = (did_release_quota.__code__,)


class Coroutine(Permits, Hook):
    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.take()

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        self.give_row()
        self.give_permit()

    codes = (did_release_quota.__code__,)


class Waiting(Permits, Hook):
    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.take()

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        self.give_row()
        await asyncio.sleep(0)
        self.give_permit()

    codes = (did_release_quota.__code__,)


class Leasing(Permits, Hook):
    async def _place(self) -> AsyncGenerator[None]:
        self.take()
        yield
        self.give_row()
        await asyncio.sleep(0)
        self.give_permit()

    codes = (_place.__code__,)

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        await ctx.lease(asynccontextmanager(self._place)())


class Providing(Permits, Hook):
    async def connection(self) -> AsyncIterator[str]:
        self.take()
        yield "connection"
        self.give_row()
        self.give_permit()

    codes = (connection.__code__,)

    async def will_authorize(self, ctx: InvokeContext) -> None:
        await ctx.resolve("connection")


KINDS: list[type[Permits]] = [Plain, Coroutine, Waiting, Leasing, Providing]


class Presses:
    """A trace function that presses Ctrl-C before instruction number *at* of some functions, once they give back."""

    def __init__(self, hook: Permits, at: int | None, times: int) -> None:
        self.hook, self.at, self.times = hook, at, times
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code not in (*self.hook.codes, Permits.give_row.__code__, Permits.give_permit.__code__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self.hook.is_closing and self.hook.held:
            if self.seen == self.at:
                for _ in range(self.times):
                    signal.raise_signal(signal.SIGINT)
            self.seen += 1
        return self


@tool(effect="read")
async def work() -> int:
    """Work."""
    return 1


async def called(hook: Any, presses: Presses) -> None:
    class Later(Hook):
        def on_metrics(self, ctx: InvokeContext) -> None:
            hook.is_closing = True

        async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            hook.log.append("finals")

    provide: dict[Any, Any] = {}
    if isinstance(hook, Providing | TakenByProvider):
        provide["connection"] = Scoped("request", hook.connection if isinstance(hook, Providing) else hook.place)
    async with Gate([work], [hook, Later()], provide=provide, allow_unguarded=True) as gate:
        sys.settrace(presses)
        try:
            await gate.call("work")
        finally:
            sys.settrace(None)
        await asyncio.sleep(0)  # the caller waits for something: a cancellation arrives


def in_asyncio_run(hook: Permits, presses: Presses) -> None:
    asyncio.run(called(hook, presses))


def in_a_loop(hook: Permits, presses: Presses) -> None:
    """Python's own handler raises; the application lets its tasks end, as ``asyncio.run`` does."""
    loop = asyncio.new_event_loop()
    running = loop.create_task(called(hook, presses))
    try:
        loop.run_until_complete(running)
    finally:
        if running.cancel():
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(running)
        loop.close()


def in_uvloop(hook: Permits, presses: Presses) -> None:
    uvloop = pytest.importorskip("uvloop", reason="NO UVLOOP")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(called(hook, presses))


def leaks(
    kind: type[Permits], run: Callable[[Permits, Presses], None], times: int, at: int | None
) -> tuple[list[str], int]:
    """Make a call with Ctrl-C at an instruction of its release; return what went wrong, and the number of instructions."""
    hook = kind()
    presses = Presses(hook, at, times)
    pressed = False
    try:
        run(hook, presses)
    except KeyboardInterrupt:
        pressed = True
    found = [f"leaked {one}" for one in hook.held]
    found += [] if pressed is (at is not None) else ["Ctrl-C is lost" if at is not None else "Ctrl-C out of nothing"]
    found += (
        [] if hook.log == (["released", "finals"] if kind is not Providing else ["finals", "released"]) else hook.log
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return found, presses.seen


WAYS = [(in_asyncio_run, 1), (in_asyncio_run, 2), (in_a_loop, 1), (in_uvloop, 1), (in_uvloop, 2)]


@pytest.mark.parametrize(("run", "times"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_any_instruction_of_a_release_is_raised_after_it(
    kind: type[Permits], run: Callable[[Permits, Presses], None], times: int
) -> None:
    found, instructions = leaks(kind, run, times, None)
    assert (found, instructions > 10) == ([], True)
    assert {at: found for at in range(instructions) if (found := leaks(kind, run, times, at)[0])} == {}


@pytest.mark.parametrize(("run", "times"), WAYS[1:3])
@pytest.mark.parametrize("kind", KINDS)
def test_control_without_the_handler_leases_leak(
    kind: type[Permits], run: Callable[[Permits, Presses], None], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interrupts, "watch", lambda *_: None)
    instructions = leaks(kind, run, times, None)[1]
    assert any(leaks(kind, run, times, at)[0] for at in range(0, instructions, 4))


# ---------------------------------------------------------------------- taking


class Taken(Permits, Hook):
    """Two steps to take capacity: Ctrl-C comes between any two instructions, until the capacity is recorded."""

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[str]:
        self.take()
        try:
            yield "connection"
        finally:
            self.held.clear()


class TakenAsLease(Taken):
    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        await ctx.lease(self.place())

    codes = (will_inject_secrets.__code__,)


class TakenByProvider(Taken):
    async def will_authorize(self, ctx: InvokeContext) -> None:
        await ctx.resolve("connection")

    codes = (will_authorize.__code__,)


class TakenInPlace(Taken):
    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.take()

    def did_release_quota(self, ctx: InvokeContext) -> None:
        self.held.clear()

    codes = (will_acquire_quota.__code__,)


class PressesWhileTaking(Presses):
    """Press before instruction number *at* of the code that takes, also of Callgate's own."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        own = (*self.hook.codes, Permits.take.__code__, Taken.place.__wrapped__.__code__)  # type: ignore[attr-defined]
        if frame.f_code not in (*own, enter_lease.__code__, ProviderScope._make.__code__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.hook.is_closing:
            if self.seen == self.at:
                for _ in range(self.times):
                    signal.raise_signal(signal.SIGINT)
            self.seen += 1
        return self


def left(kind: type[Taken], run: Callable[[Permits, Presses], None], times: int, at: int | None) -> tuple[bool, int]:
    """Make a call with Ctrl-C while it takes; return whether capacity is left behind, and the number of instructions."""
    hook = kind()
    presses = PressesWhileTaking(hook, at, times)
    with suppress(KeyboardInterrupt):
        run(hook, presses)
    if at is not None:
        gc.collect()  # it warns of the coroutine here, where that is expected
    return bool(hook.held), presses.seen


TAKEN: list[type[Taken]] = [TakenAsLease, TakenByProvider, TakenInPlace]


BEFORE = pytest.mark.filterwarnings(  # Ctrl-C comes after a coroutine was made, and before it is awaited
    "ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@BEFORE
@pytest.mark.parametrize(("run", "times"), WAYS)
@pytest.mark.parametrize("kind", TAKEN)
def test_ctrl_c_at_any_instruction_that_takes_leaves_nothing_behind(
    kind: type[Taken], run: Callable[[Permits, Presses], None], times: int
) -> None:
    """In the code of the hook, of its context manager, and in that of Callgate which records it."""
    instructions = left(kind, run, times, None)[1]
    assert instructions > 10
    assert [at for at in range(instructions) if left(kind, run, times, at)[0]] == []


@BEFORE
@pytest.mark.parametrize("kind", TAKEN)
def test_control_without_the_block_ctrl_c_leaves_capacity_behind(
    kind: type[Taken], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "TAKING", set())
    monkeypatch.setattr(interrupts, "_takes_or_gives_back", lambda _: False)
    instructions = left(kind, in_a_loop, 1, None)[1]
    assert any(left(kind, in_a_loop, 1, at)[0] for at in range(instructions))


def test_a_release_that_does_not_end_can_be_interrupted() -> None:
    """Ctrl-C waits for a release twice, and no more."""

    class Hangs(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None: ...

        def did_release_quota(self, ctx: InvokeContext) -> None:
            for _ in range(DELAYED + 1):
                signal.raise_signal(signal.SIGINT)
            raise AssertionError("it goes on")

    seen: list[str] = []

    async def main() -> None:
        async with Gate([work], [Hangs()], allow_unguarded=True) as gate:
            try:
                await gate.call("work")
            except KeyboardInterrupt:
                seen.append("interrupted")
                raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert seen == ["interrupted"]


def test_the_handler_goes_with_the_last_gate_and_leaves_a_later_one_alone() -> None:
    async def main(*, replaced: bool) -> None:
        before = signal.getsignal(signal.SIGINT)
        first, second = (Gate([work], allow_unguarded=True) for _ in range(2))
        await first.open()
        await second.open()
        assert signal.getsignal(signal.SIGINT) == INTERRUPTS._handle
        await first.close()
        assert signal.getsignal(signal.SIGINT) == INTERRUPTS._handle
        if replaced:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        await second.close()
        assert signal.getsignal(signal.SIGINT) == (signal.SIG_IGN if replaced else before)

    try:
        for replaced in (False, True):
            asyncio.run(main(replaced=replaced))
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
