"""``ToolView``: one invocation as its tool sees it; the ``ToolContext`` that the gate supplies."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from operator import attrgetter
from typing import Any, NoReturn, cast

from callgate.hooks.context import InvokeContext
from callgate.providers.logs import CallLog
from callgate.providers.principal import User
from callgate.tools.approval import Approval
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition
from callgate.tools.execution import ExecutionContext


class ToolView:
    """The part of an invocation that a tool may use; see ``ToolContext`` for each member."""

    __slots__ = ("_ctx", "attempt")

    def __init__(self, ctx: InvokeContext) -> None:
        self._ctx = ctx
        self.attempt: int = ctx.run.attempt  # that of this body, which may outlast it in a task of its own

    tool: ToolDefinition = cast("ToolDefinition", property(attrgetter("_ctx.tool")))
    tool_id: str = cast("str", property(attrgetter("_ctx.tool_id")))
    tool_name: str = cast("str", property(attrgetter("_ctx.tool_name")))
    input: Any = property(attrgetter("_ctx.input"))
    data: MutableMapping[Any, Any] = cast("MutableMapping[Any, Any]", property(attrgetter("_ctx.data")))
    error: BaseException | None = cast("BaseException | None", property(attrgetter("_ctx.error")))
    started_at: datetime = cast("datetime", property(attrgetter("_ctx.started_at")))
    tool_call: ToolCall = cast("ToolCall", property(attrgetter("_ctx.tool_call")))
    user: User = cast("User", property(attrgetter("_ctx.user")))
    user_id: str = cast("str", property(attrgetter("_ctx.user.id")))
    tenant: str | None = cast("str | None", property(attrgetter("_ctx.user.tenant")))
    session_id: str | None = cast("str | None", property(attrgetter("_ctx.run.session_id")))
    request_id: str = cast("str", property(attrgetter("_ctx.request_id")))
    task_id: str | None = cast("str | None", property(attrgetter("_ctx.run.task.task_id")))
    context_id: str | None = cast("str | None", property(attrgetter("_ctx.run.task.context_id")))
    depth: int = cast("int", property(attrgetter("_ctx.run.depth")))
    idempotency_key: str | None = cast("str | None", property(attrgetter("_ctx.run.idempotency_key")))
    fencing_token: int | None = cast("int | None", property(attrgetter("_ctx.fencing_token")))

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
    def resumed_schema(self) -> Mapping[str, Any] | None:
        """The schema of the request that resumed this call; None in a first run, or where the request had none."""
        resumed = self._ctx.run.resumed
        return None if resumed is None else resumed.bound.schema

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

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress."""
        self._ctx.progress(progress, total, message)

    async def send(self, partial: object) -> None:
        """Send part of the output."""
        await self._ctx.send(partial)

    def call(self, tool: Any, arguments: Any = None) -> Coroutine[Any, Any, Any]:
        """Call another tool and return its output."""
        ctx = self._ctx
        return ctx.run.plan.host.nested(ctx, tool, arguments, self.attempt)

    async def lease(self, manager: AbstractAsyncContextManager[object]) -> Any:
        """Enter *manager*; the runtime exits it exactly once."""
        return await self._ctx.lease(manager)

    def get(self, token: Any) -> Any:
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
    ) -> Any:
        """Suspend the call until a person or a client answers."""
        return self._ctx.suspend(kind, prompt, schema=schema, expires=expires, by=by, name=name)
