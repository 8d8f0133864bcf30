"""The faults of a scripted model, as a client sees them on the socket. Each has a control: the same answer without it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from callgate.testing import Call, Fault, RawArguments, Say, ScriptedModel, Stop
from tests.runtime.testing.wire_requests import WIRES, Line, body, each_wire, path, reason, streamed

SPEECH = Say("Let me see what I can do.")
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError)
ENDS = {
    "openai_chat": "[DONE]",
    "openai_responses": "response.completed",
    "anthropic": "message_stop",
    "gemini": '"finishReason"',
    "ollama": '"done": true',
}


@pytest.fixture
async def http() -> Any:
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        yield client


async def heard(line: Line) -> tuple[bytes, BaseException | None]:
    """The bytes of a streamed answer, and how it broke."""
    got = b""
    request = body(line.wire, stream=True)
    try:
        async with line.http.stream("POST", line.url + path(line.wire, stream=True), json=request) as answer:
            async for chunk in answer.aiter_bytes():
                got += chunk
    except BROKEN as error:
        return got, error
    return got, None


def framed(wire: str, data: bytes) -> list[bytes]:
    """The events, without the number of the answer that is in their ids."""
    data = re.sub(rb"((?:chatcmpl|response)-|(?:resp|msg|rs|fc)_)\d+", rb"\1N", data)
    mark = b"\n" if wire == "ollama" else b"\n\n"
    return [part + mark for part in data.split(mark) if part]


@each_wire
async def test_a_stream_is_cut_after_any_number_of_events(wire: str, http: Any) -> None:
    async with ScriptedModel(lambda asked: turns[asked.number - 1]) as model:
        turns: list[Any] = [SPEECH]
        line = Line(http, model.url, wire)
        whole, broke = await heard(line)
        assert broke is None
        events = framed(wire, whole)
        turns += [[SPEECH, Fault.cut(events=number)] for number in range(len(events))]
        for number in range(len(events)):
            got, broke = await heard(line)
            assert framed(wire, got) == events[:number]
            assert isinstance(broke, BROKEN)
            assert ENDS[wire] not in got.decode()
    assert ENDS[wire] in whole.decode()


@pytest.mark.parametrize("byte", [0, 1, 7, 100])
@each_wire
async def test_a_stream_is_cut_at_a_byte(wire: str, byte: int, http: Any) -> None:
    async with ScriptedModel([SPEECH, [SPEECH, Fault.cut(byte=byte)]]) as model:
        line = Line(http, model.url, wire)
        whole, _ = await heard(line)
        got, broke = await heard(line)
    assert got.replace(b"2", b"1") == whole[:byte].replace(b"2", b"1")  # but for the number in the ids
    assert isinstance(broke, BROKEN)


@each_wire
async def test_a_cut_may_look_clean_to_http(wire: str, http: Any) -> None:
    """A proxy ends the message as if it were whole: only the wire's own end mark tells."""
    async with ScriptedModel([[SPEECH, Fault.cut(events=2, ending="clean")]]) as model:
        got, broke = await heard(Line(http, model.url, wire))
    assert broke is None
    assert len(framed(wire, got)) == 2
    assert ENDS[wire] not in got.decode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@each_wire
async def test_a_connection_is_reset_before_or_in_the_middle(wire: str, stream: bool, http: Any) -> None:
    faults = [Fault.reset(), Fault.cut(byte=9, ending="reset")]
    async with ScriptedModel([[SPEECH, fault] for fault in faults]) as model:
        line = Line(http, model.url, wire)
        for _ in faults:
            with pytest.raises(httpx.ReadError):
                await line.ask(stream=stream)


@each_wire
async def test_a_whole_answer_is_cut_short_of_its_announced_length(wire: str, http: Any) -> None:
    async with ScriptedModel([[SPEECH, Fault.cut(byte=9)], [SPEECH, Fault.cut(events=0)]]) as model:
        for _ in range(2):
            with pytest.raises(BROKEN):
                await Line(http, model.url, wire).ask()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 429, 500, 502, 503, 529])
@each_wire
async def test_a_status_comes_with_the_providers_own_error_body(
    wire: str, status: int, stream: bool, http: Any
) -> None:
    async with ScriptedModel([Fault.http(status, "not today", retry_after=2), SPEECH]) as model:
        line = Line(http, model.url, wire)
        answer = await line.ask(stream=stream)
        assert (await line.ask(stream=stream)).status_code == 200
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "2")
    assert reason(wire, answer) == "not today"
    assert model.refusals == []


@each_wire
async def test_an_error_event_comes_in_the_middle_of_a_stream_and_ends_it(wire: str, http: Any) -> None:
    async with ScriptedModel([[SPEECH, Fault.error(events=2, message="overloaded")]]) as model:
        got, broke = await heard(Line(http, model.url, wire))
    events = framed(wire, got)
    assert broke is None
    assert len(events) == 3
    assert b"overloaded" in events[2]
    assert b"error" in events[2]


@each_wire
async def test_an_error_event_of_an_answer_in_one_piece_is_status_500(wire: str, http: Any) -> None:
    async with ScriptedModel([[SPEECH, Fault.error(message="overloaded")]]) as model:
        answer = await Line(http, model.url, wire).ask()
    assert (answer.status_code, reason(wire, answer)) == (500, "overloaded")


@each_wire
async def test_malformed_json_is_in_one_event_or_the_whole_answer(wire: str, http: Any) -> None:
    async with ScriptedModel([[SPEECH, Fault.malformed(events=1)], [SPEECH, Fault.malformed()]]) as model:
        line = Line(http, model.url, wire)
        got, broke = await heard(line)
        assert broke is None
        for number, event in enumerate(framed(wire, got)):
            text = event.decode().partition("data: ")[2] if wire != "ollama" else event.decode()
            if number == 1:
                with pytest.raises(json.JSONDecodeError):
                    json.loads(text)
            elif "[DONE]" not in text:
                json.loads(text)
        answer = await line.ask()
        assert answer.status_code == 200
        with pytest.raises(json.JSONDecodeError):
            answer.json()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@each_wire
async def test_the_content_type_is_another(wire: str, stream: bool, http: Any) -> None:
    async with ScriptedModel([[SPEECH, Fault.content_type()], SPEECH]) as model:
        line = Line(http, model.url, wire)
        kinds = [(await line.ask(stream=stream)).headers["content-type"] for _ in range(2)]
    assert kinds[0] == "text/html"
    assert kinds[1] in {"application/json", "text/event-stream", "application/x-ndjson"}


@each_wire
async def test_a_slow_answer_comes_as_fast_as_it_is_let(wire: str, http: Any) -> None:
    """Nothing sleeps: every event waits to be allowed, and none comes before."""
    allowed: asyncio.Queue[None] = asyncio.Queue()
    async with ScriptedModel([SPEECH, [SPEECH, Fault.slow(lambda number: allowed.get())]]) as model:
        line = Line(http, model.url, wire)
        events = framed(wire, (await heard(line))[0])
        url, request = model.url + path(wire, stream=True), body(wire, stream=True)
        async with http.stream("POST", url, json=request) as answer:
            got = b""
            chunks = answer.aiter_bytes()
            for number in range(len(events)):
                allowed.put_nowait(None)
                while got.count(b"\n") < sum(event.count(b"\n") for event in events[: number + 1]):
                    got += await anext(chunks)
                assert (
                    framed(wire, got)[number:] == [events[number].replace(b"-1", b"-2").replace(b"_1", b"_2")] or wire
                )
            assert await anext(chunks, None) is None
    assert model.dropped == 0


@each_wire
async def test_a_client_that_goes_in_the_middle_is_seen(wire: str, http: Any) -> None:
    """A test of a client's cancellation can assert that the socket was closed."""
    reached, never, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def pause(number: int) -> None:
        if number == 1:
            reached.set()
            try:
                await never.wait()
            finally:
                gone.set()

    async with ScriptedModel([[SPEECH, Fault.slow(pause)]]) as model:
        asking = asyncio.create_task(heard(Line(http, model.url, wire)))
        await reached.wait()
        assert model.dropped == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await gone.wait()
    assert model.dropped == 1


async def test_a_model_closes_whatever_an_answer_waits_for(http: Any) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def pause(number: int) -> None:
        reached.set()
        await never.wait()

    async with ScriptedModel([[SPEECH, Fault.slow(pause)]]) as model:
        asking = asyncio.create_task(heard(Line(http, model.url, "ollama")))
        await reached.wait()
    _, broke = await asking
    assert isinstance(broke, BROKEN)


def test_a_pause_may_be_a_plain_function() -> None:
    seen: list[int] = []
    with ScriptedModel([[SPEECH, Fault.slow(seen.append)]]) as model, httpx.Client(trust_env=False) as client:
        text = client.post(model.url + path("ollama"), json=body("ollama", stream=True)).text
    assert seen == [*range(len(text.splitlines()))]


@pytest.mark.parametrize("wrong", [{}, {"events": 1, "byte": 1}], ids=["neither", "both"])
def test_a_cut_is_after_events_or_at_a_byte(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="either events= or byte="):
        Fault.cut(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@each_wire
async def test_malformed_arguments_are_spelled_as_the_provider_would(wire: str, stream: bool, http: Any) -> None:
    """Contract C10d. Gemini and Ollama hide such a call: the one says so, the other fails."""
    async with ScriptedModel([Call("refund", RawArguments('{"order_id": "7'))]) as model:
        answer = await Line(http, model.url, wire).ask(stream=stream)
    text = "".join(json.dumps(event) for event in streamed(wire, answer.text)) if stream else answer.text
    if wire == "gemini":
        assert "MALFORMED_FUNCTION_CALL" in text
        assert '"functionCall"' not in text
    elif wire == "ollama":
        assert "error parsing tool call" in text
        assert answer.status_code == (200 if stream else 500)
    else:
        assert r"order_id\": \"7" in text or stream


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_may_end_for_its_length(wire: str, http: Any) -> None:
    words = {"openai_chat": "length", "openai_responses": "max_output_tokens", "anthropic": "max_tokens"}
    async with ScriptedModel([[SPEECH, Stop("length")], [SPEECH, Stop("odd")]]) as model:
        line = Line(http, model.url, wire)
        first, second = await line.ask(), await line.ask()
    assert f'"{ {**words, "gemini": "MAX_TOKENS", "ollama": "length"}[wire] }"' in first.text
    assert '"odd"' in second.text or wire == "openai_responses"
