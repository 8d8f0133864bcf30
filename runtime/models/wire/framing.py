"""Bytes as they come from a socket, cut anywhere, to the JSON texts in them. Pure; linear in what is fed."""

from __future__ import annotations

import re
from typing import Protocol

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_OUTSIDE = re.compile(rb'["{}]')
_INSIDE = re.compile(rb'["\\]')


class Framing(Protocol):
    """Takes bytes, gives the payloads that they complete."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now, in order."""
        ...

    def end(self) -> list[bytes]:
        """What was left when the bytes ended: a payload that lacks its end mark, or the stump of one."""
        ...


class ServerEvents:
    """The ``data`` of server-sent events, by the WHATWG rules: LF, CRLF or CR, comments, a BOM, data of many lines.

    Other fields (``event``, ``id``, ``retry``) are passed over: every provider's data says itself what it is. The
    rules drop an event that lacks its blank line at the end of a stream; servers do forget it, so it is given out.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line that is not complete
        self._data: list[bytes] = []  # the lines of an event that is not complete
        self._after_cr = False  # a line feed that comes next belongs to the carriage return before it
        self._fresh = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is complete."""
        if self._after_cr or b"\r" in data:
            data = self._newlines(data)
        if b"\n" not in data:
            if data:
                self._pieces.append(data)
            return []
        if self._pieces:
            data = b"".join([*self._pieces, data])
        if self._fresh:
            self._fresh = False
            data = data.removeprefix(_BOM)
        lines = data.split(b"\n")
        rest = lines.pop()
        self._pieces = [rest] if rest else []
        return self._read(lines)

    def end(self) -> list[bytes]:
        """The data of a last event without its blank line."""
        return self.feed(b"\n\n")

    def _read(self, lines: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        event = self._data
        for line in lines:
            if not line:
                if event:
                    found.append(event[0] if len(event) == 1 else b"\n".join(event))
                    event = []
            elif line.startswith(b"data"):
                if line[4:6] == b": ":
                    event.append(line[6:])
                elif line[4:5] in {b":", b""}:
                    event.append(line[5:])
        self._data = event
        return found

    def _newlines(self, data: bytes) -> bytes:
        if self._after_cr and data[:1] == b"\n":
            data, self._after_cr = data[1:], False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class JsonLines:
    """One JSON text a line (NDJSON)."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete."""
        if b"\n" not in data:
            self._pieces.append(data)
            return []
        *lines, rest = b"".join([*self._pieces, data]).split(b"\n")
        self._pieces = [rest] if rest else []
        return [line for line in lines if line and not line.isspace()]

    def end(self) -> list[bytes]:
        """A last line without its line feed."""
        rest, self._pieces = b"".join(self._pieces), []
        return [rest] if rest.strip(_SPACE) else []


class JsonObjects:
    """The outermost objects of JSON text: one, one after the other, or in an array, however it is laid out."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that are complete."""
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
        """The stump of an object."""
        rest, self._pieces = b"".join(self._pieces), []
        return [rest] if rest else []


class Sniffed:
    """Server-sent events, unless the first byte says JSON: Gemini without ``alt=sse``, an error, a whole answer."""

    def __init__(self) -> None:
        self._head = b""
        self._framing: Framing | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete."""
        if self._framing is None:
            self._head += data
            start = self._head.removeprefix(_BOM).lstrip(_SPACE)
            if not start or _BOM.startswith(start):
                return []
            self._framing = JsonObjects() if start[:1] in b"{[" else ServerEvents()
            data, self._head = self._head, b""
        return self._framing.feed(data)

    def end(self) -> list[bytes]:
        """What was left."""
        return self._framing.end() if self._framing else []
