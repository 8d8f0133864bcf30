"""``Gate(provide=...)``: made in order when the gate opens, closed in reverse, whatever fails in between."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from typing import Annotated, Any

import pytest

from callgate import Gate, Provide, ToolCall, tool
from callgate.errors import ProviderError
from tests.runtime.gate.making import USER

Log = list[str]


class One: ...


class Two: ...


class Three: ...


class Four: ...


def making(token: type, log: Log, *, fails: BaseException | None = None, closing: BaseException | None = None) -> Any:
    """An async generator that notes when it is opened and closed."""

    async def factory() -> AsyncIterator[Any]:
        log.append(f"open {token.__name__}")
        if fails is not None:
            raise fails
        yield token()
        log.append(f"close {token.__name__}")
        if closing is not None:
            raise closing

    return factory


@tool(effect="read")
async def which(*, thing: Annotated[Any, Provide[One]]) -> str:
    return str(thing)


def plain() -> str:
    return "plain"


async def asynchronous() -> str:
    return "async"


def generator() -> Generator[str, None, None]:
    yield "generator"


async def async_generator() -> AsyncGenerator[str, None]:
    yield "async generator"


class Named:
    def __str__(self) -> str:
        return "class"

    def method(self) -> str:
        return "method"


FORMS: list[tuple[str, Any]] = [
    ("plain", plain),
    ("async", asynchronous),
    ("generator", generator),
    ("async generator", async_generator),
    ("generator", contextlib.contextmanager(generator)),
    ("async generator", contextlib.asynccontextmanager(async_generator)),
    ("class", Named),
    ("method", Named().method),
    ("partial", functools.partial(str, "partial")),
    ("async generator", functools.partial(async_generator)),
    ("class", Named()),
    ("given", "given"),
    ("lambda", lambda: "lambda"),
]


@pytest.mark.parametrize(("said", "source"), FORMS, ids=[f"{i} {said}" for i, (said, _) in enumerate(FORMS)])
async def test_every_form_of_factory_gives_its_instance(said: str, source: Any) -> None:
    """Contract 84."""
    async with Gate([which], provide={One: source}, allow_unguarded=True) as gate:
        assert await gate.invoke(which, user=USER) == said


async def test_a_factory_is_called_once_however_many_calls_there_are() -> None:
    """Contract 84."""
    log: Log = []
    async with Gate([which], provide={One: making(One, log)}, allow_unguarded=True) as gate:
        assert log == ["open One"]
        results = await gate.call_many([ToolCall(id=str(i), name="which") for i in range(20)], user=USER)
        assert len({result.output for result in results}) == 1
    assert log == ["open One", "close One"]


async def test_factories_are_closed_in_reverse() -> None:
    """Contract 84, I19."""
    log: Log = []
    async with Gate(provide={token: making(token, log) for token in (One, Two, Three)}):
        pass
    assert log == ["open One", "open Two", "open Three", "close Three", "close Two", "close One"]


async def test_a_failing_factory_closes_those_made_before_and_names_itself() -> None:
    """Contract 84, I19."""
    log: Log = []
    provide = {One: making(One, log), Two: making(Two, log), Three: making(Three, log, fails=LookupError("SECRET"))}
    gate = Gate([which], provide={**provide, Four: making(Four, log)}, allow_unguarded=True)
    with pytest.raises(ProviderError, match="Three") as caught:
        async with gate:
            raise AssertionError("opened")
    assert log == ["open One", "open Two", "open Three", "close Two", "close One"]
    assert isinstance(caught.value.__cause__, LookupError)
    assert "SECRET" not in str(caught.value)


async def test_a_failing_factory_is_the_news_even_when_closing_fails_too() -> None:
    """Contract 84, I10, I19."""
    log: Log = []
    provide = {
        One: making(One, log),
        Two: making(Two, log, closing=OSError()),
        Three: making(Three, log, fails=OSError()),
    }
    with pytest.raises(ProviderError, match="Three") as caught:
        await Gate(provide=provide).__aenter__()
    assert log[-2:] == ["close Two", "close One"]
    assert caught.value.__cause__ is not None
    assert "OSError" in caught.value.__cause__.__notes__[0]


async def test_opening_that_is_cancelled_closes_what_was_made() -> None:
    """Contract 84, I19."""
    log: Log = []
    waiting = asyncio.Event()

    async def endless() -> None:
        waiting.set()
        await asyncio.Event().wait()

    opening = asyncio.ensure_future(Gate(provide={One: making(One, log), Two: endless}).__aenter__())
    await waiting.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert log == ["open One", "close One"]


async def test_a_close_that_fails_does_not_keep_the_others_open() -> None:
    """Contract 84, I19."""
    log: Log = []
    provide = {One: making(One, log), Two: making(Two, log, closing=OSError("two")), Three: making(Three, log)}
    with pytest.raises(OSError, match="two"):
        async with Gate(provide=provide):
            pass
    assert log[3:] == ["close Three", "close Two", "close One"]


@pytest.mark.parametrize("phase", ["fails", "closing", "at_close"])
async def test_a_cancellation_without_a_request_is_an_error_of_the_gate(phase: str) -> None:
    """A task group takes it for the end of its task: the service would be gone, and nothing would say so."""
    log: Log = []
    stray: dict[str, Any] = {phase: asyncio.CancelledError()} if phase != "at_close" else {}
    gate = Gate(provide={One: making(One, log), Two: making(Two, log, **stray)})

    async def close() -> None:
        raise asyncio.CancelledError

    async def serve() -> None:
        async with gate:
            if phase == "at_close":
                gate.at_close(close)

    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
    (error,) = caught.value.exceptions
    assert isinstance(error, ProviderError if phase == "fails" else RuntimeError)
    assert log[-1] == "close One", "the others are closed"
    assert not gate.is_open


async def test_a_gate_opens_again_with_new_instances() -> None:
    """Contract 84."""
    log: Log = []
    gate = Gate([which], provide={One: making(One, log)}, allow_unguarded=True)
    seen: list[Any] = []
    for _ in range(2):
        async with gate:
            seen.append(gate.providers.find_global(One))
    assert seen[0] is not seen[1]
    assert log == ["open One", "close One"] * 2


def test_a_token_counts_as_provided_before_the_gate_opens_and_has_no_instance() -> None:
    """Contract 85, C25."""
    made: list[Callable[[], Any]] = []
    gate = Gate([which], provide={One: lambda: made.append(plain)}, allow_unguarded=True)
    assert One in gate.providers
    assert dict(gate.providers.get_all_singletons()) == {}
    assert not made


async def test_an_exception_inside_the_gate_comes_out_as_it_is() -> None:
    """Contract 84, I10."""
    log: Log = []
    with pytest.raises(LookupError, match="mine"):
        async with Gate(provide={One: making(One, log)}):
            raise LookupError("mine")
    assert log == ["open One", "close One"]
