"""``callgate.asgi``: an ASGI application that serves the tools of a gate over HTTP.

======= ======================== ==========================================================================
GET     /tools                   the definitions that this user may see; ``?wire=openai_chat`` in its spelling
POST    /tools/{name}            JSON arguments in, the tool's JSON output out
POST    /tools/{name}/stream     the same, as server-sent events: ``progress``, ``partial``, ``result``
GET     /health                  whether the gate is open; needs no user
GET     /health/ready            whether its store answers, too; needs no user
GET     /openapi.json            all of this for this user, as OpenAPI 3.1
======= ======================== ==========================================================================
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

from callgate.errors import GateClosed, UnknownTool
from callgate.runtime.gate.gate import Gate
from callgate.runtime.hosts.asgi.fastapi_dependency import require_starlette
from callgate.runtime.hosts.asgi.problem_details import Disconnected, Problem, not_open
from callgate.runtime.hosts.asgi.request import (
    Headers,
    Receive,
    Scope,
    Send,
    as_text,
    options_of,
    path_of,
    read_body,
    request_id_of,
    require_json,
)
from callgate.runtime.hosts.asgi.response import Response, run_until_disconnect, send_events, send_result
from callgate.runtime.hosts.asgi.spec import listed, openapi
from callgate.runtime.hosts.http_requests import CLIENT_GONE, Authenticate, principal
from callgate.runtime.hosts.not_open import OPENS, NotOpen
from callgate.runtime.lifespan.probe import StoreProbe
from callgate.runtime.models import codecs
from callgate.tools.calls import ToolCall, User
from callgate.tools.values import dump

READ_TIMEOUT = 10.0
"""Timeout for the arrival of a body, in seconds."""
WRITE_TIMEOUT = 30.0
"""Timeout for sending each part of a response, in seconds; after it, the client counts as disconnected."""
PING = 15.0
"""Interval of keep-alive comments in a stream without events, in seconds."""

_READ = ("GET", "HEAD")
_UNAUTHENTICATED = "callgate.asgi: no authenticate=, so every request but /health is refused with 401"


class GateApp:
    """The ASGI application of one gate; ``callgate.asgi`` makes it.

    As the main application it opens the gate at startup and closes it at shutdown. As a mounted application it does not:
    the main application has to open the gate. While the gate is not open, every response is 503.
    """

    def __init__(
        self,
        gate: Gate,
        authenticate: Authenticate | None = None,
        *,
        challenge: str | None = "Bearer",
        read_timeout: float = READ_TIMEOUT,
        write_timeout: float = WRITE_TIMEOUT,
        ping: float = PING,
    ) -> None:
        self.gate = gate
        self._probe = StoreProbe(gate)
        self._not_open = NotOpen("callgate.asgi", OPENS)
        self.authenticate = authenticate
        self.challenge = challenge
        self.read_timeout = read_timeout
        self.write_timeout = write_timeout
        self.ping = ping
        if self.authenticate is None:
            warnings.warn(_UNAUTHENTICATED, RuntimeWarning, stacklevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        opens = not self.gate.is_open
        try:
            if opens:
                await self.gate.open()
        except Exception as error:  # noqa: BLE001  (the server gets the message, and stops)
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        failed: Exception | None = None
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            try:
                if opens:
                    await self.gate.close()
            except Exception as error:  # noqa: BLE001  (reported below)
                failed = error
        if failed is None:
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await send({"type": "lifespan.shutdown.failed", "message": type(failed).__name__})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = Response(send, self.write_timeout, head=scope["method"] == "HEAD")
        try:
            try:
                await self._route(scope, receive, response)
            except GateClosed:
                self._not_open.log()
                raise not_open() from None
        except Problem as problem:
            await self._send_problem(response, problem)
        except Disconnected:
            if not response.started:  # the server drops it; middleware may take a missing response for an error
                with suppress(Disconnected):
                    await response.json(CLIENT_GONE, b"")
        except Exception:
            await self._send_problem(response, Problem(500, "internal", "The request failed."))
            raise  # for the server's log

    async def _send_problem(self, response: Response, problem: Problem) -> None:
        try:
            if response.started:
                await response.end()
            else:
                await response.problem(problem)
        except Disconnected:
            return

    async def _route(self, scope: Scope, receive: Receive, response: Response) -> None:
        method, path = scope["method"], path_of(scope)
        if path in {"/health", "/health/ready"}:
            _allow(method, *_READ)
            ready = bool(self.gate.is_open) if path == "/health" else await self._probe.is_ready()
            await response.json(200 if ready else 503, dump({"live": True, "ready": ready}))
            return
        if not self.gate.is_open:
            self._not_open.log()
            raise not_open()
        user = await self._authenticate(scope)
        _, *parts = path.split("/")
        match parts:
            case ["tools"]:
                _allow(method, *_READ)
                await response.json(200, self._tools(scope, user))
            case ["openapi.json"]:
                _allow(method, *_READ)
                body = dump(openapi(self.gate, user, self.challenge, str(scope.get("root_path", ""))))
                await response.json(200, body)
            case ["tools", name] | ["tools", name, "stream"]:
                _allow(method, "POST")
                await self._call_tool(scope, receive, response, user, name, streamed=len(parts) == 3)
            case _:
                raise Problem(404, "not_found", "There is nothing at this path.")

    async def _authenticate(self, scope: Scope) -> User:
        from starlette.requests import Request

        user = await principal(
            self.authenticate, Request(scope)
        )  # without `receive`: ``authenticate`` cannot read the body
        if user is None:
            detail = "Authentication is required." if self.authenticate else "This service has no authentication."
            headers = [] if self.challenge is None else [(b"www-authenticate", self.challenge.encode("latin-1"))]
            raise Problem(401, "unauthenticated", detail, headers=headers)
        return user

    def _tools(self, scope: Scope, user: User) -> bytes:
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, max_num_fields=8)
        except ValueError:
            raise Problem(400, "bad_query", "The query has too many fields.") from None
        wires = query.get("wire", [])
        if not wires:
            return dump({"tools": [listed(definition) for definition in self.gate.definitions(user=user)]})
        if len(wires) > 1 or wires[0] not in codecs():
            raise Problem(400, "unknown_wire", "There is no wire of this name.")
        return dump(self.gate.definitions(wires[0], user=user))

    async def _call_tool(
        self, scope: Scope, receive: Receive, response: Response, user: User, name: str, *, streamed: bool
    ) -> None:
        headers = Headers(scope["headers"])
        request_id = request_id_of(headers)
        response.headers.append((b"x-request-id", request_id.encode()))
        options = options_of(headers, request_id)
        require_json(headers)
        seen = self.gate.may_see(name, user)
        body = await read_body(receive, headers, self._max_body(name if seen else ""), self.read_timeout)
        call = ToolCall(id=request_id, name=name, arguments=as_text(body), synthetic_id=True)
        try:
            if streamed:
                events = self.gate.stream(call, user=user, **options)
                await send_events(events, receive, response, request_id, self.ping)
            else:
                answered = self.gate.call(call, user=user, **options)
                await send_result(await run_until_disconnect(answered, receive), response, request_id)
        except Problem as problem:
            if seen or problem.status == 503:
                raise
            raise Problem(404, UnknownTool.code, UnknownTool.default_public, correlation_id=request_id) from None

    def _max_body(self, name: str) -> int:
        limits = self.gate.registry.get(name).limits if name in self.gate.registry else None
        return int((limits or self.gate.limits).max_bytes)


def application(gate: Gate, authenticate: Authenticate | None = None, **options: Any) -> GateApp:
    """See ``callgate.asgi``.

    Raises:
        RegistrationError: Starlette is not installed.
    """
    require_starlette("callgate.asgi")
    return GateApp(gate, authenticate, **options)


def _allow(method: str, *methods: str) -> None:
    if method in methods:
        return
    allow = [(b"allow", ", ".join(methods).encode())]
    raise Problem(405, "bad_method", "This path does not allow this method.", headers=allow)
