"""The runner of tasks: it calls a tool or runs a conversation, and resumes them after a suspension.

The module is independent of the dialects. A waiting task is in the store, so any process with the store can resume it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from callgate.errors import Denied, Invalid, InvocationError, NotPending, RegistrationError, StoreConflict
from callgate.runtime.conversation.calls import Calls
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Conversation, Ending
from callgate.runtime.conversation.loop import Model
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.a2a.client_tools import ClientTools
from callgate.runtime.hosts.a2a.messages import ClientMessage
from callgate.runtime.pipeline.failure import error_info
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.result_json import result_as_json, result_from_json
from callgate.runtime.suspensions.decisions import Respond
from callgate.runtime.suspensions.pending import PendingTask, PendingTasks, Wanted
from callgate.runtime.suspensions.resolution import in_session
from callgate.tools.calls import Outcome, ToolCall, ToolResult, User
from callgate.tools.execution import TaskIds
from callgate.tools.limits import fault_of_seconds

DECISIONS = ("approval", "consent")
"""Kinds of suspension that an approver decides; the owner answers all others."""


class State(StrEnum):
    """The state of a task after a run."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    WAITING = "waits"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a run: an answer to a text, the result of a call, or the suspended calls."""

    state: State
    text: str = ""
    result: ToolResult | None = None
    wanted: tuple[Wanted, ...] = ()


class TaskRunner:
    """Runs tasks for their users through a gate. *model* answers texts, *deadline* is the timeout of a run in seconds."""

    def __init__(self, gate: Gate, model: Model | None, pending: PendingTasks, deadline: float) -> None:
        self.gate = gate
        self.model = model
        self.pending = pending
        if (fault := fault_of_seconds(deadline, none=False)) is not None:
            raise RegistrationError(f"a2a.agent: deadline {fault}")
        self.deadline = deadline
        self.client_tools = ClientTools()

    async def gate_for(self, pending: PendingTask, user: User) -> Gate:
        """Return the gate with the client tools of a task, whose start was accepted."""
        if not pending.tools:
            return self.gate
        return self.gate.with_tools(await self.client_tools.records(pending.tools, user, accepted=True))

    async def start(self, parsed: ClientMessage, user: User, task: str, context: str) -> TaskResult:
        """Start a task: run the call, or answer the text."""
        fresh = PendingTask(task, context, user.id, user.tenant or "", (), tools=parsed.tools)
        gate = self.gate.with_tools(parsed.records) if parsed.records else self.gate
        if parsed.call is not None:
            result = await self._call(gate, parsed.call, parsed.key, user, fresh)
            return await self._after_calls(gate, fresh, {parsed.call.id: result}, user)
        assert self.model is not None
        conversation = await converse(
            self.model,
            gate,
            parsed.text,
            user=user,
            session_id=session_of(task),
            task=TaskIds(task, context),
            deadline=self.deadline,
        )
        return await self._after_conversation(gate, fresh, conversation, user)

    async def resume(self, pending: PendingTask, user: User) -> TaskResult:
        """Resume a task once all its calls are answered, decided or expired.

        Raises:
            StoreConflict: another request resumes the task, or has changed it.
        """
        taken = await self.pending.take(pending)
        gate = await self.gate_for(taken, user)
        results = {one.call_id: await self._result(gate, one, user) for one in taken.wanted}
        if taken.state is None or any(result.outcome is Outcome.SUSPENDED for result in results.values()):
            return await self._after_calls(gate, taken, results, user)
        assert self.model is not None
        conversation = await converse(
            self.model,
            gate,
            user=user,
            session_id=session_of(taken.task),
            task=TaskIds(taken.task, taken.context),
            deadline=self.deadline,
            resume=taken.state,
            results=results,
        )
        return await self._after_conversation(gate, taken, conversation, user)

    async def refresh(self, pending: PendingTask, user: User) -> PendingTask:
        """Add the decisions of other requests and processes to a task.

        Raises:
            StoreConflict: another request has changed the task.
        """
        for one in pending.wanted:
            found = None if one.settled else await self.gate.resolution(one.handle, user)
            if found is None:
                continue
            if found.handle is not None:
                now = await self._wanted(self.gate, one.call_id, found.handle, user, one)
            elif found.result is not None:
                now = replace(one, result=result_as_json(found.result))
            else:
                now = replace(one, again=True)
            pending = await self.pending.change(pending, now)
        return pending

    async def settle(self, task: str, call_id: str, result: ToolResult, user: User) -> None:
        """Record the result of a decided call in its task."""
        while (pending := await self.pending.look(user.tenant or "", task)) is not None:
            found = pending.find(call_id)
            if found is None or found.settled:
                return
            try:
                await self.pending.settle(pending, call_id, result_as_json(result))
            except StoreConflict:  # read the task again
                continue
            return

    async def abandon(self, task: str, user: User) -> None:
        """Abandon a task: withdraw its suspended calls and end its session."""
        pending = await self.pending.look(user.tenant or "", task)
        if pending is not None and pending.user == user.id:
            await self.pending.end(pending)
        session_id = session_of(task)
        for handle, _ in await in_session(self.gate.waits, session_id, user):
            try:
                await self.gate.waits.withdraw(handle, user)
            except NotPending:
                pass  # decided or ended just now
        await self.gate.end_session(session_id)

    # ------------------------------------------------------------------ inside

    async def _call(self, gate: Gate, call: ToolCall, key: str | None, user: User, of: PendingTask) -> ToolResult:
        """Run a call. A tool that the user may not see does not exist for them."""
        options: CallOptions = {"session_id": session_of(of.task), "request_id": of.task, "idempotency_key": key}
        options["task"] = TaskIds(of.task, of.context)
        if call.name not in {tool.name for tool in gate.tools_for(user)}:
            return await Calls(gate, user, frozenset(), "a2a", options, None, _ignore).call(call, user=user, **options)
        options["deadline"] = self._limit(gate, call.name)
        return await gate.call(call, user=user, **options)

    async def _result(self, gate: Gate, one: Wanted, user: User) -> ToolResult:
        """Return the result of a call that was suspended."""
        if one.result is not None:
            return result_from_json(one.result)
        if one.again:
            return await gate.proceed(one.handle, user=user, deadline=self._limit(gate, one.tool))
        if one.answer is None:
            return _failed(one, Denied(code="expired", public="The answer did not come in time."))
        try:
            return await self._answered(gate, one, Respond(one.answer.value, one.answer.error), user)
        except Invalid as error:  # an invalid answer counts as a failure of the client's tool
            try:
                return await self._answered(gate, one, Respond(error=error.public), user)
            except InvocationError as other:
                return _failed(one, other)
        except InvocationError as error:
            return _failed(one, error)

    async def _answered(self, gate: Gate, one: Wanted, answer: Respond, user: User) -> ToolResult:
        return await gate.resume(one.handle, answer, approver=user, deadline=self._limit(gate, one.tool))

    def _limit(self, gate: Gate, tool: str) -> float:
        """Return the timeout of one call in seconds: that of the task, the tool or the gate, if shorter."""
        own = gate.registry.get(tool).deadline if tool in gate.registry else None
        limits = (self.deadline, gate.deadline if own is None else own)
        return min(limit for limit in limits if limit is not None)

    async def _after_calls(
        self, gate: Gate, pending: PendingTask, results: Mapping[str, ToolResult], user: User
    ) -> TaskResult:
        waiting = [call_id for call_id, result in results.items() if result.outcome is Outcome.SUSPENDED]
        if waiting:
            done = {one.call_id: replace(one, result=result_as_json(results[one.call_id])) for one in pending.wanted}
            for call_id in waiting:
                handle = results[call_id].pending.handle
                done[call_id] = await self._wanted(gate, call_id, handle, user, pending.find(call_id))
            return await self._wait(pending, done.values())
        (result,) = results.values()
        await self._end(pending)
        if result.ok:
            return TaskResult(State.DONE, result=result)
        return TaskResult(State.REJECTED if result.outcome is Outcome.DENIED else State.FAILED, result=result)

    async def _after_conversation(
        self, gate: Gate, pending: PendingTask, conversation: Conversation, user: User
    ) -> TaskResult:
        if conversation.ended is Ending.SUSPENDED:
            wanted = [
                await self._wanted(gate, one.call_id, one.pending.handle, user, pending.find(one.call_id))
                for one in conversation.pending
            ]
            return await self._wait(replace(pending, state=conversation.state), wanted)
        await self._end(pending)
        if conversation.ok:
            return TaskResult(State.DONE, conversation.text)
        return TaskResult(State.FAILED, f"The conversation ended early: {conversation.ended.value}.")

    async def _wanted(self, gate: Gate, call_id: str, handle: str, user: User, before: Wanted | None) -> Wanted:
        """Return the question of a call; *before* is its question before this one, if the task has it."""
        shown = await gate.waits.look(handle, user)
        arguments = None if shown.arguments is None else dict(shown.arguments)
        prompt = f"{shown.prompt}\n{shown.text}" if shown.kind in DECISIONS else shown.prompt
        asked = 0 if before is None else before.asked + (before.handle != handle)
        return Wanted(
            call_id,
            shown.tool,
            shown.kind,
            handle,
            arguments,
            prompt,
            shown.schema,
            expires_at=shown.expires_at,
            asked=asked,
        )

    async def _wait(self, pending: PendingTask, wanted: Iterable[Wanted]) -> TaskResult:
        held = await self.pending.hold(replace(pending, wanted=tuple(wanted)))
        return TaskResult(State.WAITING, wanted=held.open(self.pending.now))

    async def _end(self, pending: PendingTask) -> None:
        if pending.number:
            await self.pending.end(pending)
        await self.gate.end_session(session_of(pending.task))


async def _ignore(_: ToolResult) -> None:
    """Do nothing: the caller returns the result."""


def session_of(task: str) -> str:
    """Return the session id of a task. Its session providers live as long as the task."""
    return f"a2a-{task}"


def _failed(one: Wanted, error: InvocationError) -> ToolResult:
    outcome = Outcome.DENIED if isinstance(error, Denied) else Outcome.ERROR
    return ToolResult(one.call_id, one.tool, outcome, error=error_info(error))
