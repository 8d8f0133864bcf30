"""Official clients against a gate as an MCP server: over memory, stdio and HTTP, in both eras of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp.shared.exceptions import MCPError

from tests.runtime.hosts.mcp.world import ERAS, WAYS, desk_at, text_of

EVERY_WAY = pytest.mark.parametrize(("transport", "era"), WAYS)
pytestmark = pytest.mark.timeout(120)


@EVERY_WAY
async def test_a_client_lists_and_calls(transport: str, era: str) -> None:
    """Definitions, results, refusals and failures, in the form of the protocol version of the client."""
    async with desk_at(transport, era) as (_, client):
        tools = {one.name: one for one in (await client.list_tools()).tools}
        assert "ledger" not in tools
        assert list(tools) == sorted(tools)
        assert tools["whoami"].title == "Who calls"
        assert tools["add"].input_schema["properties"]["b"]["default"] == 1
        hints = tools["refund"].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint) == (False, True, False)
        added = await client.call_tool("add", {"a": 2})
        assert (text_of(added), added.is_error) == ("3", False)
        assert added.structured_content == (3 if era == "modern" else {"result": 3})
        assert (await client.call_tool("whoami", {})).structured_content == {
            "id": "ann",
            "tenant": "acme",
            "roles": ["clerk"],
        }
        noted = await client.call_tool("note", {"text": "hello"})
        assert (text_of(noted), noted.structured_content) == ("hello", None)


@EVERY_WAY
async def test_what_fails_tells_the_model_what_to_mend_and_no_internals(transport: str, era: str) -> None:
    """Invalid arguments, errors of a tool and crashes are results; they have no values and no internals."""
    async with desk_at(transport, era) as (_, client):
        results = {
            name: await client.call_tool(name, arguments)
            for name, arguments in {"add": {"a": "secret-value"}, "fails": {}, "crashes": {}}.items()
        }
        assert all(one.is_error for one in results.values())
        assert '"pointer":"/a"' in text_of(results["add"])
        assert "The till is closed." in text_of(results["fails"])
        for result in results.values():
            assert "secret-value" not in str(result)
            assert "hunter2" not in str(result)
        outcomes = {name: (one.meta or {}).get("callgate/outcome") for name, one in results.items()}
        assert outcomes == {"add": "invalid", "fails": "error", "crashes": "error"}


@EVERY_WAY
async def test_hidden_and_unknown_tools_answer_alike(transport: str, era: str) -> None:
    """A user cannot find out which tools there are for others."""
    told: list[str] = []
    async with desk_at(transport, era) as (_, client):
        for name in ("ledger", "nosuch"):
            with pytest.raises(MCPError) as refused:
                await client.call_tool(name, {})
            assert refused.value.code == types.INVALID_PARAMS
            told.append(str(refused.value).replace(name, "*"))
    assert told[0] == told[1]


@EVERY_WAY
async def test_progress_reaches_a_client_that_asks_for_it(transport: str, era: str) -> None:
    """In order, and the result follows."""
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with desk_at(transport, era) as (_, client):
        result = await client.call_tool("steps", {"count": 3}, progress_callback=note)
        assert text_of(result) == "3"
        assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        assert text_of(await client.call_tool("steps", {"count": 2})) == "2"
        assert len(seen) == 3


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_the_list_has_pages(transport: str, era: str) -> None:
    """Each tool is on one page."""
    async with desk_at(transport, era, page=4) as (_, client):
        names: list[str] = []
        cursor, pages = None, 0
        while True:
            page = await client.list_tools(cursor=cursor)
            names += [one.name for one in page.tools]
            pages, cursor = pages + 1, page.next_cursor
            if cursor is None:
                break
        assert pages == 3
        assert len(names) == len(set(names)) == 11


@EVERY_WAY
async def test_a_key_of_the_caller_makes_a_repeat_one_effect(transport: str, era: str) -> None:
    """The only part of ``_meta`` that is trusted. A key that is no text is refused: without it, a repeat is an effect."""
    async with desk_at(transport, era) as (_, client):

        async def count(key: object) -> tuple[str, bool]:
            meta: Any = {"callgate/idempotencyKey": key, "callgate/user": "lea", "tenant": "evil"}
            result = await client.call_tool("count", {}, meta=meta)
            return text_of(result), bool((result.meta or {}).get("callgate/replayed"))

        assert [await count("k1"), await count("k1"), await count("k2")] == [("1", False), ("1", True), ("2", False)]
        for key in ({"no": "text"}, 3, True, ["k1"]):
            with pytest.raises(MCPError, match="must be a text"):
                await count(key)
        assert await count("k3") == ("3", False)
