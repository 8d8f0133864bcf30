"""What a message means for a task: it starts one, answers what one waits for, or decides about a call of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from callgate.errors import Denied, InvocationError, NotPending, StoreConflict
from callgate.providers.ids import new_id
from callgate.runtime.hosts.a2a.client_tools import client_tools, refuse_taken
from callgate.runtime.hosts.a2a.executor import ASKED, Executor
from callgate.runtime.hosts.a2a.integers import whole
from callgate.runtime.hosts.a2a.messages import Asked, BadAsk, Decision, read
from callgate.runtime.hosts.a2a.parts import data_part
from callgate.runtime.hosts.a2a.task_runner import DECISIONS, Work
from callgate.runtime.hosts.a2a.task_store import Tasks, is_over
from callgate.runtime.suspensions.decisions import Approve, Deny
from callgate.runtime.suspensions.pending import Answer, Pending, Wanted
from callgate.tools.calls import Outcome, ToolResult, User

MAX_CONTEXT_ID = 128
"""Characters of a context id that a client makes up."""


class Inbox:
    """Reads messages for the tasks of their senders, and does what has to be done before a task goes on."""

    def __init__(self, work: Work, tasks: Tasks, executor: Executor) -> None:
        self.tasks = tasks
        self._work = work
        self._executor = executor

    async def received(self, params: Any, context: Any) -> Any:
        """Read a message. None where a task is to work on it, else the answer.

        Raises:
            TaskNotFoundError: there is no such task for this user.
            BadAsk, NotExact, DefinitionError: it cannot be read, or offers tools that are refused.
            NotPending: the task waits for no such answer.
        """
        message, user = params.message, context.user.principal
        asked = context.state.get(ASKED) or _read(message)
        if not message.task_id:
            context.state[ASKED] = self._begun(asked, message, user)
            return None
        if asked.decisions:
            return await self._decided(asked.decisions, message, context)
        task = (await self.own(message.task_id, context)).task
        message.context_id = message.context_id or task.context_id  # else the SDK makes up another
        context.state[ASKED] = await self._answered(asked, task, user)
        return None

    async def own(self, task_id: str, context: Any) -> Any:
        """A task of this user, with its version.

        Raises:
            TaskNotFoundError: there is none.
        """
        from a2a.utils.errors import TaskNotFoundError

        stored = await self.tasks.get(task_id, context)
        if stored is None:
            raise TaskNotFoundError
        return stored

    # ------------------------------------------------------------------ starting

    def _begun(self, asked: Asked, message: Any, user: User) -> Asked:
        """What starts a task, checked as far as it can be before there is one."""
        from a2a.utils.errors import TaskNotFoundError

        if asked.continues:
            raise TaskNotFoundError
        if len(message.context_id) > MAX_CONTEXT_ID:
            raise BadAsk(f"a context id has {MAX_CONTEXT_ID} characters at most")
        if asked.tools:
            refuse_taken(self._work.gate, client_tools(asked.tools))
        if asked.call is None:
            if self._work.model is None:
                raise BadAsk("this agent answers no texts: call one of its tools")
            return asked
        seen = {tool.name: tool.parameters for tool in self._work.gate.tools_for(user)}
        schema = seen.get(asked.call.tool)
        if schema is None or isinstance(asked.call.arguments, str):
            return asked
        return replace(asked, call=replace(asked.call, arguments=whole(asked.call.arguments, schema)))

    # ------------------------------------------------------------------ answering

    async def _answered(self, asked: Asked, task: Any, user: User) -> Asked:
        """Note what a message answers."""
        from a2a.utils.errors import UnsupportedOperationError

        if is_over(task):
            raise UnsupportedOperationError("the task is over")
        while True:
            pending = await self._work.pending.find(user, task.id)
            if asked.again and (pending is not None or await self._executor.is_due(task, user)):
                return asked
            if pending is None:
                raise NotPending
            answers = asked.answers or self._by_text(asked, pending)
            wanted = {call_id: pending.find(call_id) for call_id in answers}
            if any(one is None or one.kind in DECISIONS for one in wanted.values()):
                raise NotPending
            read = {call_id: _whole(answer, wanted[call_id]) for call_id, answer in answers.items()}
            try:
                await self._work.pending.answer(pending, read)
            except StoreConflict:  # another message was read at the same time: look again
                continue
            return Asked(again=True)

    def _by_text(self, asked: Asked, pending: Pending) -> Mapping[str, Answer]:
        """A text answers the one question that is open, if it is a question."""
        wanted = pending.open(self._work.pending.now)
        if not asked.text or asked.call or len(wanted) != 1 or wanted[0].kind in (*DECISIONS, "client_tool"):
            raise BadAsk("the task waits for something else")
        return {wanted[0].call_id: Answer(asked.text)}

    # ------------------------------------------------------------------ deciding

    async def _decided(self, decisions: Mapping[str, Decision], message: Any, context: Any) -> Any:
        """Decide about calls of a task, one's own or another's: the gate knows who may. None where one's own goes on."""
        from a2a.types import Message, Role
        from a2a.utils.errors import TaskNotFoundError

        user = context.user.principal
        pending = await self._work.pending.look(user.tenant or "", message.task_id)
        if pending is None:
            raise TaskNotFoundError
        told = []
        for call_id, decision in decisions.items():
            result = await self._decide(pending, call_id, decision, user)
            told.append({"type": "decision", "id": call_id, "outcome": result.outcome.value})
            if result.outcome is not Outcome.SUSPENDED:
                await self._work.settle(message.task_id, call_id, result, user)
        if pending.user == user.id:
            message.context_id = message.context_id or pending.context
            context.state[ASKED] = Asked(again=True)
            return None
        parts = [data_part(one) for one in told]
        return Message(message_id=new_id(), role=Role.ROLE_AGENT, context_id=pending.context, parts=parts)

    async def _decide(self, pending: Pending, call_id: str, decision: Decision, user: User) -> ToolResult:
        from a2a.utils.errors import TaskNotFoundError

        wanted = pending.find(call_id)
        if wanted is None or wanted.kind not in DECISIONS:
            raise TaskNotFoundError
        said = Approve() if decision.approve else Deny(decision.reason)
        try:
            return await self._work.gate_of(pending).resume(wanted.handle, said, approver=user)
        except (NotPending, Denied):
            raise TaskNotFoundError from None
        except InvocationError as error:
            raise BadAsk(error.public) from None


def _read(message: Any) -> Asked:
    from a2a.helpers import get_data_parts, get_text_parts

    texts, data = get_text_parts(message.parts), get_data_parts(message.parts)
    if len(texts) + len(data) < len(message.parts):
        raise BadAsk("parts are texts or data")
    asked = read(texts, data)
    return replace(asked, tools=tuple(whole(dict(tool), None) for tool in asked.tools))


def _whole(answer: Answer, wanted: Wanted | None) -> Answer:
    return replace(answer, value=whole(answer.value, None if wanted is None else wanted.schema))
