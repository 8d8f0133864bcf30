"""Tasks (SEP-2663): a tool with ``run_on="worker"`` is a job, and the job is a task of the client.

Any process with the same store and signing keys answers for a task, so it survives a restart of the server. With
``mcp_asks_first`` in its metadata, a tool asks in the response of the call, and the answer gets the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitResult,
    InputRequiredResult,
    RequestParams,
)

from callgate.errors import InvocationError, NotPending
from callgate.hooks.state.facts import Suspension
from callgate.providers.stores.jobs import FINAL_STATES, JobState
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.mcp.access import Access
from callgate.runtime.hosts.mcp.capabilities import ASKS_FIRST, TASKS, declares_tasks, missing_capability
from callgate.runtime.hosts.mcp.held_results import HeldResults
from callgate.runtime.hosts.mcp.listing import Listing
from callgate.runtime.hosts.mcp.questions import Elicitations, elicitations_of
from callgate.runtime.hosts.mcp.structured import Outputs
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.jobs.records import JobStatus
from callgate.runtime.suspensions.resolution import find_suspended
from callgate.tools.calls import Outcome, ToolResult, User
from callgate.tools.record import ToolRecord
from callgate.tools.values import hash_of

POLL = 500
"""Milliseconds between two polls that the server suggests."""
FIRST_QUESTION = 1.0
"""Seconds that the response of a call waits for a question. A later question is asked in ``tasks/get``."""
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

    def answers(self, keys: Collection[str]) -> dict[str, ElicitResult]:
        """Return the answers to some questions, by key. Other members are not read.

        Raises:
            MCPError: one is no answer.
        """
        given = {key: one for key, one in (self.input_responses or {}).items() if key in keys and one is not None}
        try:
            return {key: ElicitResult.model_validate(one) for key, one in given.items()}
        except ValueError:  # of pydantic
            raise MCPError(INVALID_PARAMS, "An answer has an action, and content.") from None


class Tasks:
    """The tasks of a server's clients."""

    def __init__(
        self, gate: Gate, access: Access, listing: Listing, approvals_url: str | None, held: HeldResults | None
    ) -> None:
        self._held, self._outputs = held, Outputs()
        self._gate, self._access, self._listing = gate, access, listing
        self._approvals_url = approvals_url

    def install(self, sdk: Server[dict[str, Any]]) -> None:
        """Offer the extension, and handle its requests."""
        sdk.extensions[TASKS] = {}
        sdk.add_request_handler("tasks/get", TaskParams, self.get)
        sdk.add_request_handler("tasks/update", UpdateParams, self.update)
        sdk.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    def is_task(self, ctx: ServerRequestContext, record: ToolRecord, user: User) -> bool:
        """Return True if a call becomes a task: the tool runs in workers, and the client declares tasks.

        A hidden tool makes none, so it answers as an unknown one does.
        """
        return record.run_on == "worker" and declares_tasks(ctx) and self._listing.shows(record.id, user)

    async def create(
        self, ctx: ServerRequestContext, record: ToolRecord, params: CallToolRequestParams, user: User, key: str | None
    ) -> dict[str, object] | InputRequiredResult:
        """Submit a call as a job, and return the task; or its question, if the tool asks before the call is a task.

        Raises:
            InvocationError: the call is refused, such as for a key that was used with other arguments.
        """
        job = await self._gate.submit(params.name, params.arguments or {}, user=user, key=key)
        return await self._begun(ctx, record, job, user)

    async def answered(
        self, ctx: ServerRequestContext, record: ToolRecord, params: CallToolRequestParams, handle: str, user: User
    ) -> dict[str, object] | InputRequiredResult | None:
        """Take the answer to a question that ``create`` returned, and return as it does. None: no job asked it.

        Raises:
            InvocationError: the answer does not fit its question, which stays open.
        """
        try:
            found = await find_suspended(self._gate.waits, handle, user)
            if found is None or found[1].job is None or found[1].tool != record.id:
                return None
            job = self._gate.job(found[1].job, user=user)
            question = await self._question(await job.status(), user)
        except NotPending:
            return None
        if question is not None:
            await self._decide(question, params.input_responses or {}, user)
        return await self._begun(ctx, record, job, user)

    async def _begun(
        self, ctx: ServerRequestContext, record: ToolRecord, job: JobHandle, user: User
    ) -> dict[str, object] | InputRequiredResult:
        if record.definition.metadata.get(ASKS_FIRST):
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_QUESTION):
                    await job.settled()
            question = await self._question(await job.status(), user)
            if question is not None and question.is_understood(ctx.session.client_capabilities):
                return question.required()
        return {"resultType": "task", **self._head(await job.status()), "status": "working"}

    async def get(self, ctx: ServerRequestContext, params: TaskParams) -> dict[str, object]:
        """Handle ``tasks/get``.

        Raises:
            MCPError: the client declares no tasks, or its user has no such task.
        """
        job, status, user = await self._find(ctx, params)
        return {"resultType": "complete", **self._head(status), **await self._state(ctx, job, status, user)}

    async def cancel(self, ctx: ServerRequestContext, params: TaskParams) -> dict[str, object]:
        """Handle ``tasks/cancel``; a task that has ended stays as it is.

        Raises:
            MCPError: as for ``get``.
        """
        job, _, _ = await self._find(ctx, params)
        await job.cancel()
        return {"resultType": "complete"}

    async def update(self, ctx: ServerRequestContext, params: UpdateParams) -> dict[str, object]:
        """Handle ``tasks/update``: answers to the questions that the task asks now, all or some. Others are ignored.

        Raises:
            MCPError: as for ``get``; or an answer does not fit its question, which stays open.
        """
        _, status, user = await self._find(ctx, params)
        question = await self._question(status, user)
        if question is not None:
            try:
                await self._decide(question, params.answers(question.forms), user)
            except InvocationError as error:
                raise MCPError(INVALID_PARAMS, error.public) from None
        return {"resultType": "complete"}

    async def _decide(self, question: Elicitations, answers: Mapping[str, object], user: User) -> None:
        decision = question.decision(answers)
        if decision is not None:
            with suppress(NotPending):  # another answer came first
                await self._gate.resume(question.handle, decision, approver=user, deadline=DECIDED)

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

    def _head(self, status: JobStatus) -> dict[str, object]:
        keep = self._gate.jobs.options.keep
        return {
            "taskId": status.id,
            "createdAt": _text(status.made_at),
            "lastUpdatedAt": _text(status.ended_at or status.made_at),
            "ttlMs": None if keep is None else int(keep * 1000),
            "pollIntervalMs": POLL,
        }

    async def _state(
        self, ctx: ServerRequestContext, job: JobHandle, status: JobStatus, user: User
    ) -> Mapping[str, object]:
        if status.state is JobState.INPUT_REQUIRED:
            question = await self._question(status, user)
            if question is not None and question.is_understood(ctx.session.client_capabilities):
                requests = {key: _shown(one.request()) for key, one in question.forms.items()}
                return {"status": "input_required", "inputRequests": requests}
            return {"status": "working", "statusMessage": _prompt(status)}  # another person or client decides
        if status.state not in FINAL_STATES:
            message = None if status.progress is None else status.progress.message
            return {"status": "working"} | ({} if message is None else {"statusMessage": message})
        return self._ended(await job.result(), user)

    def _ended(self, result: ToolResult, user: User) -> dict[str, object]:
        error = result.error
        if result.outcome is Outcome.CANCELLED:
            return {"status": "cancelled"}
        if error is not None and error.code in _BROKEN:
            return {"status": "failed", "error": {"code": INTERNAL_ERROR, "message": error.public}}
        registry = self._gate.registry
        record = registry.get(result.tool) if result.tool in registry else None
        shown = self._outputs.result(result, record, modern=True)
        if self._held is not None:
            shown = self._held.fitted(shown, result.tool, user)
        return {"status": "completed", "result": _shown(shown)}

    async def _question(self, status: JobStatus, user: User) -> Elicitations | None:
        pending = status.pending
        if pending is None or pending.handle is None:
            return None
        text = ""
        if pending.kind == "approval" or pending.questions is not None:
            try:
                seen = await self._gate.waits.look(pending.handle, user)
            except NotPending:  # decided just now
                return None
            text, pending = seen.text, replace(pending, questions=seen.questions)
        key = partial(_key, pending)
        return elicitations_of(pending, text, user, self._approvals_url, key)


def _key(pending: Suspension, name: str) -> str:
    """Return the key of a question that a task asks now: an answer to an earlier one has another key."""
    place = pending.place if pending.questions is None else pending.questions[name].place
    return hash_of([pending.handle, place])[:16]


def _shown(message: CallToolResult | ElicitRequest) -> dict[str, object]:
    return message.model_dump(by_alias=True, mode="json", exclude_none=True)


def _prompt(status: JobStatus) -> str:
    return "" if status.pending is None else status.pending.prompt


def _text(time: datetime) -> str:
    return time.isoformat()
