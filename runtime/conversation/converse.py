"""A conversation: ask a model, run its calls through a gate and answer it, until it is done or a limit stops it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypedDict, Unpack

from callgate.runtime.conversation.channel import events_of
from callgate.runtime.conversation.events import Conversation, ConversationEvent
from callgate.runtime.conversation.loop import Model, Talk, tell_nobody
from callgate.runtime.conversation.options import loop_options
from callgate.runtime.conversation.provider_items import Decide
from callgate.runtime.gate import Gate
from callgate.runtime.gate.bound import Bound
from callgate.runtime.gate.placement import RunOn
from callgate.runtime.models.wire.codec import Messages
from callgate.tools.arguments.hydration import Repairer
from callgate.tools.calls import ToolResult, User
from callgate.tools.execution import TaskIds


class ConverseOptions(TypedDict, total=False):
    """Options of a conversation. It checks its limits before each request to the model and before calls run.

    user: the user of the calls; default: the user of a ``Bound`` gate, else ``ANONYMOUS``.
    session_id: the session of the calls; default: the session of a ``Bound`` gate.
    task: the ids of the task that the calls belong to; the A2A host sets it.
    tools: names of the tools that the model may see and call; default: every tool that the user may see.
    max_rounds: maximum number of answers of the model; default 16. The calls of the last answer run.
    max_calls: maximum number of calls that the gate gets, in any outcome; default 64. Further calls do not run.
    max_failures: maximum number of failed calls in a row, checked after each round; default 8.
    max_tokens: maximum number of input and output tokens of all rounds; default None, no limit. The answer that exceeds
        the limit is the last, and its calls do not run. The limit needs a provider that counts tokens.
    deadline: seconds for this run, with the model's time; default None. Running calls end as by their own deadline.
    max_result_bytes: maximum size of one output for the model; default 65,536. A longer output is cut, with a note.
    at_once: maximum number of concurrent calls; default 16. Tools with ``parallel=False`` run alone.
    run_on: where calls run, as in ``Gate.call_many``; default: as each tool declares. The model sees no difference.
    repair: a plain or async function that makes new arguments for a call whose parse or validation failed, at most once
        for each call. The gate then does as its ``on_repair`` says: by default the call waits for approval.
    retry_cut: if true, ask the model again, once in each round, when its answer breaks off or is lost, whole or streamed.
        No call of such an answer has run; the provider may bill it. Default False: the conversation ends.
    decide: a plain or async function of an item of ``Reply.waiting`` that asks for an approval, such as an
        ``mcp_approval_request``. It returns True, False, or None; after None the conversation ends as ``waiting``.
        The decision is recorded, and the conversation goes on. Default: every such item waits.
    stream: if true, read the model's answer as a stream; default True for ``converse_events``, else False.
    resume: the ``state`` of a suspended conversation, in place of messages.
    results: with ``resume``, results of suspended calls, by call id. The gate gets calls without a result again.
    """

    user: User | None
    session_id: str | None
    task: TaskIds | None
    tools: Sequence[str] | AbstractSet[str] | None
    max_rounds: int
    max_calls: int
    max_failures: int
    max_tokens: int | None
    deadline: float | None
    max_result_bytes: int
    at_once: int
    run_on: RunOn | None
    repair: Repairer | None
    retry_cut: bool
    decide: Decide | None
    stream: bool
    resume: Mapping[str, object] | None
    results: Mapping[str, ToolResult]


async def converse(
    client: Model, gate: Gate | Bound, messages: Messages = (), **options: Unpack[ConverseOptions]
) -> Conversation:
    """Converse with a model until it is done, a limit is reached, or a call is suspended.

    In every round the model sees the tools that the user may see at that time. The gate parses and runs its calls, in
    parallel if the tools allow it. Each call gets one result, in the order of the calls. A call that failed, was
    denied or did not run gets a structured text without values, which the model can act on.

    ``messages`` is a text or the history: messages in the provider's own form, or ``{"role": ..., "content": text}``
    with the roles system, user and assistant. It is never changed; keep ``Conversation.messages`` as the history.
    ``ConverseOptions`` describes the options.

    Raises:
        StateRefused: ``resume`` or ``results`` does not fit.
        TypeError: an argument or an option is of another type; the message has the line to write.
        ValueError: there are no messages, a message has no known role, a limit is invalid, or ``tools`` names a tool that the gate does not have.
        GateClosed: the gate is not open; use ``async with gate``.
        CancelledError: the caller cancelled. Running calls are cancelled and awaited first; nothing runs afterwards.
    """
    return await Talk(client, gate, messages, loop_options(options)).run(tell_nobody)


def converse_events(
    client: Model, gate: Gate | Bound, messages: Messages = (), **options: Unpack[ConverseOptions]
) -> AsyncGenerator[ConversationEvent, None]:
    """Run ``converse`` as events for a user interface: rounds, text, calls and results; the last event is ``Ended``.

    Answers are streamed unless ``stream=False``; then each text comes in one event. A reader that stops ends the
    conversation. Use ``contextlib.aclosing``: on exit it waits for that end. A slow reader slows the conversation down.

    Raises the errors of ``converse``: wrong arguments at once, other errors while the events are read.
    """
    options.setdefault("stream", True)
    return events_of(Talk(client, gate, messages, loop_options(options)).run)
