"""What tests of limits and recovery share: tools that do as they are told, stores that wait or fail, one way to call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from callgate import Gate, ToolCall, ToolResult, User, tool
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory.store import MemoryStore
from callgate.testing import VirtualTime
from tests.harness.gate_options import gate_options

USER = User("ann", tenant="acme")


@tool(effect="read")
async def work(seconds: float = 0.0, fail: bool = False) -> str:
    """Takes its time, and fails if told to."""
    if seconds:
        await asyncio.sleep(seconds)
    if fail:
        raise ConnectionError("no")
    return "done"


class Waiting:
    """A part of a store whose every method waits before and after its deed, as one that is elsewhere does."""

    def __init__(self, part: Any, before: float = 0.0, after: float = 0.0) -> None:
        self._part, self._before, self._after = part, before, after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)

        async def waiting(*given: Any, **more: Any) -> Any:
            await asyncio.sleep(self._before)
            answer = await method(*given, **more)
            await asyncio.sleep(self._after)
            return answer

        return waiting


class WaitingStore(MemoryStore):
    """A store in memory that behaves as if it were elsewhere."""

    def __init__(self, now: Callable[[], float], before: float = 0.0, after: float = 0.0) -> None:
        super().__init__(now)
        inside = (self.quotas, self.semaphores, self.cache)
        self.inside = inside
        parts: Any = [Waiting(part, before, after) for part in inside]
        self.quotas, self.semaphores, self.cache = parts


class Failing:
    """A part of a store whose n-th operation fails, before or after its deed; None: all fail."""

    def __init__(self, part: Any, nth: int | None, *, commits: bool, counter: list[int]) -> None:
        self._part, self._nth, self._commits, self._counter = part, nth, commits, counter

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)

        async def failing(*given: Any, **more: Any) -> Any:
            self._counter[0] += 1
            if self._nth not in (None, self._counter[0]):
                return await method(*given, **more)
            if self._commits:
                await method(*given, **more)
            raise ConnectionError("the store is gone")

        return failing


class FailingStore(MemoryStore):
    """A store in memory that fails at its n-th operation."""

    def __init__(self, now: Callable[[], float], nth: int | None = None, *, commits: bool = False) -> None:
        super().__init__(now)
        self.inside = (self.quotas, self.semaphores, self.cache)
        self.counter = [0]
        parts: Any = [Failing(part, nth, commits=commits, counter=self.counter) for part in self.inside]
        self.quotas, self.semaphores, self.cache = parts


def taken(store: MemoryStore) -> int:
    """Units that a memory store counts as taken, in all windows."""
    quotas: Any = store.inside[0] if isinstance(store, WaitingStore | FailingStore) else store.quotas
    return sum(used + before for _, used, before in quotas._windows.values())


def places_held(store: MemoryStore) -> int:
    """Places that a memory store counts as held."""
    semaphores: Any = store.inside[1] if isinstance(store, WaitingStore | FailingStore) else store.semaphores
    return sum(len(held) for held in semaphores._held.values())


class Desk:
    """A gate on virtual time: ``async with desk(hooks…) as gate``."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.store: MemoryStore = MemoryStore(self.time.clock.time)

    def gate(self, *hooks: Any, tools: Any = (work,), store: Store | None = None, **options: Any) -> Gate:
        return Gate(
            tools,
            hooks,
            allow_unguarded=True,
            store=store or self.store,
            **gate_options(clock=self.time.clock, durable=False, **options),
        )

    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self.time.loop.time()

    def run(self, main: Any) -> Any:
        """Run to its end."""
        return self.time.run(main)


async def ask(
    gate: Gate, arguments: Any = None, *, tool: str = "work", user: User = USER, **options: Any
) -> ToolResult:
    """One call."""
    return await gate.call(
        ToolCall(id="c", name=tool, arguments={} if arguments is None else arguments), user=user, **options
    )


def key_in(hook: Any, tool: str = "work", user: User = USER) -> tuple[str, str]:
    """The key under which a hook counts a call, as a store has it."""
    plan = SimpleNamespace(definition=SimpleNamespace(name=tool))
    key: tuple[str, str] = hook._key_of(SimpleNamespace(run=SimpleNamespace(plan=plan), user=user, tool_id=tool))
    return key
