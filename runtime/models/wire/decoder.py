"""Decoding of a streamed response: the framing splits bytes into payloads, a wire's fold assembles them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from callgate.providers.http.bounded import has_more_values
from callgate.runtime.models.wire.framing import Framing
from callgate.runtime.models.wire.http_request import MAX_VALUES
from callgate.runtime.models.wire.reply import CallReady, Done, Reply, ReplyEvent
from callgate.tools.arguments.exact_json import exact_event, exact_loads


class Fold(Protocol):
    """Assembles the chunks of a wire's stream into the body that the same response would have in one piece.

    ``began`` is True once a chunk was part of an answer of this wire. ``ended`` is True if the answer is whole when the
    stream ends now. ``closed`` is True once the wire's last mark has arrived: the server sends nothing more. ``lost`` is
    the reason why the chunks are not one whole answer, such as a second answer in the stream. Unexpected chunks must
    not raise.
    """

    began: bool
    ended: bool
    closed: bool
    lost: str | None

    def add(self, chunk: Mapping[str, object], events: list[ReplyEvent]) -> None:
        """Add a chunk, and append its deltas to *events*."""
        ...

    def body(self) -> dict[str, object]:
        """The body so far, in the form of a response that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a stream is not one whole answer; ``began`` as in ``Fold``."""

    reason: str
    began: bool


SECOND = "a second answer begins inside the stream"
OTHER_API = "a chunk of another API is inside the stream"
GARBLED = "a piece of the stream is broken"
TOO_MANY = "a piece of the stream has too many values"
TOO_LARGE = "a piece of the stream is too large"
NO_ANSWER = "the body is no answer of this API"
CUT = "the stream ended before its end mark"
MAX_PIECE = 32 * 1024 * 1024
"""Maximum size in bytes of one piece, as of a response that is not streamed."""
MAX_STRANGE = 10_000
"""Maximum number of pieces of a stream that are no JSON."""
SAMPLE = 2048
"""Bytes at the beginning of a stream that are kept for a message; more than it shows, so that no secret is cut."""


class Decoder:
    """Reads one streamed response from its bytes, which may be split anywhere.

    ``feed`` returns the deltas that the bytes complete. ``end`` returns a ``CallReady`` for each complete call, in
    order, and ``Done``. Content from a server never raises: a payload that is not JSON is ignored, and if it looks like
    broken JSON the response counts as cut.
    """

    def __init__(
        self, fold: Fold, reply: Callable[[Mapping[str, object], Cut | None], Reply], framing: Framing
    ) -> None:
        self._fold = fold
        self._reply = reply
        self._framing = framing
        self.sample = b""  # the first bytes, for a message about a body that is no answer
        self._closed = False
        self._held = 0  # bytes since the last piece
        self._strange_left = MAX_STRANGE

    @property
    def refused(self) -> bool:
        """True once a piece exceeded ``MAX_PIECE``, or too many are no JSON: what follows is not read."""
        return self._held > MAX_PIECE or self._strange_left < 0

    @property
    def ended(self) -> bool:
        """True if the answer is whole when the stream ends now."""
        return self._fold.ended and self._fold.began and self._fold.lost is None

    @property
    def closed(self) -> bool:
        """True once the server sends nothing more: its last mark has arrived."""
        return self._fold.closed

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """Return the deltas of the chunks that these bytes complete."""
        events: list[ReplyEvent] = []
        if self.refused:
            return events
        if len(self.sample) < SAMPLE:
            self.sample += data[: SAMPLE - len(self.sample)]
        payloads = self._framing.feed(data)
        self._held = 0 if payloads else self._held + len(data)
        if self.refused:
            self._fold.lost = self._fold.lost or TOO_LARGE
        self._add_payloads(payloads, events)
        return events

    def end(self) -> list[ReplyEvent]:
        """Return the last deltas, the complete calls and ``Done`` at the end of the bytes; a second call returns nothing.

        Unless the stream is one whole answer, the reply is lost, its calls are marked as truncated, and none is ready.
        """
        events: list[ReplyEvent] = []
        if self._closed:
            return events
        self._closed = True
        if not self.refused:
            self._add_payloads(self._framing.end(), events)
        fold = self._fold
        if self._framing.garbled:
            fold.lost = fold.lost or GARBLED
        cut = None if self.ended else Cut(fold.lost or CUT, fold.began)
        reply = self._reply(fold.body(), cut)
        events += [CallReady(call) for call in reply.calls if not call.truncated]
        events.append(Done(reply))
        return events

    def _add_payloads(self, payloads: Iterable[bytes], events: list[ReplyEvent]) -> None:
        add = self._fold.add
        for payload in payloads:
            if self._strange_left < 0:
                self._fold.lost = self._fold.lost or GARBLED
                return
            if len(payload) > MAX_VALUES and has_more_values(payload, MAX_VALUES):
                self._fold.lost = self._fold.lost or TOO_MANY
                continue
            try:
                chunk = exact_event(payload)
            except ValueError:
                self._add_unusual(payload.strip(), events)
                continue
            if isinstance(chunk, dict):
                add(chunk, events)
            else:
                self._add(chunk, events)

    def _add(self, chunk: object, events: list[ReplyEvent]) -> None:
        for item in chunk if isinstance(chunk, list) else [chunk]:
            if isinstance(item, dict):
                self._fold.add(item, events)

    def _add_unusual(self, payload: bytes, events: list[ReplyEvent]) -> None:
        """Read ``[DONE]``, JSON that jiter refuses (a lone surrogate, great depth), and events without a blank line between."""
        if payload == b"[DONE]":
            self._fold.ended = self._fold.closed = True
            return
        self._strange_left -= 1
        if payload[:1] not in {b"{", b"["}:
            if payload.startswith((b"data:", b"event:")):  # a line was cut, and another one follows in it
                self._fold.lost = self._fold.lost or GARBLED
            return
        try:
            chunk = exact_loads(payload.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            lines = payload.split(b"\n")
            if len(lines) == 1:
                self._fold.lost = self._fold.lost or GARBLED
            self._add_payloads(lines if len(lines) > 1 else (), events)
            return
        self._add(chunk, events)
