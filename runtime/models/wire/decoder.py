"""A streamed answer, bit by bit: bytes to payloads (framing), payloads to deltas and a whole answer (a wire's fold)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from jiter import from_json

from callgate.runtime.models.wire.framing import Framing
from callgate.runtime.models.wire.reply import CallReady, Done, Event, Reply


class Fold(Protocol):
    """One wire's way from the chunks of a stream to the body that the same answer would have in one piece.

    ``ended`` says that the wire's own end mark has come. Odd chunks never raise.
    """

    ended: bool

    def add(self, chunk: dict[str, Any], events: list[Event]) -> None:
        """Take a chunk in; append the deltas that it brings."""
        ...

    def body(self) -> dict[str, Any]:
        """The answer so far, as the wire spells one that is not streamed."""
        ...


class Decoder:
    """Reads one streamed answer; feed it the bytes of the body as they come, cut anywhere. For one answer only.

    ``feed`` gives the deltas that the bytes complete. ``end`` gives a ``CallReady`` for each complete call, in order,
    and ``Done``: whether an answer was cut is known only there. Nothing that a server sends raises: what is no JSON
    is passed over, and if it looks like JSON the answer counts as cut.
    """

    def __init__(self, fold: Fold, reply: Callable[[dict[str, Any]], Reply], framing: Framing) -> None:
        self._fold = fold
        self._reply = reply
        self._framing = framing
        self._lost = False
        self._closed = False

    @property
    def ended(self) -> bool:
        """Whether the wire's own end mark has come, and nothing was lost on the way."""
        return self._fold.ended and not self._lost

    def feed(self, data: bytes) -> list[Event]:
        """The deltas of the chunks that these bytes complete."""
        events: list[Event] = []
        self._take(self._framing.feed(data), events)
        return events

    def end(self) -> list[Event]:
        """The bytes have ended: what deltas were left, the complete calls, and ``Done``. A second time: nothing.

        If the end mark has not come, the reply and all its calls are marked truncated, and no call is ready.
        """
        events: list[Event] = []
        if self._closed:
            return events
        self._closed = True
        self._take(self._framing.end(), events)
        reply = self._reply(self._fold.body())
        if not self.ended:
            cut = tuple(replace(call, truncated=True) for call in reply.calls)
            reply = replace(reply, calls=cut, truncated=True)
        events += [CallReady(call) for call in reply.calls if not call.truncated]
        events.append(Done(reply))
        return events

    def _take(self, payloads: Iterable[bytes], events: list[Event]) -> None:
        add = self._fold.add
        for payload in payloads:
            try:
                chunk = from_json(payload)
            except ValueError:
                self._take_odd(payload.strip(), events)
                continue
            if isinstance(chunk, dict):
                add(chunk, events)
            else:
                self._add(chunk, events)

    def _add(self, chunk: Any, events: list[Event]) -> None:
        for item in chunk if isinstance(chunk, list) else [chunk]:
            if isinstance(item, dict):
                self._fold.add(item, events)

    def _take_odd(self, payload: bytes, events: list[Event]) -> None:
        """``[DONE]``; JSON that jiter refuses (half a surrogate pair, great depth); events without a line between."""
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
            self._take(lines if len(lines) > 1 else (), events)
            return
        self._add(chunk, events)
