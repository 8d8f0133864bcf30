"""``ScriptedModel``: a model for tests that plays a script over real HTTP, on any of the five wires."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self

from callgate.runtime.testing.model.checks import RequestRefused, SignatureMemory
from callgate.runtime.testing.model.http import HttpServer, ReceivedRequest, ScriptedResponse
from callgate.runtime.testing.model.requests import ModelRequest
from callgate.runtime.testing.model.responses import json_response, response_of
from callgate.runtime.testing.model.routing import PATHS, read_request
from callgate.runtime.testing.model.script import ScriptItem, ScriptPlayer, Turn, TurnParts
from callgate.runtime.testing.model.wire_format import WireFormat


class ScriptedModel:
    """A model for tests: it answers each request with the next turn of *script*.

    It is a real HTTP server on loopback for Chat Completions, Responses, Anthropic's Messages, Gemini's generateContent
    and Ollama's chat, streamed or not; the path selects the wire. Use it in ``async with``, or in ``with``, which serves
    from a thread. Then use ``url`` as the address of a client.

    A request that the real provider would refuse gets the provider's error, has ``ModelRequest.refused`` set, and uses
    no turn. Such are a call without a result, a result without a call, a lost or altered signature, and an invalid tool.
    An error in a function of the script gives status 400. It is raised again when the model is closed, and so is any other
    error of the script, such as that of a pause.

    Args:
        script: the turns, or one function for all turns. A turn is a part (``Say``, ``Think``, ``Call``, ``Usage``,
            ``Stop``, ``Fault``), a sequence of parts, or a function that makes them from the ``ModelRequest``.
        repeat: start again at the end of the script, instead of refusing further requests.
    """

    def __init__(
        self, script: Sequence[ScriptItem] | Callable[[ModelRequest], TurnParts], *, repeat: bool = False
    ) -> None:
        self.requests: list[ModelRequest] = []
        """All requests so far."""
        self._script = ScriptPlayer(script, repeat=repeat)
        self._memory = {name: SignatureMemory() for name in PATHS}
        self._http = HttpServer(self._handle)
        self._failure: BaseException | None = None
        self._thread: _Thread | None = None

    @property
    def url(self) -> str:
        """The server's address without a path; add the prefix that the client needs, such as ``/v1``.

        Raises:
            RuntimeError: the model is not open.
        """
        if not self._http.port:
            raise RuntimeError("the scripted model is not open: use it in `async with` or `with`")
        return f"http://127.0.0.1:{self._http.port}"

    @property
    def left(self) -> int:
        """The number of turns that have not been played."""
        return self._script.left

    @property
    def refusals(self) -> list[str]:
        """The reasons of refused requests, in order."""
        return [request.refused for request in self.requests if request.refused is not None]

    @property
    def dropped(self) -> int:
        """The number of responses whose client disconnected early; only a slow response notices it."""
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
        failure, self._failure, self._http.failure = self._failure or self._http.failure, None, None
        if failure is not None and kind is None:
            raise failure

    def _handle(self, received: ReceivedRequest) -> ScriptedResponse:
        request, wire = read_request(received, len(self.requests) + 1)
        turn: Turn | None = None
        if wire is not None and request.refused is None:
            try:
                self._memory[wire.name].check(request.messages)
                turn = self._turn(request, wire)
            except RequestRefused as refused:
                request = replace(request, refused=refused.reason)
        self.requests.append(request)
        if wire is None:
            return json_response(404, {"error": {"message": request.refused, "type": "not_found"}})
        if turn is None:
            return json_response(400, wire.error(400, request.refused or ""))
        if wire.keeps_signatures(request):
            self._memory[wire.name].keep(turn)
        return response_of(wire, turn, request)

    def _turn(self, request: ModelRequest, wire: WireFormat) -> Turn:
        try:
            given = self._script.next(request)
            if given is not None:
                return Turn.of(given, request.number, wire.call_prefix)
        except Exception as error:
            self._failure = self._failure or error
            raise RequestRefused(f"the script failed: {type(error).__name__}: {error}") from error
        raise RequestRefused(f"the script has ended after {self._script.played} turns; no turn is left for {request}")


class _Thread:
    """A thread with an event loop that serves until ``stop`` is called."""

    def __init__(self, http: HttpServer) -> None:
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
