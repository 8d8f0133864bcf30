"""A conversation: ask a model, put the calls it makes to a gate, answer it, until it is done or has to stop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from callgate.runtime.conversation.channel import events_of
from callgate.runtime.conversation.events import Conversation, ConversationEvent
from callgate.runtime.conversation.loop import Model, Options, Talk, tell_nobody
from callgate.runtime.faces.bound import Bound
from callgate.runtime.faces.placement import RunOn
from callgate.runtime.gate import Gate
from callgate.runtime.models.wire.codec import Messages
from callgate.tools.calls import ToolResult, User

__all__ = ["ConverseOptions", "converse", "converse_events"]


class ConverseOptions(TypedDict, total=False):
    """What may be said about a conversation. Limits are looked at before the model is asked and before calls run.

    user: for whom the calls are made; default: the user of a ``Bound`` gate, else nobody.
    session_id: the session that the calls belong to; default: that of a ``Bound`` gate.
    tools: names that narrow what the model is told of and may call; default: every tool that the user may see.
    max_rounds: answers of the model; default 16. The calls of the last one are run.
    max_calls: calls put to the gate, whatever comes of them; default 64. Those beyond are answered as not run.
    max_failures: calls in a row that do not succeed, looked at after each round; default 8.
    max_tokens: tokens, input and output, of all rounds together; default None, no limit. The answer that goes beyond is
        the last, and its calls are not run. Where the provider does not count tokens, there is no such limit.
    deadline: seconds for this run, the model's time included; default None. Calls under way end as by their own deadline.
    max_result_bytes: of one output as the model reads it; default 65,536. What is longer is cut, and says so.
    at_once: how many calls may run together; default 16. Tools with ``parallel=False`` run alone.
    run_on: where calls run, as of ``Gate.call_many``; default: as the tools say. To the model all look alike.
    stream: whether the model's answer is read bit by bit; default True for ``converse_events``, else False.
    resume: the ``state`` of a suspended conversation, in place of messages.
    results: with ``resume``, results of calls that waited, by call id. Those without one are put to the gate again.
    """

    user: User | None
    session_id: str | None
    tools: Sequence[str] | None
    max_rounds: int
    max_calls: int
    max_failures: int
    max_tokens: int | None
    deadline: float | None
    max_result_bytes: int
    at_once: int
    run_on: RunOn | None
    stream: bool
    resume: Mapping[str, Any] | None
    results: Mapping[str, ToolResult]


async def converse(
    client: Model, gate: Gate | Bound, messages: Messages = (), **options: Unpack[ConverseOptions]
) -> Conversation:
    """Converse with a model until it is done, a limit is reached, or a call has to wait.

    In every round the model is told of the tools that the user may see then; what it calls is hydrated and put to the
    gate, in parallel where the tools allow; and each call gets exactly one answer, in the order of the calls: outputs,
    and for what failed, was denied or not run a structured text without values that the model can act on.

    ``messages`` is a text, or the history: messages in the provider's own form, or ``{"role": ..., "content": text}``
    with the roles system, user and assistant. It is never changed: the history to keep is ``Conversation.messages``.
    See ``ConverseOptions`` for the rest.

    Raises:
        StateRefused: what is given as ``resume`` or ``results`` does not fit.
        ValueError: no messages, a limit that means nothing, or ``tools`` names one that the gate does not have.
        GateClosed: not inside ``async with gate``.
        CancelledError: at once; what runs is cancelled and waited for, and nothing runs afterwards.
    """
    return await Talk(client, gate, messages, Options(**options)).run(tell_nobody)


def converse_events(
    client: Model, gate: Gate | Bound, messages: Messages = (), **options: Unpack[ConverseOptions]
) -> AsyncGenerator[ConversationEvent, None]:
    """``converse`` as events for a user interface: rounds, pieces of text, calls and their results; ``Ended`` is the last.

    Answers are streamed unless ``stream=False``; then each text comes as one piece. Whoever stops reading ends the
    conversation: leave by ``contextlib.aclosing``, and it has ended when you are out. A slow reader slows it down.

    Raises what ``converse`` does: wrong arguments at once, the rest as it is read.
    """
    options.setdefault("stream", True)
    return events_of(Talk(client, gate, messages, Options(**options)).run)
