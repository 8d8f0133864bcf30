"""``callgate mcp`` serves a gate in one command, and says what to write into the configuration of a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.runtime.hosts.mcp.world import ERAS, text_of

pytestmark = pytest.mark.timeout(120)

PAGE = Path(__file__).parents[4] / "docs/how-to/serve-mcp-hosts.md"
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


def host_of(shown: str, name: str, cwd: Path) -> StdioServerParameters:
    """A host with the printed configuration, which starts servers in a directory of its own."""
    entry = json.loads(shown[shown.index("{") : shown.index("\n\n")])["mcpServers"][name]
    env = {**entry.get("env", {}), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # where the tests find Callgate
    return StdioServerParameters(command=entry["command"], args=entry["args"], env=env, cwd=cwd)


@pytest.mark.parametrize("era", ERAS)
async def test_a_host_that_is_configured_as_the_command_says_calls_a_tool(folder: Path, era: str) -> None:
    """What modules and tools print does not break the protocol."""
    shown = run(folder, "shop:gate", "--user", "ann", "--tenant", "acme", "--role", "clerk", "--show").stdout
    host = host_of(shown, "shop", Path("/"))
    async with Client(host, mode="auto" if era == "modern" else "legacy", read_timeout_seconds=60) as client:
        assert client.server_info is not None
        assert client.server_info.name == "shop"
        result = await client.call_tool("whoami", {})
        assert json.loads(text_of(result)) == {"id": "ann", "tenant": "acme", "roles": ["clerk"]}


def module_of_the_page() -> str:
    """The first block of the page: the file that a new user writes."""
    return (PAGE.read_text("utf-8").split("```python\n", 1)[1]).split("```", 1)[0]


@pytest.mark.parametrize("writable", [True, False])
async def test_the_module_of_the_page_keeps_its_database_wherever_a_host_starts_it(
    tmp_path: Path, writable: bool
) -> None:
    """Where the directory of the host is writable, another database would come into being without a word."""
    folder, elsewhere = tmp_path / "desk folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "desk.py").write_text(module_of_the_page(), "utf-8")
    shown = run(folder, "desk:gate", "--user", "ann", "--role", "clerk", "--show").stdout
    host = host_of(shown, "desk", elsewhere if writable else Path("/proc"))
    async with Client(host, read_timeout_seconds=60) as client:
        assert not (await client.call_tool("get_order", {"order": "A-1001"})).is_error
        assert (await client.call_tool("refund", {"order": "A-1001", "cents": 5})).is_error  # it waits, in the database
    assert (folder / "desk.db").exists()
    assert list(elsewhere.iterdir()) == []


def test_the_control_without_a_folder_does_not_find_the_module(folder: Path) -> None:
    """The directory of the host is that of the command; a folder that is not there is refused."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    assert "the server cannot start: " in run(elsewhere, "shop:gate").stderr
    assert "the server cannot start: " in run(elsewhere, "shop:gate", "--folder", str(elsewhere / "nosuch")).stderr


@pytest.mark.parametrize("form", ["--folder {}", "--folder={}"])
def test_a_folder_is_printed_once_and_whole(folder: Path, form: str) -> None:
    """A relative one would be another one elsewhere."""
    shown = run(folder.parent, "shop:gate", *form.format(folder.name).split(), "--show").stdout
    entry = json.loads(shown[shown.index("{") : shown.index("\n\n")])["mcpServers"]["shop"]
    assert entry["args"] == ["-m", "callgate", "mcp", "shop:gate", "--folder", str(folder)]


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
