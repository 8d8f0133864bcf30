"""Every verb of A2A, asked of us before the SDK does it: whose task it is, what a message says, what has been decided.

It is a ``RequestHandler`` of the SDK in all but name. Unknown and foreign tasks are one and the same error, and nothing
that fails inside is told outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from callgate.errors import DefinitionError, NotPending
from callgate.providers.ids import new_id
from callgate.providers.logs import Event, emit
from callgate.runtime.hosts.a2a.dispatcher import Inbox
from callgate.runtime.hosts.a2a.executor import ASKED, Executor
from callgate.runtime.hosts.a2a.integers import NotExact
from callgate.runtime.hosts.a2a.messages import Asked, BadAsk
from callgate.runtime.hosts.a2a.parts import data_part
from callgate.runtime.hosts.a2a.task_runner import Work
from callgate.runtime.hosts.a2a.task_store import is_over
from callgate.tools.calls import User

POLL = 1.0
"""Seconds between two looks at a task that somebody follows, for what other processes do."""


class Handler:
    """The verbs. *inner* makes the SDK's own handler, which runs tasks and hands out their events; *card* a user's card."""

    def __init__(
        self,
        inner: Callable[[], Any],
        inbox: Inbox,
        executor: Executor,
        work: Work,
        card: Callable[[User], Any],
    ) -> None:
        self._make = inner
        self._made: Any = None
        self._inbox = inbox
        self._executor = executor
        self._work = work
        self._card = card

    @property
    def _inner(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def aclose(self) -> None:
        """Stop whatever runs; the next verb begins anew."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    async def on_message_send(self, params: Any, context: Any) -> Any:
        """SendMessage: start a task, go on with one, or decide about a call of one."""
        from a2a.utils.errors import UnsupportedOperationError

        with telling():
            answer = await self._inbox.received(params, context)
            if answer is not None:
                return answer
            try:
                return await self._inner.on_message_send(params, context)
            except UnsupportedOperationError:
                return await self._ended_meanwhile(params, context)

    async def on_message_send_stream(self, params: Any, context: Any) -> AsyncGenerator[Any, None]:
        """SendStreamingMessage: the same, with events as they come."""
        from a2a.utils.errors import UnsupportedOperationError

        with telling():
            answer = await self._inbox.received(params, context)
            if answer is not None:
                yield answer
                return
            try:
                async with aclosing(self._inner.on_message_send_stream(params, context)) as events:
                    async for event in events:
                        yield event
            except UnsupportedOperationError:
                yield await self._ended_meanwhile(params, context)

    async def on_get_task(self, params: Any, context: Any) -> Any:
        """GetTask; it goes on if what it waited for has been decided."""
        with telling():
            await self._look_after(params.id, context)
            return await self._inner.on_get_task(params, context)

    async def on_list_tasks(self, params: Any, context: Any) -> Any:
        """ListTasks: one's own."""
        with telling():
            return await self._inner.on_list_tasks(params, context)

    async def on_cancel_task(self, params: Any, context: Any) -> Any:
        """CancelTask; what it waited for can not be decided any more."""
        with telling():
            task = await self._inner.on_cancel_task(params, context)
            await self._work.drop(task.id, context.user.principal)
            return task

    async def on_subscribe_to_task(self, params: Any, context: Any) -> AsyncGenerator[Any, None]:
        """SubscribeToTask: the task as it is, and again whenever it has changed, until it is over.

        What other processes do is seen as well, and it goes on if what it waited for has been decided.
        """
        from a2a.utils.errors import UnsupportedOperationError

        with telling(), self._inbox.tasks.watching(params.id) as changed:
            seen = None
            while True:
                changed.clear()
                await self._look_after(params.id, context)
                stored = await self._inbox.own(params.id, context)
                if seen is None and is_over(stored.task):
                    raise UnsupportedOperationError("the task is over")
                if stored.version != seen:
                    seen = stored.version
                    yield stored.task
                if is_over(stored.task):
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await changed.wait()

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        """GetExtendedAgentCard: with the tools that this user may see."""
        with telling():
            return self._card(context.user.principal)

    async def _no_push(self, params: Any, context: Any) -> Any:
        """Push notifications: not supported. Nothing is sent to an address that a client names."""
        from a2a.utils.errors import PushNotificationNotSupportedError

        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _no_push
    on_get_task_push_notification_config = _no_push
    on_list_task_push_notification_configs = _no_push
    on_delete_task_push_notification_config = _no_push

    async def _ended_meanwhile(self, params: Any, context: Any) -> Any:
        """A task that somebody else has gone on with to its end, once a message for it was read."""
        return (await self._inbox.own(params.message.task_id, context)).task

    async def _look_after(self, task_id: str, context: Any) -> None:
        """Have a task go on by itself where it should; returns when it has begun to."""
        from a2a.types import Message, Role, SendMessageConfiguration, SendMessageRequest
        from a2a.utils.errors import A2AError

        task = (await self._inbox.own(task_id, context)).task
        if not await self._executor.is_due(task, context.user.principal):
            return
        parts = [data_part({"type": "continue"})]
        message = Message(
            message_id=new_id(), role=Role.ROLE_USER, task_id=task_id, context_id=task.context_id, parts=parts
        )
        context.state[ASKED] = Asked(again=True)
        at_once = SendMessageConfiguration(return_immediately=True)
        try:
            await self._inner.on_message_send(SendMessageRequest(message=message, configuration=at_once), context)
        except A2AError:
            pass  # it has ended meanwhile


@contextmanager
def telling() -> Generator[None, None, None]:
    """Errors as the SDK tells them to clients; what they are not to know stays in the log."""
    from a2a.utils.errors import A2AError, InternalError, InvalidParamsError

    try:
        yield
    except A2AError:
        raise
    except (BadAsk, NotExact, DefinitionError) as error:
        raise InvalidParamsError(str(error)) from None
    except NotPending:
        raise InvalidParamsError("the task waits for no such answer") from None
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told in one word)
        emit(Event.PROVIDER_FAILED, provider="a2a", phase="request", error=error)
        raise InternalError from None
