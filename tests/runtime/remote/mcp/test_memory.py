"""The memory of one message, of a hostile server and of a hostile client: at most 32 MB of this process, at its peak.

Each message is the largest one that is admitted, and one ten times as large; the control admits everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")
from pydantic_core import from_json

from callgate import Gate, User
from callgate.mcp import McpServer, Mounted
from callgate.providers.http.bounded import MAX_MEMORY, BodyRefused, longest
from callgate.runtime.models.wire.message_memory import parse_bounded
from callgate.runtime.remote.mcp import call, held_messages, owner, transports
from tests.harness.memory import STATUS, peak
from tests.runtime.remote.mcp.heavy_server import result
from tests.runtime.remote.mcp.test_mounted import gate_with

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="NO PROC: the peak of memory is read from /proc")
ANN = User("ann")
SCRIPT = Path(__file__).with_name("heavy_server.py")
LISTS = ("tools", "empty tools", "requirements")
LARGEST = {
    "blocks": 1_093,
    "empty blocks": 1_289,
    "broken blocks": 1_093,
    "icons": 15_312,
    "structure": 30_468,
    "keys": 29_375,
    "levels": 610,
    "unknown members": 639,
    "questions": 634,
    "empty questions": 639,
    "forms": 80,
    "text": 5_332_900,
    "image": 5_332_900,
    "wide text": 1_728_515,
    "escaped text": 1_728_515,
    "quotes": 2_666_400,
    "tools": 3_573,
    "empty tools": 22_187,
    "requirements": 22_187,
}
"""The number of items of each kind in the largest message that is admitted."""
HEAVIEST = ("broken blocks", "image")
"""The kinds that take the most memory; the others are in ``soak``."""


def message(kind: str, n: int) -> bytes:
    """A message as the server sends it, for its size."""
    start = '{"resultType":"complete","cacheScope":"private","ttlMs":0,'
    return f'{{"jsonrpc":"2.0","id":10000,"result":{result(kind, n).replace("{", start, 1)}}}'.encode()


def is_admitted(kind: str, n: int) -> bool:
    data = message(kind, n)
    try:
        parse_bounded(data)
    except BodyRefused:
        return False
    return len(data) <= longest(MAX_MEMORY)


@contextlib.asynccontextmanager
async def heavy(way: str, legacy: bool, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Gate, Mounted]]:
    """The server in a process of its own, mounted."""
    monkeypatch.setattr(owner, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(call, "PATIENCE", 60.0)
    known: dict[str, Any] = {"name": "evil", "legacy": legacy, "max_tools": 100_000, "connect_timeout": 60.0}
    command = [sys.executable, "-S", str(SCRIPT), way]
    async with gate_with() as gate:
        if way == "stdio":
            yield gate, await gate.mount(McpServer(command=command, **known))
            return
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
            assert process.stdout is not None
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
            try:
                yield gate, await gate.mount(McpServer(url=url, **known))
            finally:
                process.kill()


async def send(gate: Gate, mounted: Mounted, kind: str, n: int) -> int:
    """Let the server send a message, and return the growth of memory."""
    if kind in LISTS:
        await gate.call("evil_act", {"list": kind, "n": n}, user=ANN)
        with peak() as found, contextlib.suppress(Exception):
            await mounted.refresh()
        await gate.call("evil_act", {"list": "one tool", "n": 0}, user=ANN)
        return found.grown
    with peak() as found:
        await gate.call("evil_act", {"kind": kind, "n": n}, user=ANN, deadline=60.0)
    return found.grown


async def works(gate: Gate) -> None:
    """Wait until the server is connected again, if a message has ended its connection."""
    async with asyncio.timeout(60):
        while not (await gate.call("evil_act", {"kind": "blocks", "n": 100}, user=ANN)).ok:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def measure(way: str, legacy: bool, patch: pytest.MonkeyPatch, kinds: Collection[str]) -> dict[str, int]:
    """Return the growth of memory by message."""
    found = {}
    async with heavy(way, legacy, patch) as (gate, mounted):
        for kind in kinds:
            for times in (1, 10):
                await works(gate)
                found[f"{kind} x {times}"] = await send(gate, mounted, kind, times * LARGEST[kind])
        await works(gate)
    return found


def apart(way: str, legacy: bool, kinds: Collection[str]) -> dict[str, int]:
    """Measure in a new process: one with a large heap takes megabytes again that were free when the measurement began."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, way, legacy, tuple(kinds)).result()


def _measured(way: str, legacy: bool, kinds: tuple[str, ...]) -> dict[str, int]:
    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(measure(way, legacy, patch, kinds))


@pytest.mark.parametrize("kind", LARGEST)
def test_these_are_the_largest_messages_that_are_admitted(kind: str) -> None:
    """A few more items are refused, so the tests below measure the limit."""
    assert is_admitted(kind, LARGEST[kind])
    assert not is_admitted(kind, LARGEST[kind] + LARGEST[kind] // 16 + 8)


@pytest.mark.parametrize(("way", "legacy"), [("stdio", False), ("json", True), ("events", False)])
def test_a_message_takes_at_most_32_mb(way: str, legacy: bool) -> None:
    """Over each transport; the server is used again after each."""
    found = apart(way, legacy, HEAVIEST)
    assert {kind: grown for kind, grown in found.items() if grown > MAX_MEMORY} == {}


@pytest.mark.soak
@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("way", ["stdio", "json", "events"])
def test_every_message_takes_at_most_32_mb(way: str, legacy: bool) -> None:
    """The same with all kinds of messages, in both kinds of versions."""
    found = apart(way, legacy, LARGEST)
    assert {kind: grown for kind, grown in found.items() if grown > MAX_MEMORY} == {}


@pytest.mark.parametrize("way", ["stdio", "json"])
async def test_the_control_without_a_limit_takes_far_more(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages, each admitted."""
    for room in (transports, held_messages):
        monkeypatch.setattr(room, "parse_bounded", lambda data, _: from_json(data))
    async with heavy(way, True, monkeypatch) as (gate, mounted):
        assert await send(gate, mounted, "broken blocks", 10 * LARGEST["broken blocks"]) > 3 * MAX_MEMORY
