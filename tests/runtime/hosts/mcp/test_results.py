"""Outputs as results of MCP: text, structure, and content blocks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types

from callgate import Outcome, ToolResult
from callgate.runtime.hosts.mcp.results import call_result

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
TEXT = {"type": "text", "text": "hello"}
LINK = {"type": "resource_link", "uri": "https://files.example/a.pdf", "name": "a.pdf"}
FILE = {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "hello"}}
BLOCKS = [[IMAGE], [AUDIO], [TEXT, IMAGE], [LINK], [FILE], [TEXT]]
OTHERS: list[Any] = [
    [],
    IMAGE,
    [IMAGE, "text"],
    [IMAGE, {"type": "image"}],
    [{"type": "image", "data": 1, "mimeType": "image/png"}],
    [{"type": "order", "text": "x"}],
    "text",
    None,
    {"content": [IMAGE]},
]


def result(output: Any) -> ToolResult:
    return ToolResult("c", "tool", Outcome.SUCCESS, output)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("modern", [False, True])
def test_blocks_are_passed_on_where_no_schema_says_otherwise(blocks: list[dict[str, Any]], modern: bool) -> None:
    """With an output schema they are JSON like every other output."""
    passed = call_result(result(blocks), modern=modern, structured=False)
    assert [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in passed.content] == blocks
    structured = call_result(result(blocks), modern=modern, structured=True)
    assert isinstance(structured.content[0], types.TextContent)
    assert structured.structured_content == (blocks if modern else {"result": blocks})


@pytest.mark.parametrize("output", OTHERS, ids=str)
def test_what_only_looks_like_blocks_is_text(output: Any) -> None:
    """Nothing is lost of it."""
    (shown,) = call_result(result(output), modern=True, structured=False).content
    assert isinstance(shown, types.TextContent)
    assert shown.text == output if isinstance(output, str) else shown.text
