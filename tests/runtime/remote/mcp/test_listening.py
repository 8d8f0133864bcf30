"""A gate hears of changes from servers that offer it; the others are no failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from tests.runtime.hosts.serving import served, until
from tests.runtime.remote.mcp.test_mounted import ANN, at, gate_with
from tests.runtime.remote.mcp.toy import ANY, text

pytestmark = pytest.mark.timeout(120)


class Quiet:
    """A server with one tool; *refusal* is its answer to a client that listens, None for no handler at all."""

    def __init__(self, refusal: int | None) -> None:
        self.asked = 0

        async def listen(_ctx: Any, _params: Any) -> Any:
            self.asked += 1
            raise MCPError(refusal or 0, "no")

        async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=[types.Tool(name="say", input_schema=ANY)])

        async def call_tool(_ctx: Any, _params: Any) -> types.CallToolResult:
            return text("said")

        more: dict[str, Any] = {} if refusal is None else {"on_subscriptions_listen": listen}
        self.server: Server[Any] = Server(
            "quiet", version="1", on_list_tools=list_tools, on_call_tool=call_tool, **more
        )


@pytest.mark.parametrize(
    ("refusal", "asked", "fails"),
    [
        (None, False, False),
        (types.METHOD_NOT_FOUND, True, False),
        pytest.param(types.INTERNAL_ERROR, True, True, id="the control: another refusal is a failure"),
    ],
)
async def test_a_server_that_tells_no_changes_is_no_failure(
    refusal: int | None, asked: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the capability it is not asked; one that declares it and does not know the method is left alone."""
    caplog.set_level(logging.DEBUG)
    quiet = Quiet(refusal)
    async with served(quiet.server.streamable_http_app(), timeout_graceful_shutdown=1) as running, gate_with() as gate:
        mounted = await gate.mount(at(running))
        if asked:
            await until(lambda: quiet.asked > 0)
        assert (await gate.call("toy_say", {}, user=ANN)).output == "said"
        await mounted.refresh()
        assert quiet.asked == int(asked)
        if fails:
            await until(lambda: "provider.failed" in caplog.text)
    assert ("provider.failed" in caplog.text) is fails
