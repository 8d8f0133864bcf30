"""Streams of the Responses API: what counts when its events disagree, or are left out (contract 61)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.models.streaming import brief, decode, read, reply_of, shown_calls, sse, texts
from tests.runtime.models.wires import function_call, response

A = '{"a": 1}'


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def added(index: Any, item: dict[str, Any]) -> dict[str, Any]:
    empty = {"arguments": ""} if item["type"] == "function_call" else {}
    return event("output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})


def pieces(index: Any, item_id: Any, *texts: str) -> list[dict[str, Any]]:
    name = "function_call_arguments"
    return [event(f"{name}.delta", output_index=index, item_id=item_id, delta=text) for text in texts]


def arguments_done(index: Any, item_id: Any, text: str) -> dict[str, Any]:
    return event("function_call_arguments.done", output_index=index, item_id=item_id, arguments=text)


def done(index: Any, item: dict[str, Any]) -> dict[str, Any]:
    return event("output_item.done", output_index=index, item=item)


def completed(*output: Any, kind: str = "completed", **fields: Any) -> dict[str, Any]:
    return event(kind, response=response(*output, status=kind, **fields))


CREATED = event("created", response=response(status="in_progress", id="resp", model="m"))
CALL = function_call("f", A, "x")
ALL = [CREATED, added(0, CALL), *pieces(0, "fc_x", '{"a"', ": 1}"), arguments_done(0, "fc_x", A), done(0, CALL)]
WAYS: dict[str, list[dict[str, Any]]] = {
    "all": [*ALL, completed(CALL)],
    "nothing_in_the_last": [*ALL, completed()],
    "no_item_done": [CREATED, added(0, CALL), *pieces(0, "fc_x", '{"a"', ": 1}"), completed()],
    "no_pieces": [CREATED, added(0, CALL), arguments_done(0, "fc_x", A), completed()],
    "no_pieces_nor_done": [CREATED, added(0, CALL), done(0, CALL), completed()],
    "arguments_left_out_when_done": [*ALL[:-1], done(0, {**CALL, "arguments": ""}), completed()],
    "arguments_left_out_in_the_last": [*ALL, completed({**CALL, "arguments": ""})],
    "not_added": [CREATED, done(0, CALL), completed()],
    "the_last_only": [completed(CALL)],
    "pieces_disagree": [CREATED, added(0, CALL), *pieces(0, "fc_x", '{"b"', ": 2}"), done(0, CALL), completed()],
    "no_index": [CREATED, added(None, CALL), *pieces(None, "fc_x", A), completed()],
    "no_ids": [CREATED, added(0, {**CALL, "id": None}), *pieces(0, None, A), completed()],
    "neither": [CREATED, added(None, {**CALL, "id": None}), *pieces(None, None, A), completed()],
    "ids_differ": [CREATED, added(0, CALL), *pieces(0, "other", A), completed()],
}


@pytest.mark.parametrize("way", WAYS, ids=list(WAYS))
def test_a_call_is_whole_whatever_a_server_leaves_out(way: str) -> None:
    events = decode("openai_responses", [sse(*WAYS[way])])
    assert brief(reply_of(events)) == [("f", A, "x")]
    assert not reply_of(events).truncated
    if way != "pieces_disagree":
        assert shown_calls(events) in ([("f", A)], [("f", "")])


def test_items_that_the_last_event_leaves_out_are_kept() -> None:
    other = function_call("g", "{}", "y")
    stream = [*ALL, added(1, other), done(1, other), completed(CALL)]
    assert brief(read("openai_responses", sse(*stream))) == [("f", A, "x"), ("g", "{}", "y")]


def test_calls_may_be_interleaved() -> None:
    other = function_call("g", "{}", "y")
    woven = [*pieces(0, "fc_x", '{"a"'), *pieces(1, "fc_y", "{"), *pieces(0, "fc_x", ": 1}"), *pieces(1, "fc_y", "}")]
    events = decode("openai_responses", [sse(CREATED, added(0, CALL), added(1, other), *woven, completed())])
    assert shown_calls(events) == [("f", A), ("g", "{}")]
    assert brief(reply_of(events)) == [("f", A, "x"), ("g", "{}", "y")]


def test_a_call_before_it_was_added_is_kept_for_hydration_to_refuse() -> None:
    assert brief(read("openai_responses", sse(*pieces(0, "fc", A), completed()))) == [("", A, "fc")]


def test_events_never_seen_before_are_passed_over() -> None:
    odd = [event("from_the_future", delta="x"), {"type": "keepalive"}, {"type": None}, {}, event("output_text.delta")]
    odd += [event("output_item.added"), event("output_item.done", item=None), event("content_part.added", part=None)]
    reply = read("openai_responses", sse(*odd[:5], *ALL, *odd[:5], completed(CALL)))
    assert brief(reply) == [("f", A, "x")]
    assert brief(read("openai_responses", sse(*odd, *ALL, completed()))) == [("f", A, "x")]


def test_text_refusals_and_reasoning_are_shown_and_folded() -> None:
    kinds = [
        ("reasoning_summary_text", "rs", 0),
        ("reasoning_text", "rs", 0),
        ("output_text", "msg", 1),
        ("refusal", "msg", 1),
    ]
    deltas = [
        event(f"{kind}.delta", item_id=item_id, output_index=index, content_index=0, summary_index=0, delta=text)
        for kind, item_id, index in kinds
        for text in ("a", "b")
    ]
    items = [
        added(0, {"type": "reasoning", "id": "rs", "summary": []}),
        added(1, {"type": "message", "id": "msg", "content": []}),
    ]
    events = decode("openai_responses", [sse(CREATED, *items, *deltas, completed())])
    reply = reply_of(events)
    assert texts(events) == ("abab", "abab") == (reply.text, reply.reasoning)
    assert reply.body["output"][0]["summary"] == [{"type": "summary_text", "text": "ab"}]
    assert reply.body["output"][1]["content"] == [
        {"type": "output_text", "text": "ab"},
        {"type": "refusal", "refusal": "ab"},
    ]
    assert (reply.id, reply.model) == ("resp", "m")


def test_what_comes_only_when_done_is_shown_then() -> None:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "hi"}]}
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    for stream in (
        sse(
            added(0, {**thought, "summary": []}),
            done(0, thought),
            added(1, {**message, "content": []}),
            done(1, message),
            completed(),
        ),
        sse(completed(thought, message)),
        json.dumps(response(thought, message)).encode(),
    ):
        events = decode("openai_responses", [stream])
        assert texts(events) == ("hi", "hm") == (reply_of(events).text, reply_of(events).reasoning)
        assert not reply_of(events).truncated


def test_encrypted_reasoning_goes_back_as_it_was_when_done() -> None:
    item = {"type": "reasoning", "id": "rs", "encrypted_content": "gAAA+/==", "summary": [], "content": []}
    early = {**item, "encrypted_content": "gAAAearly"}
    for last in (completed(item), completed()):
        reply = read("openai_responses", sse(CREATED, added(0, early), done(0, item), last))
        assert reply.messages == (item,)


@pytest.mark.parametrize("kind", ["incomplete", "cancelled"])
def test_an_incomplete_response_is_truncated(kind: str) -> None:
    half = {**CALL, "status": "incomplete", "arguments": '{"a"'}
    reason = {"incomplete_details": {"reason": "max_output_tokens"}}
    stream = sse(
        CREATED, added(0, CALL), *pieces(0, "fc_x", '{"a"'), done(0, half), completed(half, kind=kind, **reason)
    )
    reply = read("openai_responses", stream)
    assert (reply.truncated, reply.stop) == (True, "max_output_tokens")
    assert [call.truncated for call in reply.calls] == [True]


def test_without_its_last_event_a_response_was_cut() -> None:
    reply = read("openai_responses", sse(*ALL))
    assert reply.truncated
    assert [call.truncated for call in reply.calls] == [True]
    assert read("openai_responses", sse(*ALL, done=True)).truncated


@pytest.mark.parametrize(
    "last",
    [
        {"type": "error", "error": {"code": "x", "message": "no"}},
        {"type": "error", "code": "x", "message": "no", "sequence_number": 3},
        completed(kind="failed", error={"code": "x", "message": "no"}),
        {"error": {"code": "x", "message": "no"}},
    ],
    ids=["nested", "flat", "failed", "bare"],
)
def test_an_error_event_or_a_failed_response_is_the_replys_error(last: dict[str, Any]) -> None:
    reply = read("openai_responses", sse(*ALL, last))
    assert reply.error == {"code": "x", "message": "no"}
    assert (reply.calls, reply.messages) == ((), ())


def test_a_custom_tool_call_is_streamed_too() -> None:
    item = {"type": "custom_tool_call", "id": "ctc", "call_id": "c", "name": "sh", "input": ""}
    deltas = [event("custom_tool_call_input.delta", item_id="ctc", output_index=0, delta=text) for text in "ls"]
    whole = event("custom_tool_call_input.done", item_id="ctc", output_index=0, input="ls")
    assert brief(read("openai_responses", sse(added(0, item), *deltas, whole, completed()))) == [("sh", "ls", "c")]
