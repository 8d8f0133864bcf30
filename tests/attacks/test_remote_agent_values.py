"""A hostile remote agent whose card or reply has many values: the SDK parses on the loop, so it must not see them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import a2a.client.card_resolver
import a2a.client.transports.jsonrpc
import httpx
import pytest
from a2a import types as p
from a2a.client.transports.http_helpers import parse_sse_stream
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from hypothesis import given
from hypothesis import strategies as st

from callgate import Effects, Gate, User
from callgate.errors import RegistrationError
from callgate.providers.http.bounded import BodyRefused
from callgate.providers.http.bounded_replies import MeasuredEvents
from callgate.runtime.hosts.a2a import http_client, remote_tools
from tests.harness.memory import peak

ANN = User("ann", "here")
URL = "http://agent.test"
MANY = 30_000
SAID = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "Done."}]}
JUNK = b"[" + b",".join([b"{}"] * MANY) + b"]"

Change = Callable[[bytes], bytes]


def numbers(reply: bytes) -> bytes:
    return reply.replace(b'{"text": "Done."}', b'{"data": {"a": [%s]}}' % b",".join([b"0"] * MANY))


def parts(reply: bytes) -> bytes:
    return reply.replace(b'{"text": "Done."}', b",".join([b'{"text": "Done."}'] * MANY))


def unknown(content: bytes) -> bytes:
    return content[:-1] + b', "x": ' + JUNK + b"}"


def tags(card: bytes) -> bytes:
    return card.replace(b'"tags": ["t"]', b'"tags": [%s]' % b",".join([b'"t"'] * MANY))


def utf_16(content: bytes) -> bytes:
    """Characters of UTF-16 that hold a quote as a byte would hide values from a scan of bytes."""
    hidden = content.decode()[:-1] + ', "\u2200": ' + JUNK.decode() + ', "\u2201": 0}'
    return hidden.encode("utf-16-le")


def quoted(line_end: str) -> Change:
    """Put a quote on a line that the client drops: what follows would be a text for one reader, and values for the other."""

    def change(reply: bytes) -> bytes:
        head = f'{{"x": 0,{line_end}"{line_end}data: "y": '.encode()
        return head + JUNK + f',{line_end}"{line_end}data:'.encode() + reply[1:]

    return change


def saying(parts: bytes) -> Change:
    """The parts of a reply in place of its own."""
    return lambda reply: reply.replace(b'{"text": "Done."}', parts)


def plain(content: bytes) -> bytes:
    return content


async def sent(body: bytes) -> AsyncGenerator[bytes]:
    """A body in parts, as a socket has them."""
    for begin in range(0, len(body), 65_536):
        yield body[begin : begin + 65_536]


def an_agent(card: Change = plain, reply: Change = plain, *, events: bool = False) -> httpx.AsyncClient:
    """A client whose agent has one skill; its card and its reply to a call are changed."""
    skill = p.AgentSkill(id="act", name="act", description="Acts.", tags=["t"])
    interface = p.AgentInterface(url=f"{URL}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
    able = p.AgentCapabilities(streaming=events)
    shown = p.AgentCard(
        name="a", description="d", version="1", supported_interfaces=[interface], skills=[skill], capabilities=able
    )

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, content=card(json.dumps(agent_card_to_dict(shown)).encode()))
        id = json.loads(request.content)["id"]
        said = reply(json.dumps({"jsonrpc": "2.0", "id": id, "result": {"message": SAID}}).encode())
        if not events:
            return httpx.Response(200, headers={"content-type": "application/json"}, content=sent(said))
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, content=sent(b"data: " + said + b"\r\n\r\n")
        )

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all JSON values that the SDK was given."""
    seen: list[int] = []
    for module, name in (
        (a2a.client.card_resolver, "parse_agent_card"),
        (a2a.client.transports.jsonrpc, "parse_lenient"),
    ):
        real = getattr(module, name)

        def spy(value: Any, *rest: Any, real: Any = real) -> Any:
            seen.append(json.dumps(value).count(",") + 1)
            return real(value, *rest)

        monkeypatch.setattr(module, name, spy)
    loads = json.loads

    def reading(data: Any, **options: Any) -> Any:
        found = loads(data, **options)
        seen.append(json.dumps(found).count(",") + 1)
        return found

    monkeypatch.setattr(json, "loads", reading)
    return seen


async def called(http: httpx.AsyncClient) -> Any:
    tools = await remote_tools(URL, httpx_client=http)
    async with Gate(tools, allow_unguarded=True, effects=Effects(durable=False)) as gate:
        return await gate.call("act", {"message": "go"}, user=ANN, deadline=60.0)


CARDS = [tags, unknown, utf_16]
REPLIES = [numbers, parts, unknown, utf_16]
LINE_ENDS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
EVENTS = [numbers, parts, unknown, *(pytest.param(quoted(end), id=f"quoted {end!r}") for end in LINE_ENDS)]


@pytest.mark.parametrize("card", CARDS)
async def test_a_card_of_many_values_is_refused_before_it_is_parsed(card: Change, parsed: list[int]) -> None:
    with pytest.raises(RegistrationError, match="there is no agent card"):
        await remote_tools(URL, httpx_client=an_agent(card))
    assert parsed == []


@pytest.mark.parametrize("reply", REPLIES)
async def test_a_reply_of_many_values_is_refused_before_it_is_parsed(reply: Change, parsed: list[int]) -> None:
    found = await called(an_agent(reply=reply))
    assert (found.ok, found.error.code) == (False, "tool_failed")
    assert max(parsed) < 100


@pytest.mark.parametrize("reply", EVENTS)
async def test_an_event_of_many_values_is_refused_before_it_is_parsed(reply: Change, parsed: list[int]) -> None:
    found = await called(an_agent(reply=reply, events=True))
    assert (found.ok, found.error.code) == (False, "tool_failed")
    assert max(parsed) < 100


@pytest.mark.parametrize("events", [False, True])
async def test_a_large_honest_reply_is_read(events: bool) -> None:
    table = b'{"data": {"a": [%s]}}' % b",".join([b"0"] * 9_000)
    found = await called(an_agent(reply=lambda it: it.replace(b'{"text": "Done."}', table), events=events))
    assert found.output == {"a": [0] * 9_000}
    text = "caf\u00e9\u2028, [1]" * 10_000
    said = json.dumps({"text": text}, ensure_ascii=False).encode()
    found = await called(an_agent(reply=lambda it: it.replace(b'{"text": "Done."}', said), events=events))
    assert found.output == text


TEXTS = {"narrow": "a" * 3_300_000, "wide": "a" * 1_100_000 + "\U0001f600"}


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("text", TEXTS)
async def test_a_reply_takes_no_more_than_the_limit_of_memory(events: bool, text: str) -> None:
    """The agent of this test is in the same process, and has the reply once more."""
    said = json.dumps({"data": TEXTS[text]}, ensure_ascii=False).encode()
    for times, read in ((1, True), (2, False)):
        made = an_agent(reply=saying(b",".join([said] * times)), events=events)
        with peak() as memory:
            found = await called(made)
        assert (found.error.code == "output_too_large") is read  # it was read, and is too large for a tool
        assert memory.grown < 48_000_000


SEARCHED = {
    "a text": {"text": "x" * 1_000_001},
    "two members": {"text": "x" * 600_000, "filename": "y" * 400_001},
    "beside what another parser refuses": {"text": "x" * 1_000_001, "unknown": "\ud800"},
}


@pytest.mark.parametrize("events", [False, True])
async def test_a_reply_has_no_more_text_than_protobuf_searches_in_one_step(events: bool) -> None:
    """A million characters take 25 to 45 ms. JSON is not searched."""
    for part in SEARCHED.values():
        found = await called(an_agent(reply=saying(json.dumps(part).encode()), events=events))
        assert (found.ok, found.error.code) == (False, "tool_failed")
    for fits in ('{"text": "%s"}' % ("x" * 999_000), '{"data": {"text": "%s"}}' % ("x" * 1_040_000)):
        found = await called(an_agent(reply=saying(fits.encode()), events=events))
        assert found.ok


async def test_control_without_the_limit_more_text_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)
    found = await called(an_agent(reply=saying(json.dumps(SEARCHED["a text"]).encode())))
    assert found.ok


def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotage: a client without limits for values."""

    def limitless(patience: float, given: Any = None, **_: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=given._transport, timeout=patience)

    monkeypatch.setattr(http_client, "limited_client", limitless)


@pytest.mark.parametrize("card", CARDS)
async def test_control_without_the_limit_a_card_of_many_values_is_parsed(
    card: Change, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured(monkeypatch)
    assert len(await remote_tools(URL, httpx_client=an_agent(card))) == 1
    assert max(parsed) >= MANY


@pytest.mark.parametrize("reply", REPLIES)
async def test_control_without_the_limit_a_reply_of_many_values_is_parsed(
    reply: Change, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured(monkeypatch)
    assert (await called(an_agent(reply=reply))).ok
    assert max(parsed) >= MANY


async def test_control_without_the_limit_a_reply_takes_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)
    said = json.dumps({"text": TEXTS["narrow"] * 5 + "\U0001f600"}, ensure_ascii=False).encode()
    with peak() as memory:
        await called(an_agent(reply=lambda it: it.replace(b'{"text": "Done."}', said)))
    assert memory.grown > 100_000_000


@pytest.mark.parametrize("reply", EVENTS)
async def test_control_without_the_limit_an_event_of_many_values_is_parsed(
    reply: Change, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured(monkeypatch)
    await called(an_agent(reply=reply, events=True))
    assert max(parsed) >= MANY


# ---------------------------------------------------------------------- what is measured is what the client reads

FRAGMENTS = st.sampled_from(
    [
        *(end.encode() for end in LINE_ENDS),
        b"\n\n",
        b"data:",
        b"data: ",
        b"event: x",
        b'"',
        b"\\",
        b"[",
        b",",
        b"{}",
        b":",
    ]
)
FEW = 6


async def values_read(stream: bytes, make: Callable[[], MeasuredEvents]) -> int:
    """Return the largest number of values in the data of one event, as the SDK reads what the limit lets through."""
    events, out = make(), list[bytes]()
    try:
        for at in range(0, len(stream), 7):
            out.extend(events.feed(stream[at : at + 7]))
        out.extend(events.end())
    except BodyRefused:
        pass
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"".join(out))
    found = [data async for _, data in parse_sse_stream(response)]
    outside = [re.sub(r'"(?:[^"\\]|\\.)*(?:"|\\?$)', "", data, flags=re.DOTALL) for data in found]
    return max((sum(map(one.count, ",[{")) for one in outside), default=0)


@given(st.lists(FRAGMENTS, max_size=40))
async def test_no_stream_shows_the_client_more_values_than_were_measured(pieces: list[bytes]) -> None:
    assert await values_read(b"".join(pieces), lambda: MeasuredEvents(1_000_000, FEW)) <= FEW


class Unchanged(MeasuredEvents):
    """The sabotage: the client reads the bytes that came, not those that were measured."""

    def event(self, event: bytes) -> bytes:
        super().event(event)
        return event


async def test_control_a_stream_that_is_passed_as_it_came_shows_more() -> None:
    stream = 'data: \u2028"\u2028data: '.encode() + b",[" * FEW + b"\n\n"
    assert await values_read(stream, lambda: Unchanged(1_000_000, FEW)) > FEW
    assert await values_read(stream, lambda: MeasuredEvents(1_000_000, FEW)) <= FEW
