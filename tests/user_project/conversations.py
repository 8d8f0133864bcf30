"""Conversations with every client, as a user with strict type checkers writes them: nothing here may be reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, assert_type

from callgate import Bound, Conversation, Gate, HydrationResult, User, codec, converse, converse_events, tool
from callgate.models import (
    Anthropic,
    CallDelta,
    CallReady,
    Done,
    Gemini,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    ReasoningDelta,
    Reply,
    TextDelta,
)


@tool(effect="read")
async def find_order(order_id: str) -> str:
    """Find an order."""
    return order_id


async def with_each(gate: Gate, bound: Bound, user: User) -> None:
    """Every client is a model for ``converse``, with a gate and with a gate of one user."""
    assert_type(await converse(Anthropic(model="m"), gate, "Hello", user=user), Conversation)
    assert_type(await converse(Gemini(model="m"), gate, "Hello", user=user), Conversation)
    assert_type(await converse(Ollama(model="m"), bound, "Hello"), Conversation)
    assert_type(await converse(OpenAIChat(model="m"), bound, "Hello"), Conversation)
    assert_type(await converse(OpenAIResponses(model="m"), gate, "Hello", max_rounds=3), Conversation)
    async for event in converse_events(Anthropic(model="m"), gate, "Hello"):
        print(event)


async def with_tools(gate: Gate, bound: Bound, user: User) -> None:
    """A client takes a gate, a gate of one user, or tools."""
    async with OpenAIChat("http://127.0.0.1:1/v1", model="m") as client:
        assert_type(await client.reply("Hello", gate, user=user), Reply)
        assert_type(await client.reply("Hello", bound), Reply)
        assert_type(await client.tool_call("Hello", [find_order]), list[HydrationResult])
        async for event in client.stream("Hello", bound):
            assert_type(event, TextDelta | ReasoningDelta | CallDelta | CallReady | Done)


class Mine:
    """A model of the user's own."""

    codec = codec("openai_chat")

    async def reply(self, messages: Sequence[Mapping[str, Any]], tools: object) -> Reply:
        return Reply(text=str(len(messages)))

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: object
    ) -> AsyncGenerator[TextDelta | ReasoningDelta | CallDelta | CallReady | Done, None]:
        yield Done(await self.reply(messages, tools))


async def with_mine(gate: Gate) -> None:
    """So is an object with the same methods."""
    assert_type(await converse(Mine(), gate, "Hello"), Conversation)
