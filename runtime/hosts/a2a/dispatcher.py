"""Dispatch of client messages: a message starts a task, answers a suspended call, or decides an approval."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from callgate.errors import Denied, InvocationError, NotPending, StoreConflict
from callgate.providers.ids import new_id
from callgate.runtime.hosts.a2a.client_tools import refuse_duplicates, refuse_unready_tools
from callgate.runtime.hosts.a2a.executor import MESSAGE, Executor
from callgate.runtime.hosts.a2a.integers import restore_integers
from callgate.runtime.hosts.a2a.messages import BadMessage, ClientMessage, Decision, parse
from callgate.runtime.hosts.a2a.parts import data_part
from callgate.runtime.hosts.a2a.task_runner import DECISIONS, TaskRunner
from callgate.runtime.hosts.a2a.task_states import AgentCall, is_over
from callgate.runtime.hosts.a2a.task_store import TOO_MANY, TaskStore
from callgate.runtime.suspensions.decisions import Approve, Deny
from callgate.runtime.suspensions.pending import Answer, PendingTask, Wanted
from callgate.tools.calls import Outcome, ToolResult, User

if TYPE_CHECKING:
    from a2a.server.cluster import StoredTask
    from a2a.types import Message, SendMessageRequest, Task


MAX_CONTEXT_ID = 128
"""Maximum length of a context id that a client chooses."""


class Dispatcher:
    """Parses messages, checks them against the tasks of their senders, and records answers and decisions."""

    def __init__(self, runner: TaskRunner, tasks: TaskStore, executor: Executor) -> None:
        self.tasks = tasks
        self._runner = runner
        self._executor = executor

    async def dispatch(self, params: SendMessageRequest, context: AgentCall) -> Task | Message | None:
        """Process a message. Returns the response, or None if a task has to run for it.

        Raises:
            TaskNotFoundError: this user has no such task.
            BadMessage, InexactInteger, DefinitionError: the message is malformed, or a client tool is refused.
            NotPending: the task does not wait for such an answer.
        """
        message, user = params.message, context.user.principal
        parsed = context.state.get(MESSAGE) or _parse(message)
        if not message.task_id:
            parsed = self._check_start(parsed, message, user)
            if not await self.tasks.may_start(context):
                raise BadMessage(TOO_MANY)
            if parsed.tools:
                parsed = replace(parsed, records=tuple(await self._runner.client_tools.records(parsed.tools, user)))
                refuse_unready_tools(self._runner.gate, parsed.records)
            context.state[MESSAGE] = parsed
            return None
        if parsed.decisions:
            return await self._decide_all(parsed.decisions, message, context)
        task = (await self.owned_task(message.task_id, context)).task
        message.context_id = message.context_id or task.context_id  # otherwise the SDK creates a new one
        if parsed.text and any(one.message_id == message.message_id for one in task.history):
            # a text names no question: delivered twice, it would answer the next one, too
            raise BadMessage("a message of this id has arrived before")
        context.state[MESSAGE] = await self._record_answers(parsed, task, user)
        return None

    @contextmanager
    def started(self, context: AgentCall) -> Generator[None, None, None]:
        """Give back the place of a task that a message did not start."""
        try:
            yield
        finally:
            self.tasks.release(context)

    async def owned_task(self, task_id: str, context: AgentCall) -> StoredTask:
        """Return a task of this user, with its version.

        Raises:
            TaskNotFoundError: this user has no such task.
        """
        from a2a.utils.errors import TaskNotFoundError

        stored = await self.tasks.get(task_id, context)
        if stored is None:
            raise TaskNotFoundError
        return stored

    # ------------------------------------------------------------------ starting

    def _check_start(self, parsed: ClientMessage, message: Message, user: User) -> ClientMessage:
        """Check a message that starts a task, before the task exists."""
        from a2a.utils.errors import TaskNotFoundError

        if parsed.continues:
            raise TaskNotFoundError
        if len(message.context_id) > MAX_CONTEXT_ID:
            raise BadMessage(f"a context id has at most {MAX_CONTEXT_ID} characters")
        if parsed.tools:
            refuse_duplicates(self._runner.gate, parsed.tools)
        if parsed.call is None:
            if self._runner.model is None:
                raise BadMessage("this agent does not answer texts: call one of its tools")
            return parsed
        seen = {tool.name: tool.parameters for tool in self._runner.gate.tools_for(user)}
        schema = seen.get(parsed.call.name)
        if schema is None or isinstance(parsed.call.arguments, str):
            return parsed
        return replace(parsed, call=replace(parsed.call, arguments=restore_integers(parsed.call.arguments, schema)))

    # ------------------------------------------------------------------ answering

    async def _record_answers(self, parsed: ClientMessage, task: Task, user: User) -> ClientMessage:
        """Record the answers in a message."""
        from a2a.utils.errors import UnsupportedOperationError

        if is_over(task):
            raise UnsupportedOperationError("the task has ended")
        while True:
            pending = await self._runner.pending.find(user, task.id)
            if parsed.resumes and (pending is not None or await self._executor.should_resume(task, user)):
                return parsed
            if pending is None:
                raise NotPending
            checked: dict[str, Answer] = {}
            for id, answer in (parsed.answers or self._by_text(parsed, pending)).items():
                wanted = pending.named(id)
                if wanted is None or wanted.kind in DECISIONS:
                    raise NotPending
                checked[wanted.call_id] = _with_integers(answer, wanted)
            try:
                await self._runner.pending.answer(pending, checked)
            except StoreConflict:  # another message changed the task: read it again
                continue
            return ClientMessage(resumes=True)

    def _by_text(self, parsed: ClientMessage, pending: PendingTask) -> Mapping[str, Answer]:
        """Take a text as the answer to the only open question."""
        wanted = pending.open(self._runner.pending.now)
        if not parsed.text or parsed.call or len(wanted) != 1 or wanted[0].kind in (*DECISIONS, "client_tool"):
            raise BadMessage("the task does not wait for a text")
        return {wanted[0].id: Answer(parsed.text)}

    # ------------------------------------------------------------------ deciding

    async def _decide_all(
        self, decisions: Mapping[str, Decision], message: Message, context: AgentCall
    ) -> Message | None:
        """Decide approvals of a task; the gate checks the approver. Returns None if the user's own task can resume."""
        from a2a.types import Message, Role
        from a2a.utils.errors import TaskNotFoundError

        user = context.user.principal
        pending = await self._runner.pending.look(user.tenant or "", message.task_id)
        if pending is None:
            raise TaskNotFoundError
        verdicts = []
        for id, decision in decisions.items():
            wanted = pending.named(id)
            if wanted is None or wanted.kind not in DECISIONS:
                raise TaskNotFoundError
            result = await self._decide(pending, wanted, decision, user)
            verdicts.append({"type": "decision", "id": id, "outcome": result.outcome.value})
            if result.outcome is not Outcome.SUSPENDED:
                await self._runner.settle(message.task_id, wanted.call_id, result, user)
        if pending.user == user.id:
            message.context_id = message.context_id or pending.context
            context.state[MESSAGE] = ClientMessage(resumes=True)
            return None
        parts = [data_part(one) for one in verdicts]
        return Message(message_id=new_id(), role=Role.ROLE_AGENT, context_id=pending.context, parts=parts)

    async def _decide(self, pending: PendingTask, wanted: Wanted, decision: Decision, user: User) -> ToolResult:
        from a2a.utils.errors import TaskNotFoundError

        decided = Approve() if decision.approve else Deny(decision.reason)
        try:
            gate = await self._runner.gate_for(pending, user)
            return await gate.resume(wanted.handle, decided, approver=user)
        except (NotPending, Denied):
            raise TaskNotFoundError from None
        except InvocationError as error:
            raise BadMessage(error.public) from None


def _parse(message: Message) -> ClientMessage:
    from a2a.helpers import get_data_parts, get_text_parts

    texts, data = get_text_parts(message.parts), get_data_parts(message.parts)
    if len(texts) + len(data) < len(message.parts):
        raise BadMessage("a part must be text or data")
    parsed = parse(texts, data)
    return replace(parsed, tools=tuple(restore_integers(dict(tool), None) for tool in parsed.tools))


def _with_integers(answer: Answer, wanted: Wanted) -> Answer:
    return replace(answer, value=restore_integers(answer.value, wanted.schema))
