"""A hostile remote agent: its card and its replies cost what the limits allow, with our client and with a given one."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from a2a import types as p
from a2a.server.request_handlers.response_helpers import agent_card_to_dict

from callgate import Effects, Gate, User
from callgate.errors import RegistrationError
from callgate.providers.http.bounded import BoundedBody
from callgate.runtime.hosts.a2a import http_client, remote, remote_tools
from tests.harness.costs import cost_of

ANN = User("ann", "here")
URL = "http://agent.test"
SPACES = 64_000_000
SAID = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "Done."}]}


class Body(httpx.AsyncByteStream):
    """A body in pieces, with seconds between them."""

    def __init__(self, *parts: bytes, pause: float = 0.0, endless: bool = False) -> None:
        self.parts, self.pause, self.endless = parts, pause, endless
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            for part in self.parts:
                await asyncio.sleep(self.pause)
                self.sent += len(part)
                yield part
            if not self.endless:
                return


def squeezed(content: bytes) -> bytes:
    """*content* with 64 MB of spaces behind it, in gzip."""
    packer = zlib.compressobj(wbits=31)
    spaces = b" " * 1_000_000
    return packer.compress(content) + b"".join(packer.compress(spaces) for _ in range(64)) + packer.flush()


def gzip(content: bytes) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    return httpx.Response(200, headers=headers, stream=Body(squeezed(content)))


def flood(content: bytes) -> httpx.Response:
    return httpx.Response(200, stream=Body(content, *[b" " * 1_000_000] * (SPACES // 1_000_000)))


def deep(content: bytes) -> httpx.Response:
    added = b', "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    return httpx.Response(200, stream=Body(content[:-1] + added))


def half(content: bytes) -> httpx.Response:
    return httpx.Response(200, stream=Body(content[:-1] + b', "\\ud800": 1}'))


def slow(content: bytes) -> httpx.Response:
    return httpx.Response(200, stream=Body(b" ", pause=3.0, endless=True))


ATTACKS = [gzip, flood, deep, slow]


def an_agent(card: Callable[[bytes], httpx.Response], reply: Callable[[bytes], httpx.Response]) -> httpx.MockTransport:
    """An agent with one skill, whose card and whose reply to a call are made by functions."""
    skill = p.AgentSkill(id="act", name="act", description="Acts.", tags=["t"])
    interface = p.AgentInterface(url=f"{URL}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
    shown = p.AgentCard(name="a", description="d", version="1", supported_interfaces=[interface], skills=[skill])

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return card(json.dumps(agent_card_to_dict(shown)).encode())
        asked = json.loads(request.content)
        return reply(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"message": SAID}}).encode())

    return httpx.MockTransport(handle)


def honest(content: bytes) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "application/json"}, stream=Body(content))


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not wait for a thread."""

    async def inline(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", inline)


@pytest.fixture(params=["own client", "given client"])
def client_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Make the argument ``httpx_client`` for an agent: None, or a client of the application."""

    def of(agent: httpx.MockTransport) -> httpx.AsyncClient | None:
        if request.param == "given client":
            return httpx.AsyncClient(transport=agent)
        monkeypatch.setattr(httpx, "AsyncHTTPTransport", lambda: agent)
        return None

    return of


def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotage: a client of the SDK reads replies as it likes."""

    def plain(patience: float, given: httpx.AsyncClient | None = None, **_: int) -> httpx.AsyncClient:
        if given is None:
            return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=patience)
        return httpx.AsyncClient(transport=given._transport, timeout=patience)

    monkeypatch.setattr(http_client, "limited_client", plain)


@pytest.mark.parametrize("attack", [*ATTACKS, half])
def test_a_hostile_card_is_an_error_of_ours_and_costs_what_the_limits_allow(
    attack: Any, client_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, memory, seconds = cost_of(remote_tools(URL, httpx_client=client_for(an_agent(attack, honest))))
    assert isinstance(found, RegistrationError)
    assert "there is no agent card" in str(found)
    assert memory < 32_000_000
    assert seconds < remote.CARD_TIMEOUT + 1


async def called(http: httpx.AsyncClient | None) -> Any:
    tools = await remote_tools(URL, httpx_client=http)
    async with Gate(tools, allow_unguarded=True, effects=Effects(durable=False)) as gate:
        return await gate.call("act", {"message": "go"}, user=ANN, deadline=4.0)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_reply_ends_at_the_deadline_and_costs_what_the_limits_allow(
    attack: Any, client_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, memory, seconds = cost_of(called(client_for(an_agent(honest, attack))))
    assert not found.ok
    assert memory < 40_000_000
    assert seconds < 10


def test_an_honest_agent_is_read(client_for: Any) -> None:
    found, _, _ = cost_of(called(client_for(an_agent(honest, honest))))
    assert found.output == "Done."


@pytest.mark.parametrize("attack", [gzip, flood])
def test_control_without_the_reader_a_card_takes_all_its_memory(
    attack: Any, client_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited(monkeypatch)
    found, memory, _ = cost_of(remote_tools(URL, httpx_client=client_for(an_agent(attack, honest))))
    assert len(found) == 1
    assert memory > SPACES * 0.9


def test_control_without_the_reader_a_slow_card_has_no_end(client_for: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited(monkeypatch)
    found, _, seconds = cost_of(remote_tools(URL, httpx_client=client_for(an_agent(slow, honest))))
    assert (type(found), round(seconds)) == (TimeoutError, 3_600)


def test_control_without_the_measure_of_depth_a_parser_sees_a_deep_card(
    client_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(BoundedBody, "_measure", lambda _self, part, _limit: seen.append(part.count(b"[")))
    cost_of(remote_tools(URL, httpx_client=client_for(an_agent(deep, honest))))
    assert max(seen) > 5_000
