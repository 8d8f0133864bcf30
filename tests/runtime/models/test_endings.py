"""The closed tables: every known stop reason has an ending, an unknown one is lost, and nothing runs where none may."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from callgate import Effects, Gate, User, converse, tool
from callgate.runtime.conversation.events import Conversation, Ending
from callgate.runtime.models import codec
from callgate.runtime.models.wire.endings import ReplyEnding
from tests.runtime.models.wires import (
    WIRES,
    answered,
    chat,
    function,
    function_call,
    message,
    response,
    tool_use,
)


class Answers:
    """A model that gives one answer, whole or streamed, and then says that it is done."""

    def __init__(self, wire: str, body: dict[str, Any]) -> None:
        self.codec = codec(wire)
        self.bodies = [body, answered(wire, GOOD[wire], calls=False, text="bye")]

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
ENDED = {ReplyEnding.REFUSED: Ending.REFUSED, ReplyEnding.FAILED: Ending.ERROR, ReplyEnding.LOST: Ending.LOST}
RUNS = {ReplyEnding.DONE, ReplyEnding.CALLS, ReplyEnding.PAUSED}
each_word = pytest.mark.parametrize(("wire", "word", "ending"), WORDS)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def talk(wire: str, body: dict[str, Any], stream: bool) -> tuple[Conversation, int]:
    """Converse with a model that gives one answer and then says "bye"; count the payments."""
    ledger: list[int] = []

    @tool(effect="irreversible", name="pay")
    async def pay() -> str:
        ledger.append(1)
        return "paid"

    async with Gate([pay], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        done = await converse(Answers(wire, body), gate, "go", user=User("ann"), stream=stream)
    assert done.ok is (done.ended is Ending.DONE)
    return done, len(ledger)


@each_way
@each_word
async def test_a_call_runs_only_after_an_answer_that_ended_well(
    wire: str, word: str, ending: ReplyEnding, stream: bool
) -> None:
    """A call that is cut off gets an error as its result, and the model is asked again."""
    done, paid = await talk(wire, answered(wire, word), stream)
    assert paid == (ending in RUNS)
    assert done.ended is ENDED.get(ending, Ending.DONE)
    assert done.text == ("bye" if done.ok else "")
    if ending in {ReplyEnding.FAILED, ReplyEnding.LOST}:
        assert [one.get("role") for one in done.messages] in (["user"], [None])


@each_way
@each_word
async def test_an_answer_without_a_call_is_done_only_if_its_stop_reason_says_so(
    wire: str, word: str, ending: ReplyEnding, stream: bool
) -> None:
    """A pause goes on, and a call that is announced and not there is an error."""
    done, paid = await talk(wire, answered(wire, word, calls=False, text="hi"), stream)
    ends = {**ENDED, ReplyEnding.CALLS: Ending.ERROR, ReplyEnding.TRUNCATED: Ending.TRUNCATED}
    assert (done.ended, paid) == (ends.get(ending, Ending.DONE), 0)
    assert done.text == ("bye" if ending is ReplyEnding.PAUSED else "" if done.reply is None else "hi")


@each_word
def test_upper_and_lower_case_and_no_other_spelling_of_a_stop_reason_are_the_same(
    wire: str, word: str, ending: ReplyEnding
) -> None:
    read = [codec(wire).reply(answered(wire, one)) for one in (word, word.upper(), word.lower())]
    assert len({reply.ending for reply in read}) == 1
    assert all(call.truncated is (ending not in RUNS) for reply in read for call in reply.calls)
    for other in (f"{word} ", f"{word}s", word[:-1], f"x{word}"):
        reply = codec(wire).reply(answered(wire, other))
        assert reply.ending is ReplyEnding.LOST or other.lower() in {one.lower() for _, one, _ in WORDS}, other


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_adds_the_words_of_its_server(wire: str) -> None:
    known: Any = codec(wire)
    body = answered(wire, "finished")
    assert known.reply(body).ending is ReplyEnding.LOST
    assert known.with_endings({"FINISHED": "done"}).reply(body).ending is ReplyEnding.CALLS
    with pytest.raises(ValueError, match="fine"):
        known.with_endings({"finished": "fine"})


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_with_nothing_in_it_is_empty_and_a_promised_call_that_is_missing_an_error(wire: str) -> None:
    assert codec(wire).reply(answered(wire, GOOD[wire], calls=False)).ending is ReplyEnding.EMPTY
    for word, ending in codec(wire).endings.items():  # type: ignore[attr-defined]
        if ending is ReplyEnding.CALLS:
            assert codec(wire).reply(answered(wire, word, calls=False, text="hi")).ending is ReplyEnding.FAILED


def test_a_refusal_is_refused_whatever_the_reason_says() -> None:
    assert codec("openai_chat").reply(chat(refusal="No.", finish="stop")).ending is ReplyEnding.REFUSED
    part = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    assert codec("openai_responses").reply(response(part)).ending is ReplyEnding.REFUSED


@pytest.mark.parametrize(
    "text", ["<tool_call>{}</tool_call>", "[TOOL_CALLS] []", "<｜tool▁calls▁begin｜>", "<function=f>"]
)
def test_text_that_looks_like_a_call_is_flagged_and_runs_nothing(text: str) -> None:
    reply = codec("openai_chat").reply(answered("openai_chat", "stop", calls=False, text=text))
    assert (reply.looks_like_call, reply.calls, reply.ending) == (True, (), ReplyEnding.DONE)
    assert not codec("openai_chat").reply(answered("openai_chat", "stop", calls=False, text="hi")).looks_like_call


# ---------------------------------------------------------------------- one provider call, one run


def test_a_namespace_is_part_of_a_calls_name() -> None:
    for space, name in (("crm", "crm.refund"), ("refund", "refund"), (None, "refund")):
        (call,) = codec("openai_responses").calls(response({**function_call("refund", "{}"), "namespace": space}))
        assert call.name == name
        (call,) = codec("openai_chat").calls(chat(function("refund", "{}", namespace=space)))
        assert call.name == name
        (call,) = codec("anthropic").calls(message({**tool_use("refund", {}), "toolset_name": space}))
        assert call.name == name


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
def test_a_parallel_wrapper_is_unpacked_and_each_call_has_its_answer_in_the_history(wire: str) -> None:
    uses = json.dumps({"tool_uses": [{"recipient_name": f"functions.{name}", "parameters": {"n": 1}} for name in "fg"]})
    for name in ("multi_tool_use.parallel", "multi_tool_use_parallel"):
        bodies = {
            "openai_chat": chat(function(name, uses, "w")),
            "openai_responses": response(function_call(name, uses, "w")),
        }
        reply = codec(wire).reply(bodies[wire])
        assert [(call.name, call.id, call.arguments) for call in reply.calls] == [
            ("f", "w_1", '{"n":1}'),
            ("g", "w_2", '{"n":1}'),
        ]
        entries = reply.messages[0]["tool_calls"] if wire == "openai_chat" else reply.messages
        assert [entry.get("call_id") or entry["id"] for entry in entries] == ["w_1", "w_2"]


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize(
    "uses",
    [
        '{"tool_uses": [{"recipient_name": "f", "parameters": {}}], "tool_uses": [{"recipient_name": "g"}]}',
        '{"tool_uses": [{"recipient_name": "f", "recipient_name": "g", "parameters": {"n": 1}}]}',
        '{"tool_uses": [{"recipient_name": "f", "parameters": {"n": 1}, "parameters": {}}]}',
    ],
)
def test_a_parallel_wrapper_in_which_a_key_occurs_twice_calls_nothing(wire: str, uses: str) -> None:
    """One of the two values would be lost, as in arguments of a call, which are refused then."""
    name = "multi_tool_use.parallel"
    body = chat(function(name, uses, "w")) if wire == "openai_chat" else response(function_call(name, uses, "w"))
    assert [(call.name, call.arguments) for call in codec(wire).reply(body).calls] == [(name, uses)]


def test_options_add_tools_and_never_take_the_gates_away() -> None:
    from tests.runtime.models.wires import tool as definition

    for wire in WIRES:
        translation = codec(wire).translate([definition()])
        more = {"tools": [{"type": "web_search"}]}
        body = codec(wire).request("hi", translation, model="m", options=more).body
        assert body["tools"] == [*translation.request["tools"], {"type": "web_search"}]
        none = codec(wire).request("hi", translation, model="m", options={"tools": []}).body
        assert none["tools"] == translation.request["tools"], "an empty list, such as that of a setting, adds nothing"
