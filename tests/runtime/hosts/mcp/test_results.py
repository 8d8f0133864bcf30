"""Outputs as results of MCP: text, structure, and content blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types

from callgate import Gate, Hook, InvokeContext, Outcome, ToolResult, tool
from callgate.runtime.hosts.mcp.results import call_result
from callgate.runtime.hosts.mcp.structured import MISFIT
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.world import ERAS, client_of, server_of


def json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
TEXT = {"type": "text", "text": "hello"}
LINK = {"type": "resource_link", "uri": "https://files.example/a.pdf", "name": "a.pdf"}
FILE = {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "hello"}}
BLOCKS = [[IMAGE], [AUDIO], [TEXT, IMAGE], [LINK], [FILE], [TEXT]]
OTHERS: list[Any] = [
    [],
    [{"type": "image", "data": 1, "mimeType": "image/png"}],
    [{"type": "order", "text": "x"}],
    [TEXT, {"type": "text"}],
    "text",
    None,
]
DRAWN = types.ImageContent(data="aGk=", mime_type="image/png")
NUMBERED = {"type": "image", "mimeType": "image/png", "size": 2, "block": 1}
WITHIN: list[tuple[Any, list[Any]]] = [
    (IMAGE, [DRAWN]),
    ([IMAGE, "text"], [DRAWN, "text"]),
    ({"content": [IMAGE]}, [json_text({"content": [NUMBERED]}), DRAWN]),
    ([IMAGE, {"type": "image"}], [json_text([NUMBERED, {"type": "image"}]), DRAWN]),
]


def result(output: Any) -> ToolResult:
    return ToolResult("c", "tool", Outcome.SUCCESS, output)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("modern", [False, True])
def test_blocks_are_passed_on(blocks: list[dict[str, Any]], modern: bool) -> None:
    """With an output schema they are ``structuredContent`` as well."""
    passed = call_result(result(blocks), structured=False)
    assert [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in passed.content] == blocks
    structured = call_result(result(blocks), structured=True, wrapped=not modern)
    assert structured.content == passed.content
    assert structured.structured_content == (blocks if modern else {"result": blocks})


@pytest.mark.parametrize("output", OTHERS, ids=str)
def test_what_only_looks_like_blocks_is_text(output: Any) -> None:
    """Nothing is lost of it."""
    (shown,) = call_result(result(output), structured=False).content
    assert isinstance(shown, types.TextContent)
    assert shown.text == output if isinstance(output, str) else shown.text


@pytest.mark.parametrize(("output", "content"), WITHIN, ids=str)
@pytest.mark.parametrize("structured", [False, True])
def test_content_of_any_output_is_blocks(output: Any, content: list[Any], structured: bool) -> None:
    """What is around it is a text, in which the blocks are numbers."""
    shown = call_result(result(output), structured=structured)
    assert [one.text if isinstance(one, types.TextContent) else one for one in shown.content] == content
    assert shown.structured_content == (output if structured else None)


# ---------------------------------------------------------------------- outputs and their schemas

EITHER = {"anyOf": [{"type": "object"}, {"type": "integer"}]}
SCHEMAS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "integer"}, [1]),
    ({"type": "object", "required": ["a"]}, [{"a": 1}]),
    (EITHER, [1, {"a": 1}, {"result": 1}]),
    ({"type": ["object", "null"]}, [None, {}]),
    ({"type": "array"}, [[], [1]]),
]


class Answers(Hook):
    """Answers each call with what it is told to, without the check of the output."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def will_read_cache(self, ctx: InvokeContext) -> None:
        ctx.respond(self.answer, validate=False)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("schema", "output"), [(schema, one) for schema, outputs in SCHEMAS for one in outputs], ids=str
)
async def test_an_official_client_accepts_every_output_of_the_schema(
    schema: dict[str, Any], output: Any, era: str
) -> None:
    """The client checks ``structuredContent`` against the schema that it was told, also where that is wrapped."""
    shown = await _answer_of(schema, output, era)
    assert not shown.is_error
    assert shown.structured_content in (output, {"result": output})


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("schema", "output"), [(schema, "a text") for schema, _ in SCHEMAS], ids=str)
async def test_an_output_that_its_schema_does_not_allow_is_an_error_with_a_text(
    schema: dict[str, Any], output: Any, era: str
) -> None:
    """A hook may set such an output. The client would refuse it, and the model would read nothing of it."""
    shown = await _answer_of(schema, output, era)
    assert shown.is_error
    assert shown.structured_content is None
    assert [one.text for one in shown.content if isinstance(one, types.TextContent)] == [MISFIT, output]


async def _answer_of(schema: dict[str, Any], output: Any, era: str) -> types.CallToolResult:
    @tool(effect="read", output_schema=schema)
    async def answer() -> Any:
        """Answer."""
        raise AssertionError("the hook answers")

    gate = Gate([answer], [Answers(output)], **gate_options(allow_unguarded=True, store="memory://"))
    async with client_of(server_of(gate, "memory"), "memory", era) as client:
        return await client.session.call_tool("answer", {})
