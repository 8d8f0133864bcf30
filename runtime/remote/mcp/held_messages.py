"""Large messages over HTTP, parsed here: the SDK parses a stub in place of each, and callers get the message.

The SDK would take four times the memory for the same text, and more for events.
"""

from __future__ import annotations

import asyncio
import json
import secrets

from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from callgate.providers.http.bounded import BodyRefused, longest
from callgate.providers.http.bounded_replies import EventStream, Parts, WholeBody, event_lines
from callgate.runtime.models.wire.message_memory import SMALL, parse_bounded

NO_MESSAGE = b"null"
"""What the SDK parses in place of a message that is not admitted: the call of the message ends, and no other."""

OTHERS = 262_144
"""Maximum size of a body that is no JSON-RPC, such as a document of an authorization server."""
TAKES = 1.0
"""Seconds in which the session takes a message of a closed response."""
LONGEST_NAME = 1_024
"""Maximum length of the id and the method of a large message."""


class HeldMessages:
    """The large messages of one connection, from their parts to the stream that the session reads."""

    def __init__(self, max_memory: int) -> None:
        self._max_memory, self.max_bytes = max_memory, longest(max_memory)
        self._held: dict[str, dict[str, object]] = {}

    def reader(self, events: bool) -> Parts:
        """Return the reader of one body."""
        return EventReader(self) if events else BodyReader(self)

    def hold(self, data: bytes) -> tuple[str, bytes]:
        """Hold a message; return its token, and its stub."""
        try:
            message = parse_bounded(data, self._max_memory)
        except (BodyRefused, ValueError):
            return "", NO_MESSAGE
        if not isinstance(message, dict) or "jsonrpc" not in message:
            return "", data if len(data) <= OTHERS else NO_MESSAGE
        stub: dict[str, object] = {key: message[key] for key in ("jsonrpc", "id", "method") if key in message}
        if any(len(str(value)) > LONGEST_NAME for value in stub.values()):
            return "", NO_MESSAGE
        if isinstance(error := message.get("error"), dict):
            code = error.get("code")
            stub["error"] = {"code": code if isinstance(code, int) else INTERNAL_ERROR, "message": "a long error"}
            return "", json.dumps(stub).encode()
        member = "result" if "result" in message else "params"
        if not isinstance(held := message.get(member), dict):
            return "", NO_MESSAGE
        token = secrets.token_hex(16)  # the server does not know it
        self._held[token] = held
        return token, json.dumps(stub | {member: {token: True}}).encode()

    def drop(self, token: str) -> None:
        """Let go of a message that the session did not take; it takes one after the SDK has closed the response."""
        if token in self._held:
            asyncio.get_running_loop().call_later(TAKES, self._held.pop, token, None)

    def swapped(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        """Return *item* with its message in place of a stub."""
        message = item.message if self._held and isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse):
            message.result = self._of(message.result)
        elif isinstance(message, JSONRPCRequest | JSONRPCNotification) and message.params is not None:
            message.params = self._of(message.params)
        return item

    def _of(self, stub: dict[str, object]) -> dict[str, object]:
        return self._held.pop(next(iter(stub)), stub) if len(stub) == 1 else stub


class BodyReader(WholeBody):
    """A body that is one message, or no message of the protocol."""

    def __init__(self, messages: HeldMessages) -> None:
        super().__init__()
        self._messages, self._token = messages, ""

    def body(self, data: bytes) -> bytes:
        """Return the body, or the stub of a large one."""
        if len(data) <= SMALL:
            return data
        self._token, stub = self._messages.hold(data)
        return stub

    def close(self) -> None:
        """Let go of the message."""
        self._messages.drop(self._token)


class EventReader(EventStream):
    """A stream of events, each with a message."""

    def __init__(self, messages: HeldMessages) -> None:
        super().__init__(messages.max_bytes)
        self._messages, self._token = messages, ""

    def close(self) -> None:
        """Let go of the message of the last event."""
        self._messages.drop(self._token)

    def event(self, event: bytes) -> bytes:
        """Return the event, or a stub of a large one."""
        self.close()
        if len(event) <= SMALL:
            return event
        lines = event_lines(event)
        del event
        fields = [line for line in lines if line.startswith((b"id:", b"retry:", b"event:"))]
        lines = [line for line in lines if line.startswith(b"data:")]
        if any(one[6:].strip() not in (b"", b"message") for one in fields if one.startswith(b"event:")):
            return b""  # the SDK reads events with messages only
        data = lines.pop()[5:] if len(lines) == 1 else b"\n".join(line[5:] for line in lines)
        lines.clear()
        if not data:
            return b"\n".join([*fields, b"", b""])
        self._token, stub = self._messages.hold(data)
        return b"\n".join([*fields, b"data: " + stub, b"", b""])
