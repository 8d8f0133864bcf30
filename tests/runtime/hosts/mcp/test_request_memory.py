"""The memory of one request of a hostile client: at most 32 MB at the peak; the control reads every request."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import httpx

import callgate.mcp
from callgate.providers.http.bounded import MAX_MEMORY, BodyRefused
from callgate.runtime.hosts.mcp import access
from callgate.runtime.hosts.mcp.standard_input import NO_MESSAGE, bounded_lines
from callgate.runtime.models.wire.message_memory import parse_bounded
from tests.harness.memory import STATUS, peak
from tests.runtime.hosts.mcp.test_hostile_clients import ELICITS, HEADERS, MODERN
from tests.runtime.hosts.mcp.world import Desk, who
from tests.runtime.hosts.serving import served

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="NO PROC: the peak of memory is read from /proc")
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": ELICITS}
KINDS: dict[str, tuple[str, str, int]] = {  # members of the parameters, what is in place of @, the largest number of it
    "values": ('"arguments":{"a":[@]}', "{}", 30_400),
    "keys": ('"arguments":{@}', '"KEY":1', 29_000),
    "answers": ('"arguments":{},"inputResponses":{@}', '"KEY":{}', 630),
    "members": ('"arguments":{},"x":[@]', "{}", 630),
    "wide text": ('"arguments":{"a":"\U0001f600@"}', "x", 1_720_000),
}


def request(kind: str, n: int) -> bytes:
    template, item, _ = KINDS[kind]
    made = item * n if item == "x" else ",".join(item.replace("KEY", str(number)) for number in range(n))
    params = f'{{"name":"refund","_meta":{json.dumps(META)},{template.replace("@", made)}}}'
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_takes_at_most_32_mb(kind: str, modern: bool) -> None:
    """The largest one that is admitted, and one ten times as large, which is refused."""
    server = callgate.mcp.server(Desk().gate(), authenticate=who, max_body=40_000_000)
    headers = {**HEADERS, "authorization": "Bearer ann"}
    if modern:
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "refund"}
    async with served(server.asgi()) as running, running.client(None) as http:
        for times in (1, 10):
            body = request(kind, times * KINDS[kind][2])
            status = 413
            with peak() as found, contextlib.suppress(httpx.TransportError):  # the server closes what is too long
                status = (await http.post("/mcp", content=body, headers=headers)).status_code
            assert (status == 413) is (times == 10)
            assert found.grown < MAX_MEMORY + len(body)  # the client's buffer is in this process, too


@pytest.mark.parametrize("kind", KINDS)
def test_these_are_the_largest_requests(kind: str) -> None:
    """A tenth more is refused, so the test above measures the limit."""
    parse_bounded(request(kind, KINDS[kind][2]))
    with pytest.raises(BodyRefused):
        parse_bounded(request(kind, KINDS[kind][2] * 11 // 10))


async def test_the_control_that_reads_every_request_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of values is what refuses a request, not that of bytes."""
    monkeypatch.setattr(access, "parse_bounded", lambda _: None)
    server = callgate.mcp.server(Desk().gate(), authenticate=who, max_body=40_000_000)
    async with served(server.asgi()) as running, running.client("ann") as http:
        body = request("values", 1_000_000)
        with peak() as found:
            await http.post("/mcp", content=body, headers=HEADERS)
        assert found.grown > 2 * MAX_MEMORY


async def test_a_line_of_standard_input_has_the_same_limit(tmp_path: Any) -> None:
    """A heavy line is no message, the next one is read, and a line without an end ends the connection."""
    good = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join([request("values", 300_000), good, b"x" * 20_000_000]))
    with file.open("rb") as lines, peak() as found:
        seen = [line async for line in bounded_lines(lines.fileno())]
    assert seen == [NO_MESSAGE, good.decode()]
    assert found.grown < MAX_MEMORY
