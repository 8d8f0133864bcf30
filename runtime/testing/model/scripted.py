"""``ScriptedModel``: a model that says what a script tells it to, over real HTTP, on any of the five wires."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self

from callgate.runtime.testing.model.checks import Memory, Refused
from callgate.runtime.testing.model.http import Http, Received, Sent
from callgate.runtime.testing.model.requests import Asked
from callgate.runtime.testing.model.responses import answered, whole
from callgate.runtime.testing.model.routing import PATHS, read
from callgate.runtime.testing.model.script import Script, Step, Told, Turn
from callgate.runtime.testing.model.wire_format import Wire


class ScriptedModel:
    """A model for tests: it answers each request with the next turn of *script*.

    It is a real HTTP server on loopback that speaks Chat Completions, Responses, Anthropic's Messages, Gemini's
    generateContent and Ollama's chat, streamed and not, told apart by the path. Use it in ``async with``, or in a plain
    ``with``, which serves from a thread of its own; then point a client at ``url``.

    A turn is a part (``Say``, ``Think``, ``Call``, ``Usage``, ``Stop``, ``Fault``), a sequence of parts, or a function
    of what was asked that gives either; *script* may be one such function for all turns. With *repeat* the script
    starts over at its end; without, a further request is refused. A request that its provider would refuse (a call left
    without a result, a result that answers no call, a lost or altered signature, a tool that is no tool) is answered
    as the provider would, says why in ``Asked.refused``, and takes no turn.

    What a function of the script raises is answered with status 400, and raised again as the model is closed.
    """

    def __init__(self, script: Sequence[Step] | Callable[[Asked], Told], *, repeat: bool = False) -> None:
        self.requests: list[Asked] = []
        """Every request so far."""
        self._script = Script(script, repeat=repeat)
        self._memory = {name: Memory() for name in PATHS}
        self._http = Http(self._handle)
        self._failure: BaseException | None = None
        self._thread: _Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a path: every prefix, such as ``/v1``, is understood.

        Raises:
            RuntimeError: it is not open.
        """
        if not self._http.port:
            raise RuntimeError("the scripted model is not open: use it in `async with` or `with`")
        return f"http://127.0.0.1:{self._http.port}"

    @property
    def left(self) -> int:
        """How many turns of the script have not been asked for."""
        return self._script.left

    @property
    def refusals(self) -> list[str]:
        """Why requests were refused, in order; empty where all was well."""
        return [asked.refused for asked in self.requests if asked.refused is not None]

    @property
    def dropped(self) -> int:
        """How many answers were left by their client before their end, seen while a slow answer waits."""
        return self._http.dropped

    async def __aenter__(self) -> Self:
        await self._http.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self._http.stop()
        self._closed(kind)

    def __enter__(self) -> Self:
        self._thread = _Thread(self._http)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._thread is not None:
            self._thread.stop()
        self._closed(kind)

    def _closed(self, kind: type[BaseException] | None) -> None:
        failure, self._failure = self._failure, None
        if failure is not None and kind is None:
            raise failure

    def _handle(self, request: Received) -> Sent:
        asked, wire = read(request, len(self.requests) + 1)
        turn: Turn | None = None
        if wire is not None and asked.refused is None:
            try:
                self._memory[wire.name].check(asked.messages)
                turn = self._turn(asked, wire)
            except Refused as refused:
                asked = replace(asked, refused=refused.reason)
        self.requests.append(asked)
        if wire is None:
            return whole(404, {"error": {"message": asked.refused, "type": "not_found"}})
        if turn is None:
            return whole(400, wire.error(400, asked.refused or ""))
        if wire.remembers(asked):
            self._memory[wire.name].keep(turn)
        return answered(wire, turn, asked)

    def _turn(self, asked: Asked, wire: Wire) -> Turn:
        try:
            told = self._script.next(asked)
            if told is not None:
                return Turn.of(told, asked.number, wire.call_prefix)
        except Exception as error:
            self._failure = self._failure or error
            raise Refused(f"the script failed: {type(error).__name__}: {error}") from error
        raise Refused(f"the script has ended after {self._script.played} turns; nothing is left for {asked}")


class _Thread:
    """A thread with an event loop that serves until it is told to stop."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="scripted model", daemon=True)
        self._thread.start()
        self._loop, self._enough = self._ready.result()

    def stop(self) -> None:
        """Close the server and wait for the thread to end."""
        self._loop.call_soon_threadsafe(self._enough.set)
        self._thread.join()

    async def _serve(self) -> None:
        enough = asyncio.Event()
        try:
            await self._http.start()
        except BaseException as error:
            self._ready.set_exception(error)
            raise
        self._ready.set_result((asyncio.get_running_loop(), enough))
        await enough.wait()
        await self._http.stop()
