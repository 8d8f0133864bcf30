"""``gate.sync()``: the gate for synchronous hosts, such as Django, Flask and Celery.

One event loop in its own thread, the *portal*, opens the gate, runs every call and closes the gate. Any number of
other threads send their calls to it and wait. A call runs in a copy of its caller's context variables.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar, Unpack, overload

from callgate.runtime.call.calls import Call, Callee, TraceTo
from callgate.runtime.call.options import CallOptions
from callgate.runtime.faces.deferred import SubmitOptions
from callgate.runtime.faces.placement import RunOn
from callgate.runtime.faces.portal import Portal
from callgate.runtime.faces.sync_jobs import SyncJob
from callgate.runtime.faces.sync_streams import SyncStream
from callgate.runtime.suspensions.decisions import Decision, Pending
from callgate.runtime.suspensions.resolution import CallOutcome
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.declaring.declare import FunctionTool
from callgate.tools.record import ToolRecord

R = TypeVar("R")


class SyncGate:
    """A gate whose methods block, for any number of threads; ``gate.sync()`` returns it.

    Call ``open()`` at the start of a process and ``close()`` at its end, or use ``with``. All threads share one portal,
    which closes with the last of them, or when the interpreter exits. A process that was forked from one with an open
    portal is refused. An interruption of a waiting thread, such as Ctrl-C, cancels its call and waits for its end.
    """

    def __init__(self, gate: Any, drain: float) -> None:
        self._gate = gate
        self._portal = Portal(gate, drain)

    # ------------------------------------------------------------------ lifespan

    def open(self) -> Self:
        """Open the gate until ``close``; do nothing if ``open`` was called before.

        Raises:
            GateClosed: the gate was opened before this process was forked.
            RegistrationError: as ``Gate.open`` does.
            RuntimeError: this thread runs an event loop.
        """
        self._portal.open()
        return self

    def close(self) -> None:
        """Undo ``open``; do nothing if it was not called.

        New calls are refused at once. Calls in flight have the seconds of ``Options.drain`` to end; then they are
        cancelled. While another thread is inside ``with``, the gate stays open until it leaves.
        """
        self._portal.close()

    def __enter__(self) -> Self:
        self._portal.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._portal.leave()

    @property
    def is_open(self) -> bool:
        """True while the gate accepts calls, in this process."""
        return self._portal.is_open

    # ------------------------------------------------------------------ changes, from any thread

    def add(self, tool: Any, *, replace: bool = False) -> ToolRecord:
        """See ``Gate.add``."""
        record: ToolRecord = self._portal.do(lambda: self._gate.add(tool, replace=replace))
        return record

    def remove(self, tool: Any) -> ToolRecord:
        """See ``Gate.remove``."""
        record: ToolRecord = self._portal.do(lambda: self._gate.remove(tool))
        return record

    def use(self, hook: Any, *, tools: Any = None, tags: Any = None, tenants: Any = None) -> Callable[[], None]:
        """See ``Gate.use``; the function that it returns may be called in any thread, too."""
        undo = self._portal.do(lambda: self._gate.use(hook, tools=tools, tags=tags, tenants=tenants))
        return lambda: self._portal.do(undo)

    # ------------------------------------------------------------------ calling

    @overload
    def invoke(
        self,
        tool: FunctionTool[Any, Coroutine[Any, Any, R]],
        arguments: Any = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def invoke(
        self, tool: FunctionTool[Any, R], arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> R: ...

    @overload
    def invoke(self, tool: Any, arguments: Any = None, *, user: User = ..., **options: Unpack[CallOptions]) -> Any: ...

    def invoke(
        self, tool: Any, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> Any:
        """See ``Gate.invoke``."""
        return self._portal.run(lambda: self._gate.invoke(tool, arguments, user=user, **options))

    def call(
        self,
        tool: Callee,
        arguments: Any = None,
        *,
        user: User = ANONYMOUS,
        trace: bool | TraceTo = False,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """See ``Gate.call``."""
        result: ToolResult = self._portal.run(
            lambda: self._gate.call(tool, arguments, user=user, trace=trace, **options)
        )
        return result

    def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, Any]],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ToolResult]:
        """See ``Gate.call_many``."""
        asked = list(calls)
        results: list[ToolResult] = self._portal.run(
            lambda: self._gate.call_many(asked, user=user, at_once=at_once, trace=trace, run_on=run_on, **options)
        )
        return results

    def stream(
        self, tool: Callee, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> SyncStream:
        """See ``Gate.stream``. Close the iterator, or use it in ``with``, where you may stop before its end."""
        self._portal.require_open()
        return SyncStream(self._portal, self._gate.stream(tool, arguments, user=user, **options))

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """See ``Gate.definitions``; works while the gate is closed, too."""
        return self._gate.definitions(wire, user=user)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``Gate.hydrate``; works while the gate is closed, too."""
        hydrated: HydrationResult = self._gate.hydrate(call, wire=wire, repair=repair)
        return hydrated

    def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """See ``Gate.repair``."""
        repaired: HydrationResult = self._portal.run(lambda: self._gate.repair(hydrated, repair))
        return repaired

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """See ``Gate.hydrate_all``; works while the gate is closed, too."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]

    def resume(
        self,
        handle: str,
        decision: Decision,
        *,
        approver: User,
        trace: bool = False,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """See ``Gate.resume``."""
        result: ToolResult = self._portal.run(
            lambda: self._gate.resume(handle, decision, approver=approver, trace=trace, **options)
        )
        return result

    def pending(
        self, viewer: User, *, kind: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Pending]:
        """See ``Gate.waits``: the suspended calls that this viewer may decide."""
        found: list[Pending] = self._portal.run(lambda: self._gate.waits.pending(viewer, kind, limit, after=after))
        return found

    def submit(
        self, tool: Callee, arguments: Any = None, *, user: User = ANONYMOUS, **options: Unpack[SubmitOptions]
    ) -> SyncJob:
        """See ``Gate.submit``."""
        return SyncJob(
            self._portal.run(lambda: self._gate.submit(tool, arguments, user=user, **options)), self._portal.run
        )

    def job(self, id: str, *, user: User = ANONYMOUS) -> SyncJob:
        """See ``Gate.job``."""
        return SyncJob(self._gate.job(id, user=user), self._portal.run)

    def outcome(self, call: SyncJob | str, *, user: User = ANONYMOUS, tool: str | None = None) -> CallOutcome:
        """See ``Gate.outcome``."""
        id = call if isinstance(call, str) else call.id
        outcome: CallOutcome = self._portal.run(lambda: self._gate.outcome(id, user=user, tool=tool))
        return outcome

    def run_job(self, id: str) -> Any:
        """See ``JobQueue.run_invocation``."""
        return self._portal.run(lambda: self._gate.jobs.run_invocation(id))

    def end_session(self, session_id: str) -> None:
        """See ``Gate.end_session``; a call joins a session by its option ``session_id``."""
        self._portal.run(lambda: self._gate.end_session(session_id))
