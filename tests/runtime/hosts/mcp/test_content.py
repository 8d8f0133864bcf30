"""Content of tools through a server, for clients of both eras: each block as MCP spells it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from pydantic import BaseModel

from callgate import Gate, tool
from callgate.content import Content, Image
from callgate.mcp import McpServer
from callgate.providers.content_json import encoded
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.world import ERAS, client_of, server_of
from tests.runtime.hosts.serving import served
from tests.tools.content.making import BLOCKS, PDF, PNG, WAV

Blob = types.BlobResourceContents
SPELT: dict[str, Any] = {
    "text": types.TextContent(text="hello"),
    "image": types.ImageContent(data=encoded(PNG), mime_type="image/png"),
    "other image": types.ImageContent(data=encoded(PNG), mime_type="image/tiff"),
    "audio": types.AudioContent(data=encoded(WAV), mime_type="audio/wav"),
    "pdf": types.EmbeddedResource(
        resource=Blob(uri="attachment:a.pdf", mime_type="application/pdf", blob=encoded(PDF))
    ),
    "text file": types.EmbeddedResource(
        resource=Blob(uri="https://files.example/a.csv", mime_type="text/csv", blob=encoded(b"a;b\n1;2\n"))
    ),
    "file": types.EmbeddedResource(
        resource=Blob(uri="attachment:a.bin", mime_type="application/octet-stream", blob=encoded(b"\x00\xff"))
    ),
    "link": types.ResourceLink(
        uri="https://files.example/a.pdf", name="a.pdf", mime_type="application/pdf", description="The bill", size=9
    ),
}


class Report(BaseModel):
    title: str
    chart: Image


@tool(effect="read")
async def draw(kind: str) -> list[Content]:
    """Draw."""
    return [BLOCKS[kind]]


@tool(effect="read")
async def report() -> Report:
    """Report."""
    return Report(title="Cats", chart=Image(PNG, "image/png"))


def gate() -> Gate:
    return Gate([draw, report], **gate_options(durable=False))


@pytest.mark.parametrize("era", ERAS)
async def test_each_block_reaches_a_client_as_mcp_spells_it(era: str) -> None:
    """A tool of content has no output schema for clients, so nothing is sent twice."""
    async with client_of(server_of(gate(), "memory"), "memory", era) as client:
        schemas = {one.name: one.output_schema for one in (await client.list_tools()).tools}
        assert schemas["draw"] is None
        assert schemas["report"] is not None
        for kind, expected in SPELT.items():
            result = await client.call_tool("draw", {"kind": kind})
            assert (result.content, result.structured_content) == ([expected], None)


@pytest.mark.parametrize("era", ERAS)
async def test_an_image_in_a_structured_output_is_a_block_as_well(era: str) -> None:
    async with client_of(server_of(gate(), "memory"), "memory", era) as client:
        result = await client.call_tool("report", {})
        assert result.content[1:] == [SPELT["image"]]
        assert result.structured_content == {"title": "Cats", "chart": BLOCKS["image"].to_json()}
        assert isinstance(result.content[0], types.TextContent)
        assert encoded(PNG) not in result.content[0].text


@pytest.mark.parametrize("era", ERAS)
async def test_a_gate_in_front_of_a_gate_passes_blocks_on(era: str) -> None:
    """The second gate reads them as content, and its own client gets the same blocks."""
    known: dict[str, Any] = {"headers": {"authorization": "Bearer ann"}, "legacy": era == "handshake"}
    outer = Gate([], allow_unguarded=True, **gate_options(durable=False))
    async with served(server_of(gate(), "http").asgi(), timeout_graceful_shutdown=1) as running, outer:
        await outer.mount(McpServer(name="far", url=f"http://127.0.0.1:{running.port}/mcp", **known))
        async with client_of(server_of(outer, "memory"), "memory", era) as client:
            for kind, expected in SPELT.items():
                assert (await client.call_tool("far_draw", {"kind": kind})).content == [expected]
