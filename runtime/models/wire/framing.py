"""Framing: splits the bytes of a socket, in pieces of any size, into JSON payloads. Pure; takes linear time."""

from __future__ import annotations

import re
from typing import Protocol

import orjson

from callgate.providers.http.bounded import has_more_values
from callgate.runtime.models.wire.http_request import MAX_VALUES

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_KEPT = 256
"""Bytes of an incomplete line that a ``ContentWatch`` keeps; a longer line is content, unless it is a comment."""
_NO_FIELD = re.compile(rb"[{<]|[a-z]+(?:data|event): ?|event:.*(?:data|event): ")
"""A line that is no field: the error of a proxy, or a line that is cut inside and goes on with another one, such as
``dadata: {``."""
_OUTSIDE = re.compile(rb'["{}]')
_INSIDE = re.compile(rb'["\\]')
_PING = rb'\{[^{}\n]{0,99}"type": ?"(?:ping|keep-?alive|heartbeat)"[^{}\n]{0,99}\}'
_CONTENT = re.compile(rb"(?m)^(?!:|(?:event|id|retry)(?::|$)|(?:data)?:?[ \t]*(?:" + _PING + rb")?[ \t]*$).")


class Framing(Protocol):
    """Splits bytes into payloads."""

    @property
    def garbled(self) -> bool:
        """True once the bytes were not those of one stream."""
        ...

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that *data* completes, in order."""
        ...

    def end(self) -> list[bytes]:
        """Return the incomplete payload at the end of the bytes, if there is one."""
        ...


class ServerEvents:
    """Reads the ``data`` of server-sent events by the WHATWG rules: LF, CRLF or CR, comments, a BOM, several lines.

    The fields ``id`` and ``retry`` are ignored, and ``event`` too, because every provider repeats the type in the data;
    but the data of an event ``error`` is read as an error. Unlike the rules, ``end`` returns a last event without its
    blank line, which some servers omit.
    """

    def __init__(self) -> None:
        self.garbled = False
        self._error = False  # the event that is not complete is named ``error``
        self._pieces: list[bytes] = []  # of a line that is not complete
        self._data: list[bytes] = []  # the lines of an event that is not complete
        self._after_cr = False  # a line feed that comes next belongs to the carriage return before it
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that *data* completes."""
        if self._after_cr or b"\r" in data:
            data = self._newlines(data)
        if b"\n" not in data:
            if data:
                self._pieces.append(data)
            return []
        if self._pieces:
            data = b"".join([*self._pieces, data])
        if self._at_start:
            self._at_start = False
            data = data.removeprefix(_BOM)
        lines = data.split(b"\n")
        rest = lines.pop()
        self._pieces = [rest] if rest else []
        return self._read(lines)

    def end(self) -> list[bytes]:
        """Return the data of a last event without its blank line."""
        return self.feed(b"\n\n")

    def _read(self, lines: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        event = self._data
        held = len(event)
        for line in lines:
            if not line:
                if event:
                    payload = event[0] if len(event) == 1 else b"\n".join(event)
                    found.append(_as_error(payload) if self._error else payload)
                    event, held = [], 0
                self._error = False
            elif line.startswith(b"data"):
                if line[4:6] == b": ":
                    event.append(line[6:])
                elif line[4:5] in {b":", b""}:
                    event.append(line[5:])
                elif _NO_FIELD.match(line):
                    self.garbled = True
            elif line in {b"event: error", b"event:error"}:
                self._error = True
            elif line[:1] != b":" and _NO_FIELD.match(line):
                self.garbled = True
        self._data = [*event[:held], b"\n".join(event[held:])] if len(event) > held else event  # many lines take memory
        return found

    def _newlines(self, data: bytes) -> bytes:
        if self._after_cr and data[:1] == b"\n":
            data, self._after_cr = data[1:], False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _as_error(payload: bytes) -> bytes:
    """Return the data of an event ``error`` as an object with a member ``error``."""
    if has_more_values(payload, MAX_VALUES):
        return payload  # the decoder refuses it
    try:
        value = orjson.loads(payload)
    except ValueError:
        value = payload.decode("utf-8", "replace")
    if isinstance(value, dict) and (value.get("error") or value.get("type") == "error"):
        return payload
    return orjson.dumps({"type": "error", "error": value or "the server sent an event named error"})


class JsonLines:
    """Reads NDJSON: one JSON text on each line."""

    garbled = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that *data* completes."""
        if b"\n" not in data:
            self._pieces.append(data)
            return []
        *lines, rest = b"".join([*self._pieces, data]).split(b"\n")
        self._pieces = [rest] if rest else []
        return [line for line in lines if line and not line.isspace()]

    def end(self) -> list[bytes]:
        """Return a last line without its line feed."""
        rest, self._pieces = b"".join(self._pieces), []
        return [rest] if rest.strip(_SPACE) else []


class JsonObjects:
    """Reads the outermost objects of JSON text: one object, several in a row, or an array, in any layout."""

    garbled = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the objects that *data* completes."""
        found: list[bytes] = []
        start = at = 0
        if self._escaped and data:
            at, self._escaped = 1, False
        while match := (_INSIDE if self._in_string else _OUTSIDE).search(data, at):
            at = match.end()
            match match[0]:
                case b'"':
                    self._in_string = not self._in_string
                case b"\\":
                    self._escaped = at == len(data)
                    at += 1
                case b"{":
                    start = start if self._depth else match.start()
                    self._depth += 1
                case _ if self._depth == 1:
                    self._pieces.append(data[start:at])
                    found.append(b"".join(self._pieces))
                    self._pieces, self._depth = [], 0
                case _:
                    self._depth = max(0, self._depth - 1)
        if self._depth:
            self._pieces.append(data[start:])
        return found

    def end(self) -> list[bytes]:
        """Return an incomplete last object."""
        rest, self._pieces = b"".join(self._pieces), []
        return [rest] if rest else []


class Sniffed:
    """Detects the framing by the first byte: JSON (Gemini without ``alt=sse``, an error, a whole response), else events."""

    def __init__(self) -> None:
        self._head = b""
        self._framing: Framing | None = None

    @property
    def garbled(self) -> bool:
        """True once the bytes were not those of one stream."""
        return self._framing is not None and self._framing.garbled

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that *data* completes."""
        if self._framing is None:
            self._head += data
            start = self._head.removeprefix(_BOM).lstrip(_SPACE)
            if not start or _BOM.startswith(start):
                self._head = start
                return []
            self._framing = JsonObjects() if start[:1] in b"{[" else ServerEvents()
            data, self._head = self._head, b""
        return self._framing.feed(data)

    def end(self) -> list[bytes]:
        """Return the incomplete payload at the end."""
        return self._framing.end() if self._framing else []


class ContentWatch:
    """Tells the content of a stream from comments, blank lines and pings, which only keep its connection open."""

    def __init__(self) -> None:
        self._line = b""  # the beginning of a line that is not complete

    def feed(self, data: bytes) -> bool:
        """Return whether *data* brings content: at least one line of it, or a part of a long line."""
        if self._line:
            data = self._line + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._line = data[end : end + _KEPT]
        lines = data[:end].replace(b"\r", b"\n") if b"\r" in data else data
        if _CONTENT.search(lines, 0, end):
            return True
        rest = data[end:]
        return len(rest) > _KEPT and rest[:1] != b":" and not rest.isspace()
