"""``callgate.asgi``: tools over HTTP.

======= ======================== ==========================================================================
GET     /tools                   the definitions that this user may see; ``?wire=openai_chat`` in its spelling
POST    /tools/{name}            JSON arguments in, the tool's JSON output out
POST    /tools/{name}/stream     the same, as server-sent events: ``progress``, ``partial``, ``result``
GET     /health                  whether the gate is open; asks for no user
GET     /openapi.json            all of this for this user, as OpenAPI 3.1
======= ======================== ==========================================================================
"""

from __future__ import annotations

import warnings
from typing import Any
from urllib.parse import parse_qs

from callgate.errors import GateClosed
from callgate.runtime.faces.principal import Authenticate, principal
from callgate.runtime.hosts.asgi.dependency import require_starlette
from callgate.runtime.hosts.asgi.problem_details import Disconnected, Problem, closed
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
from callgate.runtime.hosts.asgi.response import Reply, send_events, send_result, until_gone
from callgate.runtime.hosts.asgi.spec import listed, openapi
from callgate.runtime.models import codecs
from callgate.tools.calls import ToolCall, User
from callgate.tools.values import dump

READ_TIMEOUT = 10.0
"""Seconds in which a body must have arrived."""
WRITE_TIMEOUT = 30.0
"""Seconds in which a client must take each part of an answer; one that does not counts as gone."""
PING = 15.0
"""Seconds without an event after which a stream says that it is still there."""

_READ = ("GET", "HEAD")
_NOBODY = "callgate.asgi: no authenticate=, here or on the Gate, so every request but /health is refused with 401"


class GateApp:
    """The ASGI application of one gate; ``callgate.asgi`` makes it.

    As the main application it opens the gate at startup and closes it at shutdown. Mounted under another one, that one
    opens the gate; until it does, and after, every answer is 503.
    """

    def __init__(
        self,
        gate: Any,
        authenticate: Authenticate | None = None,
        *,
        challenge: str | None = "Bearer",
        read_timeout: float = READ_TIMEOUT,
        write_timeout: float = WRITE_TIMEOUT,
        ping: float = PING,
    ) -> None:
        self.gate = gate
        self.authenticate = authenticate or gate.authenticate
        self.challenge = challenge
        self.read_timeout = read_timeout
        self.write_timeout = write_timeout
        self.ping = ping
        if self.authenticate is None:
            warnings.warn(_NOBODY, RuntimeWarning, stacklevel=4)

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
                await self.gate.__aenter__()
        except Exception as error:  # noqa: BLE001  (the server is told, and stops)
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        failed: Exception | None = None
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            try:
                if opens:
                    await self.gate.__aexit__(None, None, None)
            except Exception as error:  # noqa: BLE001  (told below)
                failed = error
        if failed is None:
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await send({"type": "lifespan.shutdown.failed", "message": type(failed).__name__})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send, self.write_timeout, head=scope["method"] == "HEAD")
        try:
            try:
                await self._route(scope, receive, reply)
            except GateClosed:
                raise closed() from None
        except Problem as problem:
            await self._tell(reply, problem)
        except Disconnected:
            return
        except Exception:
            await self._tell(reply, Problem(500, "internal", "The request failed."))
            raise  # for the server's log

    async def _tell(self, reply: Reply, problem: Problem) -> None:
        try:
            if reply.started:
                await reply.end()
            else:
                await reply.problem(problem)
        except Disconnected:
            return

    async def _route(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        method, path = scope["method"], path_of(scope)
        if path == "/health":
            _allow(method, *_READ)
            ready = bool(self.gate.is_open)
            await reply.json(200 if ready else 503, dump({"live": True, "ready": ready}))
            return
        if not self.gate.is_open:
            raise closed()
        user = await self._user(scope)
        _, *parts = path.split("/")
        match parts:
            case ["tools"]:
                _allow(method, *_READ)
                await reply.json(200, self._tools(scope, user))
            case ["openapi.json"]:
                _allow(method, *_READ)
                body = dump(openapi(self.gate, user, self.challenge, str(scope.get("root_path", ""))))
                await reply.json(200, body)
            case ["tools", name] | ["tools", name, "stream"]:
                _allow(method, "POST")
                await self._call(scope, receive, reply, user, name, streamed=len(parts) == 3)
            case _:
                raise Problem(404, "not_found", "There is nothing at this path.")

    async def _user(self, scope: Scope) -> User:
        from starlette.requests import Request

        user = await principal(self.authenticate, Request(scope))  # without `receive`: the body is not theirs to read
        if user is None:
            detail = "Who asks is not known." if self.authenticate else "This service is not set up to know who asks."
            headers = [] if self.challenge is None else [(b"www-authenticate", self.challenge.encode("latin-1"))]
            raise Problem(401, "unauthenticated", detail, headers=headers)
        return user

    def _tools(self, scope: Scope, user: User) -> bytes:
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, max_num_fields=8)
        except ValueError:
            raise Problem(400, "bad_query", "The query has too many fields.") from None
        asked = query.get("wire", [])
        if not asked:
            return dump({"tools": [listed(definition) for definition in self.gate.definitions(user=user)]})
        if len(asked) > 1 or asked[0] not in codecs():
            raise Problem(400, "unknown_wire", "There is no wire of that name.")
        return dump(self.gate.definitions(asked[0], user=user))

    async def _call(
        self, scope: Scope, receive: Receive, reply: Reply, user: User, name: str, *, streamed: bool
    ) -> None:
        headers = Headers(scope["headers"])
        request_id = request_id_of(headers)
        reply.headers.append((b"x-request-id", request_id.encode()))
        options = options_of(headers, request_id)
        require_json(headers)
        body = await read_body(receive, headers, self._most(name), self.read_timeout)
        call = ToolCall(request_id, name, as_text(body), synthetic_id=True)
        if streamed:
            await send_events(self.gate.stream(call, user=user, **options), receive, reply, request_id, self.ping)
        else:
            await send_result(await until_gone(self.gate.call(call, user=user, **options), receive), reply, request_id)

    def _most(self, name: str) -> int:
        record = self.gate._record_of(name)
        limits = None if record is None else record.limits
        return int((limits or self.gate._engine.limits).max_bytes)


def application(gate: Any, authenticate: Authenticate | None = None, **options: Any) -> GateApp:
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
    raise Problem(405, "bad_method", "This path does not take that method.", headers=allow)
