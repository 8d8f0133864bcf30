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

from callgate import CallgateError, Conversation, Gate, converse_events
from callgate.models import Anthropic, Client, Ended, Gemini, Ollama, OpenAIChat, OpenAIResponses
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
    """An error that stops the example, such as a missing setting."""


@asynccontextmanager
async def client_for(wire: str, environment: Mapping[str, str]) -> AsyncGenerator[Client]:
    """Make the client that the environment selects; without ``CALLGATE_PROVIDER``, the client of a scripted model.

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
    """Send *text*, print the events, and return the end of the turn with its history."""
    shown.said(text)
    messages = [*history, {"role": "user", "content": text}]
    async with aclosing(converse_events(client, gate, messages, user=READER, max_rounds=8, deadline=120)) as events:
        async for event in events:
            shown.show(event)
            if isinstance(event, Ended):
                return event.conversation
    raise AssertionError("a conversation has an end")


async def talk(wire: str, message: str | None, shown: Transcript, environment: Mapping[str, str]) -> bool:
    """Send the first message, then the person's lines from a terminal; return True if the model finished."""
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
    """Read the person's next line; "" at the end of input."""
    try:
        return input("\nyou      (an empty line ends it) ").strip()
    except EOFError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if the model finished, 1 if it did not, 2 if the request failed."""
    parser = argparse.ArgumentParser(prog="chat", description="A conversation through a gate.")
    parser.add_argument("--message", metavar="TEXT", help="say this and nothing else")
    parser.add_argument("--wire", choices=CLIENTS, default="openai_chat", help="what the scripted model speaks")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # replace characters that the terminal cannot encode
    try:
        well = asyncio.run(talk(options.wire, options.message, Transcript(), os.environ))
    except (Trouble, CallgateError) as trouble:
        print(f"chat: {trouble}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if well else 1
