"""The application: it opens the gate at start and closes it at shutdown."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

import callgate
from callgate import Bound, InvocationError
from examples.small_shop.shop import make_gate, who

gate = make_gate()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with gate:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/agent", callgate.asgi(gate, authenticate=who))  # GET /agent/tools, POST /agent/tools/refund, ...

bound = callgate.bound(gate, authenticate=who)  # gives the gate for the user of a request
Tools = Annotated[Bound, Depends(bound)]


@app.get("/orders/{order_id}")
async def order(order_id: str, tools: Tools) -> Any:
    return await tools.invoke("get_order", {"order_id": order_id})


@app.exception_handler(InvocationError)
async def refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvocationError)
    return JSONResponse({"code": error.code, "detail": error.public}, error.http_status)
