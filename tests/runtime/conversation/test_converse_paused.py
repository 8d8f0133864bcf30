"""Answers that the provider pauses, and what it wants back: the same history, its container, the toolset of a call."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from callgate import Gate
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Conversation, Ending
from callgate.runtime.models.anthropic import Anthropic
from tests.runtime.conversation.conversing import ANN, Asking, Notes
from tests.runtime.gate.making import gate_of
from tests.runtime.models.streaming import sse
from tests.runtime.models.wires import message, tool_use

SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"encrypted_content": "E=="}]}
SUMMARY = {"type": "compaction", "content": "All so far.", "encrypted_content": "C=="}
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def said(text: str, stop: str = "end_turn") -> dict[str, Any]:
    return message({"type": "text", "text": text}, stop=stop)


def streamed(body: dict[str, Any]) -> bytes:
    """The events of an answer; what grows comes in deltas."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}]
    grows: dict[str, tuple[str, dict[str, Any]]] = {
        "text": ("text_delta", {"text": ""}),
        "compaction": ("compaction_delta", {"content": None}),
    }
    for index, block in enumerate(body["content"]):
        kind, empty = grows.get(block["type"], ("", {}))
        first = {"type": block["type"], **empty} if kind else block
        events.append({"type": "content_block_start", "index": index, "content_block": first})
        if kind:
            events.append({"type": "content_block_delta", "index": index, "delta": {**block, "type": kind}})
        events.append({"type": "content_block_stop", "index": index})
    return sse(
        *events, {"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}}, {"type": "message_stop"}
    )


async def talk(
    gate: Gate, *script: dict[str, Any], stream: bool, resume: Any = None, **options: Any
) -> tuple[Conversation, list[Any]]:
    """A conversation with a server that plays a script; the last answer is repeated."""
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        body = script[min(len(asked), len(script)) - 1]
        if stream:
            return httpx.Response(200, content=streamed(body), headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http, gate:
        client = Anthropic("https://model.test/v1", model="m", api_key="k", http=http, retries=0, **options)
        more = () if resume else ("go",)
        return await converse(client, gate, *more, user=ANN, stream=stream, max_rounds=4, resume=resume), asked


@each_way
@pytest.mark.parametrize(
    "paused", [message(SEARCH, FOUND, SEARCH | {"id": "t"}, stop="pause_turn"), message(SUMMARY, stop="compaction")]
)
async def test_a_paused_answer_goes_on_with_the_same_history(paused: dict[str, Any], stream: bool) -> None:
    ended, asked = await talk(gate_of([Notes().tool()]), paused, paused, said("Found."), stream=stream)
    assert (ended.ended, ended.text, ended.rounds) == (Ending.DONE, "Found.", 3)
    back = {"role": "assistant", "content": paused["content"]}
    assert [one["messages"] for one in asked] == [
        [{"role": "user", "content": "go"}, *[back] * number] for number in range(3)
    ]


@each_way
async def test_an_answer_that_is_paused_each_time_ends_at_the_limit_of_rounds(stream: bool) -> None:
    ended, asked = await talk(gate_of([Notes().tool()]), message(SEARCH, stop="pause_turn"), stream=stream)
    assert (ended.ended, ended.rounds, len(asked)) == (Ending.MAX_ROUNDS, 4, 4)
    assert not ended.ok


@each_way
async def test_a_call_in_a_paused_answer_runs_once_and_its_container_and_caller_go_back(stream: bool) -> None:
    notes = Notes()
    caller = {"type": "code_execution_20250825", "tool_id": "s"}
    first = {**message({**tool_use("note", {"n": 1}), "caller": caller}, stop="pause_turn"), "container": {"id": "box"}}
    ended, asked = await talk(
        gate_of([notes.tool()]), first, said("Noted."), stream=stream, options={"container": {"skills": ["s"]}}
    )
    assert (ended.ended, notes.ran) == (Ending.DONE, [1])
    assert [one["container"] for one in asked] == [{"skills": ["s"]}, {"skills": ["s"], "id": "box"}]
    assert asked[1]["messages"][1] == {"role": "assistant", "content": first["content"]}


@each_way
async def test_a_call_of_a_toolset_runs_no_tool_of_ours_and_its_result_names_the_toolset(stream: bool) -> None:
    notes = Notes()
    first = message(
        {**tool_use("note", {"n": 1}, "a"), "toolset_name": "crm"},
        {**tool_use("note", {"n": 2}, "b"), "toolset_name": "note"},
    )
    ended, asked = await talk(gate_of([notes.tool()]), first, said("Noted."), stream=stream)
    assert (ended.ended, notes.ran) == (Ending.DONE, [2])
    results = asked[1]["messages"][2]["content"]
    assert [(one["tool_use_id"], one["toolset_name"], one["is_error"]) for one in results] == [
        ("a", "crm", True),
        ("b", "note", False),
    ]
    assert asked[1]["messages"][1]["content"] == first["content"]


@each_way
async def test_the_result_of_a_resumed_call_names_its_toolset_too(stream: bool) -> None:
    notes = Notes()
    first = message({**tool_use("note", {"n": 41}), "toolset_name": "note"})
    held, _ = await talk(gate_of([notes.tool()], Asking(suspends=[41])), first, stream=stream)
    assert held.ended is Ending.SUSPENDED
    state = json.loads(json.dumps(held.state))
    ended, asked = await talk(gate_of([notes.tool()]), said("Noted."), stream=stream, resume=state)
    assert (ended.ended, notes.ran) == (Ending.DONE, [41])
    (result,) = asked[0]["messages"][2]["content"]
    assert (result["toolset_name"], result["is_error"]) == ("note", False)
