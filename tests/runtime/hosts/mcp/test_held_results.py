"""Results that are too large for one answer: their parts are resources for the same user, once, and for a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

from callgate import Gate, RegistrationError, ToolFailed, tool
from callgate.content import Image
from callgate.mcp import LargeResults, McpServer, Resumption
from callgate.providers.clock import FakeClock
from callgate.providers.content_json import decoded
from callgate.runtime.hosts.mcp.held_results import HeldResults
from callgate.runtime.remote.mcp.held_parts import with_parts
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, client_of, http_client, server_of
from tests.runtime.hosts.serving import served

BOUNDS = LargeResults(max_result=10_000, ttl=60, max_bytes=100_000, max_count=5)
DATA = bytes(range(256)) * 100


@tool(effect="read", output_schema=False)
async def text(size: int) -> str:
    """Write."""
    return "x" * size


@tool(effect="read")
async def rows(size: int) -> list[str]:
    """List."""
    return ["é" * 10] * (size // 10)


@tool(effect="read")
async def draw() -> list[str | Image]:
    """Draw."""
    return ["A cat:", Image(DATA, "image/png")]


def server(large: LargeResults | None = BOUNDS, transport: str = "memory", **options: Any) -> Any:
    gate = Gate([text, rows, draw], **gate_options(durable=False, **options))
    return server_of(gate, transport, large_results=large)


@contextlib.asynccontextmanager
async def client(era: str = "modern", **options: Any) -> AsyncGenerator[Client]:
    async with client_of(server(**options), "memory", era) as connected:
        yield connected


def links(result: types.CallToolResult) -> list[types.ResourceLink]:
    return [one for one in result.content if isinstance(one, types.ResourceLink)]


async def read(client: Client, uri: str) -> Any:
    (found,) = (await client.read_resource(uri)).contents
    return found


@pytest.mark.parametrize("era", ERAS)
async def test_a_large_part_is_a_link_that_is_read_once(era: str) -> None:
    """The other parts stay; what is read is the part as it was."""
    async with client(era) as one:
        result = await one.call_tool("draw", {})
        assert result.content[0] == types.TextContent(text="A cat:")
        assert not result.is_error
        (link,) = links(result)
        assert (link.mime_type, link.name) == ("image/png", "draw-2")
        assert [(one.uri, one.size) for one in (await one.list_resources()).resources] == [(link.uri, link.size)]
        found = await read(one, link.uri)
        assert (decoded(found.blob), found.mime_type, found.uri) == (DATA, "image/png", link.uri)
        with pytest.raises(MCPError, match="can be read once"):
            await read(one, link.uri)
        assert (await one.list_resources()).resources == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_structure_that_is_too_large_is_a_resource_and_the_text_says_that_the_call_succeeded(era: str) -> None:
    """Its schema forbids to leave it out of a success, so the result is an error for the client."""
    async with client(era) as one:
        await one.list_tools()
        result = await one.call_tool("rows", {"size": 6_000})
        assert result.is_error
        assert result.structured_content is None
        assert isinstance(result.content[0], types.TextContent)
        assert result.content[0].text.startswith("The call succeeded. Do not repeat it.")
        (link,) = links(result)
        whole = json.loads((await read(one, link.uri)).text)
        assert (whole if era == "modern" else whole["result"]) == ["é" * 10] * 600


async def test_a_copy_in_text_goes_before_the_structure() -> None:
    async with client() as one:
        result = await one.call_tool("rows", {"size": 3_000})
        assert result.structured_content is not None
        assert not result.is_error
        (link,) = links(result)
        assert json.loads((await read(one, link.uri)).text) == result.structured_content


@pytest.mark.parametrize("size", [1, 700, 9_000, 9_800, 9_990])
async def test_no_answer_is_larger_than_the_limit_and_no_smaller_one_is_split(size: int) -> None:
    async with client() as one:
        result = await one.call_tool("text", {"size": size})
    sent = len(result.model_dump_json(by_alias=True, exclude_none=True))
    assert sent <= BOUNDS.max_result
    assert (links(result) == []) == (size < 9_900)


async def test_without_the_bounds_a_result_is_sent_whole() -> None:
    """The control, and the option for clients that take any size."""
    async with client(large=None) as one:
        result = await one.call_tool("text", {"size": 50_000})
        assert result.content == [types.TextContent(text="x" * 50_000)]
        assert one.server_capabilities.resources is None


async def test_a_client_lowers_the_limit_of_its_call_and_cannot_raise_it() -> None:
    for wanted, is_link in ((2_000, True), (8_000, False), (0, False), ("many", False), (10**9, False)):
        async with client() as one:
            meta: Any = {"callgate/maxResult": wanted}
            result = await one.call_tool("text", {"size": 5_000}, meta=meta)
            assert (links(result) != []) == is_link
    async with client() as one:
        raised: Any = {"callgate/maxResult": 10**9}
        assert links(await one.call_tool("text", {"size": 50_000}, meta=raised)) != []


async def test_another_user_finds_no_part_and_does_not_use_it_up() -> None:
    async with (
        served(server(transport="http").asgi(), timeout_graceful_shutdown=1) as running,
        http_client(running.port, "ann") as ann,
        http_client(running.port, "lea") as lea,
    ):
        (link,) = links(await ann.call_tool("text", {"size": 50_000}))
        with pytest.raises(MCPError, match="Unknown resource"):
            await read(lea, link.uri)
        assert (await lea.list_resources()).resources == []
        assert (await read(ann, link.uri)).text == "x" * 50_000


async def test_a_part_expires() -> None:
    clock = FakeClock()
    async with client(clock=clock) as one:
        kept, lost = [links(await one.call_tool("text", {"size": 50_000}))[0] for _ in range(2)]
        clock.advance(BOUNDS.ttl - 1)
        await read(one, kept.uri)
        clock.advance(1)
        with pytest.raises(MCPError, match="Unknown resource"):
            await read(one, lost.uri)


# ---------------------------------------------------------------------- bounds of the memory


@pytest.fixture
def held() -> HeldResults:
    access: Any = None
    return HeldResults(BOUNDS, access, lambda: 0.0)


def put(held: HeldResults, user: str, size: int) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(text="x" * size)]
    return held.fitted(types.CallToolResult(content=content), "text", PEOPLE[user])


def keys_of(held: HeldResults, user: str) -> list[str]:
    return [key for key, _ in held._held.of((PEOPLE[user].tenant, user))]


def test_a_part_that_cannot_be_held_is_left_out_with_a_line(held: HeldResults) -> None:
    (block,) = put(held, "ann", BOUNDS.max_bytes + 1).content
    assert isinstance(block, types.TextContent)
    assert "left out, because it is too large to be kept" in block.text
    assert keys_of(held, "ann") == []


def test_a_client_of_a_version_without_links_reads_the_address_in_a_text(held: HeldResults) -> None:
    content: list[types.ContentBlock] = [types.TextContent(text="x" * 20_000)]
    result = held.fitted(types.CallToolResult(content=content), "text", PEOPLE["ann"], "2025-03-26")
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    assert keys_of(held, "ann")[0] in block.text


@pytest.mark.parametrize(
    ("kind", "bound"), [(kind, one.name) for kind in (LargeResults, Resumption) for one in fields(kind)]
)
def test_a_bound_is_positive(kind: type[Any], bound: str) -> None:
    for given in (0, -1):
        with pytest.raises(RegistrationError, match=f"{kind.__name__}: {bound} must be above 0"):
            kind(**{bound: given})


# ---------------------------------------------------------------------- another gate as the client


@pytest.mark.parametrize("era", ERAS)
async def test_a_gate_reads_the_parts_of_another_gate_by_itself(era: str) -> None:
    """Its callers get the outputs as the other gate gave them."""
    outputs = {"text": "x" * 50_000, "rows": ["é" * 10] * 600, "draw": ["A cat:", Image(DATA, "image/png").to_json()]}
    async with mounted(era) as gate:
        for name, output in outputs.items():
            result = await gate.call(f"far_{name}", {} if name == "draw" else {"size": SIZES[name]}, user=PEOPLE["ann"])
            shown = result.output["result"] if isinstance(result.output, dict) else result.output
            assert [one.get("text", one) if isinstance(one, dict) else one for one in shown] == [*output]


async def test_a_part_that_is_gone_is_a_failure_that_may_have_had_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool has run, whatever code the server refuses the part with."""
    original = HeldResults.fitted

    def forgets(self: HeldResults, *given: Any, **more: Any) -> types.CallToolResult:
        result = original(self, *given, **more)
        for uri in keys_of(self, "ann"):
            self._held.remove(uri)
        return result

    monkeypatch.setattr(HeldResults, "fitted", forgets)
    async with mounted("modern") as gate:
        with pytest.raises(ToolFailed, match="no longer holds") as raised:
            await gate.invoke("far_text", {"size": 50_000}, user=PEOPLE["ann"])
        assert not raised.value.no_effect


async def test_links_to_other_resources_are_not_read() -> None:
    async def read(_: Any) -> Any:
        raise AssertionError

    link = types.ResourceLink(uri="https://other.example/callgate://results/1", name="a")
    result = types.CallToolResult(content=[link])
    assert await with_parts(result, read, 1_000) is result


@pytest.mark.parametrize(("count", "size"), [(33, 1), (2, 600)])
async def test_the_parts_of_one_result_are_bounded(count: int, size: int) -> None:
    async def read(request: Any) -> Any:
        contents: list[Any] = [types.TextResourceContents(uri=request.params.uri, text="x" * size)]
        return types.ReadResourceResult(contents=contents, ttl_ms=0, cache_scope="private")

    content: list[Any] = [types.ResourceLink(uri=f"callgate://results/{one}", name="a") for one in range(count)]
    with pytest.raises(ToolFailed, match="exceed the limits"):
        await with_parts(types.CallToolResult(content=content), read, 1_000)


SIZES = {"text": 50_000, "rows": 6_000}


@contextlib.asynccontextmanager
async def mounted(era: str) -> AsyncGenerator[Gate]:
    """A gate in front of the server."""
    known: dict[str, Any] = {"headers": {"authorization": "Bearer ann"}, "legacy": era == "handshake"}
    outer = Gate([], allow_unguarded=True, **gate_options(durable=False))
    async with served(server(transport="http").asgi(), timeout_graceful_shutdown=1) as running, outer:
        await outer.mount(McpServer(name="far", url=f"http://127.0.0.1:{running.port}/mcp", **known))
        yield outer
