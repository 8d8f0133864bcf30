"""Requests that a scripted model refuses, as real providers do. The control of each case is a valid request."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from callgate.testing import Call, Say, ScriptedModel, Think
from tests.runtime.testing.wire_requests import SCHEMA, WIRES, Line, body, each_wire, path, reason, results

TWO = [Call("refund", {"order_id": "7"}, id="a"), Call("note", {"text": "x"}, id="b")]
GOOD = [("a", "refund", "paid"), ("b", "note", "noted")]


@pytest.fixture
async def http() -> Any:
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("told", "says"),
    [
        pytest.param(GOOD[:1], "result", id="one is missing"),
        pytest.param([], "result", id="all are missing"),
        pytest.param([*GOOD, ("c", "other", "?")], "result of no call", id="one too many"),
        pytest.param([GOOD[0], ("c", "other", "?")], "result of no call", id="of another call"),
        pytest.param([GOOD[0], GOOD[0], GOOD[1]], "result of no call", id="one twice"),
    ],
)
@each_wire
async def test_every_call_needs_its_result_and_every_result_its_call(
    wire: str, told: Any, says: str, http: Any
) -> None:
    async with ScriptedModel([TWO, Say("done")]) as model:
        line = Line(http, model.url, wire)
        history = await line.turn()
        answer = await line.ask([*history, *(results(wire, told) if told else ())])
        assert answer.status_code == 400
        assert says in reason(wire, answer)
        assert model.left == 1
        assert (await line.ask([*history, *results(wire, GOOD)])).status_code == 200
    assert len(model.refusals) == 1


@each_wire
async def test_results_may_come_in_another_order(wire: str, http: Any) -> None:
    async with ScriptedModel([TWO, Say("done")]) as model:
        line = Line(http, model.url, wire)
        history = await line.turn()
        assert (await line.ask([*history, *results(wire, GOOD[::-1])])).status_code == 200
    assert [result.tool for result in model.requests[1].results] == ["note", "refund"]


def altered(value: Any, names: set[str], change: Callable[[dict[str, Any], str], None]) -> Any:
    """A copy of a history in which *change* was done to every field of these names."""
    made = copy.deepcopy(value)

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item)
        elif isinstance(node, dict):
            for name in [*node]:
                if name in names:
                    change(node, name)
                else:
                    walk(node[name])

    walk(made)
    assert made != value
    return made


OPAQUE = {"signature", "data", "encrypted_content", "thoughtSignature"}
KEEPERS = pytest.mark.parametrize("wire", ["openai_responses", "anthropic", "gemini"])


@pytest.mark.parametrize("thought", [Think("let me see"), Think()], ids=["shown", "hidden"])
@KEEPERS
async def test_an_opaque_part_must_come_back_as_it_was(wire: str, thought: Think, http: Any) -> None:
    """Issue 5: signatures and encrypted reasoning travel back verbatim."""

    def other(node: dict[str, Any], name: str) -> None:
        node[name] = "b3RoZXI="

    async with ScriptedModel([[thought, *TWO], Say("done")]) as model:
        line = Line(http, model.url, wire)
        history = await line.turn()
        history += results(wire, GOOD)
        answer = await line.ask(altered(history, OPAQUE, other))
        assert answer.status_code == 400
        assert "invalid signature" in reason(wire, answer)
        assert (await line.ask(history)).status_code == 200


@KEEPERS
async def test_an_opaque_part_must_not_be_lost(wire: str, http: Any) -> None:
    def lost(node: dict[str, Any], name: str) -> None:
        del node[name]

    async with ScriptedModel([[Think("let me see"), *TWO], Say("done")]) as model:
        line = Line(http, model.url, wire)
        history = await line.turn()
        history += results(wire, GOOD)
        if wire == "anthropic":
            content = [block for block in history[0]["content"] if block["type"] != "thinking"]
            less: Any = [{"role": "assistant", "content": content}, *history[1:]]
        elif wire == "openai_responses":
            less = [item for item in history if item.get("type") != "reasoning"]
        else:
            less = altered(history, OPAQUE, lost)
        answer = await line.ask(less)
        assert answer.status_code == 400
        assert "lost the reasoning or signature" in reason(wire, answer)
        assert (await line.ask(history)).status_code == 200


async def test_reasoning_must_not_be_modified(http: Any) -> None:
    async with ScriptedModel([[Think("let me see"), *TWO], Say("done")]) as model:
        line = Line(http, model.url, "anthropic")
        history = await line.turn()
        history += results("anthropic", GOOD)
        answer = await line.ask(altered(history, {"thinking"}, lambda node, name: node.update({name: "other"})))
    assert "must not be modified" in reason("anthropic", answer)


@each_wire
async def test_a_call_made_with_and_without_a_thought_needs_none(wire: str, http: Any) -> None:
    """Gemini's calls have no id: the same call may have come either way."""
    async with ScriptedModel([[Think("hm"), *TWO], TWO, Say("done")]) as model:
        line = Line(http, model.url, wire)
        first = [*await line.turn(), *results(wire, GOOD)]
        second = [*await line.turn(first), *results(wire, GOOD)]
        assert (await line.ask(second)).status_code == 200


BAD_TOOLS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a name with a space": ({"name": "pay back"}, {*WIRES} - {"ollama"}),
    "an empty name": ({"name": ""}, {*WIRES}),
    "a schema of no object": ({"schema": {"type": "array", "items": {}}}, {*WIRES}),
}


@pytest.mark.parametrize("wrong", BAD_TOOLS)
@each_wire
async def test_a_tool_that_the_provider_would_not_take_is_refused(wire: str, wrong: str, http: Any) -> None:
    change, where = BAD_TOOLS[wrong]
    request = body(wire)
    tool = request["tools"][0]
    spelled = tool["functionDeclarations"][0] if wire == "gemini" else tool.get("function", tool)
    if "name" in change:
        spelled["name"] = change["name"]
    else:
        key = {"gemini": "parametersJsonSchema", "anthropic": "input_schema"}.get(wire, "parameters")
        spelled[key] = change["schema"]
    async with ScriptedModel([Say("hi")], repeat=True) as model:
        answer = await http.post(model.url + path(wire), json=request)
        good = await http.post(model.url + path(wire), json=body(wire))
    assert answer.status_code == (400 if wire in where else 200)
    assert good.status_code == 200


@each_wire
async def test_two_tools_of_one_name_are_refused(wire: str, http: Any) -> None:
    request = body(wire)
    request["tools"] *= 2
    async with ScriptedModel([Say("hi")]) as model:
        answer = await http.post(model.url + path(wire), json=request)
    assert answer.status_code == 400
    assert "unique" in reason(wire, answer)


STRICT = {"type": "object", "properties": {"a": SCHEMA}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(SCHEMA, id="an open object"),
        pytest.param({**SCHEMA, "required": [], "additionalProperties": False}, id="an optional property"),
        pytest.param(STRICT, id="an open object inside"),
    ],
)
@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
async def test_a_strict_schema_must_be_strict(wire: str, schema: Any, http: Any) -> None:
    def asked(schema: Any) -> dict[str, Any]:
        request = body(wire)
        tool = request["tools"][0]
        tool.get("function", tool).update(parameters=schema, strict=True)
        return request

    async with ScriptedModel([Say("hi")], repeat=True) as model:
        assert (await http.post(model.url + path(wire), json=asked(schema))).status_code == 400
        closed = {**SCHEMA, "additionalProperties": False}
        assert (await http.post(model.url + path(wire), json=asked(closed))).status_code == 200


@pytest.mark.parametrize(
    ("wire", "change", "says"),
    [
        pytest.param("openai_chat", {"model": None}, "model", id="chat without a model"),
        pytest.param("openai_chat", {"messages": []}, "at least one", id="chat without messages"),
        pytest.param("openai_chat", {"messages": [{"role": "robot", "content": ""}]}, "role", id="chat, an odd role"),
        pytest.param("openai_responses", {"input": 7}, "input", id="responses, an odd input"),
        pytest.param("openai_responses", {"previous_response_id": "r"}, "previous", id="responses, unknown response"),
        pytest.param("anthropic", {"max_tokens": None}, "max_tokens", id="anthropic without max_tokens"),
        pytest.param("anthropic", {"messages": [{"role": "system", "content": "x"}]}, "role", id="anthropic, system"),
        pytest.param("anthropic", {"messages": [{"role": "user", "content": ""}]}, "empty", id="anthropic, empty"),
        pytest.param("gemini", {"messages": []}, "Unknown name", id="gemini, an unknown field"),
        pytest.param("gemini", {"contents": [{"role": "system", "parts": []}]}, "role", id="gemini, system"),
        pytest.param("gemini", {"contents": [{"role": "user", "parts": []}]}, "empty", id="gemini, no parts"),
        pytest.param("ollama", {"messages": [{"role": "user", "content": [{}]}]}, "unmarshal", id="ollama, parts"),
    ],
)
async def test_a_request_of_another_shape_is_refused(wire: str, change: Any, says: str, http: Any) -> None:
    async with ScriptedModel([Say("hi")]) as model:
        answer = await http.post(model.url + path(wire), json={**body(wire), **change})
    assert answer.status_code == 400
    assert says in reason(wire, answer)


@pytest.mark.parametrize("word", ["const", "oneOf", "exclusiveMinimum"])
async def test_geminis_openapi_shape_takes_only_its_own_words(word: str, http: Any) -> None:
    """Its JSON Schema field takes any: the control."""
    schema = {**SCHEMA, "properties": {"order_id": {"type": "string", word: "x"}}}
    answers: list[int] = []
    async with ScriptedModel([Say("hi")], repeat=True) as model:
        for key in ("parameters", "parametersJsonSchema"):
            request = {**body("gemini"), "tools": [{"functionDeclarations": [{"name": "refund", key: schema}]}]}
            answers.append((await http.post(model.url + path("gemini"), json=request)).status_code)
    assert answers == [400, 200]
