"""``tools/call``: one call through the gate, with its progress, its cancellation and its questions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.errors import GateClosed, InvocationError, NotPending
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.streams import cancel_and_wait
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.mcp.access import Access
from callgate.runtime.hosts.mcp.capabilities import REQUIRES, check_capabilities
from callgate.runtime.hosts.mcp.listing import Listing
from callgate.runtime.hosts.mcp.progress import Reports
from callgate.runtime.hosts.mcp.questions import Question, question_of
from callgate.runtime.hosts.mcp.results import HANDLE, call_result, waiting
from callgate.runtime.hosts.mcp.tasks import Tasks
from callgate.runtime.suspensions.decisions import Decision
from callgate.tools.calls import Outcome, ToolResult, User
from callgate.tools.values import clip

T = TypeVar("T")

IDEMPOTENCY_KEY = "callgate/idempotencyKey"
"""The key of ``_meta`` that holds the caller's idempotency key. MCP has none of its own."""
MAX_QUESTIONS = 16
"""Maximum number of questions that one call asks over one request of a client up to version 2025-11-25."""


class CallHandler:
    """The calls of a server's clients."""

    def __init__(self, gate: Gate, access: Access, listing: Listing, approvals_url: str | None, tasks: Tasks) -> None:
        self._gate, self._access, self._listing, self._tasks = gate, access, listing, tasks
        self._approvals_url = approvals_url

    async def call_tool(
        self, ctx: ServerRequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult | dict[str, Any]:
        """Handle ``tools/call``.

        The call runs in a task of its own: the SDK cancels by a scope, which cancels again at each checkpoint, and so
        would keep the tool and its hooks from cleaning up.

        Raises:
            MCPError: the request has no user, names no tool that its user may see, or the gate is closed.
        """
        user = self._access.user_of(ctx)
        try:
            return await _in_task(self._call(ctx, params, user))
        except GateClosed:
            raise MCPError(INTERNAL_ERROR, "The service is not available.") from None

    async def _call(
        self, ctx: ServerRequestContext, params: CallToolRequestParams, user: User
    ) -> CallToolResult | InputRequiredResult | dict[str, Any]:
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        meta = ctx.meta or {}
        handle = params.request_state or meta.get(HANDLE)
        try:
            if handle is None:
                self._check(ctx, params.name, user)
                given = meta.get(IDEMPOTENCY_KEY)
                key = given if isinstance(given, str) else None
                if self._tasks.is_task(ctx, params.name, user):
                    return await self._tasks.create(params, user, key)
                result = await self._begin(ctx, params, user, key)
            else:
                result = await self._take_up(str(handle), params, user)
            for _ in range(MAX_QUESTIONS):
                if result.outcome is not Outcome.SUSPENDED:
                    break
                question = await self._question(result, user)
                if question is None or not question.is_understood(ctx.session.client_capabilities):
                    return waiting(result, result.pending)
                if modern:
                    opened = question.url is not None and question.key in (params.input_responses or {})
                    return waiting(result, result.pending) if opened else question.required()
                decided = question.decision(await _ask(ctx, question))
                if decided is None:
                    return waiting(result, result.pending)
                result = await self._decide(question.handle, decided, user)
        except InvocationError as error:
            result = _refused(params.name, error)
        if not result.ok and not self._listing.shows(params.name, user):
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {clip(params.name, 64)}")
        structured = self._listing.output_schema(params.name) is not None
        return call_result(result, modern=modern, structured=structured)

    def _check(self, ctx: ServerRequestContext, name: str, user: User) -> None:
        """Check that the client has what the tool needs, if its user may see the tool."""
        registry = self._gate.registry
        definition = registry.get(name).definition if name in registry else None
        if definition is not None and REQUIRES in definition.metadata and self._listing.shows(name, user):
            check_capabilities(ctx, definition)

    async def _begin(
        self, ctx: ServerRequestContext, params: CallToolRequestParams, user: User, key: str | None
    ) -> ToolResult:
        reports = Reports(ctx.session)
        result = await self._gate.call(
            params.name, params.arguments or {}, user=user, idempotency_key=key, events=reports
        )
        await reports.sent()
        return result

    async def _take_up(self, handle: str, params: CallToolRequestParams, user: User) -> ToolResult:
        """Go on with a suspended call of this user: with an answer to its question, else with its outcome.

        Raises:
            NotPending: the user has no such call of this tool.
            MCPError: the same, for a state that the client sends back.
        """
        try:
            found = await self._gate.outcome(handle, user=user)
        except NotPending:
            raise _unknown(params) from None
        if found.pending is not None:
            if (await self._gate.waits.look(handle, user)).tool != params.name:
                raise _unknown(params)
            result = ToolResult("", params.name, Outcome.SUSPENDED, pending=found.pending)
            question = await self._question(result, user)
            answer = None if question is None else (params.input_responses or {}).get(question.key)
            if question is None or not isinstance(answer, ElicitResult):
                return result
            decided = question.decision(answer)
            return result if decided is None else await self._decide(handle, decided, user)
        result = found.result or await self._gate.repeat_read(handle, user, deadline=None)
        if result.tool != params.name:
            raise _unknown(params)
        return result

    async def _question(self, result: ToolResult, user: User) -> Question | None:
        pending = result.pending
        text = ""
        if pending.kind == "approval":
            text = (await self._gate.waits.look(pending.handle, user)).text
        return question_of(pending, text, user, self._approvals_url)

    async def _decide(self, handle: str, decision: Decision, user: User) -> ToolResult:
        return await self._gate.resume(handle, decision, approver=user)


async def _ask(ctx: ServerRequestContext, question: Question) -> ElicitResult:
    """Ask the client during its request, as clients up to version 2025-11-25 expect."""
    session, id = ctx.session, ctx.request_id
    if question.url is not None:
        return await session.elicit_url(question.message, question.url, question.handle[:32], related_request_id=id)
    return await session.elicit_form(question.message, dict(question.schema or {}), related_request_id=id)


def _unknown(params: CallToolRequestParams) -> Exception:
    """Return the error for a handle that is of no call of this user and tool."""
    if params.request_state is None:
        return NotPending("the user has no such call of this tool")
    return MCPError(INVALID_PARAMS, "Invalid or expired requestState")


def _refused(tool: str, error: InvocationError) -> ToolResult:
    """Return the result of a call that cannot be taken up or decided."""
    return ToolResult("", tool, Outcome.DENIED, error=error_info(error))


async def _in_task(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* in a task; when the caller is cancelled, cancel it once and wait for its end."""
    # asyncio: a scope of anyio, which the SDK cancels, would reach into the call at each of its checkpoints
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            await cancel_and_wait(running)
