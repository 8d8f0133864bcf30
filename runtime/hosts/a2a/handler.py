"""The handler of A2A requests: it checks the owner of a task and dispatches messages before the SDK runs a task.

It implements the ``RequestHandler`` of the SDK without importing it. Unknown tasks and tasks of other users get the same
error. Internal errors are logged, and the client gets no details.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from callgate.errors import DefinitionError, NotPending
from callgate.providers.ids import new_id
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.hosts.a2a.dispatcher import Dispatcher
from callgate.runtime.hosts.a2a.executor import MESSAGE, Executor
from callgate.runtime.hosts.a2a.integers import InexactInteger
from callgate.runtime.hosts.a2a.messages import BadMessage, ClientMessage
from callgate.runtime.hosts.a2a.parts import data_part
from callgate.runtime.hosts.a2a.task_runner import TaskRunner
from callgate.runtime.hosts.a2a.task_states import AgentCall, is_over
from callgate.tools.calls import User

if TYPE_CHECKING:
    from a2a.server.events.event_queue import Event
    from a2a.types import (
        AgentCard,
        CancelTaskRequest,
        GetTaskRequest,
        ListTasksRequest,
        ListTasksResponse,
        Message,
        SendMessageRequest,
        SubscribeToTaskRequest,
        Task,
    )


MAX_SUBSCRIPTIONS = 32
"""Maximum number of subscriptions of one user in a process."""
POLL = 1.0
"""Interval of polling the store for a task with a subscriber, in seconds: another process may change it."""


class SdkHandler(Protocol):
    """The handler of the SDK, which runs tasks: its ``DefaultRequestHandler``."""

    async def on_message_send(self, params: SendMessageRequest, context: AgentCall) -> Task | Message: ...  # noqa: D102

    def on_message_send_stream(  # noqa: D102
        self, params: SendMessageRequest, context: AgentCall
    ) -> AsyncGenerator[Event, None]: ...

    async def on_get_task(self, params: GetTaskRequest, context: AgentCall) -> Task | None: ...  # noqa: D102

    async def on_list_tasks(self, params: ListTasksRequest, context: AgentCall) -> ListTasksResponse: ...  # noqa: D102

    async def on_cancel_task(self, params: CancelTaskRequest, context: AgentCall) -> Task: ...  # noqa: D102

    async def aclose(self) -> None: ...  # noqa: D102


class Handler:
    """Handles A2A requests. *inner* makes the SDK's handler, which runs tasks; *card* makes the card of a user."""

    def __init__(
        self,
        inner: Callable[[], SdkHandler],
        inbox: Dispatcher,
        executor: Executor,
        runner: TaskRunner,
        card: Callable[[User], AgentCard],
    ) -> None:
        self._make = inner
        self._made: SdkHandler | None = None
        self._dispatcher = inbox
        self._executor = executor
        self._runner = runner
        self._card = card
        self._subscriptions = Counter[tuple[str | None, str]]()

    @property
    def _inner(self) -> SdkHandler:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def aclose(self) -> None:
        """Cancel all running tasks; the next request starts a new handler."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    async def on_message_send(self, params: SendMessageRequest, context: AgentCall) -> Task | Message:
        """SendMessage: start a task, resume it, or decide an approval."""
        from a2a.utils.errors import UnsupportedOperationError

        with public_errors(), self._dispatcher.started(context):
            _refuse_push(params)
            answer = await self._dispatcher.dispatch(params, context)
            if answer is not None:
                return answer
            try:
                return await self._inner.on_message_send(params, context)
            except UnsupportedOperationError:
                return await self._finished_task(params, context)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: AgentCall
    ) -> AsyncGenerator[Event, None]:
        """SendStreamingMessage: like SendMessage, with a stream of events."""
        from a2a.utils.errors import UnsupportedOperationError

        with public_errors(), self._dispatcher.started(context):
            _refuse_push(params)
            answer = await self._dispatcher.dispatch(params, context)
            if answer is not None:
                yield answer
                return
            try:
                async with aclosing(self._inner.on_message_send_stream(params, context)) as events:
                    async for event in events:
                        yield event
            except UnsupportedOperationError:
                yield await self._finished_task(params, context)

    async def on_get_task(self, params: GetTaskRequest, context: AgentCall) -> Task | None:
        """GetTask; resumes the task if its suspended calls are decided."""
        with public_errors():
            await self._resume_if_due(params.id, context)
            return await self._inner.on_get_task(params, context)

    async def on_list_tasks(self, params: ListTasksRequest, context: AgentCall) -> ListTasksResponse:
        """ListTasks: the tasks of this user."""
        with public_errors():
            return await self._inner.on_list_tasks(params, context)

    async def on_cancel_task(self, params: CancelTaskRequest, context: AgentCall) -> Task:
        """CancelTask: also withdraws the suspended calls of the task."""
        with public_errors():
            task = await self._inner.on_cancel_task(params, context)
            await self._runner.abandon(task.id, context.user.principal)
            return task

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: AgentCall
    ) -> AsyncGenerator[Event, None]:
        """SubscribeToTask: yield the task, and again after each change, until it ends.

        Changes by other processes are included. The task resumes if its suspended calls are decided.
        """
        from a2a.utils.errors import UnsupportedOperationError

        with (
            public_errors(),
            self._subscribing(context.user.principal),
            self._dispatcher.tasks.watching(params.id) as changed,
        ):
            seen = None
            while True:
                changed.clear()
                await self._resume_if_due(params.id, context)
                stored = await self._dispatcher.owned_task(params.id, context)
                if seen is None and is_over(stored.task):
                    raise UnsupportedOperationError("the task has ended")
                if stored.version != seen:
                    seen = stored.version
                    yield stored.task
                if is_over(stored.task):
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await changed.wait()

    @contextmanager
    def _subscribing(self, user: User) -> Generator[None, None, None]:
        """Count a subscription of a user.

        Raises:
            BadMessage: the user has as many as one may have; each polls the store.
        """
        owner = user.tenant, user.id
        if self._subscriptions[owner] >= MAX_SUBSCRIPTIONS:
            raise BadMessage(f"you have {MAX_SUBSCRIPTIONS} subscriptions, the maximum: close one of them first")
        self._subscriptions[owner] += 1
        try:
            yield
        finally:
            self._subscriptions[owner] -= 1
            if not self._subscriptions[owner]:
                del self._subscriptions[owner]

    async def on_get_extended_agent_card(self, params: object, context: AgentCall) -> AgentCard:
        """GetExtendedAgentCard: the card with the tools that this user may see."""
        with public_errors():
            return self._card(context.user.principal)

    async def _no_push(self, params: object, context: object) -> object:
        """Refuse push notifications: the agent sends nothing to an address that a client names."""
        from a2a.utils.errors import PushNotificationNotSupportedError

        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _no_push
    on_get_task_push_notification_config = _no_push
    on_list_task_push_notification_configs = _no_push
    on_delete_task_push_notification_config = _no_push

    async def _finished_task(self, params: SendMessageRequest, context: AgentCall) -> Task:
        """Return a task that another request finished after its message was read."""
        return (await self._dispatcher.owned_task(params.message.task_id, context)).task

    async def _resume_if_due(self, task_id: str, context: AgentCall) -> None:
        """Resume a task if it has to; returns when it has started."""
        from a2a.types import Message, Role, SendMessageConfiguration, SendMessageRequest
        from a2a.utils.errors import A2AError

        task = (await self._dispatcher.owned_task(task_id, context)).task
        if not await self._executor.should_resume(task, context.user.principal):
            return
        parts = [data_part({"type": "continue"})]
        message = Message(
            message_id=new_id(), role=Role.ROLE_USER, task_id=task_id, context_id=task.context_id, parts=parts
        )
        context.state[MESSAGE] = ClientMessage(resumes=True)
        at_once = SendMessageConfiguration(return_immediately=True)
        try:
            await self._inner.on_message_send(SendMessageRequest(message=message, configuration=at_once), context)
        except A2AError:
            pass  # the task has ended in the meantime


def _refuse_push(params: SendMessageRequest) -> None:
    """Refuse a message that asks for push notifications: its client would wait for them."""
    from a2a.utils.errors import PushNotificationNotSupportedError

    if params.configuration.HasField("task_push_notification_config"):
        raise PushNotificationNotSupportedError


@contextmanager
def public_errors() -> Generator[None, None, None]:
    """Convert errors to those of the SDK; internal details go to the log only."""
    from a2a.utils.errors import A2AError, InternalError, InvalidParamsError

    try:
        yield
    except A2AError:
        raise
    except (BadMessage, InexactInteger, DefinitionError) as error:
        raise InvalidParamsError(str(error)) from None
    except NotPending:
        raise InvalidParamsError("the task does not wait for this answer") from None
    except Exception as error:  # noqa: BLE001  (the client gets no details)
        emit(LogEvent.PROVIDER_FAILED, provider="a2a", phase="request", error=error)
        raise InternalError from None
