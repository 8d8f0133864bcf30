"""Streams of Gemini: server-sent events, or a JSON array; calls whole, or value by value (contract 61, C10b)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate import Outcome, ToolResult
from callgate.runtime.models import codec
from callgate.runtime.models.wire.endings import ReplyEnding
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


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ({"y": 2}, {"x": "a", "y": 2}),
        ({"x": "a", "y": 2}, {"x": "a", "y": 2}),
        ({}, {"x": "a"}),
        ({"x": "b"}, "unreadable arguments"),
        ('{"x": "b"}', "unreadable arguments"),
    ],
)
def test_arguments_that_come_whole_in_a_later_piece_are_added(later: Any, expected: Any) -> None:
    """They were lost, and the call ran without them; another value of an argument makes the call unreadable."""
    pieces = {"partialArgs": [{"jsonPath": "$.x", "stringValue": "a"}], "willContinue": True}
    first, last = {"functionCall": {"name": "f", **pieces}}, {"functionCall": {"args": later}}
    (call,) = read("gemini", sse(gemini(first, finish=None), gemini(last))).calls
    assert (call.arguments, call.truncated) == (expected, False)


def test_a_call_whose_id_is_that_of_another_goes_back_without_it() -> None:
    """Its result has no id either, so the API pairs them by their place."""
    reply = codec("gemini").reply(gemini(gemini_call("f", {"n": 1}, "a"), gemini_call("f", {"n": 2}, "a")))
    (turn,) = reply.messages
    assert [part["functionCall"].get("id") for part in turn["parts"]] == ["a", None]
    (answer,) = codec("gemini").results([ToolResult(call.id, "f", Outcome.SUCCESS, 1) for call in reply.calls])
    assert [part["functionResponse"].get("id") for part in answer["parts"]] == ["a", None]


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


def ended(*chunks: Any) -> str:
    """How a stream ended; one that is lost hands nothing on."""
    reply = read("gemini", sse(*chunks))
    if reply.ending is ReplyEnding.LOST:
        assert all(call.truncated for call in reply.calls)
    return reply.ending.value


def used(tokens: int, *parts: Any, finish: Any = None, **fields: Any) -> dict[str, Any]:
    usage = {"promptTokenCount": 9, "candidatesTokenCount": tokens, "totalTokenCount": 9 + tokens}
    return chunk(*parts, finish=finish, usageMetadata=usage, **fields)


CALL = gemini_call("f", {"a": 1})


@pytest.mark.parametrize(
    "second",
    [
        [used(4, CALL, finish="STOP", responseId="other", modelVersion="m")],
        [used(4, CALL, finish="STOP", responseId="r", modelVersion="fallback")],
        [used(2, {"text": "I "}, responseId="r", modelVersion="m"), used(4, CALL, finish="STOP", responseId="r")],
    ],
    ids=["id", "model", "first chunk"],
)
def test_a_second_answer_is_found_by_its_id_its_model_and_its_first_chunk(second: list[Any]) -> None:
    first = [used(2, {"text": "I "}, responseId="r", modelVersion="m"), used(3, {"text": "will"}, responseId="r")]
    assert ended(*first, used(4, CALL, finish="STOP", responseId="r", modelVersion="m")) == "calls", "the control"
    for number in (1, 2):
        assert ended(*first[:number], *second) == "lost"
    assert ended(*first, used(4, CALL, finish="STOP", responseId="r"), *second) == "lost", "after its end, too"


def test_a_call_that_begins_again_without_ids_and_counts_is_lost() -> None:
    whole = chunk(CALL, finish="STOP")
    assert ended(whole) == "calls"
    assert ended(whole, whole) == "lost"
    assert ended(chunk({"text": "ha"}), chunk({"text": "ha"}), whole) == "calls", "text may repeat"


def test_token_counts_fall_only_where_the_provider_ran_a_tool_or_an_id_holds_the_answer_together() -> None:
    falls = [used(40, {"text": "I will"}), used(3, {"text": "Let me"}), used(9, CALL, finish="STOP")]
    assert ended(*falls) == "lost"
    assert ended(*({**one, "responseId": "r"} for one in falls)) == "calls"
    ran = chunk({"toolCall": {"id": "s", "toolType": "FILE_SEARCH"}})
    assert ended(ran, *falls) == "calls"


def test_of_several_finish_reasons_the_last_counts_and_content_takes_one_back() -> None:
    assert ended(chunk({"text": "a"}, finish="STOP"), chunk(CALL, finish="STOP")) == "calls"
    assert ended(chunk({"text": "a"}, finish="STOP"), chunk(CALL)) == "lost"
    assert ended(chunk({"text": "a"}, finish="STOP"), chunk(CALL, finish="SAFETY")) == "refused"
    assert ended(chunk(CALL, finish="STOP"), chunk({"text": ""}), {"usageMetadata": {}}) == "calls", "no content"


@pytest.mark.parametrize("reason", ["FINISH_REASON_UNSPECIFIED", 0, "", None])
def test_a_finish_reason_that_is_not_specified_ends_nothing(reason: Any) -> None:
    """Some servers write the default of the field into each chunk that is not the last one."""
    assert ended(chunk({"text": "a"}, finish=reason), chunk(CALL, finish=reason)) == "lost"
    assert ended(chunk({"text": "a"}, finish=reason), chunk(CALL, finish="STOP")) == "calls"
    reply = codec("gemini").reply(gemini(CALL, finish=reason))
    assert (reply.ending, [call.truncated for call in reply.calls]) == (ReplyEnding.LOST, [True])


NUMBERS = {1: "calls", 2: "truncated", 3: "refused", 4: "refused", 5: "failed", 6: "lost", 99: "lost", -1: "lost"}


@pytest.mark.parametrize(("number", "ending"), NUMBERS.items())
def test_a_numeric_finish_reason_is_read_where_both_apis_number_alike(number: int, ending: str) -> None:
    assert codec("gemini").reply(gemini(CALL, finish=number)).ending.value == ending
    assert ended(chunk(CALL, finish=number)) == ending


BLOCKS = ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK", 1, 2]


@pytest.mark.parametrize("block", [*BLOCKS, "BLOCKED_REASON_UNSPECIFIED"])
def test_a_blocked_prompt_is_refused_also_beside_a_call(block: Any) -> None:
    feedback = {"promptFeedback": {"blockReason": block}}
    beside = chunk(CALL, finish="STOP", **feedback)
    runs = block == "BLOCKED_REASON_UNSPECIFIED"  # the default of the field
    for body, ending in ((feedback, "refused"), (beside, "calls" if runs else "refused")):
        assert codec("gemini").reply(body).ending.value == ended(body) == ending


@pytest.mark.parametrize("reason", ["UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"])
def test_a_reason_about_calls_is_an_error_without_one(reason: str) -> None:
    for parts, ending in (((CALL,), "calls"), (({"text": "x"},), "failed"), ((), "failed")):
        body = chunk(*parts, finish=reason)
        assert codec("gemini").reply(body).ending.value == ended(body) == ending


def test_a_call_that_never_stops_to_go_on_loses_the_answer() -> None:
    never = chunk(partial(("$.a", "x"), name="f"), finish="STOP")
    assert codec("gemini").reply(never).ending.value == ended(never) == "lost"
    other = chunk(partial(("$.a", "x"), name="f")), chunk(gemini_call("g", {}), finish="STOP")
    assert ended(*other) == "lost"
    assert ended(other[0], chunk({"functionCall": {}}), other[1]) == "calls"


def test_what_the_provider_ran_is_on_the_reply_and_goes_back() -> None:
    parts = [
        {"toolCall": {"id": "s", "toolType": "GOOGLE_SEARCH_WEB", "args": {"q": 1}}, "thoughtSignature": "T=="},
        {"toolResponse": {"id": "s", "response": {}}},
        {"executableCode": {"code": "1", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
    ]
    usage = {"promptTokenCount": 3, "toolUsePromptTokenCount": 5, "candidatesTokenCount": 2}
    chunks = [*(chunk(part) for part in parts), chunk({"text": "One."}, finish="STOP", usageMetadata=usage)]
    reply = read("gemini", sse(*chunks))
    assert (list(reply.provider_ran), reply.calls, reply.ending.value) == (parts, (), "done")
    assert reply.messages[0]["parts"] == [*parts, {"text": "One."}]
    assert (reply.usage.input, reply.body["usageMetadata"]) == (8, usage)
