"""``callgate mcp`` over stdio with other processes beside it: an approver, a client that gives up, a kill and a restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.runtime.hosts.mcp.world import text_of

ROOT = Path(__file__).parents[4]
APP = "tests.runtime.hosts.mcp.noting_app:gate"
LIMIT = 60
APPROVE = """
import asyncio, sys
from callgate import User
from tests.runtime.hosts.mcp.noting_app import gate

async def main():
    async with gate:
        here = sys.argv[2] == "here"
        print((await gate.resume(sys.argv[1], "approve", approver=User("lea", roles={"lead"}), here=here)).outcome)

asyncio.run(main())
"""
"""Another process, of a person who approves: it runs the call *here*, or leaves that to the server."""


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    """The environment of each process: one store, and one file for what happens."""
    (tmp_path / "log").touch()
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "CALLGATE_TEST_LOG": str(tmp_path / "log"),
        "CALLGATE_TEST_STORE": f"sqlite:///{tmp_path}/store.db",
    }


def desk(env: Mapping[str, str], era: str) -> Client:
    """A client that starts a server in Ann's name."""
    command = ["-m", "callgate", "mcp", APP, "--user", "ann"]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(env), cwd=str(ROOT))
    return Client(server, mode="auto" if era == "modern" else "legacy", read_timeout_seconds=LIMIT)


def lines(env: Mapping[str, str]) -> list[str]:
    """What has happened."""
    return Path(env["CALLGATE_TEST_LOG"]).read_text().splitlines()


async def line(env: Mapping[str, str], start: str) -> str:
    """Wait for what happens."""
    async with asyncio.timeout(LIMIT):
        while True:
            for one in lines(env):
                if one.startswith(start):
                    return one
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("era", "place"), [("modern", "here"), ("handshake", "there")])
async def test_a_person_approves_in_another_process(era: str, place: str, env: Mapping[str, str]) -> None:
    """The model calls again, as it was told to, and gets the outcome; the effect takes place once."""
    async with desk(env, era) as client:
        waiting = await client.call_tool("payout", {"order": "A1"})
        assert waiting.is_error
        assert lines(env) == []
        handle = (waiting.meta or {})["callgate/handle"]
        approver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", APPROVE, handle, place, env=dict(env), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await approver.communicate()
        assert said.decode().strip() == ("success" if place == "here" else "in_flight")
        for _ in range(2):
            ended = await client.call_tool("payout", {"order": "A1"})
            assert not ended.is_error
            assert text_of(ended) == "paid A1"
    assert lines(env) == ["paid A1"]


async def test_a_client_that_gives_up_cancels_the_tool_which_cleans_up(env: Mapping[str, str]) -> None:
    async with desk(env, "handshake") as client:
        call = asyncio.ensure_future(client.call_tool("ship", {"order": "A2"}))
        await line(env, "began A2")
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await line(env, "cleaned A2")


async def test_a_server_that_is_killed_in_a_call_runs_it_no_second_time(env: Mapping[str, str]) -> None:
    """The client notices the end of the server. The next server knows the effect, and says that its outcome is open."""
    with contextlib.suppress(BaseExceptionGroup):  # the SDK reports the end of its process when it disconnects
        async with desk(env, "modern") as client:
            call = asyncio.ensure_future(client.call_tool("ship", {"order": "A3"}))
            os.kill(int((await line(env, "began A3")).split()[2]), signal.SIGKILL)
            async with asyncio.timeout(LIMIT):
                with pytest.raises(Exception, match=r"(?i)closed|connection"):
                    await call
    async with desk(env, "modern") as client:
        repeated: Any = await client.call_tool("ship", {"order": "A3"})
        assert repeated.is_error
        assert repeated.meta["callgate/outcome"] in {"unknown", "in_flight", "error"}  # the last at its deadline
    assert [one.split()[0] for one in lines(env)] == ["began"]
