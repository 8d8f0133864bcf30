"""The closed tables: every known stop reason has an ending, an unknown one is lost, and nothing runs where none may."""

from __future__ import annotations

import json
import typing
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from callgate import Effects, Gate, User, converse, tool
from callgate.runtime.conversation.events import Ending
from callgate.runtime.models import anthropic as anthropic_wire
from callgate.runtime.models import codec
from callgate.runtime.models import gemini as gemini_wire
from callgate.runtime.models.wire.endings import NO_CALL_RUNS, ReplyEnding
from callgate.runtime.models.wire.folds import gemini as gemini_fold
from callgate.runtime.models.wire.folds.responses import _TAKE, REPEATED
from callgate.runtime.models.wire.folds.responses_items import CALLS, OTHER_ITEMS, PROVIDER_RAN, WAITING
from callgate.runtime.models.wire.reply import Done
from tests.runtime.models.streaming import decode, reply_of, sse
from tests.runtime.models.wires import (
    WIRES,
    chat,
    function,
    function_call,
    gemini,
    gemini_call,
    message,
    response,
    tool_use,
)


def answer(wire: str, reason: Any, *, calls: bool = True, text: str = "") -> dict[str, Any]:
    """A whole answer with a stop reason: a call of ``pay``, or text."""
    if wire == "openai_chat":
        return chat(*([function("pay", "{}")] if calls else []), content=text or None, finish=reason)
    if wire == "openai_responses":
        shown = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        incomplete = reason not in {"completed", "failed", "cancelled", "incomplete", "queued", "in_progress", None}
        body = response(function_call("pay", "{}") if calls else shown, status="incomplete" if incomplete else reason)
        return {**body, **({"incomplete_details": {"reason": reason}} if incomplete else {})}
    if wire == "anthropic":
        return message(tool_use("pay", {}) if calls else {"type": "text", "text": text}, stop=reason)
    if wire == "gemini":
        return gemini(gemini_call("pay", {}) if calls else {"text": text}, finish=reason)
    called = {"tool_calls": [{"function": {"name": "pay", "arguments": {}}}]} if calls else {}
    return {"message": {"role": "assistant", "content": text, **called}, "done": True, "done_reason": reason}


class Answers:
    """A model that gives one answer, whole or streamed, and then says that it is done."""

    def __init__(self, wire: str, body: dict[str, Any]) -> None:
        self.codec = codec(wire)
        self.bodies = [body, answer(wire, GOOD[wire], calls=False, text="bye")]

    async def reply(self, messages: Any, tools: Any) -> Any:
        return self.codec.reply(self.bodies.pop(0), tools)

    async def stream(self, messages: Any, tools: Any) -> AsyncGenerator[Any, None]:
        decoder = self.codec.decoder(tools)
        for event in [*decoder.feed(json.dumps(self.bodies.pop(0)).encode()), *decoder.end()]:
            yield event


GOOD = {
    "openai_chat": "stop",
    "openai_responses": "completed",
    "anthropic": "end_turn",
    "gemini": "STOP",
    "ollama": "stop",
}
UNKNOWN = ("a_new_reason", "SOMETHING_ELSE")
WORDS = [
    (wire, word, ending)
    for wire in WIRES
    for word, ending in [*codec(wire).endings.items(), *((word, ReplyEnding.LOST) for word in UNKNOWN)]  # type: ignore[attr-defined]
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("wire", "word", "ending"), WORDS)
async def test_a_call_runs_only_after_an_answer_that_ended_well(
    wire: str, word: str, ending: ReplyEnding, stream: bool
) -> None:
    ran: list[int] = []

    @tool(effect="irreversible", name="pay")
    async def pay() -> str:
        ran.append(1)
        return "paid"

    async with Gate([pay], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        done = await converse(Answers(wire, answer(wire, word)), gate, "go", user=User("ann"), stream=stream)
    runs = ending not in NO_CALL_RUNS and ending is not ReplyEnding.TRUNCATED
    assert len(ran) == runs
    assert done.ok is (done.ended is Ending.DONE)
    if ending in NO_CALL_RUNS:
        assert done.ended in {Ending.REFUSED, Ending.ERROR, Ending.LOST}
        assert done.ended is not Ending.LOST or not [one for one in done.messages if one.get("role") != "user"]


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_adds_the_words_of_its_server(wire: str) -> None:
    known: Any = codec(wire)
    body = answer(wire, "finished")
    assert known.reply(body).ending is ReplyEnding.LOST
    assert known.with_endings({"FINISHED": "done"}).reply(body).ending is ReplyEnding.CALLS
    with pytest.raises(ValueError, match="fine"):
        known.with_endings({"finished": "fine"})


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_with_nothing_in_it_is_empty_and_a_promised_call_that_is_missing_an_error(wire: str) -> None:
    assert codec(wire).reply(answer(wire, GOOD[wire], calls=False)).ending is ReplyEnding.EMPTY
    for word, ending in codec(wire).endings.items():  # type: ignore[attr-defined]
        if ending is ReplyEnding.CALLS:
            assert codec(wire).reply(answer(wire, word, calls=False, text="hi")).ending is ReplyEnding.FAILED


def test_a_refusal_is_refused_whatever_the_reason_says() -> None:
    assert codec("openai_chat").reply(chat(refusal="No.", finish="stop")).ending is ReplyEnding.REFUSED
    part = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    assert codec("openai_responses").reply(response(part)).ending is ReplyEnding.REFUSED


@pytest.mark.parametrize(
    "text", ["<tool_call>{}</tool_call>", "[TOOL_CALLS] []", "<｜tool▁calls▁begin｜>", "<function=f>"]
)
def test_text_that_looks_like_a_call_is_flagged_and_runs_nothing(text: str) -> None:
    reply = codec("openai_chat").reply(answer("openai_chat", "stop", calls=False, text=text))
    assert (reply.looks_like_call, reply.calls, reply.ending) == (True, (), ReplyEnding.DONE)
    assert not codec("openai_chat").reply(answer("openai_chat", "stop", calls=False, text="hi")).looks_like_call


# ---------------------------------------------------------------------- nothing unknown: the official SDKs' own types


def literals(annotation: Any) -> set[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return set(typing.get_args(annotation))
    return {one for part in typing.get_args(annotation) if not isinstance(part, str) for one in literals(part)}


def kinds(union: Any) -> set[str]:
    """The values of ``type`` of all members of a union of models."""
    if hasattr(union, "model_fields"):
        return {one for one in literals(union.model_fields["type"].annotation) if isinstance(one, str)}
    return {one for part in typing.get_args(union) if not isinstance(part, str) for one in kinds(part)}


def ended(wire: str, reason: str) -> ReplyEnding:
    return codec(wire).reply(answer(wire, reason, calls=False, text="hi")).ending


def test_every_stop_reason_of_the_official_sdks_has_an_ending() -> None:
    from anthropic.types import StopReason
    from anthropic.types.beta import BetaStopReason
    from google.genai import types as gemini_types
    from openai.types.chat.chat_completion import Choice
    from openai.types.responses import Response
    from openai.types.responses.response import IncompleteDetails

    known = {wire: {word.lower() for word in codec(wire).endings} for wire in WIRES}  # type: ignore[attr-defined]
    assert literals(Choice.model_fields["finish_reason"].annotation) <= known["openai_chat"]
    statuses = literals(Response.model_fields["status"].annotation)
    assert statuses - {"queued", "in_progress"} <= known["openai_responses"]
    assert {ended("openai_responses", one) for one in ("queued", "in_progress")} == {ReplyEnding.LOST}
    assert literals(IncompleteDetails.model_fields["reason"].annotation) <= known["openai_responses"]
    assert literals(StopReason) | literals(BetaStopReason) <= known["anthropic"]
    reasons = [*gemini_types.FinishReason, *gemini_types.BlockedReason]
    assert {one.value.lower() for one in reasons} <= known["gemini"]


def test_every_item_of_the_openai_sdk_has_a_stated_handling() -> None:
    from openai.types.responses import ResponseOutputItem, ResponseStreamEvent

    items = kinds(ResponseOutputItem)
    assert items <= {*CALLS, *WAITING, *PROVIDER_RAN, *OTHER_ITEMS}
    for kind in items:
        reply = codec("openai_responses").reply(response({"type": kind, "id": "i", "call_id": "c", "name": "f"}))
        assert bool(reply.waiting) is (kind in WAITING), kind
        assert bool(reply.provider_ran) is (kind in PROVIDER_RAN), kind
        assert bool(reply.calls) is (kind in CALLS), kind
        assert reply.ending is not ReplyEnding.DONE or kind == "image_generation_call", kind
        streamed = decode(
            "openai_responses",
            [b"data: " + json.dumps({"type": "response.completed", "response": reply.body}).encode() + b"\n\n"],
        )
        assert isinstance(streamed[-1], Done)
        assert streamed[-1].reply.ending is reply.ending, kind
    events = kinds(ResponseStreamEvent)
    assert {one for one in events if one not in _TAKE and not one.startswith(REPEATED)} == set()


def test_every_block_of_the_anthropic_sdk_has_a_stated_handling() -> None:
    from anthropic.types import ContentBlock
    from anthropic.types.beta import BetaContentBlock

    blocks = kinds(ContentBlock) | kinds(BetaContentBlock)
    assert blocks <= {"tool_use", *anthropic_wire.PROVIDER_RAN, *anthropic_wire.OTHER_BLOCKS}
    for kind in blocks - {"text"}:
        block: dict[str, Any] = {"type": kind, "id": "i", "name": "f", "input": {}, "caller": None}
        reply = codec("anthropic").reply(message(block, stop="end_turn"))
        assert bool(reply.provider_ran) is (kind in anthropic_wire.PROVIDER_RAN), kind
        assert reply.ending is (ReplyEnding.CALLS if kind == "tool_use" else ReplyEnding.EMPTY), kind
        (sent,) = reply.messages[0]["content"]
        assert (sent["type"], "caller" in sent) == (kind, False), "the API refuses a null caller"
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        assert reply_of(decode("anthropic", [sse(start, end)])).ending is reply.ending, kind


def test_every_event_and_delta_of_the_anthropic_sdk_belongs_to_an_answer() -> None:
    from anthropic.types import RawContentBlockDelta, RawMessageStreamEvent
    from anthropic.types.beta import BetaRawContentBlockDelta, BetaRawMessageStreamEvent

    begin = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}}
    grow = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": kind}}
        for kind in kinds(RawContentBlockDelta) | kinds(BetaRawContentBlockDelta)
    ]
    stop: list[dict[str, Any]] = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {}},
        begin,
        *grow,
        *stop,
        {"type": "message_stop"},
    ]
    assert {one["type"] for one in events} == kinds(RawMessageStreamEvent) | kinds(BetaRawMessageStreamEvent)
    assert reply_of(decode("anthropic", [sse(*events)])).ending is ReplyEnding.DONE


def test_every_kind_of_part_of_the_google_sdk_has_a_stated_handling() -> None:
    from google.genai.types import Part

    names = {field.alias or name for name, field in Part.model_fields.items()}
    about = {name for name in names if name.endswith("Metadata") or name in {"mediaResolution", "mediaProcessing"}}
    assert names - about == {*gemini_fold.PROVIDER_RAN, *gemini_wire.MEDIA, *gemini_wire.OTHER_PARTS}
    for name in names - about - gemini_wire.OTHER_PARTS:
        body = gemini({name: {"id": "x", "code": "1", "data": "ZGF0YQ=="}})
        for reply in (codec("gemini").reply(body), reply_of(decode("gemini", [sse(body)]))):
            assert bool(reply.provider_ran) is (name in gemini_fold.PROVIDER_RAN), name
            assert reply.ending is (ReplyEnding.DONE if name in gemini_wire.MEDIA else ReplyEnding.EMPTY), name
            assert reply.messages[0]["parts"] == body["candidates"][0]["content"]["parts"], "it goes back"


# ---------------------------------------------------------------------- one provider call, one run


def test_a_namespace_is_part_of_a_calls_name() -> None:
    for space, name in (("crm", "crm.refund"), ("refund", "refund"), (None, "refund")):
        (call,) = codec("openai_responses").calls(response({**function_call("refund", "{}"), "namespace": space}))
        assert call.name == name
        (call,) = codec("openai_chat").calls(chat(function("refund", "{}", namespace=space)))
        assert call.name == name
        (call,) = codec("anthropic").calls(message({**tool_use("refund", {}), "toolset_name": space}))
        assert call.name == name


def test_a_parallel_wrapper_is_unpacked_and_each_call_has_its_answer_in_the_history() -> None:
    uses = [{"recipient_name": f"functions.{name}", "parameters": {"n": 1}} for name in "fg"]
    body = chat(function("multi_tool_use.parallel", json.dumps({"tool_uses": uses}), "w"))
    reply = codec("openai_chat").reply(body)
    assert [(call.name, call.id, call.arguments) for call in reply.calls] == [
        ("f", "w_1", '{"n":1}'),
        ("g", "w_2", '{"n":1}'),
    ]
    assert [entry["id"] for entry in reply.messages[0]["tool_calls"]] == ["w_1", "w_2"]


def test_options_add_tools_and_never_take_the_gates_away() -> None:
    from tests.runtime.models.wires import tool as definition

    for wire in WIRES:
        translation = codec(wire).translate([definition()])
        more = {"tools": [{"type": "web_search"}]}
        body = codec(wire).request("hi", translation, model="m", options=more).body
        assert body["tools"] == [*translation.request["tools"], {"type": "web_search"}]
