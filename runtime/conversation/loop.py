"""The loop of a conversation: each round asks the model and answers its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TypeAlias

from callgate.errors import GateClosed, ModelError, StreamCut
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.conversation.calls import Calls, failures_after, limit_of, not_run, shown
from callgate.runtime.conversation.events import (
    Called,
    CallFinished,
    CallsStarted,
    Conversation,
    ConversationEvent,
    Ended,
    Ending,
    RoundEnded,
    RoundRestarted,
    RoundStarted,
)
from callgate.runtime.conversation.options import LoopOptions
from callgate.runtime.conversation.provider_items import ProviderItems
from callgate.runtime.conversation.state import LoopState, answer, load_state
from callgate.runtime.gate.bound import Bound
from callgate.runtime.gate.invoker import Invoker
from callgate.runtime.models.wire.codec import Codec, Messages, Translation, as_messages
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.reply import CallReady, Done, ReasoningDelta, Reply, ReplyEvent, TextDelta
from callgate.runtime.pipeline.options import CallOptions
from callgate.tools.calls import ANONYMOUS, Outcome, ToolCall, ToolResult, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import did_you_mean
from callgate.tools.values import thaw

Tell: TypeAlias = Callable[[ConversationEvent], Awaitable[None]]
_ENDED = {
    ReplyEnding.DONE: Ending.DONE,
    ReplyEnding.TRUNCATED: Ending.TRUNCATED,
    ReplyEnding.REFUSED: Ending.REFUSED,
    ReplyEnding.WAITING: Ending.WAITING,
    ReplyEnding.EMPTY: Ending.EMPTY,
}
"""How a conversation ends after an answer without calls; after a pause it goes on."""

MAX_WAIT = 60.0
"""Maximum seconds that a provider may ask for before an answer that broke off is requested again."""


class Model(Protocol):
    """The interface of a model client for ``converse``; the clients of Callgate implement it."""

    @property
    def codec(self) -> Codec:
        """The codec of the client's wire; a class attribute is enough."""
        ...

    async def reply(self, messages: Sequence[Mapping[str, object]], tools: Translation) -> Reply:
        """Return the model's complete answer. Raises ``ModelError`` if there is none."""
        ...

    def stream(self, messages: Sequence[Mapping[str, object]], tools: Translation) -> AsyncGenerator[ReplyEvent, None]:
        """Return the answer as a stream of events that ends with ``Done``."""
        ...


async def tell_nobody(_: ConversationEvent) -> None:
    """Ignore an event, for a caller that only awaits the result."""


class Talk:
    """One run of a conversation."""

    def __init__(self, client: Model, gate: Invoker | Bound, messages: Messages, options: LoopOptions) -> None:
        if not hasattr(client, "codec"):
            raise TypeError(
                f"converse takes the client of a model first, not {type(client).__name__}; write "
                'await converse(OpenAIChat(model="..."), gate, messages)'
            )
        if not isinstance(gate, Invoker | Bound):
            raise TypeError(
                f"converse takes a gate second, not {type(gate).__name__}; write "
                "async with Gate([tool, ...]) as gate: await converse(client, gate, messages)"
            )
        self.client = client
        self.options = options
        self.gate, self.user, self.session_id = _for_whom(gate, options)
        _check_names(self.gate, options.tools)
        if not self.gate.is_open:
            raise GateClosed("the gate is not open; use it inside `async with gate:`")
        self.progress = _start(messages, options, client.codec.name, self.user)
        self.called: list[Called] = []
        self.reply: Reply | None = None
        self.error: ModelError | None = None
        self.tell: Tell = tell_nobody
        self.until: float | None = None
        self.visible: tuple[ToolDefinition, ...] | None = None
        self.translation = Translation({})

    async def run(self, tell: Tell) -> Conversation:
        """Run rounds until the conversation ends."""
        self.tell = tell
        if self.options.deadline is not None:
            self.until = asyncio.get_running_loop().time() + self.options.deadline
        with self.gate.under_way():
            ending = await self._answer(resumed=True) if self.progress.open else None
            while ending is None:
                ending = await self._round()
        conversation = self._conversation(ending)
        await tell(Ended(conversation))
        return conversation

    async def _round(self) -> Ending | None:
        """Ask the model, and answer its calls; None if the conversation continues."""
        progress = self.progress
        if progress.rounds >= self.options.max_rounds:
            return Ending.MAX_ROUNDS
        if (over := self._over()) is not None:
            return over
        self._offer()
        await self.tell(RoundStarted(progress.rounds + 1, tuple(self.translation.tools)))
        reply = await self._ask()
        if self.options.retry_cut and (lost := self._lost(reply)) is not None:
            reply = await self._ask_again(reply, lost)
        if isinstance(reply, Ending):
            return reply
        self.reply = reply
        progress.rounds += 1
        progress.count(reply.usage)
        if (lost := self._lost(reply)) is not None:  # its calls have no results: the history stays as it was
            self.error = lost
            return Ending.LOST
        progress.messages += reply.messages
        progress.waiting = reply.waiting if reply.ending is ReplyEnding.WAITING else ()
        if reply.calls:
            progress.open = reply.calls
            return await self._answer()
        await self._decide()
        await self.tell(RoundEnded(progress.rounds, reply, (), tuple(progress.messages)))
        if reply.ending is ReplyEnding.WAITING and reply.waiting:
            return Ending.WAITING if progress.waiting else None
        return _ENDED.get(reply.ending)

    async def _ask(self) -> Reply | Ending:
        """Return the model's answer, or the reason why there is none."""
        limit = asyncio.timeout_at(self.until)
        try:
            async with limit:
                reply = await (self._streamed() if self.options.stream else self._whole())
        except ModelError as error:
            self.error = error
            if isinstance(error, StreamCut) and error.reply is not None:
                self.progress.count(error.reply.usage)
                await self._items().record(error.reply.provider_ran)
            return Ending.ERROR
        except TimeoutError:
            if limit.expired():
                return Ending.DEADLINE
            raise
        await self._items().record(reply.provider_ran)
        if reply.ending is ReplyEnding.FAILED:
            self.error = ModelError("the provider answered with an error", provider=self.client.codec.name)
            return Ending.ERROR
        return reply

    async def _ask_again(self, first: Reply | Ending, lost: ModelError) -> Reply | Ending:
        """Ask once more after an answer that broke off, or return *first* if the provider asks for too long a wait."""
        wait, number = (lost.retry_after or 0) / 1000, self.progress.rounds + 1
        if wait > MAX_WAIT:
            return first
        if isinstance(first, Reply):
            self.progress.count(first.usage)
        if (over := self._over(wait)) is not None:
            return over
        self.error = None
        emit(LogEvent.MODEL_RETRIED, provider=lost.provider, round=number, wait=wait)
        await self.tell(RoundRestarted(number, lost))
        await asyncio.sleep(wait)
        return await self._ask()

    def _lost(self, reply: Reply | Ending) -> ModelError | None:
        """Return the error of an answer that broke off or is not known to be whole; None for any other."""
        if isinstance(reply, Ending):
            return self.error if isinstance(self.error, StreamCut) else None
        if reply.ending is ReplyEnding.LOST:
            return ModelError(reply.problem or "the answer is not whole", provider=self.client.codec.name)
        if len({call.id for call in reply.calls}) < len(reply.calls):  # only a client of your own; results are by id
            return ModelError("two calls of the answer have the same id", provider=self.client.codec.name)
        return None

    async def _whole(self) -> Reply:
        reply = await self.client.reply(list(self.progress.messages), self.translation)
        if reply.reasoning:
            await self.tell(ReasoningDelta(reply.reasoning))
        if reply.text:
            await self.tell(TextDelta(reply.text))
        return reply

    async def _streamed(self) -> Reply:
        async with aclosing(self.client.stream(list(self.progress.messages), self.translation)) as events:
            async for event in events:
                if isinstance(event, Done):
                    return event.reply
                if not isinstance(event, CallReady):  # one event reports all calls, once the answer is complete
                    await self.tell(event)
        raise ModelError("the stream ended without an answer", provider=self.client.codec.name)

    async def _answer(self, *, resumed: bool = False) -> Ending | None:
        """Give each open call its result, unless one is suspended. *resumed*: the calls were admitted before."""
        progress, number = self.progress, self.progress.rounds
        waiting = [call for call in progress.open if call.id not in progress.results]
        if waiting:
            await self.tell(CallsStarted(number, tuple(waiting)))
        results = progress.results | await self._put(waiting, resumed=resumed)
        called = [Called(number, call, results[call.id]) for call in progress.open]
        in_order = [one.result for one in called]
        self.called += called
        if any(result.outcome is Outcome.SUSPENDED for result in in_order):
            progress.results = {one.call.id: one.result for one in called if not _comes_again(one.result)}
            return Ending.SUSPENDED
        progress.messages += self._spelled(in_order)
        await self._decide()
        progress.failures = failures_after(progress.failures, in_order)
        progress.open, progress.results = (), {}
        reply = None if resumed else self.reply
        await self.tell(RoundEnded(number, reply, tuple(in_order), tuple(progress.messages)))
        limit = next((limit for result in in_order if (limit := limit_of(result)) is not None), None)
        if limit is None and progress.failures >= self.options.max_failures:
            limit = Ending.FAILURES
        return limit or (Ending.WAITING if progress.waiting else None)

    async def _decide(self) -> None:
        """Answer the items that ask for an approval, as far as ``decide`` does."""
        messages, self.progress.waiting = await self._items().answer(self.progress.waiting)
        self.progress.messages += messages

    def _items(self) -> ProviderItems:
        ids: CallOptions = {"session_id": self.session_id, "task": self.options.task}
        return ProviderItems(self.gate, self.user, self.client.codec, ids, self.options.decide, self.until)

    async def _put(self, calls: Sequence[ToolCall], *, resumed: bool) -> dict[str, ToolResult]:
        """Run calls through the gate within the limits; return one result for each, by call id."""
        progress, reported = self.progress, set[str]()

        async def finished(result: ToolResult) -> None:
            reported.add(result.call_id)
            await self.tell(CallFinished(progress.rounds, result))

        if resumed:
            self._offer()
        over = self._over() or (Ending.REFUSED if self.reply and self.reply.ending is ReplyEnding.REFUSED else None)
        room = 0 if over else len(calls) if resumed else max(0, self.options.max_calls - progress.called)
        admitted, left = calls[:room], calls[room:]
        if not resumed:
            progress.called += len(admitted)
        results = await Calls(
            self.gate,
            self.user,
            frozenset(self.translation.tools),
            self.client.codec.name,
            {"session_id": self.session_id, "task": self.options.task},
            self.until,
            finished,
            self.options.run_on,
            self.options.repair,
        ).run(admitted, self.options.at_once)
        results += [not_run(call, over or Ending.MAX_CALLS) for call in left]
        for result in results:
            if result.call_id not in reported:
                await finished(result)
        return {call.id: result for call, result in zip(calls, results, strict=True)}

    def _offer(self) -> None:
        """Update the tools that the model sees, so that a disabled tool disappears."""
        only = self.options.tools
        visible = tuple(one for one in self.gate.tools_for(self.user) if only is None or one.name in only)
        if visible != self.visible:
            self.visible, self.translation = visible, self.client.codec.translate(visible)

    def _over(self, wait: float = 0.0) -> Ending | None:
        """Return the limit on tokens or time that is reached after a wait; None if there is none."""
        maximum = self.options.max_tokens
        if maximum is not None and self.progress.tokens >= maximum:
            return Ending.TOKENS
        if self.until is not None and self.until <= asyncio.get_running_loop().time() + wait:
            return Ending.DEADLINE
        return None

    def _spelled(self, results: Sequence[ToolResult]) -> list[dict[str, object]]:
        """Return the messages that answer the open calls."""
        maximum = self.options.max_result_bytes
        bounded = [shown(call, result, maximum) for call, result in zip(self.progress.open, results, strict=True)]
        return self.client.codec.results(bounded, self.translation)

    def _conversation(self, ending: Ending) -> Conversation:
        progress, waits = self.progress, ending is Ending.SUSPENDED
        messages = list(progress.messages)
        if waits:  # a caller that does not resume can continue from here
            messages += self._spelled([one.result for one in self.called if one.round == progress.rounds])
        return Conversation(
            ending,
            tuple(messages),
            self.reply,
            tuple(self.called),
            progress.rounds,
            progress.usage,
            progress.dump(self.client.codec.name, self.user) if waits else None,
            self.error,
            tuple(progress.waiting),
        )


def _for_whom(gate: Invoker | Bound, options: LoopOptions) -> tuple[Invoker, User, str | None]:
    if not isinstance(gate, Bound):
        return gate, options.user or ANONYMOUS, options.session_id
    if options.user not in (None, gate.user):
        raise ValueError("this gate is another user's")
    session_id = gate.session_id if options.session_id is None else options.session_id
    return gate.gate, gate.user, session_id


def _check_names(gate: Invoker, names: Collection[str] | None) -> None:
    known = [record.id for record in gate.registry.list()]
    for name in names or ():
        if name not in known:
            raise ValueError(f"tools: the gate has no {name!r}{did_you_mean(name, known)}")


def _start(messages: Messages, options: LoopOptions, wire: str, user: User) -> LoopState:
    if options.resume is None:
        if not messages:
            raise ValueError("a conversation begins with a message")
        return LoopState(thaw(as_messages(messages)))  # deeply: the caller may change its list while calls run
    if messages:
        raise ValueError("give messages or a state to resume, not both")
    progress = load_state(options.resume, wire, user)
    answer(progress, options.results)
    return progress


def _comes_again(result: ToolResult) -> bool:
    """Return whether the gate gets a call again on resumption, which has its own deadline."""
    return result.outcome is Outcome.SUSPENDED or limit_of(result) is Ending.DEADLINE
