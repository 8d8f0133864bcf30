"""The providers' own Python packages as peers: they read what the scripted model answers, and take what our codecs write."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from callgate.testing import Call, Fault, RawArguments, Say, ScriptedModel, Stop, Think, Usage
from tests.runtime.models.official import KEY, PACKAGES, Read, answer_types, each_package, each_way
from tests.runtime.testing.wire_requests import Line, streamed

REFUND = Call("refund", {"order_id": "7", "note": 'é "quoted" \n'}, id="a")
NOTE = Call("note", {}, id="b")
TURNS: dict[str, list[Any]] = {
    "text": [Say("Let me see what I can do.")],
    "one call": [REFUND],
    "text and a call": [Say("I pay it back."), REFUND],
    "parallel calls": [REFUND, NOTE, Call("refund", {"order_id": "8"}, id="c")],
    "reasoning and text": [Think("They want money."), Say("No.")],
    "reasoning and calls": [Think("They want money."), REFUND, NOTE],
    "hidden reasoning and a call": [Think(), REFUND],
    "usage": [Say("x"), Usage(100, 20, 120)],
    "cut for length": [Say("I pay it ba"), Stop("length")],
    "filtered": [Say("I"), Stop("filter")],
    "nothing": [],
}


def told(wire: str, turn: list[Any]) -> Read:
    """The content that a package must read of a turn."""
    calls = [part for part in turn if isinstance(part, Call)]
    usage = next((part for part in turn if isinstance(part, Usage)), Usage(12, 7))
    thoughts = [part for part in turn if isinstance(part, Think)]
    reason = next((part.reason for part in turn if isinstance(part, Stop)), "calls" if calls else "stop")
    blobs = tuple(f"signature 1.{index}" for index, part in enumerate(turn) if isinstance(part, Think))
    return Read(
        "".join(part.text for part in turn if isinstance(part, Say)),
        "".join(part.text for part in thoughts),
        tuple((call.id if wire != "ollama" else None, call.tool, call.value) for call in calls),
        (usage.input, usage.output),
        PACKAGES[wire].stops[reason],
        blobs if wire not in {"openai_chat", "ollama"} else (),
    )


def readable(blobs: tuple[Any, ...]) -> tuple[str, ...]:
    """google-genai decodes base64 itself."""
    return tuple((blob if isinstance(blob, bytes) else base64.b64decode(blob)).decode() for blob in blobs)


@pytest.mark.parametrize("turn", TURNS)
@each_way
@each_package
async def test_a_package_reads_every_kind_of_turn(wire: str, stream: bool, turn: str, opened: list[Any]) -> None:
    """Contract 61: text, reasoning, parallel calls, ids, arguments, usage, stop reasons, signatures."""
    async with ScriptedModel([TURNS[turn]]) as model:
        opened.append(client := PACKAGES[wire](model.url))
        read = await client.ask(client.first("give me my money back"), {}, stream=stream)
    expected = told(wire, TURNS[turn])
    assert (read.text, read.reasoning, read.calls) == (expected.text, expected.reasoning, expected.calls)
    assert (read.usage, read.stop) == (expected.usage, expected.stop)
    assert readable(read.opaque) == expected.opaque
    (asked,) = model.requests
    assert (asked.wire, asked.stream, asked.text) == (wire, stream, "give me my money back")
    assert asked.key == (wire != "ollama")
    assert KEY not in repr(asked)


@each_way
@each_package
async def test_a_package_shows_malformed_arguments_as_its_provider_would(
    wire: str, stream: bool, opened: list[Any]
) -> None:
    async with ScriptedModel([Call("refund", RawArguments('{"order_id": "7'), id="a")]) as model:
        opened.append(client := PACKAGES[wire](model.url))
        if wire == "ollama":
            with pytest.raises(client.error, match="error parsing tool call"):
                await client.ask(client.first("x"), {}, stream=stream)
            return
        read = await client.ask(client.first("x"), {}, stream=stream)
    if wire == "gemini":
        assert (read.calls, read.stop) == ((), "MALFORMED_FUNCTION_CALL")
    elif wire == "anthropic" and stream:
        assert read.calls == (("a", "refund", {}),)  # the package reads what it can, and does not say so
    else:
        assert read.calls == (("a", "refund", '{"order_id": "7'),)


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
@each_way
@each_package
async def test_a_package_reads_an_error_and_its_message(
    wire: str, stream: bool, status: int, opened: list[Any]
) -> None:
    async with ScriptedModel([Fault.http(status, "not today", retry_after=0)]) as model:
        opened.append(client := PACKAGES[wire](model.url))
        with pytest.raises(client.error, match="not today") as raised:
            await client.ask(client.first("x"), {}, stream=stream)
    code = getattr(raised.value, "status_code", None) or getattr(raised.value, "code", None)
    assert code == status


@each_package
async def test_a_package_reads_an_error_in_the_middle_of_a_stream(wire: str, opened: list[Any]) -> None:
    async with ScriptedModel([[Say("Let me see what I can do."), Fault.error(events=2, message="not today")]]) as model:
        opened.append(client := PACKAGES[wire](model.url))
        with pytest.raises(client.error, match="not today"):
            await client.ask(client.first("x"), {}, stream=True)


@each_package
async def test_a_request_that_the_scripted_model_refuses_is_an_error_of_the_package(
    wire: str, opened: list[Any]
) -> None:
    async with ScriptedModel([]) as model:
        opened.append(client := PACKAGES[wire](model.url))
        with pytest.raises(client.error, match="the script has ended"):
            await client.ask(client.first("x"), {}, stream=False)
    assert len(model.refusals) == 1


@pytest.mark.parametrize("turn", TURNS)
@each_way
@each_package
async def test_an_answer_and_every_event_of_a_stream_is_of_the_packages_own_type(
    wire: str, stream: bool, turn: str
) -> None:
    """The packages build their types without checking them: here they are checked."""
    kind = answer_types(wire, stream=stream)
    async with ScriptedModel([TURNS[turn]]) as model, httpx.AsyncClient(trust_env=False) as http:
        answer = await Line(http, model.url, wire).ask(stream=stream)
    assert answer.status_code == 200
    events = streamed(wire, answer.text) if stream else [answer.json()]
    typed = [kind.validate_python(event) for event in events if event != {"type": "ping"}]  # anthropic has no such type
    assert typed


@pytest.mark.parametrize("wrong", [{"type": "nothing"}, {"candidates": 7}], ids=["unknown type", "wrong field"])
@each_way
@each_package
def test_an_answer_of_another_shape_is_not_of_the_packages_type(wire: str, stream: bool, wrong: dict[str, Any]) -> None:
    """The control of the test above."""
    with pytest.raises(ValidationError):
        answer_types(wire, stream=stream).validate_python(wrong)
