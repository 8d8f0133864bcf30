"""Tasks (SEP-2663): a tool with ``run_on="worker"`` is a job, and the job is a task of the client.

Any process with the same store and signing keys answers for a task, so it survives a restart of the server.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    ElicitResult,
    RequestParams,
)

from callgate.errors import InvocationError, NotPending
from callgate.providers.stores.jobs import FINAL_STATES, JobState
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.mcp.access import Access
from callgate.runtime.hosts.mcp.capabilities import TASKS, declares_tasks, missing_capability
from callgate.runtime.hosts.mcp.listing import Listing
from callgate.runtime.hosts.mcp.questions import Question, question_of
from callgate.runtime.hosts.mcp.results import call_result
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.jobs.records import JobStatus
from callgate.tools.calls import Outcome, ToolResult, User
from callgate.tools.values import hash_of

POLL = 500
"""Milliseconds between two polls that the server suggests."""
DECIDED = 0.001
"""Seconds that an answer waits for its job after the decision is stored: the client polls for the outcome."""

_BROKEN = frozenset({"tool_failed", "hook_failed", "job_failed", "job_dead", "internal"})
"""Codes of errors that are no answer of the tool: the task has failed."""


class TaskParams(RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of ``tasks/update``: answers by the keys of ``inputRequests``."""

    input_responses: dict[str, Any] | None = None

    def answer(self, key: str) -> ElicitResult | None:
        """Return the answer to one question; None without one. Other members are not read.

        Raises:
            MCPError: it is no answer.
        """
        found = (self.input_responses or {}).get(key)
        try:
            return None if found is None else ElicitResult.model_validate(found)
        except ValueError:  # of pydantic
            raise MCPError(INVALID_PARAMS, "An answer has an action, and content.") from None


class Tasks:
    """The tasks of a server's clients."""

    def __init__(self, gate: Gate, access: Access, listing: Listing, approvals_url: str | None) -> None:
        self._gate, self._access, self._listing = gate, access, listing
        self._approvals_url = approvals_url

    def install(self, sdk: Server[dict[str, Any]]) -> None:
        """Offer the extension, and handle its requests."""
        sdk.extensions[TASKS] = {}
        sdk.add_request_handler("tasks/get", TaskParams, self.get)
        sdk.add_request_handler("tasks/update", UpdateParams, self.update)
        sdk.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    def is_task(self, ctx: ServerRequestContext, tool: str, user: User) -> bool:
        """Return True if a call becomes a task: the tool runs in workers, and the client declares tasks.

        A hidden tool makes none, so it answers as an unknown one does.
        """
        registry = self._gate.registry
        if tool not in registry or registry.get(tool).run_on != "worker":
            return False
        return declares_tasks(ctx) and self._listing.shows(tool, user)

    async def create(self, params: CallToolRequestParams, user: User, key: str | None) -> dict[str, Any]:
        """Submit a call as a job, and return the task.

        Raises:
            InvocationError: the call is refused, such as for a key that was used with other arguments.
        """
        job = await self._gate.submit(params.name, params.arguments or {}, user=user, key=key)
        return {"resultType": "task", **self._head(await job.status()), "status": "working"}

    async def get(self, ctx: ServerRequestContext, params: TaskParams) -> dict[str, Any]:
        """Handle ``tasks/get``.

        Raises:
            MCPError: the client declares no tasks, or its user has no such task.
        """
        job, status, user = await self._find(ctx, params)
        return {"resultType": "complete", **self._head(status), **await self._state(ctx, job, status, user)}

    async def cancel(self, ctx: ServerRequestContext, params: TaskParams) -> dict[str, Any]:
        """Handle ``tasks/cancel``; a task that has ended stays as it is.

        Raises:
            MCPError: as for ``get``.
        """
        job, _, _ = await self._find(ctx, params)
        await job.cancel()
        return {"resultType": "complete"}

    async def update(self, ctx: ServerRequestContext, params: UpdateParams) -> dict[str, Any]:
        """Handle ``tasks/update``: an answer to the question that the task asks now. Other answers are ignored.

        Raises:
            MCPError: as for ``get``; or the answer does not fit the question, which stays open.
        """
        _, status, user = await self._find(ctx, params)
        question = await self._question(status, user)
        answer = None if question is None else params.answer(_key(status))
        decision = None if question is None or answer is None else question.decision(answer)
        if question is not None and decision is not None:
            try:
                await self._gate.resume(question.handle, decision, approver=user, deadline=DECIDED)
            except NotPending:
                pass  # another answer came first
            except InvocationError as error:
                raise MCPError(INVALID_PARAMS, error.public) from None
        return {"resultType": "complete"}

    async def _find(self, ctx: ServerRequestContext, params: TaskParams) -> tuple[JobHandle, JobStatus, User]:
        user = self._access.user_of(ctx)
        if not declares_tasks(ctx):
            raise missing_capability("tasks")
        named = None if ctx.request is None else ctx.request.headers.get("mcp-name")
        if named is not None and named != params.task_id:  # the SDK compares it for the methods of the core only
            raise MCPError(HEADER_MISMATCH, "The header Mcp-Name and taskId differ.")
        job = self._gate.job(params.task_id, user=user)
        try:
            return job, await job.status(), user
        except NotPending:
            raise MCPError(INVALID_PARAMS, "Unknown task") from None

    def _head(self, status: JobStatus) -> dict[str, Any]:
        keep = self._gate.jobs.options.keep
        return {
            "taskId": status.id,
            "createdAt": _text(status.made_at),
            "lastUpdatedAt": _text(status.ended_at or status.made_at),
            "ttlMs": None if keep is None else int(keep * 1000),
            "pollIntervalMs": POLL,
        }

    async def _state(self, ctx: ServerRequestContext, job: JobHandle, status: JobStatus, user: User) -> dict[str, Any]:
        if status.state is JobState.INPUT_REQUIRED:
            question = await self._question(status, user)
            if question is not None and question.is_understood(ctx.session.client_capabilities):
                request = question.request().model_dump(by_alias=True, mode="json", exclude_none=True)
                return {"status": "input_required", "inputRequests": {_key(status): request}}
            return {"status": "working", "statusMessage": _prompt(status)}  # another person or client decides
        if status.state not in FINAL_STATES:
            message = None if status.progress is None else status.progress.message
            return {"status": "working"} | ({} if message is None else {"statusMessage": message})
        return self._ended(await job.result(), user)

    def _ended(self, result: ToolResult, user: User) -> dict[str, Any]:
        error = result.error
        if result.outcome is Outcome.CANCELLED:
            return {"status": "cancelled"}
        if error is not None and error.code in _BROKEN:
            return {"status": "failed", "error": {"code": INTERNAL_ERROR, "message": error.public}}
        structured = self._listing.output_schema(result.tool) is not None
        shown = call_result(result, modern=True, structured=structured)
        return {"status": "completed", "result": shown.model_dump(by_alias=True, mode="json", exclude_none=True)}

    async def _question(self, status: JobStatus, user: User) -> Question | None:
        pending = status.pending
        if pending is None or pending.handle is None:
            return None
        text = ""
        if pending.kind == "approval":
            text = (await self._gate.waits.look(pending.handle, user)).text
        return question_of(pending, text, user, self._approvals_url)


def _key(status: JobStatus) -> str:
    """Return the key of the question that a task asks now: an answer to an earlier one has another key."""
    pending = status.pending
    return "" if pending is None else hash_of([pending.handle, pending.place])[:16]


def _prompt(status: JobStatus) -> str:
    return "" if status.pending is None else status.pending.prompt


def _text(time: datetime) -> str:
    return time.isoformat()
