"""A gate bound to one user, and optionally to a session, for endpoints and conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack, overload

from callgate.runtime.call.calls import Call, Callee, TraceTo, refuse_user
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.streams import Event
from callgate.runtime.engine import close_all
from callgate.runtime.faces.deferred import SubmitOptions
from callgate.runtime.faces.placement import RunOn
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.resolution import CallOutcome
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ToolCall, ToolResult, User
from callgate.tools.record import ToolRecord

R = TypeVar("R")


class Bound:
    """The methods of a ``Gate`` for one user; ``session_id`` is None without a session."""

    def __init__(self, gate: Any, user: User, session_id: str | None = None) -> None:
        refuse_user(user)
        self.gate = gate
        self.user = user
        self.session_id = session_id

    def _of_session(self, options: CallOptions) -> CallOptions:
        return options if self.session_id is None else {"session_id": self.session_id, **options}

    @overload
    def invoke(
        self, tool: str | type[Any] | ToolRecord | Call, arguments: Any = None, **options: Unpack[CallOptions]
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
        self, tool: Callee, arguments: Any = None, *, trace: bool | TraceTo = False, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """See ``Gate.call``."""
        result: ToolResult = await self.gate.call(
            tool, arguments, user=self.user, trace=trace, **self._of_session(options)
        )
        return result

    async def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, Any]],
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

    def stream(
        self, tool: Callee, arguments: Any = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """See ``Gate.stream``."""
        options = self._of_session(options)
        events: AsyncGenerator[Event, None] = self.gate.stream(tool, arguments, user=self.user, **options)
        return events

    async def submit(self, tool: Callee, arguments: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle:
        """See ``Gate.submit``."""
        session: SubmitOptions = {} if self.session_id is None else {"session_id": self.session_id}
        handle: JobHandle = await self.gate.submit(tool, arguments, user=self.user, **{**session, **options})
        return handle

    def job(self, id: str) -> JobHandle:
        """See ``Gate.job``."""
        handle: JobHandle = self.gate.job(id, user=self.user)
        return handle

    async def outcome(self, call: JobHandle | str, *, tool: str | None = None) -> CallOutcome:
        """See ``Gate.outcome``."""
        outcome: CallOutcome = await self.gate.outcome(call, user=self.user, tool=tool)
        return outcome

    async def resume(
        self, handle: str, decision: Decision, *, trace: bool = False, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """See ``Gate.resume``; the approver is this user."""
        result: ToolResult = await self.gate.resume(handle, decision, approver=self.user, trace=trace, **options)
        return result

    def definitions(self, wire: str | None = None) -> Any:
        """See ``Gate.definitions``."""
        return self.gate.definitions(wire, user=self.user)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``Gate.hydrate``."""
        hydrated: HydrationResult = self.gate.hydrate(call, wire=wire, repair=repair)
        return hydrated

    async def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """See ``Gate.repair``."""
        repaired: HydrationResult = await self.gate.repair(hydrated, repair)
        return repaired

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """See ``Gate.hydrate_all``."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]

    def __repr__(self) -> str:
        return f"<gate of {self.user.id}{'' if self.session_id is None else f', session {self.session_id}'}>"


@asynccontextmanager
async def visit(gate: Any, session_id: str, user: User) -> AsyncGenerator[Bound, None]:
    """See ``Gate.session``."""
    refuse_user(user)
    sessions = gate.providers.sessions
    session = sessions.enter(session_id, (user.tenant, user.id))
    session.visits += 1
    try:
        with gate._engine.under_way.block():
            yield Bound(gate, user, session_id)
    finally:
        session.visits -= 1
        left = sessions.leave(session)
        if not session.ended and not session.visits:
            left += sessions.end(session_id)
        await close_all(left)
