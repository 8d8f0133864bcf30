"""``callgate mcp`` serves a gate in one command, and says what to write into the configuration of a host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.runtime.hosts.mcp.world import ERAS, text_of

pytestmark = pytest.mark.timeout(120)

MODULE = '''
from callgate import Gate, ToolContext, tool
from callgate.hooks import Authorize, permit

print("printed by a module")

@tool(effect="read")
def whoami(*, ctx: ToolContext) -> dict:
    """Who calls."""
    print("printed by a tool")
    return {"id": ctx.user.id, "tenant": ctx.user.tenant, "roles": sorted(ctx.user.roles)}

gate = Gate([whoami], [Authorize(permit("all", roles={"clerk"}))], mode="development")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE, "utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "callgate", "mcp", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("era", ERAS)
async def test_a_host_that_is_configured_as_the_command_says_calls_a_tool(folder: Path, era: str) -> None:
    """What modules and tools print does not break the protocol."""
    shown = run(folder, "shop:gate", "--user", "ann", "--tenant", "acme", "--role", "clerk", "--show").stdout
    first = shown[shown.index("{") : shown.index("\n\n")]
    entry = json.loads(first)["mcpServers"]["shop"]
    host = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"], cwd="/")
    async with Client(host, mode="auto" if era == "modern" else "legacy", read_timeout_seconds=60) as client:
        assert client.server_info is not None
        assert client.server_info.name == "shop"
        result = await client.call_tool("whoami", {})
        assert json.loads(text_of(result)) == {"id": "ann", "tenant": "acme", "roles": ["clerk"]}


def test_each_host_has_its_form(folder: Path) -> None:
    """A file of servers, VS Code, and a line for a shell; over HTTP with the address."""
    assert "For VS Code" in run(folder, "shop:gate", "--show").stdout
    shown = run(folder, "shop:gate", "--http", "8123", "--show").stdout
    assert '"url": "http://127.0.0.1:8123/mcp"' in shown
    assert "claude mcp add --transport http shop http://127.0.0.1:8123/mcp" in shown


@pytest.mark.parametrize("app", ["nosuch:gate", "shop:nosuch", "shop:whoami"])
def test_what_cannot_be_served_is_said_in_one_line(folder: Path, app: str) -> None:
    """On standard error, with exit code 2; standard output belongs to the protocol."""
    done = run(folder, app)
    assert done.returncode == 2
    assert "the server cannot start: " in done.stderr
    assert "Traceback" not in done.stderr
