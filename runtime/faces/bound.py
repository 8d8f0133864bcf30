"""A gate for one user, and perhaps one session: what an endpoint or a conversation holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack, overload

from callgate.runtime.call.streams import Event
from callgate.runtime.engine import CallOptions, close_all
from callgate.runtime.faces.placement import RunOn
from callgate.runtime.suspensions.decisions import Decision
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ToolCall, ToolResult, User
from callgate.tools.record import ToolRecord

R = TypeVar("R")


class Bound:
    """The methods of a ``Gate``, for one user; ``session_id`` is None where there is no session."""

    def __init__(self, gate: Any, user: User, session_id: str | None = None) -> None:
        self.gate = gate
        self.user = user
        self.session_id = session_id

    def _of_session(self, options: CallOptions) -> CallOptions:
        return options if self.session_id is None else {"session_id": self.session_id, **options}

    @overload
    def invoke(
        self, tool: str | type[Any] | ToolRecord, arguments: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]: ...

    @overload
    def invoke(
        self, tool: Callable[..., Coroutine[Any, Any, R]], arguments: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def invoke(
        self, tool: Callable[..., R], arguments: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, R]: ...

    def invoke(self, tool: Any, arguments: Any = None, **options: Unpack[CallOptions]) -> Coroutine[Any, Any, Any]:
        """See ``Gate.invoke``."""
        made: Coroutine[Any, Any, Any] = self.gate.invoke(tool, arguments, user=self.user, **self._of_session(options))
        return made

    async def call(
        self, call: ToolCall | HydrationResult, *, trace: bool = False, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """See ``Gate.call``."""
        result: ToolResult = await self.gate.call(call, user=self.user, trace=trace, **self._of_session(options))
        return result

    async def call_many(
        self,
        calls: Iterable[ToolCall | HydrationResult],
        *,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ToolResult]:
        """See ``Gate.call_many``."""
        results: list[ToolResult] = await self.gate.call_many(
            calls, user=self.user, at_once=at_once, trace=trace, run_on=run_on, **self._of_session(options)
        )
        return results

    def stream(self, call: ToolCall | HydrationResult, **options: Unpack[CallOptions]) -> AsyncGenerator[Event, None]:
        """See ``Gate.stream``."""
        events: AsyncGenerator[Event, None] = self.gate.stream(call, user=self.user, **self._of_session(options))
        return events

    async def resume(self, handle: str, decision: Decision, **options: Unpack[CallOptions]) -> ToolResult:
        """See ``Gate.resume``; the user is the one who decides."""
        result: ToolResult = await self.gate.resume(handle, decision, approver=self.user, **options)
        return result

    def definitions(self, wire: str | None = None) -> Any:
        """See ``Gate.definitions``."""
        return self.gate.definitions(wire, user=self.user)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``Gate.hydrate``."""
        hydrated: HydrationResult = self.gate.hydrate(call, wire=wire, repair=repair)
        return hydrated

    def __repr__(self) -> str:
        return f"<gate of {self.user.id}{'' if self.session_id is None else f', session {self.session_id}'}>"


@asynccontextmanager
async def visit(gate: Any, session_id: str, user: User) -> AsyncGenerator[Bound, None]:
    """See ``Gate.session``."""
    sessions = gate.providers.sessions
    session = sessions.enter(session_id, (user.tenant, user.id))
    session.visits += 1
    try:
        yield Bound(gate, user, session_id)
    finally:
        session.visits -= 1
        left = sessions.leave(session)
        if not session.over and not session.visits:
            left += sessions.end(session_id)
        await close_all(left)
