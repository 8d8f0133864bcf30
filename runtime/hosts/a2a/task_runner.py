"""What an agent does for a task: call a tool or converse, and go on when what it waited for has come (contract 39, 40).

Nothing here knows of a wire. A task waits in the store, not in memory: whoever has the store can go on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from callgate.errors import Denied, Invalid, InvocationError, NotPending, StoreConflict
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.result_json import result_as_json, result_from_json
from callgate.runtime.conversation.calls import Calls
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Conversation, Ending
from callgate.runtime.conversation.loop import Model
from callgate.runtime.engine import CallOptions
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.a2a.client_tools import client_tools, extended
from callgate.runtime.hosts.a2a.decided import became, left_waiting, made_again
from callgate.runtime.hosts.a2a.messages import Asked
from callgate.runtime.suspensions.decisions import Respond
from callgate.runtime.suspensions.pending import Pending, PendingTasks, Wanted
from callgate.tools.calls import Outcome, ToolCall, ToolResult, User

DECISIONS = ("approval", "consent")
"""Kinds of suspension that are decided; all others are answered."""


class State(StrEnum):
    """How far a task is."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Came:
    """What came of working on a task: an answer to a text, the result of a call, or what it waits for."""

    state: State
    text: str = ""
    result: ToolResult | None = None
    wanted: tuple[Wanted, ...] = ()


class Work:
    """Works on tasks, for their users, through a gate; *model* answers texts. *deadline* is in seconds, of each run."""

    def __init__(self, gate: Gate, model: Model | None, pending: PendingTasks, deadline: float) -> None:
        self.gate = gate
        self.model = model
        self.pending = pending
        self.deadline = deadline

    def gate_of(self, pending: Pending) -> Gate:
        """The gate of a task: with the tools that its client brought along."""
        return extended(self.gate, client_tools(pending.tools)) if pending.tools else self.gate

    async def begin(self, asked: Asked, user: User, task: str, context: str) -> Came:
        """Start a task: make the call, or answer the text."""
        fresh = Pending(task, context, user.id, user.tenant or "", (), tools=asked.tools)
        gate = self.gate_of(fresh)
        if asked.call is not None:
            result = await self._call(gate, asked.call, asked.key, user, task)
            return await self._after_calls(gate, fresh, {asked.call.id: result}, user)
        assert self.model is not None
        said = await converse(
            self.model, gate, asked.text, user=user, session_id=session_of(task), deadline=self.deadline
        )
        return await self._after_talk(gate, fresh, said, user)

    async def go_on(self, pending: Pending, user: User) -> Came:
        """Go on with a task whose calls are all answered, decided or too late; once.

        Raises:
            StoreConflict: somebody else does, or has changed it meanwhile.
        """
        taken = await self.pending.take(pending)
        gate = self.gate_of(taken)
        results = {one.call_id: await self._result(gate, one, user) for one in taken.wanted}
        if taken.state is None or any(result.outcome is Outcome.SUSPENDED for result in results.values()):
            return await self._after_calls(gate, taken, results, user)
        assert self.model is not None
        said = await converse(
            self.model,
            gate,
            user=user,
            session_id=session_of(taken.task),
            deadline=self.deadline,
            resume=taken.state,
            results=results,
        )
        return await self._after_talk(gate, taken, said, user)

    async def catch_up(self, pending: Pending, user: User) -> Pending:
        """The task with what has been decided elsewhere since.

        Raises:
            StoreConflict: somebody else has changed it meanwhile.
        """
        gate = self.gate_of(pending)
        for one in pending.wanted:
            found = None if one.settled else await became(gate, one.handle, user)
            if found is None:
                continue
            if found.handle is not None:
                now = await self._wanted(gate, one.call_id, found.handle, user)
            elif found.result is not None:
                now = replace(one, result=result_as_json(found.result))
            else:
                now = replace(one, again=True)
            pending = await self.pending.change(pending, now)
        return pending

    async def settle(self, task: str, call_id: str, result: ToolResult, user: User) -> None:
        """Keep for a task what came of a call that somebody of its tenant has decided."""
        while (pending := await self.pending.look(user.tenant or "", task)) is not None:
            found = pending.find(call_id)
            if found is None or found.settled:
                return
            try:
                await self.pending.settle(pending, call_id, result_as_json(result))
            except StoreConflict:  # look again
                continue
            return

    async def drop(self, task: str, user: User) -> None:
        """Nobody goes on with a task: what it waits for is withdrawn, and what was kept for it is closed."""
        pending = await self.pending.look(user.tenant or "", task)
        if pending is not None and pending.user == user.id:
            await self.pending.end(pending)
        session_id = session_of(task)
        for handle, _ in await left_waiting(self.gate, user, session_id):
            try:
                await self.gate.waits.withdraw(handle, user)
            except NotPending:
                pass  # decided, or over, just now
        await self.gate.end_session(session_id)

    # ------------------------------------------------------------------ inside

    async def _call(self, gate: Gate, call: ToolCall, key: str | None, user: User, task: str) -> ToolResult:
        """Make a call; a tool that its user may not be told of is to them one that does not exist."""
        options: CallOptions = {"session_id": session_of(task), "request_id": task, "idempotency_key": key}
        if call.tool not in {tool.name for tool in gate.tools_for(user)}:
            return await Calls(gate, user, frozenset(), "a2a", options, None, _tell_nobody).call(call, user=user)
        options["deadline"] = self._limit(gate, call.tool)
        return await gate.call(call, user=user, **options)

    async def _result(self, gate: Gate, one: Wanted, user: User) -> ToolResult:
        """What came of a call that waited."""
        if one.result is not None:
            return result_from_json(one.result)
        if one.again:
            return await made_again(gate, one.handle, user, self._limit(gate, one.tool))
        if one.answer is None:
            return _failed(one, Denied(code="expired", public="Nobody answered in time."))
        try:
            return await self._answered(gate, one, Respond(one.answer.value, one.answer.error), user)
        except Invalid as error:  # what the client says is no such answer: so its tool has failed
            try:
                return await self._answered(gate, one, Respond(error=error.public), user)
            except InvocationError as other:
                return _failed(one, other)
        except InvocationError as error:
            return _failed(one, error)

    async def _answered(self, gate: Gate, one: Wanted, answer: Respond, user: User) -> ToolResult:
        return await gate.resume(one.handle, answer, approver=user, deadline=self._limit(gate, one.tool))

    def _limit(self, gate: Gate, tool: str) -> float:
        """Seconds for one call: its own limit, if that is less."""
        own = gate._plans.of(tool).limit if tool in gate.registry else None
        return self.deadline if own is None else min(own, self.deadline)

    async def _after_calls(self, gate: Gate, pending: Pending, results: Mapping[str, ToolResult], user: User) -> Came:
        waiting = [call_id for call_id, result in results.items() if result.outcome is Outcome.SUSPENDED]
        if waiting:
            done = {one.call_id: replace(one, result=result_as_json(results[one.call_id])) for one in pending.wanted}
            for call_id in waiting:
                done[call_id] = await self._wanted(gate, call_id, results[call_id].pending.handle, user)
            return await self._hold(pending, done.values())
        (result,) = results.values()
        await self._close(pending)
        if result.ok:
            return Came(State.DONE, result=result)
        return Came(State.REJECTED if result.outcome is Outcome.DENIED else State.FAILED, result=result)

    async def _after_talk(self, gate: Gate, pending: Pending, said: Conversation, user: User) -> Came:
        if said.ended is Ending.SUSPENDED:
            wanted = [await self._wanted(gate, one.call_id, one.pending.handle, user) for one in said.pending]
            return await self._hold(replace(pending, state=said.state), wanted)
        await self._close(pending)
        if said.ok:
            return Came(State.DONE, said.text)
        return Came(State.FAILED, f"The conversation ended early: {said.ended.value}.")

    async def _wanted(self, gate: Gate, call_id: str, handle: Any, user: User) -> Wanted:
        shown = await gate.waits.look(handle, user)
        arguments = None if shown.arguments is None else dict(shown.arguments)
        prompt = f"{shown.prompt}\n{shown.text}" if shown.kind in DECISIONS else shown.prompt
        return Wanted(
            call_id, shown.tool, shown.kind, handle, arguments, prompt, shown.schema, expires_at=shown.expires_at
        )

    async def _hold(self, pending: Pending, wanted: Iterable[Wanted]) -> Came:
        held = await self.pending.hold(replace(pending, wanted=tuple(wanted)))
        return Came(State.WAITS, wanted=held.open(self.pending.now))

    async def _close(self, pending: Pending) -> None:
        if pending.number:
            await self.pending.end(pending)
        await self.gate.end_session(session_of(pending.task))


async def _tell_nobody(_: ToolResult) -> None:
    """The result is returned."""


def session_of(task: str) -> str:
    """The session of a task: what is provided for it lives as long as it, and its calls are known by it."""
    return f"a2a-{task}"


def _failed(one: Wanted, error: InvocationError) -> ToolResult:
    outcome = Outcome.DENIED if isinstance(error, Denied) else Outcome.ERROR
    return ToolResult(one.call_id, one.tool, outcome, error=error_info(error))
