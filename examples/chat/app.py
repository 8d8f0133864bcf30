"""A conversation with a small library: with a scripted model, or one of the five wires, by environment variables."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from callgate import (
    Anthropic,
    CallgateError,
    Client,
    Conversation,
    Ended,
    Gate,
    Gemini,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    converse_events,
)
from callgate.testing import ScriptedModel
from examples.chat.library import READER, Shelves, library
from examples.chat.script import OPENING, answer
from examples.chat.transcript import Transcript

CLIENTS: dict[str, type[Client]] = {
    "openai_chat": OpenAIChat,
    "openai_responses": OpenAIResponses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "ollama": Ollama,
}
SYSTEM = "You work for a library. Use the tools; be brief."


class Trouble(Exception):
    """The example cannot run as it was asked to."""


@asynccontextmanager
async def client_for(wire: str, environment: Mapping[str, str]) -> AsyncGenerator[Client]:
    """The client that the environment asks for; without ``CALLGATE_PROVIDER`` one of a scripted model.

    The provider's own key variable is read for its own address only. For another one, ``CALLGATE_API_KEY`` is sent.
    """
    provider = environment.get("CALLGATE_PROVIDER")
    if not provider:
        async with ScriptedModel(answer) as model, CLIENTS[wire](model.url, model="script", api_key="none") as client:
            yield client
        return
    if provider not in CLIENTS:
        raise Trouble(f"CALLGATE_PROVIDER is {provider!r}; choose one of {', '.join(CLIENTS)}")
    name = environment.get("CALLGATE_MODEL")
    if not name:
        raise Trouble("set CALLGATE_MODEL to the name of a model")
    base_url, key = environment.get("CALLGATE_BASE_URL"), environment.get("CALLGATE_API_KEY")
    async with CLIENTS[provider](base_url or None, model=name, api_key=key or None) as client:
        yield client


async def exchange(
    client: Client, gate: Gate, history: Sequence[Mapping[str, Any]], text: str, shown: Transcript
) -> Conversation:
    """Say *text*, show what happens, and give what came of it: with the history to keep."""
    shown.said(text)
    messages = [*history, {"role": "user", "content": text}]
    async with aclosing(converse_events(client, gate, messages, user=READER, max_rounds=8, deadline=120)) as events:
        async for event in events:
            shown.show(event)
            if isinstance(event, Ended):
                return event.conversation
    raise AssertionError("a conversation has an end")


async def talk(wire: str, message: str | None, shown: Transcript, environment: Mapping[str, str]) -> bool:
    """The opening, or the one message; then, at a terminal, whatever the person says. Whether the model came to an end."""
    async with library(Shelves()) as gate, client_for(wire, environment) as client:
        told = [definition.name for definition in gate.tools_for(READER)]
        shown.begins(f"{client.model} over {client.codec.name}", told)
        done = await exchange(client, gate, [{"role": "system", "content": SYSTEM}], message or OPENING, shown)
        while message is None and sys.stdin.isatty():
            text = await asyncio.to_thread(ask)
            if not text:
                break
            done = await exchange(client, gate, done.messages, text, shown)
        return done.ok


def ask() -> str:
    """What the person says; "" at the end."""
    try:
        return input("\nyou      (an empty line ends it) ").strip()
    except EOFError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0 when the model came to an end, 1 when it did not, 2 when it could not be asked."""
    parser = argparse.ArgumentParser(prog="chat", description="A conversation through a gate.")
    parser.add_argument("--message", metavar="TEXT", help="say this and nothing else")
    parser.add_argument("--wire", choices=CLIENTS, default="openai_chat", help="what the scripted model speaks")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the line
    try:
        well = asyncio.run(talk(options.wire, options.message, Transcript(), os.environ))
    except (Trouble, CallgateError) as trouble:
        print(f"chat: {trouble}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if well else 1
