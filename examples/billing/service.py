"""The gate, and the FastAPI application around it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from callgate import Bound, Gate, InvocationError, User, asgi, bound
from callgate.hooks import Audit, Authorize, Tracing, permit
from callgate.jobs import EmbeddedJobs
from examples.billing.database import Billing
from examples.billing.tools import Found, Level, find_invoices, refund_invoice, send_reminder

TOKENS = {"token-of-ann": User("ann", "acme", roles={"clerk"}), "token-of-lea": User("lea", "acme", roles={"lead"})}


def who(request: Any) -> User | None:  # a service verifies tokens of its identity provider instead
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return TOKENS.get(token) if scheme == "Bearer" else None


def make_gate(database: str, signing_keys: Sequence[str], *, workers: int = 4, tracer_provider: Any = None) -> Gate:
    """Make the gate of one process, which runs up to *workers* jobs at a time."""
    return Gate(
        [find_invoices, refund_invoice, send_reminder],
        [Authorize(permit("staff", tags={"billing"}, roles={"clerk", "lead"})), Audit(), Tracing(tracer_provider)],
        container=Billing(config={"database": database}),
        store=database,  # the ledger, approvals, jobs and the audit log are in the database of the invoices
        signing_keys=signing_keys,
        jobs=EmbeddedJobs(workers),
    )


def make_app(gate: Gate) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with gate:  # opened at start, closed at shutdown
            yield

    app = FastAPI(title="Billing", lifespan=lifespan)
    app.mount("/agent", asgi(gate, authenticate=who))  # every tool: POST /agent/tools/refund_invoice, ...
    of_user = Depends(bound(gate, authenticate=who))  # gives the gate for the user of the request

    @app.get("/")
    async def start() -> dict[str, str]:
        return {"invoices": "/invoices", "approvals": "/approvals", "tools": "/agent/tools", "documentation": "/docs"}

    @app.get("/invoices")
    async def invoices(customer: str | None = None, tools: Bound = of_user) -> list[Found]:
        return await tools.invoke(find_invoices, {"customer": customer})

    @app.post("/invoices/{invoice_id}/reminders/{level}", status_code=202)
    async def remind(invoice_id: str, level: Level, tools: Bound = of_user) -> dict[str, str]:
        job = await tools.submit(send_reminder, {"invoice_id": invoice_id, "level": level}, key=f"{invoice_id}-{level}")
        return {"job": f"/jobs/{job.id}"}

    @app.get("/jobs/{id}")
    async def job(id: str, tools: Bound = of_user) -> dict[str, Any]:
        status = await tools.job(id).status()
        return {"state": status.state, "reason": status.reason}

    @app.get("/approvals")
    async def approvals(tools: Bound = of_user) -> list[dict[str, str]]:
        pending = await gate.waits.pending(tools.user)
        return [{"handle": one.handle, "call": one.text, "requested_by": one.requested_by} for one in pending]

    @app.post("/approvals/{handle}")
    async def decide(handle: str, decision: Literal["approve", "deny"], tools: Bound = of_user) -> dict[str, Any]:
        return dict((await tools.resume(handle, decision)).to_status())

    @app.exception_handler(InvocationError)
    async def refused(_: Request, error: InvocationError) -> JSONResponse:
        return JSONResponse({"code": error.code, "detail": error.public}, error.http_status)

    return app
