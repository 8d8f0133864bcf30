"""A hostile receiver of the audit log: its answer costs what the limits allow, with our client and with a given one."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from callgate.errors import StoreError
from callgate.hooks import AnchorEndpoint, AuditOtlp
from callgate.hooks.stock.records import audit_anchors, audit_otlp
from callgate.providers.http.post import Answer
from tests.harness.costs import cost_of

URL = "http://receiver.test/"
LARGE = 64_000_000


class Slow(httpx.AsyncByteStream):
    """One byte a second, without an end."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(1.0)
            yield b" "


def gzip(_: httpx.Request) -> httpx.Response:
    packer, spaces = zlib.compressobj(wbits=31), b" " * 1_000_000
    packed = b"".join(packer.compress(spaces) for _ in range(LARGE // 1_000_000)) + packer.flush()
    return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(packed))


class Flood(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(LARGE // 64_000):
            yield b" " * 64_000


def flood(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=Flood())


def slow(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=Slow())


def redirect(_: httpx.Request) -> httpx.Response:
    return httpx.Response(307, headers={"location": "http://elsewhere.test/"}, stream=Flood())


def endless(_: httpx.Request) -> httpx.Response:
    return httpx.Response(301, headers={"location": "/again"}, stream=Slow())


Handler = Callable[[httpx.Request], httpx.Response]
Send = Callable[[Any], Any]


def anchor(client: Any) -> Any:
    return AnchorEndpoint(URL, timeout=3.0, client=client)("s", 1, "h", 1.0)


def otlp(client: Any) -> Any:
    return AuditOtlp(URL, timeout=3.0, client=client)([])


@pytest.fixture(params=["own client", "given client", "given client that follows redirects"])
def client_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], Any]:
    def of(handler: Handler) -> httpx.AsyncClient | None:
        transport = httpx.MockTransport(handler)
        if request.param == "own client":
            monkeypatch.setattr("httpx._client.AsyncHTTPTransport", lambda **_: transport)
            return None
        return httpx.AsyncClient(transport=transport, follow_redirects="follows" in request.param)

    return of


SENDS = pytest.mark.parametrize("send", [anchor, otlp])


@SENDS
@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (gzip, "unexpected content encoding"),
        (flood, "is too large"),
        (slow, "did not answer within 3 s"),
        (redirect, "is too large"),
        (endless, "did not answer within 3 s"),
    ],
)
def test_a_hostile_answer_costs_what_the_limits_allow(send: Send, attack: Handler, words: str, client_for: Any) -> None:
    found, memory, seconds = cost_of(send(client_for(attack)))
    assert isinstance(found, StoreError)
    assert words in str(found)
    assert memory < 4_000_000
    assert seconds < 4


@SENDS
def test_an_honest_answer_is_taken_and_an_encoding_is_not_asked_for(send: Send, client_for: Any) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={})

    assert cost_of(send(client_for(answer)))[0] is None
    assert [one.headers["accept-encoding"] for one in asked] == ["identity"]


async def bare(
    what: str, url: str, content: str | bytes, headers: Any, seconds: float, client: httpx.AsyncClient
) -> Answer:
    """The sabotage: a client that reads what comes."""
    del what
    answer = await client.post(url, content=content, headers=headers, timeout=seconds)
    return Answer(answer.status_code, answer.content)


@SENDS
@pytest.mark.parametrize("attack", [gzip, flood])
def test_control_a_bare_client_takes_all_the_memory(
    send: Send, attack: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_anchors, "post_bounded", bare)
    monkeypatch.setattr(audit_otlp, "post_bounded", bare)
    _, memory, _ = cost_of(send(httpx.AsyncClient(transport=httpx.MockTransport(attack))))
    assert memory > LARGE * 0.9


@SENDS
def test_control_a_bare_client_waits_for_ever(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_anchors, "post_bounded", bare)
    monkeypatch.setattr(audit_otlp, "post_bounded", bare)
    found, _, seconds = cost_of(send(httpx.AsyncClient(transport=httpx.MockTransport(slow))))
    assert (type(found), round(seconds)) == (TimeoutError, 3_600)
