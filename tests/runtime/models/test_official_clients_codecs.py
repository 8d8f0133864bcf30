"""The output of our codecs, judged by the providers' own packages and by the scripted model."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from callgate import Gate, ToolCall, ToolResult, tool
from callgate.runtime.models import codec
from callgate.runtime.testing.model.wire_format import WireFormat
from callgate.testing import Call, Say, ScriptedModel, Think
from callgate.tools.definition import ToolDefinition
from tests.runtime.models.catalogs import catalog
from tests.runtime.models.official import PACKAGES, each_package, each_way, message_types, tool_types
from tests.runtime.models.wires import RICH
from tests.runtime.models.wires import tool as defined


@tool(effect="read")
async def refund(order_id: str, reason: Literal["late", "broken"] | None = None, cents: int = 0) -> dict[str, Any]:
    """Pays an order back."""
    return {"paid": order_id, "cents": cents}


@tool(effect="read")
async def forbidden(order_id: str) -> str:
    """Always fails."""
    raise ValueError("a secret")


@tool(effect="read")
async def ping() -> str:
    """Takes nothing."""
    return "pong"


TOOLS = (refund, forbidden, ping)
CALLS = [
    Call("refund", {"order_id": "7", "reason": None, "cents": 3}, id="a"),
    Call("forbidden", {"order_id": "8"}, id="b"),
    Call("ping", {}, id="c"),
    Call("refund", {"order_id": 9}, id="d"),
]


def definitions() -> list[ToolDefinition]:
    return [
        *Gate([*TOOLS]).definitions(),
        defined(RICH, name="rich", description="Rich."),
        defined(RICH, name="hard", strict=True),
    ]


async def ran() -> list[ToolResult]:
    """Results of every kind: an output, a failure, a text, arguments that do not fit."""
    async with Gate([*TOOLS]) as gate:
        return await gate.call_many(
            [ToolCall(id=call.id or "", name=call.tool, arguments=call.value) for call in CALLS]
        )


@each_package
def test_tools_as_a_codec_writes_them_are_tools_to_the_package(wire: str) -> None:
    """Contract 57-59, 61."""
    translation = codec(wire).translate(definitions())
    taken = repr([tool_types(wire).validate_python(spelled) for spelled in translation.request["tools"]])
    named = {offered.tool for offered in translation.tools.values() if repr(offered.wire_name) in taken}
    assert named == {"refund", "forbidden", "ping", "rich", "hard"}


@pytest.mark.needs_data
@each_package
def test_every_real_tool_as_a_codec_writes_it_is_a_tool_to_the_package(wire: str, shared_data: Path) -> None:
    """Contract 57-61: one request for each tool of the catalogues."""
    kind, seen = tool_types(wire), 0
    for schema in catalog(shared_data).values():
        (spelled,) = codec(wire).translate([defined(schema, description="A real one.")]).request["tools"]
        kind.validate_python(spelled)
        seen += 1
    assert seen > 1000


@pytest.mark.needs_data
@pytest.mark.parametrize("strict", [None, True], ids=["plain", "strict"])
@each_package
def test_a_request_with_every_real_tool_is_taken_by_the_scripted_model(
    wire: str, strict: bool | None, shared_data: Path
) -> None:
    """Contract 57-61: names, required fields, OpenAI's strict rules and Gemini's own words, as the server checks them."""
    spelling: WireFormat = import_module(f"callgate.runtime.testing.model.{wire}").FORMAT
    seen = 0
    for schema in catalog(shared_data).values():
        translation = codec(wire).translate([defined(schema, description="A real one.", strict=strict)])
        asked = codec(wire).request("Hello?", translation, model="m")
        heard = spelling.parse(f"/v1/{asked.path}", asked.body)
        assert (heard.messages[-1].text, len(heard.tools)) == ("Hello?", 1)
        seen += 1
    assert seen > 1000


@pytest.mark.parametrize(
    ("wire", "wrong"),
    [
        ("openai_chat", {"type": "function", "name": "flat"}),
        ("openai_responses", {"type": "function", "function": {"name": "nested"}}),
        ("anthropic", {"name": "x", "parameters": {}}),
        ("gemini", {"functionDeclarations": [{"name": "x", "input_schema": {}}]}),
        ("ollama", {"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}),
    ],
)
def test_a_tool_of_another_wire_is_none_to_the_package(wire: str, wrong: Any) -> None:
    """The control of the tests above."""
    with pytest.raises(ValidationError):
        tool_types(wire).validate_python(wrong)


@each_package
async def test_results_as_a_codec_writes_them_are_messages_to_the_package(wire: str) -> None:
    """Contract 61."""
    kind = message_types(wire)
    written = codec(wire).results(await ran())
    assert written
    for message in written:
        kind.validate_python(message)
    assert "a secret" not in repr(written)


@pytest.mark.parametrize(
    ("wire", "wrong"),
    [
        ("openai_chat", {"role": "tool", "content": "x"}),
        ("openai_responses", {"type": "function_call_output", "call_id": "x"}),
        ("anthropic", {"role": "tool", "content": "x"}),
        ("gemini", {"role": "user", "parts": [{"functionResponse": {"output": "x"}}]}),
        ("ollama", {"content": "x"}),
    ],
)
def test_a_result_of_another_shape_is_none_to_the_package(wire: str, wrong: Any) -> None:
    """The control of the test above."""
    with pytest.raises(ValidationError):
        message_types(wire).validate_python(wrong)


@pytest.mark.parametrize("thinks", [False, True], ids=["silent", "thinking"])
@each_way
@each_package
async def test_a_conversation_through_the_package_with_our_tools_and_results(
    wire: str, stream: bool, thinks: bool, opened: list[Any]
) -> None:
    """Contract 53-61: definitions, calls, the gate's results and the package's own history, over two turns."""
    first = [*([Think("They want money.")] if thinks else []), Say("I pay it back."), *CALLS]
    async with ScriptedModel([first, Say("Done.")]) as model, Gate([*TOOLS]) as gate:
        opened.append(client := PACKAGES[wire](model.url))
        translation = codec(wire).translate(gate.definitions())
        history = client.first("give me my money back")
        read = await client.ask(history, translation.request, stream=stream)
        calls = [
            ToolCall(id=id or f"call_{index}", name=name, arguments=arguments, synthetic_id=id is None)
            for index, (id, name, arguments) in enumerate(read.calls)
        ]
        results = await asyncio.wait_for(gate.call_many(calls), 100)
        history += [*read.history, *codec(wire).results(results, translation)]
        final = await client.ask(history, translation.request, stream=stream)
    assert final.text == "Done."
    assert model.refusals == []
    offered, answered = model.requests
    assert [tool.name for tool in offered.tools] == ["refund", "forbidden", "ping"]
    assert [result.tool for result in answered.results] == ["refund", "forbidden", "ping", "refund"]
    assert [result.ok for result in results] == [True, False, True, False]
    told = [str(result.content) for result in answered.results]
    assert "paid" in told[0]
    assert "pong" in told[2]
    assert "a secret" not in repr(model.requests)
