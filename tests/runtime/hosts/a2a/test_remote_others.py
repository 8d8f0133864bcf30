"""Remote agents that are not ours: whatever the SDK lets an agent say."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from a2a import helpers as h
from a2a import types as p
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from starlette.applications import Starlette

from callgate import Effects, Gate, Outcome, Respond, ToolCall, User
from callgate.providers.stores.effects import EffectState
from callgate.runtime.hosts.a2a import remote_call, remote_tools
from tests.runtime.hosts.serving import served

ANN = User("ann", "here")
Act = Callable[[TaskUpdater, str], Awaitable[None]]


class Acting(AgentExecutor):
    """An agent that does one thing."""

    def __init__(self, act: Act | None) -> None:
        self.act = act
        self.heard: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        text = h.get_message_text(context.message)
        self.heard.append(text)
        if self.act is None:
            await event_queue.enqueue_event(h.new_text_message(f"You said {text}."))
            return
        if context.current_task is None:
            await event_queue.enqueue_event(h.new_task_from_user_message(context.message))
        assert context.task_id is not None
        assert context.context_id is not None
        await self.act(TaskUpdater(event_queue, context.task_id, context.context_id), text)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.heard.append("CANCELLED")
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


@contextlib.asynccontextmanager
async def asking(act: Act | None, *, streaming: bool = True) -> AsyncGenerator[tuple[Gate, Acting], None]:
    """A gate with the one skill of such an agent."""
    executor = Acting(act)
    skill = p.AgentSkill(id="do", name="Do", description="Does it.", tags=["t"])
    interface = p.AgentInterface(url="", protocol_binding="JSONRPC", protocol_version="1.0")
    card = p.AgentCard(
        name="other",
        description="d",
        version="1",
        skills=[skill],
        supported_interfaces=[interface],
        capabilities=p.AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
    async with served(
        Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
    ) as on:
        card.supported_interfaces[0].url = f"http://127.0.0.1:{on.port}/rpc"
        tools = await remote_tools(f"http://127.0.0.1:{on.port}")
        async with Gate(tools, allow_unguarded=True, effects=Effects(durable=False)) as gate:
            yield gate, executor
        await handler.aclose()


async def done(gate: Gate) -> Any:
    return await gate.call(ToolCall(id="c1", name="do", arguments={"message": "it"}), user=ANN)


async def test_a_message_without_a_task_is_the_output() -> None:
    """B5."""
    async with asking(None) as (gate, _):
        assert (await done(gate)).output == "You said it."


PARTS: list[tuple[list[p.Part], Any]] = [
    ([h.new_text_part("a"), h.new_text_part("b")], "a\nb"),
    ([h.new_data_part({"n": 1})], {"n": 1}),
    ([h.new_text_part("a"), h.new_data_part([1, 2.5])], ["a", [1, 2.5]]),
    (
        [h.new_raw_part(b"CANARY", filename="f.bin"), h.new_url_part("http://127.0.0.1/x", media_type="text/html")],
        [
            {"type": "file", "data": "Q0FOQVJZ", "mimeType": "application/octet-stream", "name": "f.bin"},
            {"file": "", "media_type": "text/html", "url": "http://127.0.0.1/x"},
        ],
    ),
]


@pytest.mark.parametrize("streaming", [True, False])
async def test_artifacts_are_the_output_and_files_are_not_fetched(streaming: bool) -> None:
    """B5, B6."""
    for parts, output in PARTS:

        async def act(updater: TaskUpdater, text: str, parts: list[p.Part] = parts) -> None:
            await updater.start_work()
            await updater.add_artifact(parts)
            await updater.complete()

        async with asking(act, streaming=streaming) as (gate, _):
            assert (await done(gate)).output == output


async def test_a_task_that_is_not_over_when_its_stream_ends_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is asked for until it is over."""
    monkeypatch.setattr(remote_call, "FIRST_POLL", 0.001)

    async def act(updater: TaskUpdater, text: str) -> None:
        await updater.start_work()

    async with asking(act) as (gate, executor):
        result = await gate.call(ToolCall(id="c1", name="do", arguments={"message": "it"}), user=ANN, deadline=2.0)
        assert result.error is not None
        assert result.error.code == "deadline_exceeded"
        assert executor.heard == ["it", "CANCELLED"]


async def test_a_question_in_words_is_answered_in_words() -> None:
    """Contract 39, I16."""

    async def act(updater: TaskUpdater, text: str) -> None:
        if text == "it":
            await updater.requires_input(updater.new_agent_message([h.new_text_part("Which one?\x1b[2J")]))
        else:
            await updater.complete(updater.new_agent_message([h.new_text_part(f"Did {text}.")]))

    async with asking(act) as (gate, executor):
        result = await done(gate)
        assert result.outcome is Outcome.SUSPENDED
        assert "Which one?" in result.pending.prompt
        assert "\x1b" not in result.pending.prompt
        result = await gate.resume(result.pending.handle, Respond("the red one"), approver=ANN)
        assert (result.output, executor.heard) == ("Did the red one.", ["it", "the red one"])


async def test_an_agent_that_wants_credentials_gets_none_and_is_stopped() -> None:
    """B6."""

    async def act(updater: TaskUpdater, text: str) -> None:
        await updater.requires_auth(updater.new_agent_message([h.new_text_part("Your password, please.")]))

    async with asking(act) as (gate, executor):
        result = await done(gate)
        assert result.error.code == "remote_waits"
        assert "password" not in result.error.public
        assert executor.heard == ["it", "CANCELLED"]


@pytest.mark.parametrize("end", ["failed", "reject"])
async def test_what_an_agent_says_of_its_failure_is_cut_and_visible(end: str) -> None:
    """I9, B5."""

    async def act(updater: TaskUpdater, text: str) -> None:
        await getattr(updater, end)(updater.new_agent_message([h.new_text_part("No.\x00\u202e" + "x" * 5000)]))

    async with asking(act) as (gate, _):
        result = await done(gate)
        assert result.outcome is Outcome.ERROR
        assert "No." in result.error.public
        assert len(result.error.public) < 600
        assert result.error.public.isprintable()


async def test_an_agent_that_breaks_off_leaves_the_effect_unknown() -> None:
    """I3, I4."""

    async def act(updater: TaskUpdater, text: str) -> None:
        await updater.start_work()
        raise ConnectionError("CANARY")

    async with asking(act) as (gate, _):
        result = await done(gate)
        assert result.outcome is Outcome.UNKNOWN or result.error.code == "tool_failed"
        assert "CANARY" not in str(result.error)
        ((_, effect),) = await gate.store.effects.list(None)
        assert effect.state is EffectState.UNKNOWN
