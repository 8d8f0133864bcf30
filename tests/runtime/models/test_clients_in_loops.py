"""A client of a model belongs to no event loop: one ``asyncio.run`` for each request, threads with loops of their own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callgate.models import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from callgate.testing import Say, ScriptedModel

# Nobody closes the connections of a loop that was closed before the client.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama]


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    with ScriptedModel([Say("Hello.")], repeat=True) as model:
        yield model.url
    gc.collect()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_answers_in_each_event_loop(kind: Any, url: str) -> None:
    client = kind(url, model="m", api_key="k")

    async def ask() -> str:
        text: str = (await client.reply("Hello?")).text
        return text

    assert [asyncio.run(ask()) for _ in range(3)] == ["Hello."] * 3
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: asyncio.run(ask()), range(6))) == ["Hello."] * 6


def test_a_client_keeps_the_connections_of_a_loop_while_another_loop_uses_it(url: str) -> None:
    client, loop = OpenAIChat(url, model="m"), asyncio.new_event_loop()

    async def ask() -> object:
        await client.reply("Hello?")
        return client._sender.client()

    first = loop.run_until_complete(ask())
    assert asyncio.run(ask()) is not first
    assert loop.run_until_complete(ask()) is first
    for _ in range(3):
        asyncio.run(ask())
    assert len(client._sender._own) <= 2, "those of closed loops are forgotten"
    loop.run_until_complete(client.aclose())
    loop.close()
