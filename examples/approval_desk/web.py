"""The page: plain forms on the server's side; htmx, where JavaScript runs, only saves the reload."""

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
"""Digits of a number in a form; what is longer goes to the gate as the text that it is."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
Handler = Callable[[Request, Desk, Person, dict[str, str]], Awaitable[None]]


class Headers:
    """Puts ``HEADERS`` on every answer."""

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
    """The page of the desk that keeps everything in *folder*."""
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
            # Served over TLS, it is https_only=True as well.
            Middleware(
                SessionMiddleware, secret_key=cookie_key, session_cookie="desk", same_site="strict", max_age=28_800
            ),
        ],
        lifespan=lifespan,
    )


# ---------------------------------------------------------------------- what is shown


def moment(seconds: float) -> str:
    """A time as machines read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


templates = Jinja2Templates(directory=HERE / "templates")
templates.env.filters |= {"euros": euros, "moment": moment}


async def page(request: Request) -> Response:
    """Who are you? And then the desk."""
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
    """For a page that asks again and again: whether what it shows is still so."""
    person = signed_in(request)
    if person is None:
        return PlainTextResponse("You are signed out.", 401)
    waiting = await request.state.desk.waiting(person)
    changed = request.query_params.get("seen") != fingerprint(waiting)
    return templates.TemplateResponse(request, "news.html", {"number": len(waiting), "changed": changed})


def fingerprint(waiting: Sequence[Any]) -> str:
    """Tells one list of waiting calls from another."""
    return hashlib.sha256("\n".join(one.handle for one in waiting).encode()).hexdigest()[:16]


# ---------------------------------------------------------------------- who


def signed_in(request: Request) -> Person | None:
    """The person of this session. A page where anybody may be anybody: your service authenticates here."""
    return PEOPLE.get(request.session.get("user", ""))


async def sign_in(request: Request) -> Response:
    """Be somebody."""
    fields = await genuine(request)
    if fields is None:
        return refused(request)
    request.session.clear()  # a new session: nothing of the old one is carried over
    request.session.update(user=fields.get("person", ""), csrf=secrets.token_urlsafe(24))
    person = signed_in(request)
    if person is not None:
        tell(request, f"You are {person.name} now.")
    return RedirectResponse("/", 303)


async def sign_out(request: Request) -> Response:
    """Be nobody again."""
    if await genuine(request) is None:
        return refused(request)
    request.session.clear()
    return RedirectResponse("/", 303)


async def genuine(request: Request) -> dict[str, str] | None:
    """The fields of a form, if it is one that we gave to this session; None for any other."""
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
    """A form of somebody who is signed in; what comes of it is told on the page that follows."""

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
    """Ask for a refund."""
    result, waits = await desk.ask(person, f"form_{secrets.token_hex(8)}", arguments(fields))
    if waits is None:
        tell_result(request, result)
    else:
        tell(request, f"It waits for a lead: {waits.text}")


async def decide(request: Request, desk: Desk, person: Person, fields: dict[str, str]) -> None:
    """Approve, decline, or let something else run."""
    decision: Decision
    match fields.get("decision"):
        case "approve":
            decision = Approve()
        case "edit":
            decision = Edit(arguments(fields))
        case _:  # whatever a form may say, this is the harmless one
            why = fields.get("why", "").strip()[:200] or "no reason was given"
            decision = Deny(f"{person.user.id}: {why}", public=f"{person.name} has declined: {why}")
    tell_result(request, await desk.decide(person, fields.get("handle", ""), decision))


async def withdraw(request: Request, desk: Desk, person: Person, fields: dict[str, str]) -> None:
    """Take a request back."""
    await desk.withdraw(person, fields.get("handle", ""))
    tell(request, "It is withdrawn.")


def arguments(fields: dict[str, str]) -> dict[str, Any]:
    """The arguments as they were typed: whether they are any good is for the gate to say."""
    cents = fields.get("cents", "")
    number: Any = int(cents) if cents.isascii() and cents.isdigit() and len(cents) <= LONGEST else cents
    return {"order_id": fields.get("order_id", ""), "cents": number, "reason": fields.get("reason", "")}


def tell_result(request: Request, result: ToolResult) -> None:
    if result.error is not None:
        tell(request, result.error.public, good=False)
    else:
        again = "It ran before; this is its receipt: " if result.replayed else "It ran: "
        tell(request, again + str(result.output.get("status", result.output)))
