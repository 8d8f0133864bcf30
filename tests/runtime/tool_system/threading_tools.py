"""What tests of the tool system share: a gate with a tool for each way to end, managers that fail in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

from callgate import Gate, Hook, InvokeContext, ToolResult, User
from callgate.threads import (
    InMemoryObservations,
    InMemoryState,
    Observation,
    ParsedToolCall,
    ToolSystem,
    ToolSystemFault,
)
from tests.runtime.gate.making import ANYTHING, NUMBER, double, gate_of, made

USER = User("u", tenant="acme")
NAMES = ("double", "raising", "denied", "slow", "held")
THREAD, TRACE = "thread-1", "trace-1"


class Refusing(Hook):
    """Says no to the tool ``denied``."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        if ctx.tool_id == "denied":
            ctx.abort("SECRET: not for you")


class Bodies:
    """Tools that tell which of them ran. ``held`` waits until ``gates`` lets it go."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.open = asyncio.Event()
        self.entered = asyncio.Event()

    def gate(self, **options: Any) -> Gate:
        def body(name: str, work: Callable[..., Any]) -> Any:
            async def run(**arguments: Any) -> Any:
                self.ran.append(name)
                return await work(**arguments)

            return made(run, name, parameters=NUMBER if name == "double" else ANYTHING)

        async def raising(**_: Any) -> None:
            raise LookupError("SECRET")

        async def denied(**_: Any) -> None: ...

        async def slow(**_: Any) -> None:
            await asyncio.sleep(1000)

        async def held(**arguments: Any) -> Any:
            self.entered.set()
            await self.open.wait()
            return arguments

        bodies: dict[str, Callable[..., Any]] = {
            "double": double,
            "raising": raising,
            "denied": denied,
            "slow": slow,
            "held": held,
        }
        return gate_of([body(name, work) for name, work in bodies.items()], Refusing(), **options)


class State(InMemoryState):
    """Everything is enabled for ``thread-1``, but for what is taken out; counts questions."""

    def __init__(self, *without: str, also: Iterable[str] = ()) -> None:
        super().__init__({THREAD: ({*NAMES} | {*also}) - {*without}})
        self.asked = 0

    async def enabled_tools(self, thread_id: str, /) -> Collection[str] | None:
        self.asked += 1
        return await super().enabled_tools(thread_id)


class Answering:
    """A state manager that does what it was made with."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    async def enabled_tools(self, thread_id: str, /) -> Any:
        answer = self.answer()
        return await answer if asyncio.iscoroutine(answer) else answer


class Recording(InMemoryObservations):
    """Counts attempts to record; then does what it was made with, or keeps the observation."""

    def __init__(self, deed: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.attempts: list[Observation] = []
        self.deed = deed

    async def record(self, observation: Observation, /) -> None:
        self.attempts.append(observation)
        if self.deed is not None:
            answer = self.deed()
            if asyncio.iscoroutine(answer):
                await answer
        await super().record(observation)

    @property
    def told(self) -> list[str]:
        """``call id: outcome`` of each attempt, in the order of recording."""
        return [f"{one.content.call_id}: {one.content.outcome.value}" for one in self.attempts]


class Setting:
    """A system, with all that it was made of."""

    def __init__(self, *, state: Any = None, recording: Recording | None = None, **options: Any) -> None:
        self.bodies = Bodies()
        self.gate = self.bodies.gate()
        self.recording = recording or Recording()
        self.faults: list[ToolSystemFault] = []
        self.system = ToolSystem(
            self.gate, state=state, observations=self.recording, on_fault=self.faults.append, **options
        )

    async def run(self, *calls: Any, thread: str = THREAD, **options: Any) -> list[ToolResult]:
        return await self.system.execute_tools(calls, thread, TRACE, user=USER, **options)


def planned(name: str = "double", arguments: Any = None, id: str = "c1") -> ParsedToolCall:
    """A call of ``double`` with ``{"n": 2}``."""
    return ParsedToolCall(id, name, {"n": 2} if arguments is None else arguments)


def boom(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


def hang() -> Any:
    return asyncio.sleep(1_000_000)
