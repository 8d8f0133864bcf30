"""``gate.sync()``: the gate for synchronous hosts, such as Django, Flask and Celery.

One event loop in its own thread, the *portal*, opens the gate, runs every call and closes the gate. Any number of
other threads send their calls to it and wait. A call runs in a copy of its caller's context variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from callgate.providers.stores.jobs import JobState
from callgate.runtime.gate.invoker import Invoker
from callgate.runtime.gate.placement import RunOn
from callgate.runtime.options.jobs import SubmitOptions
from callgate.runtime.pipeline.calls import Call, Callee
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.suspensions.decisions import Pending
from callgate.runtime.suspensions.resolution import CallOutcome
from callgate.runtime.sync.handles import SyncJob, SyncStream
from callgate.runtime.sync.portal import Portal
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.declaring.declare import FunctionTool
from callgate.tools.record import ToolRecord

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Invoker, P], Coroutine[object, None, R]],
) -> Callable[Concatenate[SyncGate, P], R]:
    """Return a method with the parameters and the docstring of the gate's, which waits for the result."""

    @functools.wraps(method)
    def blocked(self: SyncGate, /, *args: P.args, **kwargs: P.kwargs) -> R:
        call: Callable[P, Coroutine[object, None, R]] = getattr(self._gate, method.__name__)
        return self._portal.run(lambda: call(*args, **kwargs))

    return blocked


class SyncGate:
    """A gate whose methods block, for any number of threads; ``gate.sync()`` returns it.

    Call ``open()`` at the start of a process and ``close()`` at its end, or use ``with``. All threads share one portal,
    which closes with the last of them, or when the interpreter exits. A process that was forked from one with an open
    portal is refused. An interruption of a waiting thread, such as Ctrl-C, cancels its call and waits for its end.
    """

    def __init__(self, gate: Any, drain: float) -> None:
        self._gate: Invoker = gate
        self._portal = Portal(gate, drain)

    # ------------------------------------------------------------------ lifespan

    def open(self) -> Self:
        """Open the gate until ``close``; do nothing if ``open`` was called before.

        Raises:
            GateClosed: the gate was opened before this process was forked.
            RegistrationError: as ``Gate.open`` does.
            RuntimeError: this thread runs an event loop.
        """
        self._portal.enter(hold=True)
        return self

    def close(self) -> None:
        """Undo ``open``; do nothing if it was not called.

        New calls are refused at once. Calls in flight have the seconds of ``Options.drain`` to end; then they are
        cancelled. While another thread is inside ``with``, the gate stays open until it leaves.
        """
        self._portal.leave(hold=True)

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

    def add(self, tool: object, *, replace: bool = False) -> ToolRecord:
        """See ``Gate.add``."""
        return self._portal.do(lambda: self._gate.add(tool, replace=replace))

    def remove(self, tool: object) -> ToolRecord:
        """See ``Gate.remove``."""
        return self._portal.do(lambda: self._gate.remove(tool))

    def use(
        self, hook: object, *, tools: object = None, tags: object = None, tenants: object = None
    ) -> Callable[[], None]:
        """See ``Gate.use``; the function that it returns may be called in any thread, too."""
        undo = self._portal.do(lambda: self._gate.use(hook, tools=tools, tags=tags, tenants=tenants))
        return lambda: self._portal.do(undo)

    # ------------------------------------------------------------------ calling

    @overload
    def invoke(
        self,
        tool: FunctionTool[Any, Coroutine[object, object, R]],
        arguments: object = None,
        *,
        user: User = ...,
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def invoke(
        self, tool: FunctionTool[Any, R], arguments: object = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> R: ...

    @overload
    def invoke(
        self, tool: Any, arguments: object = None, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> Any: ...

    def invoke(
        self, tool: Any, arguments: object = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> Any:
        """See ``Gate.invoke``."""
        return self._portal.run(lambda: self._gate.invoke(tool, arguments, user=user, **options))

    call = _blocking(Invoker.call)
    """See ``Gate.call``."""

    def call_many(
        self,
        calls: Iterable[Call | tuple[Callee, object]],
        *,
        user: User = ANONYMOUS,
        at_once: int = 16,
        trace: bool = False,
        run_on: RunOn | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ToolResult]:
        """See ``Gate.call_many``."""
        asked = list(calls)  # a generator runs in the thread of its caller
        return self._portal.run(
            lambda: self._gate.call_many(asked, user=user, at_once=at_once, trace=trace, run_on=run_on, **options)
        )

    def stream(
        self, tool: Callee, arguments: object = None, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> SyncStream:
        """See ``Gate.stream``. Close the iterator, or use it in ``with``, where you may stop before its end."""
        return SyncStream(self._portal, self._gate.stream(tool, arguments, user=user, **options))

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """See ``Gate.definitions``; works while the gate is closed, too."""
        return self._gate.definitions(wire, user=user)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``Gate.hydrate``; works while the gate is closed, too."""
        return self._gate.hydrate(call, wire=wire, repair=repair)

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """See ``Gate.hydrate_all``; works while the gate is closed, too."""
        return self._gate.hydrate_all(calls, wire=wire, repair=repair)

    repair = _blocking(Invoker.repair)
    """See ``Gate.repair``."""

    # ------------------------------------------------------------------ suspended calls, jobs and sessions

    resume = _blocking(Invoker.resume)
    """See ``Gate.resume``."""
    proceed = _blocking(Invoker.proceed)
    """See ``Gate.proceed``."""
    end_session = _blocking(Invoker.end_session)
    """See ``Gate.end_session``; a call joins a session by its option ``session_id``."""

    def proceed_stream(self, handle: str, *, user: User, **options: Unpack[CallOptions]) -> SyncStream:
        """See ``Gate.proceed_stream``; as for ``stream``, close the iterator where you may stop before its end."""
        return SyncStream(self._portal, self._gate.proceed_stream(handle, user=user, **options))

    def pending(
        self, viewer: User, *, kind: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Pending]:
        """See ``Gate.waits``: the suspended calls that this viewer may decide."""
        return self._portal.run(lambda: self._gate.waits.pending(viewer, kind, limit, after=after))

    def submit(
        self, tool: Callee, arguments: object = None, *, user: User = ANONYMOUS, **options: Unpack[SubmitOptions]
    ) -> SyncJob:
        """See ``Gate.submit``."""
        handle = self._portal.run(lambda: self._gate.submit(tool, arguments, user=user, **options))
        return SyncJob(handle, self._portal)

    def job(self, id: str, *, user: User = ANONYMOUS) -> SyncJob:
        """See ``Gate.job``."""
        return SyncJob(self._gate.job(id, user=user), self._portal)

    def outcome(self, call: SyncJob | str, *, user: User = ANONYMOUS, tool: str | None = None) -> CallOutcome:
        """See ``Gate.outcome``."""
        id = call if isinstance(call, str) else call.id
        return self._portal.run(lambda: self._gate.outcome(id, user=user, tool=tool))

    def run_job(self, id: str) -> JobState | None:
        """See ``JobQueue.run_invocation``."""
        return self._portal.run(lambda: self._gate.jobs.run_invocation(id))
