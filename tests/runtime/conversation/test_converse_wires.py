"""The same conversation over all five wires, streamed and not, with a scripted model over real HTTP. Issue 5."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from callgate import Gate
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Conversation, Ending
from callgate.runtime.models.anthropic import Anthropic
from callgate.runtime.models.gemini import Gemini
from callgate.runtime.models.ollama import Ollama
from callgate.runtime.models.openai_chat import OpenAIChat
from callgate.runtime.models.openai_responses import OpenAIResponses
from callgate.testing import Call, Fault, ModelRequest, RawArguments, Say, ScriptedModel, Stop, Think
from tests.runtime.conversation.conversing import ANN, Asking, Notes
from tests.runtime.gate.making import gate_of

WIRES: dict[str, Any] = {
    "openai_chat": OpenAIChat,
    "openai_responses": OpenAIResponses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "ollama": Ollama,
}
each_wire = pytest.mark.parametrize("wire", WIRES)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def client_of(wire: str, model: ScriptedModel, http: httpx.AsyncClient) -> Any:
    prefix = {"gemini": "/v1beta", "ollama": ""}.get(wire, "/v1")
    return WIRES[wire](model.url + prefix, model="scripted", api_key="sk-very-secret", http=http, retries=0)


async def talk(wire: str, model: ScriptedModel, gate: Gate, *args: Any, **options: Any) -> Conversation:
    async with httpx.AsyncClient(trust_env=False, verify=False) as http, gate:
        return await converse(client_of(wire, model, http), gate, *args, user=ANN, **options)


def answers(asked: ModelRequest) -> list[str]:
    """What the model was told, in its order, as text."""
    contents = [result.content for result in asked.results]
    return [content if isinstance(content, str) else json.dumps(content) for content in contents]


@each_way
@each_wire
async def test_parallel_calls_a_denial_a_malformed_and_an_unknown_one_are_answered_in_order(
    wire: str, stream: bool
) -> None:
    """Issue 5; contract C10a. The provider would take every request: the scripted model checks as it does."""
    notes = Notes()
    script: list[Any] = [
        [
            Think("Let me see."),
            Say("I note them."),
            Call("note", {"n": 60}),
            Call("note", {"n": 41}),
            Call("note", RawArguments('{"n": "sixty"}')),
            Call("nothing_like_it", {"n": 1}),
            Call("note", {"n": 70}),
        ],
        Call("note", {"n": 80}),
        Say("All is noted."),
    ]
    async with ScriptedModel(script) as model:
        ended = await talk(wire, model, gate_of([notes.tool()], Asking(denies=[41])), "note it", stream=stream)
    assert model.refusals == []
    assert (ended.ended, ended.text, ended.rounds) == (Ending.DONE, "All is noted.", 3)
    first, denied, malformed, unknown, last = answers(model.requests[1])[:5]
    assert ("noted 60" in first, "noted 70" in last) == (True, True)
    codes = [json.loads(text[text.index('{"error"') :])["error"]["code"] for text in (denied, malformed, unknown)]
    assert codes == ["denied", "invalid_arguments", "unknown_tool"]
    assert "sixty" not in malformed
    assert sorted(notes.ran) == [60, 70, 80]
    assert ended.usage.output == 3 * 7
    json.dumps(ended.messages)


@each_way
@each_wire
async def test_a_suspended_conversation_goes_on_in_a_fresh_gate(wire: str, stream: bool) -> None:
    """Issue 5. Between the two there is nothing but text."""
    notes = Notes()
    script: list[Any] = [
        [Think("Hm."), Call("note", {"n": 60}), Call("note", {"n": 41}), Call("note", {"n": 70})],
        Say("All is noted."),
    ]
    async with ScriptedModel(script) as model:
        gate = gate_of([notes.tool()], Asking(suspends=[41]))
        first = await talk(wire, model, gate, "note it", stream=stream)
        assert (first.ended, model.left) == (Ending.SUSPENDED, 1)
        kept = json.dumps(first.state)
        assert "sk-very-secret" not in kept
        ended = await talk(wire, model, gate_of([notes.tool()]), resume=json.loads(kept), stream=stream)
    assert model.refusals == []
    assert (ended.ended, ended.rounds) == (Ending.DONE, 2)
    assert [f"noted {n}" in text for n, text in zip([60, 41, 70], answers(model.requests[1]), strict=True)] == [
        True
    ] * 3
    assert sorted(notes.ran) == [41, 60, 70]


@each_way
@each_wire
async def test_who_does_not_resume_can_go_on_talking(wire: str, stream: bool) -> None:
    """Every history that a conversation gives is one that the provider takes."""
    script: list[Any] = [[Call("note", {"n": 41}), Call("note", {"n": 60})], Say("Never mind then.")]
    async with ScriptedModel(script) as model:
        gate = gate_of([Notes().tool()], Asking(suspends=[41]))
        first = await talk(wire, model, gate, "note it", stream=stream)
        more = [*first.messages, {"role": "user", "content": "Leave it."}]
        ended = await talk(wire, model, gate_of([Notes().tool()]), more, stream=stream)
    assert model.refusals == []
    assert ended.ok


@each_way
@each_wire
async def test_a_limit_in_the_middle_leaves_a_history_that_the_provider_takes(wire: str, stream: bool) -> None:
    """Issue 5."""
    script: list[Any] = [[Call("note", {"n": 60}), Call("note", {"n": 70})], Say("Half of it.")]
    async with ScriptedModel(script) as model:
        first = await talk(wire, model, gate_of([Notes().tool()]), "note it", stream=stream, max_calls=1)
        assert first.ended is Ending.MAX_CALLS
        more = [*first.messages, {"role": "user", "content": "Go on."}]
        assert (await talk(wire, model, gate_of([Notes().tool()]), more, stream=stream)).ok
    assert model.refusals == []
    assert "max_calls" in answers(model.requests[1])[1]


@each_wire
async def test_a_stream_that_is_cut_ends_it_and_nothing_of_it_runs(wire: str) -> None:
    """Issue 5: a call of a cut answer never runs."""
    notes = Notes()
    script: list[Any] = [
        Call("note", {"n": 60}),
        [Say("so"), Call("note", {"n": 70}), Fault.cut(events=2)],
        Say("Again."),
    ]
    async with ScriptedModel(script) as model:
        ended = await talk(wire, model, gate_of([notes.tool()]), "note it", stream=True)
        assert (ended.ended, ended.rounds, notes.ran) == (Ending.ERROR, 1, [60])
        assert "sk-very-secret" not in repr(ended)
        assert (await talk(wire, model, gate_of([notes.tool()]), ended.messages, stream=True)).ok
    assert model.refusals == []


@each_way
@each_wire
async def test_a_call_cut_for_length_is_answered_and_a_text_cut_for_length_says_so(wire: str, stream: bool) -> None:
    """Issue 5; contract C10a."""
    notes = Notes()
    script: list[Any] = [[Call("note", {"n": 6}), Stop("length")], [Say("Half a"), Stop("length")]]
    async with ScriptedModel(script) as model:
        ended = await talk(wire, model, gate_of([notes.tool()]), "note it", stream=stream)
    assert model.refusals == []
    assert (ended.ended, ended.text, notes.ran) == (Ending.TRUNCATED, "Half a", [])


@each_way
@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "ollama"])  # which has no filter
async def test_a_filter_is_a_refusal(wire: str, stream: bool) -> None:
    """Issue 5."""
    async with ScriptedModel([[Say("I"), Stop("filter")]]) as model:
        ended = await talk(wire, model, gate_of([]), "hello", stream=stream)
    assert ended.ended is Ending.REFUSED
