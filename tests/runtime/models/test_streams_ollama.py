"""Streams of Ollama's ``/api/chat`` (contract 61, C10b)."""

from __future__ import annotations

from typing import Any

from tests.runtime.models.streaming import brief, decode, lines, read, reply_of, shown_calls, texts
from tests.runtime.models.wires import function


def row(done: bool = False, **message: Any) -> dict[str, Any]:
    return {"model": "m", "created_at": "now", "message": {"role": "assistant", "content": "", **message}, "done": done}


END = {**row(done=True), "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 4}
CALLS = [function("f", {"a": 1}, None), function("g", {}, "x")]


def test_calls_in_several_lines_and_none_in_the_last() -> None:
    events = decode("ollama", [lines(row(tool_calls=CALLS[:1]), row(tool_calls=CALLS[1:]), row(), END)])
    assert brief(reply_of(events)) == [("f", {"a": 1}, None), ("g", {}, "x")]
    assert shown_calls(events) == [("f", '{"a":1}'), ("g", "")]
    assert (reply_of(events).usage.input, reply_of(events).usage.output, reply_of(events).stop) == (3, 4, "stop")


def test_calls_in_the_last_line_or_all_in_one() -> None:
    assert len(read("ollama", lines({**END, "message": {"content": "", "tool_calls": CALLS}})).calls) == 2
    assert not read("ollama", lines(row(tool_calls=CALLS), END)).truncated


def test_text_and_thinking_are_joined_at_any_cut() -> None:
    stream = lines(row(thinking="h"), row(thinking="né"), row(content="😀"), row(content="!"), END)
    whole = decode("ollama", [stream])
    assert texts(whole) == ("😀!", "hné")
    assert reply_of(whole).messages == ({"role": "assistant", "content": "😀!", "thinking": "hné"},)
    for at in range(len(stream)):
        assert decode("ollama", [stream[:at], stream[at:]]) == whole
    assert decode("ollama", (stream[at : at + 1] for at in range(len(stream)))) == whole


def test_other_line_ends_blank_lines_and_no_end_of_the_last_line_are_read() -> None:
    stream = lines(row(content="a"), END)
    assert read("ollama", stream.replace(b"\n", b"\r\n\r\n")).text == "a"
    assert not read("ollama", stream.rstrip()).truncated


def test_without_done_the_answer_was_cut() -> None:
    reply = read("ollama", lines(row(content="x", tool_calls=CALLS)))
    assert reply.truncated
    assert [call.truncated for call in reply.calls] == [True, True]


def test_length_marks_the_calls() -> None:
    assert [
        call.truncated for call in read("ollama", lines(row(tool_calls=CALLS), {**END, "done_reason": "length"})).calls
    ] == [True, True]


def test_an_error_line_is_the_replys_error() -> None:
    reply = read("ollama", lines(row(content="x", tool_calls=CALLS), {"error": "model runner has stopped"}))
    assert reply.error == {"message": "model runner has stopped"}
    assert (reply.calls, reply.messages) == ((), ())


def test_nulls_and_odd_values_are_passed_over() -> None:
    odd = [
        {},
        {"message": None},
        row(content=None, tool_calls=None, thinking=None),
        row(tool_calls=[None, 5, {}, {"function": None}]),
    ]
    reply = read("ollama", lines(*odd, row(content="x"), END))
    assert (reply.text, reply.calls, reply.truncated) == ("x", (), False)


def test_arguments_as_text_are_kept_and_go_back_as_an_object() -> None:
    reply = read("ollama", lines(row(tool_calls=[function("f", '{"a": 1}'), function("f", "{bad", "y")]), END))
    assert [call.arguments for call in reply.calls] == ['{"a": 1}', "{bad"]
    assert [call["function"]["arguments"] for call in reply.messages[0]["tool_calls"]] == [{"a": 1}, {}]
