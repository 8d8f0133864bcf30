"""Decoding of a streamed response: the framing splits bytes into payloads, a wire's fold assembles them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from jiter import from_json

from callgate.runtime.models.wire.framing import Framing
from callgate.runtime.models.wire.reply import CallReady, Done, Reply, ReplyEvent


class Fold(Protocol):
    """Assembles the chunks of a wire's stream into the body that the same response would have in one piece.

    ``ended`` is True once the wire's end mark has arrived. Unexpected chunks must not raise.
    """

    ended: bool

    def add(self, chunk: dict[str, Any], events: list[ReplyEvent]) -> None:
        """Add a chunk, and append its deltas to *events*."""
        ...

    def body(self) -> dict[str, Any]:
        """The body so far, in the form of a response that is not streamed."""
        ...


class Decoder:
    """Reads one streamed response from its bytes, which may be split anywhere.

    ``feed`` returns the deltas that the bytes complete. ``end`` returns a ``CallReady`` for each complete call, in
    order, and ``Done``. Content from a server never raises: a payload that is not JSON is ignored, and if it looks like
    broken JSON the response counts as cut.
    """

    def __init__(self, fold: Fold, reply: Callable[[dict[str, Any]], Reply], framing: Framing) -> None:
        self._fold = fold
        self._reply = reply
        self._framing = framing
        self._lost = False
        self._closed = False

    @property
    def ended(self) -> bool:
        """True once the wire's end mark has arrived, if no payload was lost."""
        return self._fold.ended and not self._lost

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """Return the deltas of the chunks that these bytes complete."""
        events: list[ReplyEvent] = []
        self._add_payloads(self._framing.feed(data), events)
        return events

    def end(self) -> list[ReplyEvent]:
        """Return the last deltas, the complete calls and ``Done`` at the end of the bytes; a second call returns nothing.

        Without the end mark, the reply and all its calls are marked as truncated, and no call is ready.
        """
        events: list[ReplyEvent] = []
        if self._closed:
            return events
        self._closed = True
        self._add_payloads(self._framing.end(), events)
        reply = self._reply(self._fold.body())
        if not self.ended:
            cut = tuple(replace(call, truncated=True) for call in reply.calls)
            reply = replace(reply, calls=cut, truncated=True)
        events += [CallReady(call) for call in reply.calls if not call.truncated]
        events.append(Done(reply))
        return events

    def _add_payloads(self, payloads: Iterable[bytes], events: list[ReplyEvent]) -> None:
        add = self._fold.add
        for payload in payloads:
            try:
                chunk = from_json(payload)
            except ValueError:
                self._add_unusual(payload.strip(), events)
                continue
            if isinstance(chunk, dict):
                add(chunk, events)
            else:
                self._add(chunk, events)

    def _add(self, chunk: Any, events: list[ReplyEvent]) -> None:
        for item in chunk if isinstance(chunk, list) else [chunk]:
            if isinstance(item, dict):
                self._fold.add(item, events)

    def _add_unusual(self, payload: bytes, events: list[ReplyEvent]) -> None:
        """Read ``[DONE]``, JSON that jiter refuses (a lone surrogate, great depth), and events without a blank line between."""
        if payload == b"[DONE]":
            self._fold.ended = True
            return
        if payload[:1] not in {b"{", b"["}:
            return
        try:
            chunk = json.loads(payload.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            lines = payload.split(b"\n")
            self._lost = self._lost or len(lines) == 1
            self._add_payloads(lines if len(lines) > 1 else (), events)
            return
        self._add(chunk, events)
