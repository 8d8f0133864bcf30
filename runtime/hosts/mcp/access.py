"""The user of each request, and what is refused before the SDK reads it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST
from starlette.requests import Request
from starlette.responses import JSONResponse

from callgate.providers.http.bounded import MAX_MEMORY, BodyRefused, NotUtf8, longest
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.http_requests import Authenticate, has_two_credentials, known_user, principal, read_bounded
from callgate.runtime.hosts.mcp.oauth import OAuth
from callgate.runtime.models.wire.message_memory import SMALL, parse_bounded
from callgate.tools.arguments.exact_json import what_is_lost
from callgate.tools.calls import User

USER = "callgate.user"
"""The key of the user in the ASGI scope of a request."""
LOCAL_HOSTS = ("127.0.0.1:*", "localhost:*", "[::1]:*", "127.0.0.1", "localhost", "[::1]")
_OF_PROXIES = (b"forwarded", b"x-real-ip", b"via")
"""Headers that a proxy adds, beside those that begin with ``x-forwarded-``."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Access:
    """Finds the user of a request: by *authenticate*, by a token, or the configured one."""

    def __init__(
        self,
        gate: Gate,
        user: User | None,
        authenticate: Authenticate | None,
        oauth: OAuth | None,
        challenge: str | None,
        allowed_hosts: Collection[str] | None,
        max_body: int,
        read_timeout: float,
    ) -> None:
        self.gate = gate
        self.user, self.authenticate, self.oauth = user, authenticate, oauth
        self.challenge, self.allowed_hosts = challenge, tuple(allowed_hosts or ())
        self.max_body, self.read_timeout = min(max_body, longest(MAX_MEMORY)), read_timeout

    @property
    def is_local(self) -> bool:
        """True if every request has the configured user."""
        return self.authenticate is None and self.oauth is None

    def user_of(self, ctx: ServerRequestContext) -> User:
        """Return the user of a request.

        Raises:
            MCPError: it has none.
        """
        found = self.user if ctx.request is None else self.user_in(ctx.request.scope)
        if found is None:
            raise MCPError(INVALID_REQUEST, "Authentication is required.")
        return found

    def user_in(self, scope: Message) -> User | None:
        """Return the user of an HTTP request; None if it has shown none."""
        if self.is_local:
            return self.user
        if self.oauth is not None:
            return self._of_token(self.oauth, scope.get("user"))
        found: User | None = scope.get(USER)
        return found

    @staticmethod
    def _of_token(oauth: OAuth, caller: object) -> User | None:
        if not isinstance(caller, AuthenticatedUser):
            return None
        token = caller.access_token
        if oauth.user_of is not None:
            return known_user(oauth.user_of(token), "OAuth.user_of")
        tenant = (token.claims or {}).get("tenant")
        if not isinstance(tenant, str | None):  # without it, people of several tenants would be one user
            return None
        roles: Iterable[str] = (role for scope in token.scopes for role in oauth.roles.get(scope, ()))
        return known_user(User(token.subject or token.client_id, tenant, set(roles), set(token.scopes)), "OAuth")

    # ------------------------------------------------------------------ HTTP

    def sdk_options(self) -> dict[str, Any]:
        """Return the options of the SDK's application for tokens and hosts."""
        hosts = list(self.allowed_hosts or (LOCAL_HOSTS if self.is_local else ()))
        schemes = ("http://", "https://")
        options: dict[str, Any] = {
            "max_request_body_size": self.max_body,
            "transport_security": TransportSecuritySettings(
                enable_dns_rebinding_protection=bool(hosts),
                allowed_hosts=hosts,
                allowed_origins=[scheme + host for host in hosts for scheme in schemes],
            ),
        }
        if self.oauth is not None:
            from pydantic import AnyHttpUrl

            options["token_verifier"] = self.oauth.verifier
            options["auth"] = AuthSettings(
                issuer_url=AnyHttpUrl(self.oauth.issuer),
                resource_server_url=AnyHttpUrl(self.oauth.resource),
                required_scopes=list(self.oauth.scopes),
                validate_token_resource=True,
            )
        return options

    def guarded(self, app: App) -> App:
        """Wrap the SDK's endpoint: a request needs a user, and a body that arrives in time."""
        if self.authenticate is not None:
            app = AuthContextMiddleware(app)

        async def serve(scope: Message, receive: Receive, send: Send) -> None:
            refusal = await self._refusal(scope)
            if refusal is None and scope["method"] == "POST":
                body = await self._body(receive)
                if isinstance(body, bytes):
                    receive = with_body(body, receive)
                else:
                    refusal = body
            await (app if refusal is None else refusal)(scope, receive, send)

        return serve

    async def _refusal(self, scope: Message) -> JSONResponse | None:
        """Return the response that refuses a request; else note its user."""
        if self.is_local and (self.user is None or not _is_from_here(scope)):
            return JSONResponse({"detail": "This service has no authentication: it serves its own machine only."}, 403)
        if self.oauth is not None and has_two_credentials(scope["headers"]):
            return JSONResponse({"detail": "The header Authorization is repeated."}, 400)
        if self.authenticate is None:
            return None
        user = await principal(self.authenticate, Request(scope))  # ``authenticate`` cannot read the body
        if user is None:
            headers = {} if self.challenge is None else {"www-authenticate": self.challenge}
            return JSONResponse({"detail": "Authentication is required."}, 401, headers)
        scope[USER] = user
        # the SDK binds a session to this identity: another user's request for it is answered with 404
        owner = json.dumps([user.tenant, user.id])
        token = AccessToken(token="", client_id=owner, scopes=[], subject=user.id)
        scope["user"] = AuthenticatedUser(token)
        return None

    async def _body(self, receive: Receive) -> bytes | JSONResponse:
        """Read the body; return a refusal if it exceeds a limit, or the client has gone."""
        try:
            body = await read_bounded(receive, self.max_body, self.read_timeout)
            if body is not None:
                if len(body) > SMALL:
                    parse_bounded(body)
                if (lost := what_is_lost(body)) is not None:
                    return JSONResponse({"detail": lost}, 400)
                return body
        except (ValueError, NotUtf8):
            return JSONResponse({"detail": "The body is not JSON."}, 400, {"connection": "close"})
        except (BodyRefused, TimeoutError):
            pass
        text = f"A request has at most {self.max_body} bytes, few values, and arrives within {self.read_timeout:g} s."
        return JSONResponse({"detail": text}, 413, {"connection": "close"})


def _is_from_here(scope: Message) -> bool:
    """Return True for a client on this machine, and for one without an address, as over a Unix socket.

    A proxy on this machine has such an address, too, and its callers may be anywhere.
    """
    client = scope.get("client")
    if any(name in _OF_PROXIES or name.startswith(b"x-forwarded-") for name, _ in scope["headers"]):
        return False
    try:
        return client is None or ip_address(client[0]).is_loopback
    except ValueError:
        return False


def with_body(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body once, and then what the server gives."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
