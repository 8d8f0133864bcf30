"""Streams of the Responses API: what counts when its events disagree, or are left out (contract 61)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from callgate.runtime.models.wire.endings import ReplyEnding
from tests.runtime.models.streaming import brief, chat_chunk, decode, read, reply_of, shown_calls, sse, texts
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
    assert shown_calls(events) in ([("f", A)], [("f", "")])


BEGUN = [CREATED, added(0, CALL), *pieces(0, "fc_x", '{"a"', ": 1}")]
DIFFERENT: dict[str, list[dict[str, Any]]] = {
    "the_arguments_done": [*BEGUN, arguments_done(0, "fc_x", '{"a": 2}'), completed()],
    "two_arguments_done": [*BEGUN[:2], arguments_done(0, "fc_x", A), arguments_done(0, "fc_x", "{}"), completed()],
    "the_item_done": [*BEGUN, done(0, {**CALL, "arguments": "{}"}), completed()],
    "the_last": [*BEGUN, completed({**CALL, "arguments": "{}"})],
    "the_last_after_arguments_done": [
        *(CREATED, added(0, CALL), arguments_done(0, "fc_x", A)),
        completed({**CALL, "arguments": '{"a": 1, "all": true}'}),
    ],
}


@pytest.mark.parametrize("way", DIFFERENT)
def test_a_call_whose_streamed_arguments_are_not_those_of_its_end_does_not_run(way: str) -> None:
    """Fail closed: two whole arguments, and which of them the model meant is not known."""
    reply = reply_of(decode("openai_responses", [sse(*DIFFERENT[way])]))
    assert (reply.ending, [call.truncated for call in reply.calls]) == (ReplyEnding.LOST, [True])
    assert reply.problem is not None
    assert "disagree" in reply.problem


def test_the_end_of_a_call_may_spell_the_streamed_arguments_in_another_way() -> None:
    reply = reply_of(decode("openai_responses", [sse(*BEGUN, completed({**CALL, "arguments": '{"a":1}'}))]))
    assert (reply.ending, reply.calls[0].arguments) == (ReplyEnding.CALLS, '{"a":1}')


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


# ---------------------------------------------------------------------- item ids that change


THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi there"}]}
OUTPUT = (THOUGHT, TEXT, CALL, function_call("g", "{}", "y"))


def rotated(indexed: bool, final: str) -> list[dict[str, Any]]:
    """A stream in which each event has an item id of its own, as behind a proxy that encrypts them."""
    ids = map("id{}".format, itertools.count())

    def fresh(kind: str, position: int, **fields: Any) -> dict[str, Any]:
        index = {"output_index": position} if indexed else {}
        return event(kind, item_id=next(ids), **index, **fields)

    stream = [CREATED]
    for position, item in enumerate(OUTPUT):
        empty = {**item, "content": [], "summary": [], "arguments": "", "status": "in_progress", "id": next(ids)}
        stream.append(fresh("output_item.added", position, item=empty))
        if item is TEXT:
            stream += [fresh("output_text.delta", position, content_index=0, delta=one) for one in ("hi ", "there")]
        elif item is THOUGHT:
            stream += [fresh("reasoning_summary_text.delta", position, summary_index=0, delta=one) for one in "hm"]
        else:
            whole = str(item["arguments"])
            stream += [fresh("function_call_arguments.delta", position, delta=one) for one in (whole[:1], whole[1:])]
            stream.append(fresh("function_call_arguments.done", position, arguments=whole))
        stream.append(fresh("output_item.done", position, item={**item, "id": next(ids)}))
    new = ("id", "call_id") if final == "rotated" else ("id",)
    last = [{**item, **{name: next(ids) for name in new if name in item}} for item in OUTPUT]
    return [*stream, completed(*(last if final != "empty" else ()))]


@pytest.mark.parametrize("final", ["same", "rotated", "empty"])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "no_index"])
def test_items_whose_ids_change_with_each_event_are_one_call_and_one_text(indexed: bool, final: str) -> None:
    events = decode("openai_responses", [sse(*rotated(indexed, final))])
    reply = reply_of(events)
    assert [(call.name, call.arguments) for call in reply.calls] == [("f", A), ("g", "{}")]
    assert shown_calls(events) == [("f", A), ("g", "{}")]
    assert texts(events) == ("hi there", "hm") == (reply.text, reply.reasoning)
    assert len(reply.messages) == len(OUTPUT)
    assert (reply.ending, [call.truncated for call in reply.calls]) == (ReplyEnding.CALLS, [False, False])


def test_pieces_that_may_be_those_of_two_calls_are_not_used() -> None:
    other = function_call("g", "{}", "y")
    begun = [CREATED, added(None, CALL), added(None, other), *pieces(None, "new", A)]
    stated = read("openai_responses", sse(*begun, done(None, CALL), done(None, other), completed()))
    assert brief(stated) == [("f", A, "x"), ("g", "{}", "y")]
    assert not any(call.truncated for call in stated.calls)
    unstated = read("openai_responses", sse(*begun, completed()))
    assert [(call.name, call.truncated) for call in unstated.calls] == [("f", True), ("g", True)]


def test_calls_without_call_ids_and_indexes_stay_apart() -> None:
    one, two = ({**function_call(name, "", None), "id": f"id_{name}"} for name in ("f", "g"))
    stream = sse(
        CREATED, added(None, one), *pieces(None, "id_f", A), added(None, two), *pieces(None, "id_g", "{}"), completed()
    )
    events = decode("openai_responses", [stream])
    assert shown_calls(events) == [("f", A), ("g", "{}")]
    assert [(call.name, call.arguments) for call in reply_of(events).calls] == [("f", A), ("g", "{}")]


def test_a_call_keeps_the_namespace_that_only_its_beginning_has() -> None:
    late = {key: value for key, value in CALL.items() if key not in {"call_id", "name"}}
    stream = sse(CREATED, added(0, {**CALL, "namespace": "crm"}), *pieces(0, "fc_x", A), done(0, late), completed(late))
    assert brief(read("openai_responses", stream)) == [("crm.f", A, "x")]


# ---------------------------------------------------------------------- streams that are not one whole answer

OTHER = {**CALL, "id": "fc_z", "call_id": "z"}
NUMBERED: list[dict[str, Any]] = [
    {**one, "sequence_number": number} for number, one in enumerate([*ALL, completed(CALL)])
]
LOST: dict[str, list[Any]] = {
    "created_again": [*ALL, CREATED, completed(CALL)],
    "created_before_its_items": [CREATED, CREATED, *ALL[1:], completed(CALL)],
    "in_progress_after_items": [*ALL, event("in_progress", response=response(status="in_progress")), completed(CALL)],
    "another_response_with_another_call": [*ALL, completed(OTHER, id="resp2")],
    "numbers_begin_again": [*NUMBERED[:4], *NUMBERED[2:]],
    "the_call_begins_again": [*ALL, added(0, CALL), completed(CALL)],
    "events_after_the_end": [*ALL, completed(CALL), *pieces(0, "fc_x", "x")],
    "the_end_twice": [*ALL, completed(CALL), completed(CALL)],
    "unread_events_after_the_end": [*ALL, completed(CALL), event("content_part.added")],
    "two_bodies": [response(CALL), response(CALL)],
    "a_body_after_events": [*ALL, response(CALL)],
    "a_chunk_of_chat": [*ALL, chat_chunk(content="x"), completed(CALL)],
    "a_chunk_of_anthropic": [*ALL, {"type": "message_start", "message": {}}, completed(CALL)],
    "a_chunk_of_gemini": [*ALL, {"candidates": [{}]}, completed(CALL)],
    "two_names": [*ALL, completed({**CALL, "name": "g"})],
    "two_names_before_the_end": [*ALL[:-1], done(0, {**CALL, "name": "g"}), completed()],
    "two_namespaces": [*ALL[:-1], done(0, {**CALL, "namespace": "crm"}), completed({**CALL, "namespace": "hr"})],
    "two_arguments": [*ALL, completed({**CALL, "arguments": '{"a": 2}'})],
    "more_calls_than_were_streamed": [*ALL, completed({**OTHER}, {**OTHER, "call_id": "w", "id": "fc_w"})],
    "done_without_an_end": [{**CREATED, "response": response(status="completed")}, *ALL[1:], "[DONE]"],
    "incomplete_and_completed": [*ALL, {**completed(CALL), "type": "response.incomplete"}],
    "failed_and_completed": [*ALL, {**completed(CALL), "type": "response.failed"}],
    "a_null_status": [*ALL, event("completed", response=response(CALL, status=None))],
    "no_response_at_the_end": [*ALL, event("completed")],
}


@pytest.mark.parametrize("way", LOST)
def test_a_stream_that_is_not_one_whole_answer_is_lost(way: str) -> None:
    reply = read("openai_responses", sse(*LOST[way]))
    assert reply.ending is ReplyEnding.LOST
    assert reply.problem
    assert all(call.truncated for call in reply.calls)


@pytest.mark.parametrize(
    "extra",
    [{"type": "keepalive", "sequence_number": 2}, {"type": "ping", "cost": "0"}, event("from_the_future"), {}],
    ids=["keepalive", "ping", "unknown", "empty"],
)
def test_an_event_that_is_no_content_loses_nothing(extra: dict[str, Any]) -> None:
    reply = read("openai_responses", sse(extra, *ALL, extra, completed(CALL)))
    assert (reply.ending, brief(reply)) == (ReplyEnding.CALLS, [("f", A, "x")])


def test_what_servers_do_with_numbers_and_response_ids_loses_nothing() -> None:
    """A gateway gives single events a constant number; another one encrypts the id of the final response."""
    constant = [{**one, "sequence_number": 0} for one in [*ALL, completed(CALL)]]
    dip = [
        {**one, "sequence_number": 1 if one["type"].endswith("item.done") else one["sequence_number"]}
        for one in NUMBERED
    ]
    other_id = [*ALL, completed(CALL, id="resp_encrypted")]
    spelled = [*ALL, completed({**CALL, "arguments": '{"a":1}'})]
    for stream in (NUMBERED, constant, dip, other_id, spelled):
        reply = read("openai_responses", sse(*stream))
        assert (reply.ending, [call.name for call in reply.calls]) == (ReplyEnding.CALLS, ["f"])


def test_a_streamed_refusal_is_refused_and_runs_nothing() -> None:
    deltas = [event("refusal.delta", item_id="m", output_index=1, content_index=0, delta=one) for one in ("No", ".")]
    reply = read("openai_responses", sse(*ALL, *deltas, completed(CALL)))
    assert (reply.ending, reply.text, [call.truncated for call in reply.calls]) == (ReplyEnding.REFUSED, "No.", [True])
