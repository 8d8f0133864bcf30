"""Streams of Gemini: server-sent events, or a JSON array; calls whole, or value by value (contract 61, C10b)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.models.streaming import brief, decode, read, reply_of, shown_calls, sse, texts
from tests.runtime.models.wires import gemini, gemini_call


def chunk(*parts: Any, finish: Any = None, **fields: Any) -> dict[str, Any]:
    return {**gemini(*parts, finish=finish), **fields}


END = chunk(
    {"text": ""}, finish="STOP", usageMetadata={"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7}
)


def forms(*chunks: Any) -> list[bytes]:
    """The same answer with ``alt=sse`` and without, laid out in more than one way."""
    return [
        sse(*chunks),
        json.dumps(chunks, indent=2).encode(),
        b"[" + b"\r\n,\r\n".join(json.dumps(each).encode() for each in chunks) + b"]",
    ]


def test_events_and_a_json_array_are_read_alike_at_any_cut() -> None:
    chunks = [chunk({"text": "né}"}), chunk({"text": '"]😀'}), chunk(gemini_call("f", {"a": "}{"})), END]
    whole = decode("gemini", [forms(*chunks)[0]])
    assert texts(whole) == ('né}"]😀', "")
    for stream in forms(*chunks):
        for at in range(len(stream)):
            assert decode("gemini", [stream[:at], stream[at:]]) == whole


def test_calls_in_several_chunks_and_several_in_one_are_all_read() -> None:
    chunks = [chunk(gemini_call("f", {"a": 1}), gemini_call("f", {"a": 1})), chunk(gemini_call("g", {}, "id")), END]
    events = decode("gemini", [sse(*chunks)])
    assert brief(reply_of(events)) == [("f", {"a": 1}, None), ("f", {"a": 1}, None), ("g", {}, "id")]
    assert shown_calls(events) == [("f", '{"a":1}'), ("f", '{"a":1}'), ("g", "")]


def test_the_same_call_sent_again_under_its_id_is_one_call() -> None:
    again = gemini_call("f", {"a": 1}, "id", thoughtSignature="T==")
    reply = read("gemini", sse(chunk(gemini_call("f", {"a": 1}, "id")), chunk(again), END))
    assert brief(reply) == [("f", {"a": 1}, "id")]
    assert reply.messages[0]["parts"] == [again]
    other = read("gemini", sse(chunk(gemini_call("f", {"a": 1}, "id")), chunk(gemini_call("f", {"a": 2}, "id")), END))
    assert brief(other) == [("f", {"a": 1}, "id"), ("f", {"a": 2}, None)]


def partial(*values: tuple[str, Any], more: bool = True, **fields: Any) -> dict[str, Any]:
    pieces = [
        {
            "jsonPath": path,
            {str: "stringValue", bool: "boolValue", type(None): "nullValue"}.get(type(value), "numberValue"): value,
        }
        for path, value in values
    ]
    return {
        "functionCall": {
            **fields,
            **({"partialArgs": pieces} if pieces else {}),
            **({"willContinue": True} if more else {}),
        }
    }


def test_arguments_streamed_value_by_value_are_put_together() -> None:
    parts = [
        {**partial(name="f", id="x"), "thoughtSignature": "T=="},
        partial(("$.city", "New ")),
        partial(("$.city", "Delhi"), ("$.days", 3), ("$.warm", True), ("$.note", None)),
        partial(("$.stops[0].name", "a"), ("$.stops[1].name", "b"), ("$['odd key']", 1.5)),
        {"functionCall": {}},
    ]
    for stream in forms(*(chunk(part) for part in parts), chunk(gemini_call("g", {})), END):
        reply = read("gemini", stream)
        assert brief(reply) == [
            (
                "f",
                {
                    "city": "New Delhi",
                    "days": 3,
                    "warm": True,
                    "note": None,
                    "stops": [{"name": "a"}, {"name": "b"}],
                    "odd key": 1.5,
                },
                "x",
            ),
            ("g", {}, None),
        ]
        assert not reply.calls[0].truncated
        first = reply.messages[0]["parts"][0]
        assert first["thoughtSignature"] == "T=="
        assert set(first["functionCall"]) == {"name", "id", "args"}


def test_a_call_that_would_have_continued_is_truncated() -> None:
    reply = read("gemini", sse(chunk(partial(("$.a", "x"), name="f")), END))
    assert [call.truncated for call in reply.calls] == [True]
    assert [
        call.truncated for call in read("gemini", sse(chunk(partial(("$.a", "x"), name="f", more=False)), END)).calls
    ] == [False]


@pytest.mark.parametrize("path", ["a", "$", "$.a[5]", "$..a", "$[*]", "$.a[-1]", "$.x.y[", None, 5, "$[0]"])
def test_a_path_that_leads_nowhere_makes_the_arguments_unreadable(path: Any) -> None:
    part = {"functionCall": {"name": "f", "partialArgs": [{"jsonPath": path, "stringValue": "x"}]}}
    (call,) = read("gemini", sse(chunk(part), END)).calls
    assert isinstance(call.arguments, str), "hydration refuses it"


def test_signatures_keep_their_part_and_its_place() -> None:
    """Text is joined only where nothing but text is in it."""
    parts = [
        *({"text": "a", "thought": True}, {"text": "b", "thought": True}, {"text": "c"}, {"text": "d"}),
        *({"text": "e", "thoughtSignature": "E=="}, {"text": "", "thoughtSignature": "F=="}, {"text": "g"}),
        *(gemini_call("f", {}, thoughtSignature="G+/=="), {"inlineData": {"mimeType": "x", "data": "y"}}),
    ]
    events = decode("gemini", [sse(*(chunk(part) for part in parts), END)])
    assert texts(events) == ("cdeg", "ab") == (reply_of(events).text, reply_of(events).reasoning)
    assert reply_of(events).messages == (
        {"role": "model", "parts": [{"text": "ab", "thought": True}, {"text": "cd"}, *parts[4:]]},
    )


def test_a_finish_reason_ends_an_answer_and_without_one_it_was_cut() -> None:
    assert not read("gemini", sse(chunk(gemini_call("f", {}), finish="STOP"))).truncated
    reply = read("gemini", sse(chunk(gemini_call("f", {}))))
    assert reply.truncated
    assert reply.calls[0].truncated


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "MAX_TOKENS", "SAFETY", 2])
def test_a_bad_finish_reason_marks_the_answer(finish: Any) -> None:
    reply = read("gemini", sse(chunk(gemini_call("f", {})), {"candidates": [{"finishReason": finish}]}))
    assert reply.truncated
    assert [call.truncated for call in reply.calls] == [True]
    assert read("gemini", sse({"candidates": [{"finishReason": finish}]})).calls == ()


def test_a_blocked_prompt_ends_an_answer_with_nothing_in_it() -> None:
    reply = read("gemini", sse({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}))
    assert (reply.stop, reply.truncated, reply.messages, reply.usage.input) == ("SAFETY", True, (), 3)
    assert reply == reply_of(decode("gemini", [json.dumps([reply.body]).encode()]))


def test_an_error_is_the_replys_error_in_every_form() -> None:
    error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
    for stream in (*forms(chunk({"text": "x"}), error), *forms(error), json.dumps(error).encode()):
        assert read("gemini", stream).error == error["error"]


def test_only_the_first_candidate_is_streamed() -> None:
    other = {
        "candidates": [
            {"index": 1, "content": {"parts": [{"text": "no"}, gemini_call("z", {})]}, "finishReason": "STOP"}
        ]
    }
    reply = read("gemini", sse(chunk({"text": "yes"}), other, END))
    assert (reply.text, reply.calls) == ("yes", ())


def test_numbers_keep_every_digit() -> None:
    assert read("gemini", sse(chunk(gemini_call("f", {"n": 2**70})), END)).calls[0].arguments == {"n": 2**70}


def test_what_is_no_chunk_is_passed_over() -> None:
    odd = [
        {},
        {"candidates": None},
        {"candidates": [None, {}]},
        {"candidates": [{"content": {"parts": [None, 5, {}]}}]},
    ]
    odd += [{"candidates": [{"content": {"parts": [{"functionCall": None}, {"functionCall": {}}]}}]}]
    reply = read("gemini", sse(*odd, chunk({"text": "x"}), *odd, END))
    assert (reply.text, reply.calls, reply.usage.total) == ("x", (), 7)
