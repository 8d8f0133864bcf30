"""Streams of Anthropic's Messages, in the forms that its API, its proxies and its imitators send (contract 61)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.runtime.models.wire.endings import ReplyEnding
from tests.runtime.models.streaming import brief, decode, read, reply_of, shown_calls, sse, texts
from tests.runtime.models.wires import message, tool_use

START = {
    "type": "message_start",
    "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 3}},
}
STOP = {"type": "message_stop"}


def begin(index: Any, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: Any, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", **fields}}


def call(index: Any, call_id: str, *pieces: str, name: str = "f", given: Any = None) -> list[dict[str, Any]]:
    start = begin(index, type="tool_use", id=call_id, name=name, input={} if given is None else given)
    stop = {"type": "content_block_stop", "index": index}
    return [start, *(delta(index, "input_json", partial_json=piece) for piece in pieces), stop]


def end(reason: str = "tool_use", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9, **usage}}


def test_pings_and_events_never_seen_before_are_passed_over() -> None:
    odd = [{"type": "ping"}, {"type": "from_the_future", "x": 1}, {"type": None}, {}, {"type": "content_block_delta"}]
    odd += [delta(0, "from_the_future", x=1), {"type": "content_block_start", "index": 5}]
    reply = read("anthropic", sse(*odd[:5], START, *odd, *call(0, "a", "{}"), *odd[:5], end(), STOP))
    assert brief(reply) == [("f", "{}", "a")]
    assert (reply.stop, reply.usage.input, reply.usage.output) == ("tool_use", 3, 9)


def test_blocks_may_be_interleaved() -> None:
    one, two = call(1, "a", '{"x"', ": 1}"), call(2, "b", '{"y"', ": 2}", name="g")
    woven = [event for pair in zip(one, two, strict=True) for event in pair]
    events = decode(
        "anthropic", [sse(START, begin(0, type="text", text=""), *woven, delta(0, "text", text="hi"), end(), STOP)]
    )
    assert brief(reply_of(events)) == [("f", '{"x": 1}', "a"), ("g", '{"y": 2}', "b")]
    assert shown_calls(events) == [("f", '{"x": 1}'), ("g", '{"y": 2}')]
    assert reply_of(events).text == "hi"


@pytest.mark.parametrize("first", ["0", "text_0", 1.0])
def test_blocks_are_told_apart_by_an_index_of_any_type(first: Any) -> None:
    """Without it the pieces of both went to the later call, and the earlier one ran with no input."""
    one, two = call(first, "a", '{"x"', ": 1}"), call("other", "b", '{"y"', ": 2}", name="g")
    woven = [event for pair in zip(one, two, strict=True) for event in pair]
    reply = read("anthropic", sse(START, *woven, end(), STOP))
    assert brief(reply) == [("f", '{"x": 1}', "a"), ("g", '{"y": 2}', "b")]


def test_an_index_used_again_begins_another_block() -> None:
    stream = sse(START, *call(0, "a", "{}"), *call(0, "b", '{"y": 2}'), end(), STOP)
    assert brief(read("anthropic", stream)) == [("f", "{}", "a"), ("f", '{"y": 2}', "b")]


def test_without_an_index_a_delta_belongs_to_the_latest_block() -> None:
    events = [{key: value for key, value in event.items() if key != "index"} for event in call(0, "a", '{"x"', ": 1}")]
    assert brief(read("anthropic", sse(START, *events, end(), STOP))) == [("f", '{"x": 1}', "a")]


def test_an_input_given_whole_at_the_start_stands_unless_pieces_follow() -> None:
    assert brief(read("anthropic", sse(START, *call(0, "a", given={"x": 1}), end(), STOP))) == [("f", {"x": 1}, "a")]
    assert brief(read("anthropic", sse(START, *call(0, "a", "", given={"x": 1}), end(), STOP))) == [
        ("f", {"x": 1}, "a")
    ]
    pieces = call(0, "a", '{"y"', ": 2}", given={"x": 1})
    assert brief(read("anthropic", sse(START, *pieces, end(), STOP))) == [("f", '{"y": 2}', "a")]


def test_a_delta_of_a_block_that_never_began_begins_one() -> None:
    stream = sse(
        delta(0, "thinking", thinking="t"),
        delta(1, "text", text="x"),
        delta(2, "input_json", partial_json="[1]"),
        end(),
    )
    reply = read("anthropic", stream)
    assert (reply.text, reply.reasoning) == ("x", "t")
    assert brief(reply) == [("", "[1]", None)]


def test_what_the_provider_runs_itself_is_not_ours_and_goes_back_whole() -> None:
    server = begin(0, type="server_tool_use", id="s", name="web_search", input={})
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"encrypted_content": "E=="}]}
    stream = sse(
        START,
        server,
        delta(0, "input_json", partial_json='{"q": 1}'),
        begin(1, **found),
        *call(2, "a", "{}"),
        end(),
        STOP,
    )
    events = decode("anthropic", [stream])
    reply = reply_of(events)
    assert brief(reply) == [("f", "{}", "a")]
    assert shown_calls(events) == [("f", "{}")]
    assert reply.messages[0]["content"] == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        found,
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    ]


def test_thinking_goes_back_with_its_signature_and_redacted_thinking_as_it_is() -> None:
    thinking = [
        begin(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking", thinking="Hm"),
        delta(0, "thinking", thinking="m."),
    ]
    redacted = {"type": "redacted_thinking", "data": "R+/=="}
    stream = sse(
        START,
        *thinking,
        delta(0, "signature", signature="S+/=="),
        begin(1, **redacted),
        *call(2, "a", "{}"),
        end(),
        STOP,
    )
    events = decode("anthropic", [stream])
    assert texts(events) == ("", "Hmm.")
    assert reply_of(events).messages[0]["content"][:2] == [
        {"type": "thinking", "thinking": "Hmm.", "signature": "S+/=="},
        redacted,
    ]


def test_citations_are_kept_with_their_text() -> None:
    cites = [delta(0, "citations", citation={"n": n}) for n in (1, 2)]
    stream = sse(START, begin(0, type="text", text=""), delta(0, "text", text="x"), *cites, end("end_turn"), STOP)
    assert read("anthropic", stream).messages[0]["content"] == [
        {"type": "text", "text": "x", "citations": [{"n": 1}, {"n": 2}]}
    ]


def test_a_streamed_input_that_is_no_json_is_an_empty_object_in_the_history_only() -> None:
    reply = read("anthropic", sse(START, *call(0, "a", '{"x": '), end("max_tokens"), STOP))
    assert reply.calls[0].arguments == '{"x": '
    assert reply.calls[0].truncated
    assert reply.messages[0]["content"] == [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]


@pytest.mark.parametrize("last", [[end(), STOP], [end()]], ids=["both", "no_message_stop"])
def test_a_stop_reason_ends_an_answer(last: list[dict[str, Any]]) -> None:
    assert not read("anthropic", sse(START, *call(0, "a", "{}"), *last)).truncated


@pytest.mark.parametrize("last", [[], [STOP]], ids=["neither", "no_stop_reason"])
def test_without_a_stop_reason_the_answer_is_lost(last: list[dict[str, Any]]) -> None:
    reply = read("anthropic", sse(START, *call(0, "a", "{}"), *last))
    assert reply.truncated
    assert reply.calls[0].truncated


def test_an_error_event_is_the_replys_error() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for stream in (sse(START, *call(0, "a", "{}"), error), sse(error), json.dumps(error).encode()):
        reply = read("anthropic", stream)
        assert reply.error == error["error"]
        assert (reply.calls, reply.messages) == ((), ())


def test_a_whole_message_in_the_place_of_a_stream_is_read_as_such() -> None:
    body = message({"type": "text", "text": "hi"}, tool_use("f", {"x": 1}, "a"))
    for stream in (json.dumps(body).encode(), sse(body)):
        events = decode("anthropic", [stream])
        assert brief(reply_of(events)) == [("f", {"x": 1}, "a")]
        assert texts(events) == ("hi", "")
        assert not reply_of(events).truncated


def test_the_usage_of_the_last_event_counts_and_nulls_in_it_do_not() -> None:
    last = end(cache_read_input_tokens=2)
    last["usage"]["input_tokens"] = None
    usage = read("anthropic", sse(START, last, STOP)).usage
    assert (usage.input, usage.output, usage.cached, usage.total) == (5, 9, 2, None)


def lost(*events: Any) -> bool:
    """True if a stream hands nothing on: its calls are truncated and none is ready."""
    replied = read("anthropic", sse(*events))
    assert (replied.ending is ReplyEnding.LOST) is (replied.problem is not None)
    if replied.ending is ReplyEnding.LOST:
        assert all(call.truncated for call in replied.calls)
    return replied.ending is ReplyEnding.LOST


MORE: list[list[dict[str, Any]]] = [
    [START],
    [{"type": "message", "role": "assistant", "content": [], "stop_reason": "tool_use"}],
    call(0, "b", "{}"),
    call(9, "b", "{}"),
    [delta(0, "input_json", partial_json="{}")],
    [delta(0, "signature", signature="S")],
    [delta(5, "text", text="x")],
    [delta(0, "from_the_future", x=1)],
]


@pytest.mark.parametrize("more", MORE, ids=lambda more: f"{more[0]['type']}-{len(more)}")
def test_nothing_may_follow_a_message_that_has_stopped(more: list[dict[str, Any]]) -> None:
    whole = [START, *call(0, "a", "{}"), end(), STOP]
    assert not lost(*whole), "the control"
    assert not lost(*whole, STOP, {"type": "ping"}, {"type": "from_the_future"})
    assert lost(*whole, *more)
    assert lost(*whole, *more, end(), STOP)


def test_a_second_start_an_index_begun_again_and_a_block_that_goes_on_are_lost() -> None:
    one = call(0, "a", '{"x": 1}')
    for events in (
        [START, START, *one],
        [START, *one, START],
        [START, *one, *call(0, "b", "{}")],
        [START, *one, delta(0, "input_json", partial_json="{}")],
        [START, message(tool_use("f", {}, "a"))],
    ):
        assert lost(*events, end(), STOP)


@pytest.mark.parametrize(
    "more", [delta(1, "text", text="y"), delta(1, "from_the_future"), begin(2, type="text", text="z")], ids=str
)
def test_content_after_a_stop_reason_takes_the_end_back_until_the_next_one(more: dict[str, Any]) -> None:
    early = [START, *call(0, "a", "{}"), begin(1, type="text", text="x"), end()]
    usage = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 9}}
    assert not lost(*early, usage)
    assert lost(*early, more)
    assert lost(*early, more, usage), "usage alone is no end"
    assert not lost(*early, more, end())
    assert not lost(*early, more, STOP)


@pytest.mark.parametrize("reason", ["from_the_future", "", None, 5, ["tool_use"]])
def test_an_unknown_or_missing_stop_reason_is_lost_whole_and_streamed(reason: Any) -> None:
    assert lost(START, *call(0, "a", "{}"), {"type": "message_delta", "delta": {"stop_reason": reason}}, STOP)
    replied = codec("anthropic").reply(message(tool_use("f", {}, "a"), stop=reason))
    assert (replied.ending, [one.truncated for one in replied.calls]) == (ReplyEnding.LOST, [True])


def test_a_call_sent_twice_under_its_id_is_one_call_and_goes_back_once() -> None:
    stream = sse(START, *call(0, "a", '{"x": 1}'), *call(1, "a", '{ "x":1 }'), *call(2, "a", '{"x": 2}'), end(), STOP)
    replied = read("anthropic", stream)
    assert [(one.id, one.synthetic_id, one.arguments) for one in replied.calls] == [
        ("a", False, '{"x": 1}'),
        ("call_2", True, '{"x": 2}'),
    ]
    assert [one["id"] for one in replied.messages[0]["content"]] == ["a", "call_2"]


def test_calls_of_a_model_that_refused_before_another_took_over_are_left_out() -> None:
    fallback = {"type": "fallback", "from": {"model": "m"}, "to": {"model": "n"}, "trigger": {"type": "refusal"}}
    events = [*call(0, "a", '{"x": '), begin(1, **fallback), *call(2, "b", "{}")]
    replied = read("anthropic", sse(START, *events, end(), STOP))
    assert brief(replied) == [("f", "{}", "b")]
    assert [one.get("id", one["type"]) for one in replied.messages[0]["content"]] == ["fallback", "b"]


def test_a_compaction_keeps_its_encrypted_content_and_is_never_empty_text() -> None:
    begun = begin(0, type="compaction", content="", encrypted_content=None)
    stop = end("compaction")
    stream = sse(START, begun, delta(0, "compaction", content="So far.", encrypted_content="C=="), stop, STOP)
    assert read("anthropic", stream).messages[0]["content"] == [
        {"type": "compaction", "content": "So far.", "encrypted_content": "C=="}
    ]
    failed = read("anthropic", sse(START, begun, delta(0, "compaction", content=None), stop, STOP))
    assert failed.messages[0]["content"] == [{"type": "compaction", "content": None, "encrypted_content": None}]
