"""``tools/call``: one call through the gate, with its progress, its cancellation and its questions."""

from __future__ import annotations

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

from callgate.errors import GateClosed, InvocationError, NotPending, RetryLater, StoreError
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.mcp.access import Access
from callgate.runtime.hosts.mcp.capabilities import REQUIRES, check_capabilities
from callgate.runtime.hosts.mcp.held_results import HeldResults
from callgate.runtime.hosts.mcp.listing import Listing
from callgate.runtime.hosts.mcp.progress import Reports
from callgate.runtime.hosts.mcp.questions import Elicitation, Elicitations, elicitations_of
from callgate.runtime.hosts.mcp.results import HANDLE, waiting
from callgate.runtime.hosts.mcp.resumed_streams import close_later
from callgate.runtime.hosts.mcp.structured import Outputs
from callgate.runtime.hosts.mcp.tasks import Tasks
from callgate.runtime.pipeline.failure import error_info
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.scopes import once
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.repeats import find_repeated, note_delivered
from callgate.tools.calls import ANONYMOUS, Outcome, ToolResult, User
from callgate.tools.definition import Effect
from callgate.tools.record import ToolRecord
from callgate.tools.values import clip

IDEMPOTENCY_KEY = "callgate/idempotencyKey"
"""The key of ``_meta`` that holds the caller's idempotency key. MCP has none of its own."""
MAX_QUESTIONS = 16
"""Maximum number of questions that one call asks over one request of a client up to version 2025-11-25."""

RETRY_AFTER = 1_000
"""Milliseconds after which a caller may try again if the store failed."""


class CallHandler:
    """The calls of a server's clients."""

    def __init__(
        self,
        gate: Gate,
        access: Access,
        listing: Listing,
        approvals_url: str | None,
        tasks: Tasks,
        held: HeldResults | None,
        close_after: float | None,
    ) -> None:
        self._held, self._outputs, self._close_after = held, Outputs(), close_after
        self._gate, self._access, self._listing, self._tasks = gate, access, listing, tasks
        self._approvals_url = approvals_url

    async def call_tool(
        self, ctx: ServerRequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult | dict[str, object]:
        """Handle ``tools/call``.

        Raises:
            MCPError: the request has no user, names no tool that its user may see, or the gate is closed.
        """
        user, registry = self._access.user_of(ctx), self._gate.registry
        record = registry.get(params.name) if params.name in registry else None
        closing = None if self._close_after is None else close_later(ctx, self._close_after)
        try:
            result = await self._outcome(ctx, params, user, record)
        except GateClosed:
            raise MCPError(INTERNAL_ERROR, "The service is not available.") from None
        except InvocationError as error:
            result = _refused(params.name, error)
        except StoreError as error:
            emit(LogEvent.PROVIDER_FAILED, provider="mcp", phase="call", error=error)
            result = _refused(params.name, RetryLater(RETRY_AFTER, "the store failed"))
        finally:
            if closing is not None:
                closing.cancel()
        if not isinstance(result, ToolResult):
            return result
        if not result.ok and not self._listing.shows(params.name, user):
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {clip(params.name, 64)}")
        shown = self._outputs.result(result, record, modern=ctx.protocol_version in MODERN_PROTOCOL_VERSIONS)
        return (
            shown if self._held is None else self._held.fitted(shown, params.name, user, ctx.protocol_version, ctx.meta)
        )

    async def _outcome(
        self, ctx: ServerRequestContext, params: CallToolRequestParams, user: User, record: ToolRecord | None
    ) -> ToolResult | CallToolResult | InputRequiredResult | dict[str, object]:
        """Run a call. A read that is not suspended needs no record of an earlier call: it is done after its run."""
        meta = ctx.meta or {}
        handle = params.request_state or meta.get(HANDLE)
        if handle is not None:
            return await once(self._taken_up(ctx, params, str(handle), user, record))
        if record is not None and REQUIRES in record.definition.metadata and self._listing.shows(record.id, user):
            check_capabilities(ctx, record.definition)
        key = meta.get(IDEMPOTENCY_KEY)
        if not isinstance(key, str | None):  # a key that is ignored is a second effect
            raise MCPError(INVALID_PARAMS, f"{IDEMPOTENCY_KEY} must be a text")
        if record is not None and self._tasks.is_task(ctx, record, user):
            return await once(self._tasks.create(ctx, record, params, user, key))
        result = None
        if key is not None or record is None or not _may_wait(record):
            result = await self._run(ctx, params, user, key)
            if result.outcome is not Outcome.SUSPENDED:
                return result
        # The gate lets the SDK's scope cancel a call once. The work around it needs the same: the scope cancels at every
        # checkpoint, which would cut off the clean-up of a store.
        return await once(self._with_records(ctx, params, user, key, result))

    async def _taken_up(
        self,
        ctx: ServerRequestContext,
        params: CallToolRequestParams,
        handle: str,
        user: User,
        record: ToolRecord | None,
    ) -> ToolResult | CallToolResult | InputRequiredResult | dict[str, object]:
        task = None
        if record is not None and self._tasks.is_task(ctx, record, user):
            task = await self._tasks.answered(ctx, record, params, handle, user)
        return task or await self._follow_up(ctx, params, handle, user)

    async def _run(
        self, ctx: ServerRequestContext, params: CallToolRequestParams, user: User, key: str | None
    ) -> ToolResult:
        reports = Reports(ctx.session)
        options: CallOptions = {"events": reports, "joins_waiting": True}
        if key is not None:
            options["idempotency_key"] = key
        result = await self._gate.call(params.name, params.arguments or {}, user=user, **options)
        await reports.sent()
        return result

    async def _with_records(
        self,
        ctx: ServerRequestContext,
        params: CallToolRequestParams,
        user: User,
        key: str | None,
        result: ToolResult | None,
    ) -> ToolResult | CallToolResult | InputRequiredResult:
        """Run a call, or go on with its *result*; take up an earlier one with the same arguments instead.

        A model cannot send a handle: it calls again, and a new call would be a second effect. An earlier call is one
        whose outcome was not given yet.
        """
        waits, arguments = self._gate.waits, params.arguments or {}
        handle = None if result is not None else await find_repeated(waits, user, params.name, arguments)
        if handle is None:
            result = result or await self._run(ctx, params, user, key)
            if result.outcome is not Outcome.SUSPENDED or key is not None:
                return await self._go_on(ctx, params, result, user)
            new = result.pending.handle
            handle = await find_repeated(waits, user, params.name, arguments, but=new)
            if handle is None:
                return await self._go_on(ctx, params, result, user)
            await waits.withdraw(new, user)
        return await self._follow_up(ctx, params, handle, user)

    async def _follow_up(
        self, ctx: ServerRequestContext, params: CallToolRequestParams, handle: str, user: User
    ) -> ToolResult | CallToolResult | InputRequiredResult:
        """Go on with a suspended call of this user."""
        return await self._go_on(ctx, params, await self._take_up(ctx, handle, params, user), user, handle)

    async def _go_on(
        self,
        ctx: ServerRequestContext,
        params: CallToolRequestParams,
        result: ToolResult,
        user: User,
        handle: str | None = None,
    ) -> ToolResult | CallToolResult | InputRequiredResult:
        """Run a call that another process has decided, and ask the questions that the client can answer.

        *handle* is that of a call that was taken up.
        """
        if result.pending is not None:
            handle = result.pending.handle
        for _ in range(MAX_QUESTIONS):
            if result.outcome is not Outcome.SUSPENDED or result.pending is None:
                break
            if result.pending.decided:
                result = await self._proceed(ctx, result.pending.handle, user)
                continue
            question = await self._question(result, user)
            if question is None or not question.is_understood(ctx.session.client_capabilities):
                return self._waiting(result, user)
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                answered = params.input_responses or {}
                opened = any(form.url is not None and key in answered for key, form in question.forms.items())
                return self._waiting(result, user) if opened else question.required()
            key, form = next(iter(question.forms.items()))
            decided = question.decision({key: await _ask(ctx, question.handle, form)})
            if decided is None:
                return self._waiting(result, user)
            result = await self._decide(question.handle, decided, user)
        if handle is not None and result.outcome is not Outcome.IN_FLIGHT:
            await note_delivered(self._gate.waits, user, handle)
        return result

    async def _proceed(self, ctx: ServerRequestContext, handle: str, user: User) -> ToolResult:
        reports = Reports(ctx.session)
        result = await self._gate.proceed(handle, user=user, events=reports)
        await reports.sent()
        return result

    async def _take_up(
        self, ctx: ServerRequestContext, handle: str, params: CallToolRequestParams, user: User
    ) -> ToolResult:
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
            if (await self._gate.waits.look(found.pending.handle or handle, user)).tool != params.name:
                raise _unknown(params)
            result = ToolResult("", params.name, Outcome.SUSPENDED, pending=found.pending)
            if found.pending.decided:
                return result
            question = await self._question(result, user)
            decided = None if question is None else question.decision(params.input_responses or {})
            return result if decided is None else await self._decide(handle, decided, user)
        result = found.result or await self._proceed(ctx, handle, user)
        if result.tool != params.name:
            raise _unknown(params)
        return result

    def _waiting(self, result: ToolResult, user: User) -> CallToolResult:
        return waiting(result, result.pending, self._approvals_url, repeats=user.id != ANONYMOUS.id)

    async def _question(self, result: ToolResult, user: User) -> Elicitations | None:
        pending = result.pending
        text = ""
        if pending.kind == "approval":
            text = (await self._gate.waits.look(pending.handle, user)).text
        return elicitations_of(pending, text, user, self._approvals_url)

    async def _decide(self, handle: str, decision: Decision, user: User) -> ToolResult:
        return await self._gate.resume(handle, decision, approver=user)


def _may_wait(record: ToolRecord) -> bool:
    """Return False for a read that only a hook may suspend: it is looked up once it is, and most never are."""
    return record.definition.effect is not Effect.READ or bool(record.requires_approval) or record.resumable


async def _ask(ctx: ServerRequestContext, handle: str, question: Elicitation) -> ElicitResult:
    """Ask the client during its request, as clients up to version 2025-11-25 expect."""
    session, id = ctx.session, ctx.request_id
    if question.url is not None:
        return await session.elicit_url(question.message, question.url, handle[:32], related_request_id=id)
    return await session.elicit_form(question.message, dict(question.schema or {}), related_request_id=id)


def _unknown(params: CallToolRequestParams) -> Exception:
    """Return the error for a handle that is of no call of this user and tool."""
    if params.request_state is None:
        return NotPending("the user has no such call of this tool")
    return MCPError(INVALID_PARAMS, "Invalid or expired requestState")


def _refused(tool: str, error: InvocationError) -> ToolResult:
    """Return the result of a call that cannot be taken up or decided."""
    return ToolResult("", tool, Outcome.DENIED, error=error_info(error))
