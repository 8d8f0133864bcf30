"""Canaries: they fail when Python or anyio changes what ``shield.py`` relies on; and a place for what waits in a shield."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from callgate.runtime.pipeline.abandoned import waits_in_generator
from callgate.runtime.pipeline.shield import ANYIO, INSIDE, Shielded, Wait, take_over, under_shield
from callgate.runtime.testing.task_position import waiting_at

PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


class Work:
    """Notes how a cancellation reaches the future that a task awaits."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def cancel(self, msg: object) -> bool:
        self.seen.append((msg, PLACE.get()))
        return True

    def expire(self) -> None: ...


async def test_a_task_cancels_the_future_that_it_awaits_at_once_in_the_context_of_the_canceller() -> None:
    wait, work = Wait(), Work()
    wait.work = work
    task = asyncio.ensure_future(asyncio.wait_for(wait, None))
    await asyncio.sleep(0)
    context = contextvars.copy_context()
    context.run(PLACE.set, "the canceller")
    assert context.run(task.cancel, "why")
    assert work.seen == [("why", "the canceller")]
    wait.wake()
    await task  # True means that the cancellation is handled: it does not arrive


async def test_a_coroutine_yields_its_future_or_none_and_goes_on_with_send() -> None:
    future = asyncio.get_running_loop().create_future()

    async def step() -> str:
        await asyncio.sleep(0)
        return str(await future)

    coroutine = step()
    assert coroutine.send(None) is None
    assert coroutine.send(None) is future
    future.set_result("done")
    with pytest.raises(StopIteration, match="done"):
        coroutine.send(None)


@pytest.mark.parametrize("taken", [True, False])
async def test_a_future_that_was_yielded_can_be_awaited_by_others_once_its_flag_is_cleared(taken: bool) -> None:
    """If not, nobody has to clear it, and ``take_over`` can go."""
    future = asyncio.get_running_loop().create_future()

    async def step() -> Any:
        return await future

    coroutine = step()
    assert coroutine.send(None) is future
    if taken:
        take_over(future)
    asyncio.get_running_loop().call_later(0, future.set_result, 1)
    other = (await asyncio.gather(step(), return_exceptions=True))[0]
    assert other == 1 if taken else isinstance(other, RuntimeError)
    await asyncio.wait([future])
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def test_close_reaches_an_async_generator_from_python_3_13_on() -> None:
    """Before, a step that waits in one is not closed but left running."""
    closed: list[str] = []
    never = asyncio.get_running_loop().create_future()

    async def generator() -> AsyncGenerator[int]:
        try:
            await never
            yield 1
        finally:
            closed.append("closed")

    parts = generator()

    async def step() -> None:
        await anext(parts)

    coroutine = step()
    coroutine.send(None)
    assert waits_in_generator(coroutine) is (sys.version_info < (3, 13))
    coroutine.close()
    assert (closed == ["closed"]) is (sys.version_info >= (3, 13))


async def test_anyio_keeps_the_innermost_scope_of_a_task_in_its_table() -> None:
    states = getattr(sys.modules[ANYIO], "_task_states")  # noqa: B009  (the private name is the subject)
    with anyio.CancelScope() as scope:  # noqa: ASYNC100  (no await: the table is the subject)
        assert states[asyncio.current_task()].cancel_scope is scope


async def test_a_deferred_cancellation_arrives_after_the_step_with_its_result_lost_and_its_error_as_the_cause() -> None:
    log: list[str] = []

    async def step(error: Exception | None) -> str:
        await asyncio.sleep(0.001)
        log.append("ended")
        if error is not None:
            raise error
        return "answer"

    for error in (None, OSError("gone")):
        running = asyncio.ensure_future(under_shield(step(error)))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await running
        assert raised.value.__cause__ is error or isinstance(raised.value.__context__, asyncio.CancelledError)
    assert log == ["ended", "ended"]
    assert await under_shield(step(None)) == "answer"


async def test_the_place_of_a_shielded_task_is_that_of_its_innermost_step() -> None:
    async def inner() -> None:
        await asyncio.sleep(60)

    async def outer() -> None:
        await Shielded(inner()).run()

    running = asyncio.ensure_future(Shielded(outer()).run())
    await asyncio.sleep(0)
    assert INSIDE.get() is None
    assert waiting_at(running).startswith("in inner (test_shield.py:")
    running.get_loop().call_soon(running.cancel)
    assert Shielded.waiting is not None
    Shielded.waiting[running][0].expire()
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await running
    assert Shielded.waiting[running] == []
