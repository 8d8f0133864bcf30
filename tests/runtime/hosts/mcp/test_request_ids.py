"""Clients that use the id of a request again before its response, as some do with every request, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import httpx

import callgate.mcp
from callgate import Gate, tool
from callgate.mcp import Resumption
from callgate.runtime.hosts.mcp.request_ids import MAX_ABANDONED, RequestIds
from tests.runtime.hosts.mcp.test_access import HEADERS, INITIALIZE, bearer
from tests.runtime.hosts.mcp.world import who
from tests.runtime.hosts.serving import served, until

VERSIONS = pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
HELD = pytest.mark.parametrize("resumption", [Resumption(), None], ids=["held", "not held"])
pytestmark = pytest.mark.timeout(120)


class Echo:
    """A tool that returns its argument once the test lets it; and a client in a session of its server."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.free = asyncio.Event()
        self.client: httpx.AsyncClient
        self.session: dict[str, str]

    def gate(self) -> Gate:
        @tool(effect="read")
        async def echo(text: str) -> str:
            """Return the text."""
            self.began.append(text)
            await self.free.wait()
            return text

        return Gate([echo], allow_unguarded=True)

    async def call(self, id: object, text: str) -> tuple[int, Any]:
        """Return the status and the response."""
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call"}
        message["params"] = {"name": "echo", "arguments": {"text": text}}
        response = await self.client.post("/mcp", json=message, headers=self.session)
        data = [line[5:] for line in response.text.splitlines() if line.startswith("data:") and len(line) > 6]
        return response.status_code, json.loads(data[-1] if data else response.text)

    async def begin(self, id: object, text: str) -> asyncio.Task[tuple[int, Any]]:
        """Begin a call, and wait until its tool runs."""
        going = asyncio.ensure_future(self.call(id, text))
        await until(lambda: text in self.began or going.done())
        return going


@contextlib.asynccontextmanager
async def echo_at(version: str, resumption: Resumption | None) -> AsyncGenerator[Echo]:
    echo = Echo()
    app = callgate.mcp.server(echo.gate(), authenticate=who, resumption=resumption).asgi()
    async with served(app, timeout_graceful_shutdown=1) as running, running.client(None) as echo.client:
        echo.client.headers.update(HEADERS)
        begun = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": version}}  # type: ignore[dict-item]
        response = await echo.client.post("/mcp", json=begun, headers=bearer("ann"))
        id = response.headers["mcp-session-id"]
        echo.session = {**bearer("ann"), "mcp-session-id": id, "mcp-protocol-version": version}
        yield echo


def text_in(answer: tuple[int, Any]) -> str:
    return str(answer[1]["result"]["content"][0]["text"])


@VERSIONS
@HELD
@pytest.mark.parametrize("again", [1, "1"])
async def test_each_request_gets_its_own_response_or_is_refused(
    version: str, resumption: Resumption | None, again: object
) -> None:
    """The SDK takes 1 and "1" for one id. A request with another id is served meanwhile, and the id is free afterwards."""
    async with echo_at(version, resumption) as echo:
        first, other = await echo.begin(1, "first"), await echo.begin(2, "other")
        status, refusal = await echo.call(again, "again")
        assert status == 409
        assert "id of its own" in refusal["error"]["message"]
        echo.free.set()
        assert [text_in(await one) for one in (first, other)] == ["first", "other"]
        assert text_in(await echo.call(again, "later")) == "later"
        assert echo.began == ["first", "other", "later"]


@VERSIONS
@HELD
@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_request_does_not_get_the_response_of_one_whose_connection_was_lost(
    version: str, resumption: Resumption | None, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one goes on at the server. The control without the check gets its response."""
    async with echo_at(version, resumption) as echo:
        if sabotaged:
            monkeypatch.setattr(RequestIds, "take", lambda *_: True)
        first = await echo.begin(1, "first")
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        second = await echo.begin(1, "second")
        if sabotaged:
            echo.free.set()
            assert text_in(await second) == "first"
        else:
            assert (await second)[0] == 409
            assert echo.began == ["first"]


@VERSIONS
async def test_the_id_of_a_lost_request_is_free_once_its_response_is_held(version: str) -> None:
    async with echo_at(version, Resumption()) as echo:
        first = await echo.begin(1, "first")
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        echo.free.set()
        found: list[tuple[int, Any]] = []
        while not found or found[-1][0] == 409:
            found.append(await echo.call(1, "second"))
        assert text_in(found[-1]) == "second"


@VERSIONS
@HELD
async def test_a_request_that_the_sdk_refuses_frees_its_id(version: str, resumption: Resumption | None) -> None:
    async with echo_at(version, resumption) as echo:
        echo.free.set()
        wrong = {**echo.session, "mcp-protocol-version": "1"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await echo.client.post("/mcp", json=message, headers=wrong)).status_code == 400
        assert text_in(await echo.call(1, "text")) == "text"


def test_ids_of_lost_requests_take_a_bounded_place() -> None:
    """Without held responses, nothing tells when such a request ends. Ids in use are never given up."""
    ids = RequestIds(is_told=False)
    assert ids.take("in use")
    for number in range(10 * MAX_ABANDONED):
        assert ids.take(str(number))
        ids.note_end(str(number), refused=False, lost=True)
    assert len(ids._unanswered) <= MAX_ABANDONED + 2
    assert not ids.take("in use")
    assert not ids.take(str(10 * MAX_ABANDONED - 1))
    assert ids.take("0")


def test_the_id_of_the_stream_of_the_session_is_no_id_of_a_request() -> None:
    assert not RequestIds(is_told=True).take("_GET_stream")
