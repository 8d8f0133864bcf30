"""Caches by function or class: what was registered once and is let go of does not stay in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import lru_cache
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Provide, User, tool
from callgate.hooks import Authorize, Cache, Quota, permit, selection
from callgate.hooks.remembered import remembered

CLERK = User("ann", roles={"clerk"})


def one_gate(alive: list[weakref.ref[Any]]) -> None:
    """A gate with tools and hooks of its own that runs a call and is let go of."""

    class Looks(Hook):
        async def will_authorize(self, ctx: InvokeContext, db: Any = Provide["db"]) -> None:
            """Look."""

        def filter(self, ctx: InvokeContext) -> bool:
            return True

    @tool(effect="read")
    async def echo(n: int) -> int:
        """Echo."""
        return n

    async def use() -> None:
        hooks = [Looks, Looks(), Authorize(permit("clerks", roles={"clerk"})), Quota("100/minute"), Cache(60)]
        async with Gate([echo], hooks, provide={"db": object()}) as gate:
            assert await gate.invoke("echo", {"n": 1}, user=CLERK) == 1
            gate.definitions("openai_chat", user=CLERK)
            alive.extend(map(weakref.ref, (gate, gate._services, Looks, *hooks)))

    asyncio.run(use())


def still_alive() -> list[Any]:
    alive: list[weakref.ref[Any]] = []
    one_gate(alive)
    gc.collect()
    return [found for one in alive if (found := one()) is not None]


def test_a_gate_and_its_hooks_are_freed_when_nothing_uses_them() -> None:
    still_alive()  # what is made once for the process is made now
    assert still_alive() == []


def test_control_a_cache_by_bound_method_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "is_async", lru_cache(selection.is_async))
    monkeypatch.setattr("callgate.runtime.pipeline.guards.is_async", selection.is_async)
    assert still_alive()


def test_a_function_is_looked_at_once_and_a_method_counts_as_its_function() -> None:
    asked: list[Any] = []

    @remembered
    def name(function: Any, more: int = 0) -> str:
        asked.append(function)
        return f"{function.__name__}{more}"

    class Named:
        def method(self) -> None: ...

    one, other = Named(), Named()
    assert name(one.method) == name(other.method) == "method0"
    assert name(one.method, 1) == "method1"
    assert len(asked) == 2
    assert name(len) == name(len) == "len0"  # neither function nor class: not kept
    assert len(asked) == 4
