"""Makes the HTTP response of a turn, with its faults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from callgate.runtime.testing.model.http import ScriptedResponse
from callgate.runtime.testing.model.requests import ModelRequest
from callgate.runtime.testing.model.script import Fault, Turn
from callgate.runtime.testing.model.wire_format import WireFormat


def json_response(
    status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> ScriptedResponse:
    """A JSON response that is not streamed."""
    content = json.dumps(body).encode()
    return ScriptedResponse(status, {"content-type": "application/json", **(headers or {})}, (content,), len(content))


def response_of(wire: WireFormat, turn: Turn, request: ModelRequest) -> ScriptedResponse:
    """The response of a turn."""
    faults: dict[str, Fault] = {fault.kind: fault for fault in turn.faults}
    failed, error = faults.get("status"), faults.get("error")
    if failed is not None:
        sent = json_response(failed.status, wire.error(failed.status, failed.message), failed.headers)
    elif request.stream:
        events = wire.events(turn, request)
        if error is not None:
            events = [*events[: error.events], wire.error_event(error.message, error.events or 0)]
        sent = ScriptedResponse(200, {"content-type": wire.stream_type}, tuple(events))
    elif error is not None:
        sent = json_response(500, wire.error(500, error.message))
    else:
        body = wire.answer(turn, request)
        sent = json_response(500 if isinstance(body.get("error"), str) else 200, body)  # only Ollama fails like this
    return _faulty(sent, faults)


def _faulty(sent: ScriptedResponse, faults: Mapping[str, Fault]) -> ScriptedResponse:
    chunks, headers = [*sent.chunks], dict(sent.headers)
    malformed, called, slow, cut = (faults.get(kind) for kind in ("malformed", "content_type", "slow", "cut"))
    if malformed is not None and malformed.events is not None and malformed.events < len(chunks):
        chunks[malformed.events] = _halved(chunks[malformed.events])
    if called is not None:
        headers |= called.headers
    length = sum(len(chunk) for chunk in chunks)
    kept = chunks if cut is None else _kept(cut, chunks)
    if cut is not None and cut.ending == "clean":
        length = sum(len(chunk) for chunk in kept)
    return ScriptedResponse(
        sent.status,
        headers,
        tuple(kept),
        None if sent.length is None else length,
        None if cut is None else cut.ending,
        None if slow is None else slow.pause,
        head=cut is None or cut.events is not None or cut.byte is not None,
    )


def _kept(cut: Fault, chunks: Sequence[bytes]) -> list[bytes]:
    if cut.byte is None:
        return [*chunks[: cut.events or 0]]
    kept: list[bytes] = []
    left = cut.byte
    for chunk in chunks:
        if left > 0:
            kept.append(chunk[:left])
        left -= len(chunk)
    return kept


def _halved(event: bytes) -> bytes:
    """Cut off the second half of an event's JSON, and keep its framing."""
    body = event.rstrip(b"\n")
    start = max(0, body.find(b"{"))
    return body[: start + (len(body) - start) // 2] + event[len(body) :]
