"""What the tests of conversations share: a model that says what it is told to, and a look at histories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from callgate import Hook, InvokeContext, ToolCall, User, codec
from callgate.runtime.models.wire.codec import Codec, Translation
from callgate.runtime.models.wire.reply import (
    CallDelta,
    CallReady,
    Done,
    ReasoningDelta,
    Reply,
    ReplyEvent,
    TextDelta,
    Usage,
)
from tests.runtime.gate.making import made

ANN = User("ann", "acme", roles={"clerk"})
Turn = Reply | Exception | Callable[[Sequence[Mapping[str, Any]], Translation], Reply]


class FakeModel:
    """Plays a script, without a network: Chat Completions as its wire. ``seen`` is what it was asked with."""

    codec: Codec = codec("openai_chat")

    def __init__(self, *script: Turn, pause: float = 0.0) -> None:
        self.script = list(script)
        self.pause = pause
        self.seen: list[tuple[list[Mapping[str, Any]], list[str]]] = []
        self.streams_open = 0

    async def reply(self, messages: Sequence[Mapping[str, Any]], tools: Translation) -> Reply:
        await asyncio.sleep(self.pause)
        return self._next(messages, tools)

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Translation
    ) -> AsyncGenerator[ReplyEvent, None]:
        self.streams_open += 1
        try:
            reply = self._next(messages, tools)
            if reply.reasoning:
                yield ReasoningDelta(reply.reasoning)
            for word in reply.text.split(" ") if reply.text else ():
                await asyncio.sleep(self.pause)
                yield TextDelta(word)
            for index, call in enumerate(reply.calls):
                await asyncio.sleep(self.pause)
                yield CallDelta(index, call.name, str(call.arguments))
            for call in reply.calls:
                yield CallReady(call)
            yield Done(reply)
        finally:
            self.streams_open -= 1

    def _next(self, messages: Sequence[Mapping[str, Any]], tools: Translation) -> Reply:
        self.seen.append((list(messages), sorted(tools.tools)))
        turn = self.script[len(self.seen) - 1]
        if isinstance(turn, Exception):
            raise turn
        return turn if isinstance(turn, Reply) else turn(messages, tools)


def says(text: str, **more: Any) -> Reply:
    return Reply(text=text, messages=({"role": "assistant", "content": text},), **more)


def asks(*calls: ToolCall, text: str = "", tokens: int | None = None, **more: Any) -> Reply:
    written = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in calls
    ]
    message = {"role": "assistant", "content": text or None, "tool_calls": written}
    return Reply(calls=calls, text=text, messages=(message,), usage=Usage(total=tokens), **more)


def call(id: str, tool: str = "note", **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=tool, arguments=arguments or {"n": 1})


def told(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the model was told, by call id: JSON where it is JSON."""
    found: dict[str, Any] = {}
    for message in messages:
        if message["role"] == "tool":
            try:
                found[message["tool_call_id"]] = json.loads(message["content"])
            except ValueError:
                found[message["tool_call_id"]] = message["content"]
    return found


def check_paired(messages: Sequence[Mapping[str, Any]]) -> None:
    """Each answer's calls are followed directly by exactly one result each, in order; as providers demand it."""
    at = 0
    while at < len(messages):
        assert messages[at]["role"] in {"user", "assistant", "system"}, "a result without a call"
        asked = [one["id"] for one in messages[at].get("tool_calls") or ()]
        results = messages[at + 1 : at + 1 + len(asked)]
        assert [one.get("tool_call_id") for one in results] == asked
        at += 1 + len(asked)


class Notes:
    """A tool that notes which numbers it was called with; some of them wait, fail or are slow."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.finished: list[int] = []

    def tool(self, name: str = "note", **options: Any) -> Any:
        async def note(n: int) -> str:
            self.ran.append(n)
            if n < 0:
                raise RuntimeError(f"secret detail about {n}")
            await asyncio.sleep(1 / (1 + n))  # the later ones are done first
            self.finished.append(n)
            return f"noted {n}"

        return made(note, name, **options)


class Asking(Hook):
    """Suspends calls of these numbers until they are allowed; denies those of others."""

    def __init__(self, suspends: Sequence[int] = (), denies: Sequence[int] = ()) -> None:
        self.suspends, self.denies = set(suspends), set(denies)
        self.calls: list[Any] = []

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        self.calls.append(ctx.input["n"])
        if ctx.input["n"] in self.denies:
            ctx.abort("internal reason")
        if ctx.input["n"] in self.suspends:
            ctx.suspend("approval", f"May I note {ctx.input['n']}?")
