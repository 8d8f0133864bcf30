"""Our own clients against the scripted model: five wires, every kind of turn, every fault; nothing sleeps, all on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest

from callgate import Gate, tool
from callgate.errors import ModelError, StreamCut
from callgate.runtime.models.anthropic import Anthropic
from callgate.runtime.models.gemini import Gemini
from callgate.runtime.models.ollama import Ollama
from callgate.runtime.models.openai_chat import OpenAIChat
from callgate.runtime.models.openai_responses import OpenAIResponses
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.reply import CallReady, Done, ReasoningDelta, Reply, ReplyEvent, TextDelta
from callgate.runtime.models.wire.retry_policy import Retries
from callgate.testing import Call, Fault, RawArguments, Say, ScriptedModel, Stop, Think, Usage

KINDS: dict[str, type[Client]] = {
    "openai_chat": OpenAIChat,
    "openai_responses": OpenAIResponses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "ollama": Ollama,
}
PLACES = {"openai_chat": "/v1", "openai_responses": "/v1", "anthropic": "/v1", "gemini": "/v1beta", "ollama": ""}
OPTIONS: dict[str, dict[str, Any]] = {"openai_responses": {"include": ["reasoning.encrypted_content"]}}
KEY = "sk-never-shown"
each_wire = pytest.mark.parametrize("wire", KINDS)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@tool(effect="read")
async def refund(order_id: str, cents: int = 0) -> str:
    """Pays an order back."""
    return f"paid {order_id}"


@tool(effect="read")
async def ping() -> str:
    """Takes nothing."""
    return "pong"


REFUND, PING = Call("refund", {"order_id": 'é "7" \n', "cents": 3}, id="a"), Call("ping", {}, id="b")
TURNS: dict[str, list[Any]] = {
    "text": [Say("Let me see what I can do.")],
    "one call": [REFUND],
    "text and a call": [Say("I pay it back."), REFUND],
    "parallel calls": [REFUND, PING, Call("refund", {"order_id": "8", "cents": 0}, id="c")],
    "reasoning and text": [Think("They want money."), Say("No.")],
    "reasoning and calls": [Think("They want money."), REFUND, PING],
    "hidden reasoning and a call": [Think(), REFUND],
    "usage": [Say("x"), Usage(100, 20, 120)],
    "nothing": [],
}
SPEECH, TALK = Say("Let me see what I can do."), [Say("I pay it back."), REFUND, PING]


class Slept:
    """In place of sleeping: what was to be slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@contextlib.asynccontextmanager
async def opened(
    wire: str, script: Any, retries: int | Retries = 0
) -> AsyncGenerator[tuple[ScriptedModel, Client], None]:
    http = httpx.AsyncClient(trust_env=False)
    async with ScriptedModel(script) as model, http:
        url = model.url + PLACES[wire]
        yield model, KINDS[wire](url, model="m", api_key=KEY, http=http, retries=retries, options=OPTIONS.get(wire))


async def answered(
    client: Client, messages: Any, *, stream: bool, tools: Any = (refund, ping)
) -> tuple[Reply, list[ReplyEvent]]:
    if not stream:
        return await client.reply(messages, tools), []
    events = [event async for event in client.stream(messages, tools)]
    last = events[-1]
    assert isinstance(last, Done)
    return last.reply, events


def told(reply: Reply) -> list[tuple[str, Any]]:
    values = [json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments for call in reply.calls]
    return [(call.name, value) for call, value in zip(reply.calls, values, strict=True)]


@pytest.mark.parametrize("turn", TURNS)
@each_way
@each_wire
async def test_a_client_reads_every_kind_of_turn_and_its_history_is_taken_back(
    wire: str, stream: bool, turn: str
) -> None:
    """Contract 53-61: text, reasoning, calls, ids, usage; then results and opaque parts go back, and are accepted."""
    parts = TURNS[turn]
    calls = [part for part in parts if isinstance(part, Call)]
    usage = next((part for part in parts if isinstance(part, Usage)), Usage(12, 7))
    async with opened(wire, [parts, Say("Done.")]) as (model, client), Gate([refund, ping]) as gate:
        reply, events = await answered(client, "give me my money back", stream=stream, tools=gate)
        assert reply.text == "".join(part.text for part in parts if isinstance(part, Say))
        assert reply.reasoning == "".join(part.text for part in parts if isinstance(part, Think))
        assert told(reply) == [(call.tool, call.value) for call in calls]
        assert [call.id for call in reply.calls] == [call.id for call in calls]
        assert not reply.truncated
        assert (reply.usage.input, reply.usage.output) == (usage.input, usage.output)
        if stream:
            assert "".join(event.text for event in events if isinstance(event, TextDelta)) == reply.text
            assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == reply.reasoning
            assert [event.call for event in events if isinstance(event, CallReady)] == [*reply.calls]
        if not parts:
            return
        results = await gate.call_many([*reply.calls])
        assert all(result.ok for result in results)
        asked: Any = client.codec.request("give me my money back", model="m").body
        first = asked.get("messages") or asked.get("contents") or asked.get("input")
        if isinstance(first, str):
            first = [{"role": "user", "content": first}]
        history = [*first, *reply.messages, *client.codec.results(results)]
        more = (
            []
            if calls
            else client.codec.request("and now?", model="m").body.get("contents")
            or [{"role": "user", "content": "and now?"}]
        )
        final, _ = await answered(client, [*history, *more], stream=stream, tools=gate)
    assert final.text == "Done."
    assert model.refusals == []
    assert [asked.tools[0].name for asked in model.requests] == ["refund"] * 2
    assert [result.tool for result in model.requests[1].results] == [call.tool for call in calls]
    assert KEY not in repr(model.requests)


@each_way
@each_wire
async def test_calls_of_an_answer_cut_for_length_are_truncated(wire: str, stream: bool) -> None:
    """Contract 61: none of them may run."""
    async with opened(wire, [[REFUND, Stop("length")]]) as (_, client):
        reply, events = await answered(client, "x", stream=stream)
    assert reply.truncated
    assert all(call.truncated for call in reply.calls)
    assert not [event for event in events if isinstance(event, CallReady) and not event.call.truncated]


@each_way
@each_wire
async def test_malformed_arguments_are_a_failed_hydration_or_an_error(wire: str, stream: bool) -> None:
    """Contract C10, C10d: a bad call never raises; a provider that fails because of one does."""
    async with opened(wire, [Call("refund", RawArguments('{"order_id": "7'), id="a")] * 2) as (_, client):
        if wire == "ollama":
            with pytest.raises(ModelError, match="error parsing tool call"):
                await answered(client, "x", stream=stream)
            return
        reply, _ = await answered(client, "x", stream=stream)
        results = await client.tool_call("x", [refund])
    if wire == "gemini":
        assert (reply.calls, reply.truncated, results) == ((), True, [])
    else:
        assert [call.name for call in reply.calls] == ["refund"]
        assert [result.success for result in results] == [False]


@each_way
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
@each_wire
async def test_a_status_that_may_pass_is_asked_again_when_the_provider_says(
    wire: str, status: int, stream: bool
) -> None:
    """Issue 5: retries with ``Retry-After``. No real sleep."""
    slept = Slept()
    script = [Fault.http(status, retry_after=7), SPEECH]
    async with opened(wire, script, Retries(times=1, sleep=slept)) as (model, client):
        reply, _ = await answered(client, "x", stream=stream)
    assert reply.text == SPEECH.text
    assert slept.seconds == [7.0]
    assert (len(model.requests), model.left) == (2, 0)


@each_way
@pytest.mark.parametrize("status", [400, 401, 403, 404])
@each_wire
async def test_a_status_that_will_not_pass_is_an_error_at_once(wire: str, status: int, stream: bool) -> None:
    slept = Slept()
    script = [Fault.http(status, f"no, {KEY}"), SPEECH]
    async with opened(wire, script, Retries(times=3, sleep=slept)) as (model, client):
        with pytest.raises(ModelError, match="no, ") as raised:
            await answered(client, "x", stream=stream)
    assert raised.value.status == status
    assert KEY not in f"{raised.value!s} {raised.value!r} {raised.value.public}"
    assert (slept.seconds, model.left) == ([], 1)


def stream_of(wire: str) -> int:
    """The number of events in the stream of ``TALK``."""
    from importlib import import_module

    from callgate.runtime.testing.model.requests import ModelRequest
    from callgate.runtime.testing.model.script import Turn

    spelling = import_module(f"callgate.runtime.testing.model.{wire}").FORMAT
    asked = ModelRequest(1, wire, "?alt=sse", body={"stream_options": {"include_usage": True}})
    return len(spelling.events(Turn.of(TALK, 1, spelling.call_prefix), asked))


AFTER_THE_END = {"openai_chat": 2, "anthropic": 1}
"""Events that follow the one with the stop reason, after which no call can still change: usage, and the end mark."""


@pytest.mark.parametrize("ending", ["close", "reset", "clean"])
@each_wire
async def test_a_stream_cut_after_any_event_gives_no_call_to_run(wire: str, ending: Any) -> None:
    """Contract 61, issue 5: cut streams. The control: from the end on, and in the whole stream, both calls are ready."""
    whole = stream_of(wire)
    ends = whole - (AFTER_THE_END.get(wire, 0) if ending == "clean" else 0)  # a broken connection is no end
    faults = [Fault.cut(events=number, ending=ending) for number in range(whole)]
    async with opened(wire, [[*TALK, fault] for fault in faults] + [TALK]) as (model, client):
        for _ in range(ends):
            seen: list[ReplyEvent] = []
            with pytest.raises(ModelError) as raised:
                await collect(client, seen)
            assert [event for event in seen if isinstance(event, CallReady | Done)] == []
            if isinstance(raised.value, StreamCut):
                assert raised.value.reply.truncated
                assert all(call.truncated for call in raised.value.reply.calls)
                assert "I pay it back.".startswith(raised.value.reply.text)
        for _ in range(ends, whole + 1):
            _, events = await answered(client, "x", stream=True)
            assert [event.call.name for event in events if isinstance(event, CallReady)] == ["refund", "ping"]
    assert (model.left, model.refusals) == (0, [])


async def collect(client: Client, into: list[ReplyEvent]) -> None:
    async for event in client.stream("x", [refund, ping]):
        into.append(event)


@pytest.mark.parametrize("byte", [0, 1, 13, 200, 900])
@each_way
@each_wire
async def test_an_answer_cut_at_a_byte_is_an_error(wire: str, stream: bool, byte: int) -> None:
    async with opened(wire, [[*TALK, Fault.cut(byte=byte)]]) as (_, client):
        if not stream and byte == 900:
            return  # some whole answers are shorter
        with pytest.raises(ModelError):
            await answered(client, "x", stream=stream)


@each_way
@each_wire
async def test_a_reset_connection_is_asked_again_and_then_an_error(wire: str, stream: bool) -> None:
    slept = Slept()
    retries = Retries(times=1, sleep=slept, random=lambda: 0.5)
    async with opened(wire, [Fault.reset(), SPEECH, Fault.reset(), Fault.reset()], retries) as (model, client):
        reply, _ = await answered(client, "x", stream=stream)
        assert reply.text == SPEECH.text
        with pytest.raises(ModelError) as raised:
            await answered(client, "x", stream=stream)
    assert raised.value.status is None
    assert len(slept.seconds) == 2
    assert model.left == 0


MALFORMED: dict[str, Callable[[str], Fault]] = {
    "first": lambda wire: Fault.malformed(events=0),
    "last but one": lambda wire: Fault.malformed(events=stream_of(wire) - 2),
}


@pytest.mark.parametrize("place", MALFORMED)
@each_wire
async def test_malformed_json_in_a_stream_never_makes_a_call_ready_that_was_not_told(wire: str, place: str) -> None:
    """An event that cannot be read is passed over or breaks the stream; what is ready was told in full."""
    async with opened(wire, [[*TALK, MALFORMED[place](wire)]]) as (_, client):
        seen: list[ReplyEvent] = []
        with contextlib.suppress(ModelError):
            await collect(client, seen)
    ready = [event.call for event in seen if isinstance(event, CallReady)]
    values = [json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments for call in ready]
    assert [value for value in values if value not in (REFUND.value, PING.value)] == []


@each_wire
async def test_malformed_json_in_place_of_an_answer_is_an_error(wire: str) -> None:
    async with opened(wire, [[SPEECH, Fault.malformed()]]) as (_, client):
        with pytest.raises(ModelError, match="not a JSON object"):
            await client.reply("x")


@each_wire
async def test_a_page_in_place_of_a_stream_is_an_error(wire: str) -> None:
    async with opened(wire, [[SPEECH, Fault.content_type()]]) as (_, client):
        with pytest.raises(ModelError, match="text/html"):
            await answered(client, "x", stream=True)


@each_way
@each_wire
async def test_an_error_in_the_middle_is_an_error_with_what_had_come(wire: str, stream: bool) -> None:
    async with opened(wire, [[SPEECH, Fault.error(events=4, message="overloaded")]]) as (_, client):
        with pytest.raises(ModelError, match="overloaded") as raised:
            await answered(client, "x", stream=stream)
    if stream:
        assert isinstance(raised.value, StreamCut)
        assert SPEECH.text.startswith(raised.value.reply.text)


@each_wire
async def test_a_cancelled_client_closes_its_socket(wire: str) -> None:
    """Issue 5: cancellation closes the socket, seen from the other end."""
    reached, never, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def pause(number: int) -> None:
        if number == 2:
            reached.set()
            try:
                await never.wait()
            finally:
                gone.set()

    async with opened(wire, [[SPEECH, Fault.slow(pause)]]) as (model, client):
        asking = asyncio.create_task(answered(client, "x", stream=True))
        await reached.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await gone.wait()
    assert model.dropped == 1


@each_wire
async def test_a_script_that_has_ended_is_an_error_that_says_so(wire: str) -> None:
    async with opened(wire, []) as (model, client):
        with pytest.raises(ModelError, match="the script has ended"):
            await client.reply("x")
    assert len(model.requests) == 1


@pytest.mark.parametrize("wire", ["openai_responses", "anthropic", "gemini"])
async def test_a_client_whose_history_lost_its_opaque_parts_would_be_found_out(wire: str) -> None:
    """The control of the turns with reasoning above: they pass because the parts go back."""
    opaque = {"signature", "encrypted_content", "thoughtSignature"}

    def without(node: Any) -> Any:
        if isinstance(node, list):
            return [without(item) for item in node if not (isinstance(item, dict) and item.get("type") == "thinking")]
        if isinstance(node, dict):
            return {name: without(value) for name, value in node.items() if name not in opaque}
        return node

    async with opened(wire, [[Think("hm"), REFUND], Say("Done.")]) as (model, client), Gate([refund]) as gate:
        reply = await client.reply("x", gate)
        asked = client.codec.request("x", model="m").body
        first = {"role": "user", "content": "x"} if "contents" not in asked else asked["contents"][0]
        results = client.codec.results(await gate.call_many([*reply.calls]))
        with pytest.raises(ModelError, match="lost the reasoning"):
            await client.reply([first, *without([*reply.messages]), *results], gate)
        assert (await client.reply([first, *reply.messages, *results], gate)).text == "Done."
    assert len(model.refusals) == 1
