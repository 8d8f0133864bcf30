"""``ToolView``: one invocation as its tool sees it; the ``ToolContext`` that the gate supplies."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, NoReturn, TypeVar, cast

from callgate.hooks.context import InvokeContext
from callgate.providers.guesses import explain_camel_case
from callgate.providers.logs import CallLog
from callgate.providers.principal import User
from callgate.tools.approval import Approval, Question
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition
from callgate.tools.execution import ExecutionContext

T = TypeVar("T")


def _shown(read: Callable[[ToolView], T]) -> T:
    """Return a property whose type is that of what it reads."""
    return cast("T", property(read))


@explain_camel_case
class ToolView:
    """The part of an invocation that a tool may use; see ``ToolContext`` for each member."""

    __slots__ = ("_ctx", "attempt")

    def __init__(self, ctx: InvokeContext) -> None:
        self._ctx = ctx
        self.attempt: int = ctx.run.attempt  # that of this body, which may outlast it in a task of its own

    tool: ToolDefinition = _shown(lambda view: view._ctx.tool)
    tool_id: str = _shown(lambda view: view._ctx.tool_id)
    tool_name: str = _shown(lambda view: view._ctx.tool_name)
    input: Any = _shown(lambda view: view._ctx.input)
    data: MutableMapping[Any, Any] = _shown(lambda view: view._ctx.data)
    error: BaseException | None = _shown(lambda view: view._ctx.error)
    started_at: datetime = _shown(lambda view: view._ctx.started_at)
    tool_call: ToolCall = _shown(lambda view: view._ctx.tool_call)
    user: User = _shown(lambda view: view._ctx.user)
    user_id: str = _shown(lambda view: view._ctx.user.id)
    tenant: str | None = _shown(lambda view: view._ctx.user.tenant)
    session_id: str | None = _shown(lambda view: view._ctx.run.session_id)
    request_id: str = _shown(lambda view: view._ctx.request_id)
    task_id: str | None = _shown(lambda view: view._ctx.run.task.task_id)
    context_id: str | None = _shown(lambda view: view._ctx.run.task.context_id)
    depth: int = _shown(lambda view: view._ctx.run.depth)
    idempotency_key: str | None = _shown(lambda view: view._ctx.run.idempotency_key)
    fencing_token: int | None = _shown(lambda view: view._ctx.fencing_token)

    @property
    def thread_id(self) -> str | None:
        """The thread whose plan made the call."""
        planned = ExecutionContext.current()
        return None if planned is None else planned.thread_id

    @property
    def trace_id(self) -> str:
        """The trace of that plan, else the request id."""
        planned = ExecutionContext.current()
        return self._ctx.request_id if planned is None else planned.trace_id

    @property
    def resumed_schema(self) -> Mapping[str, object] | None:
        """The schema of the request that resumed this call; None in a first run, or where the request had none."""
        resumed = self._ctx.run.resumed
        return None if resumed is None else resumed.bound.schema

    @property
    def can_be_resumed(self) -> bool:
        """False for a call within a call, and for one without a gate: no answer could reach it after a suspension."""
        run = self._ctx.run
        return run.outer is None and run.plan.host.suspensions is not None

    @property
    def session(self) -> MutableMapping[Any, Any]:
        """The bindings of the session."""
        return self._ctx.session

    @property
    def log(self) -> CallLog:
        """The logger of the call."""
        return self._ctx.log

    def remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        return self._ctx.remaining()

    @property
    def idle(self) -> float | None:
        """The idle limit in seconds, or None."""
        limit = self._ctx.run.idle
        return None if limit is None else limit.seconds

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress."""
        self._ctx.progress(progress, total, message)

    def progressed(self) -> None:
        """Reset the idle limit, without a report."""
        if self._ctx.run.idle is not None:
            self._ctx.run.idle.progressed()

    async def send(self, partial: object) -> None:
        """Send part of the output."""
        await self._ctx.send(partial)

    def call(self, tool: object, arguments: object = None) -> Coroutine[object, None, Any]:
        """Call another tool and return its output."""
        ctx = self._ctx
        return ctx.run.plan.host.nested(ctx, tool, arguments, self.attempt)

    async def lease(self, manager: AbstractAsyncContextManager[object]) -> Any:
        """Enter *manager*; the runtime exits it exactly once."""
        return await self._ctx.lease(manager)

    def get(self, token: object) -> Any:
        """Return the provider for *token*."""
        return self._ctx.get(token)

    def try_get(self, token: object, default: object = None) -> Any:
        """Return the provider for *token*, or *default*."""
        return self._ctx.try_get(token, default)

    async def resolve(self, token: object) -> Any:
        """Return the provider for *token*, whose factory is asynchronous."""
        return await self._ctx.resolve(token)

    def respond(self, value: object, *, validate: bool = True) -> NoReturn:
        """End the call here with *value* as the output."""
        self._ctx.respond(value, validate=validate)

    def abort(
        self, reason: str = "", code: str | None = None, http_status: int | None = None, *, public: str | None = None
    ) -> NoReturn:
        """Deny the call."""
        self._ctx.abort(reason, code, http_status, public=public)

    def retry_after(self, ms: int, reason: str = "", *, public: str | None = None) -> NoReturn:
        """Refuse the call for now."""
        self._ctx.retry_after(ms, reason, public=public)

    def suspend(
        self,
        kind: str,
        prompt: str,
        *,
        schema: Mapping[str, object] | None = None,
        expires: float | None = None,
        by: Approval | None = None,
        name: str | None = None,
        questions: Mapping[str, Question] | None = None,
    ) -> Any:
        """Suspend the call until a person or a client answers."""
        return self._ctx.suspend(kind, prompt, schema=schema, expires=expires, by=by, name=name, questions=questions)
