"""The page: plain forms, rendered on the server; with JavaScript, htmx saves the reload."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callgate import Approve, Decision, Deny, Edit, InvocationError, ToolResult
from examples.approval_desk.desk import PEOPLE, REASONS, Desk, Person, euros

HERE = Path(__file__).parent
MAX_BODY = 16_384
LONGEST = 9
"""Maximum digits of a number in a form; a longer one goes to the gate as text."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
Handler = Callable[[Request, Desk, Person, dict[str, str]], Awaitable[None]]


class Headers:
    """Middleware that adds ``HEADERS`` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


def application(folder: Path, keys: Sequence[str]) -> Starlette:
    """Make the web application of the desk, with its data in *folder*."""
    desk = Desk(folder, keys)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Any], None]:
        async with desk.opened():
            yield {"desk": desk}

    cookie_key = hashlib.sha256(f"cookies {keys[0]}".encode()).hexdigest()
    return Starlette(
        routes=[
            Route("/", page),
            Route("/news", news),
            Route("/sign-in", sign_in, methods=["POST"]),
            Route("/sign-out", sign_out, methods=["POST"]),
            Route("/refunds", form(ask), methods=["POST"]),
            Route("/decisions", form(decide), methods=["POST"]),
            Route("/withdrawals", form(withdraw), methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[
            Middleware(Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"]),
            # With TLS, add https_only=True.
            Middleware(
                SessionMiddleware, secret_key=cookie_key, session_cookie="desk", same_site="strict", max_age=28_800
            ),
        ],
        lifespan=lifespan,
    )


# ---------------------------------------------------------------------- pages


def moment(seconds: float) -> str:
    """Format a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


templates = Jinja2Templates(directory=HERE / "templates")
templates.env.filters |= {"euros": euros, "moment": moment}


async def page(request: Request) -> Response:
    """Show the sign-in page, or the desk to a signed-in person."""
    session, person = request.session, signed_in(request)
    session.setdefault("csrf", secrets.token_urlsafe(24))
    shown: dict[str, Any] = {"csrf": session["csrf"], "flash": session.pop("flash", None), "person": person}
    if person is None:
        return templates.TemplateResponse(request, "sign_in.html", {**shown, "people": PEOPLE.values()})
    desk: Desk = request.state.desk
    waiting = await desk.waiting(person)
    shown |= {
        "orders": desk.orders(person),
        "reasons": REASONS,
        "waiting": [(one, await desk.order_of(person, one) if person.decides else "") for one in waiting],
        "record": await desk.record(person),
        "seen": fingerprint(waiting),
        "number": len(waiting),
        "changed": False,
    }
    return templates.TemplateResponse(request, "desk.html", shown)


async def news(request: Request) -> Response:
    """Answer a polling page: whether its content is still current."""
    person = signed_in(request)
    if person is None:
        return PlainTextResponse("You are signed out.", 401)
    waiting = await request.state.desk.waiting(person)
    changed = request.query_params.get("seen") != fingerprint(waiting)
    return templates.TemplateResponse(request, "news.html", {"number": len(waiting), "changed": changed})


def fingerprint(waiting: Sequence[Any]) -> str:
    """Return a digest of a list of pending calls, to detect changes."""
    return hashlib.sha256("\n".join(one.handle for one in waiting).encode()).hexdigest()[:16]


# ---------------------------------------------------------------------- who


def signed_in(request: Request) -> Person | None:
    """Return the person of this session. There is no authentication here: a service authenticates at this point."""
    return PEOPLE.get(request.session.get("user", ""))


async def sign_in(request: Request) -> Response:
    """Sign in as the chosen person."""
    fields = await genuine(request)
    if fields is None:
        return refused(request)
    request.session.clear()  # a new session keeps no data of the old one
    request.session.update(user=fields.get("person", ""), csrf=secrets.token_urlsafe(24))
    person = signed_in(request)
    if person is not None:
        tell(request, f"You are {person.name} now.")
    return RedirectResponse("/", 303)


async def sign_out(request: Request) -> Response:
    """Sign out."""
    if await genuine(request) is None:
        return refused(request)
    request.session.clear()
    return RedirectResponse("/", 303)


async def genuine(request: Request) -> dict[str, str] | None:
    """Return the fields of a form with this session's token (CSRF protection); None for any other form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    fields = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))
    given, expected = fields.get("csrf", ""), request.session.get("csrf", "")
    same = secrets.compare_digest(given.encode(), expected.encode())
    return fields if expected and same else None


def refused(request: Request) -> Response:
    return templates.TemplateResponse(request, "refused.html", {"person": None}, 403)


# ---------------------------------------------------------------------- what is done


def form(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Handle a form of a signed-in person; the next page shows the outcome."""

    async def handle(request: Request) -> Response:
        person, fields = signed_in(request), await genuine(request)
        if person is None or fields is None:
            return refused(request)
        try:
            await handler(request, request.state.desk, person, fields)
        except InvocationError as error:
            tell(request, error.public, good=False)
        return RedirectResponse("/", 303)

    return handle


def tell(request: Request, text: str, *, good: bool = True) -> None:
    request.session["flash"] = {"text": text[:500], "good": good}


async def ask(request: Request, desk: Desk, person: Person, fields: dict[str, str]) -> None:
    """Request a refund."""
    result, waits = await desk.ask(person, f"form_{secrets.token_hex(8)}", arguments(fields))
    if waits is None:
        tell_result(request, result)
    else:
        tell(request, f"It waits for a lead: {waits.text}")


async def decide(request: Request, desk: Desk, person: Person, fields: dict[str, str]) -> None:
    """Approve, deny, or approve with changed arguments."""
    decision: Decision
    match fields.get("decision"):
        case "approve":
            decision = Approve()
        case "edit":
            decision = Edit(arguments(fields))
        case _:  # any other value means the safe decision
            why = fields.get("why", "").strip()[:200] or "no reason was given"
            decision = Deny(f"{person.user.id}: {why}", public=f"{person.name} has declined: {why}")
    tell_result(request, await desk.decide(person, fields.get("handle", ""), decision))


async def withdraw(request: Request, desk: Desk, person: Person, fields: dict[str, str]) -> None:
    """Withdraw a request."""
    await desk.withdraw(person, fields.get("handle", ""))
    tell(request, "It is withdrawn.")


def arguments(fields: dict[str, str]) -> dict[str, Any]:
    """Return the arguments as typed; the gate validates them."""
    cents = fields.get("cents", "")
    number: Any = int(cents) if cents.isascii() and cents.isdigit() and len(cents) <= LONGEST else cents
    return {"order_id": fields.get("order_id", ""), "cents": number, "reason": fields.get("reason", "")}


def tell_result(request: Request, result: ToolResult) -> None:
    if result.error is not None:
        tell(request, result.error.public, good=False)
    else:
        again = "It ran before; this is its receipt: " if result.replayed else "It ran: "
        tell(request, again + str(result.output.get("status", result.output)))
