"""A gate bound to one user, and optionally to a session, for endpoints and conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack, overload

from callgate.runtime.gate.invoker import Invoker
from callgate.runtime.gate.placement import RunOn
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.options.jobs import SubmitOptions
from callgate.runtime.pipeline.calls import Call, Callee, TraceTo, refuse_user
from callgate.runtime.pipeline.options import CallOptions, checked_id
from callgate.runtime.pipeline.services import close_all
from callgate.runtime.pipeline.streams import Event
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.resolution import CallOutcome
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ToolCall, ToolResult, User
from callgate.tools.record import ToolRecord

Given = TypeVar("Given", CallOptions, SubmitOptions)
R = TypeVar("R")


class Bound:
    """The methods of a ``Gate`` for one user; ``session_id`` is None without a session."""

    def __init__(self, gate: Invoker, user: User, session_id: str | None = None) -> None:
        refuse_user(user)
        self.gate = gate
        self.user = user
        self.session_id = session_id

    def _of_session(self, options: Given) -> Given:
        if self.session_id is not None:
            options.setdefault("session_id", self.session_id)
        return options

    @overload
    def invoke(
        self, tool: str | type[object] | ToolRecord | Call, arguments: object = None, **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, Any]: ...

    @overload
    def invoke(
        self, tool: Callable[..., Coroutine[object, None, R]], arguments: object = None, **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, R]: ...

    @overload
    def invoke(
        self, tool: Callable[..., R], arguments: object = None, **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, R]: ...

    def invoke(
        self, tool: Any, arguments: object = None, **options: Unpack[CallOptions]
    ) -> Coroutine[object, None, Any]:
        """See ``Gate.invoke``."""
        return self.gate.invoke(tool, arguments, user=self.user, **self._of_session(options))

    async def call(
        self, tool: Callee, arguments: object = None, *, trace: bool | TraceTo = False, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """See ``Gate.call``."""
        return await self.gate.call(tool, arguments, user=self.user, trace=trace, **self._of_session(options))

    async def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, object]],
        *,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ToolResult]:
        """See ``Gate.call_many``."""
        return await self.gate.call_many(
            calls, user=self.user, at_once=at_once, trace=trace, run_on=run_on, **self._of_session(options)
        )

    def stream(
        self, tool: Callee, arguments: object = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """See ``Gate.stream``."""
        return self.gate.stream(tool, arguments, user=self.user, **self._of_session(options))

    async def submit(self, tool: Callee, arguments: object = None, **options: Unpack[SubmitOptions]) -> JobHandle:
        """See ``Gate.submit``."""
        return await self.gate.submit(tool, arguments, user=self.user, **self._of_session(options))

    def job(self, id: str) -> JobHandle:
        """See ``Gate.job``."""
        return self.gate.job(id, user=self.user)

    async def outcome(self, call: JobHandle | str, *, tool: str | None = None) -> CallOutcome:
        """See ``Gate.outcome``."""
        return await self.gate.outcome(call, user=self.user, tool=tool)

    async def resume(
        self,
        handle: str,
        decision: Decision,
        *,
        here: bool = True,
        trace: bool = False,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """See ``Gate.resume``; the approver is this user."""
        return await self.gate.resume(handle, decision, approver=self.user, here=here, trace=trace, **options)

    async def proceed(self, handle: str, *, trace: bool = False, **options: Unpack[CallOptions]) -> ToolResult:
        """See ``Gate.proceed``."""
        return await self.gate.proceed(handle, user=self.user, trace=trace, **options)

    def proceed_stream(self, handle: str, **options: Unpack[CallOptions]) -> AsyncGenerator[Event, None]:
        """See ``Gate.proceed_stream``."""
        return self.gate.proceed_stream(handle, user=self.user, **options)

    def definitions(self, wire: str | None = None) -> Any:
        """See ``Gate.definitions``."""
        return self.gate.definitions(wire, user=self.user)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``Gate.hydrate``."""
        return self.gate.hydrate(call, wire=wire, repair=repair)

    async def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """See ``Gate.repair``."""
        return await self.gate.repair(hydrated, repair)

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """See ``Gate.hydrate_all``."""
        return self.gate.hydrate_all(calls, wire=wire, repair=repair)

    def __repr__(self) -> str:
        return f"<gate of {self.user.id}{'' if self.session_id is None else f', session {self.session_id}'}>"


@asynccontextmanager
async def visit(gate: Invoker, session_id: str, user: User) -> AsyncGenerator[Bound, None]:
    """See ``Gate.session``."""
    refuse_user(user)
    checked_id("session id", session_id)
    sessions = gate.providers.sessions
    session = sessions.enter(session_id, (user.tenant, user.id))
    session.visits += 1
    try:
        with gate.under_way():
            yield Bound(gate, user, session_id)
    finally:
        session.visits -= 1
        left = sessions.leave(session)
        if not session.ended and not session.visits:
            left += sessions.end(session_id)
        await close_all(left)
