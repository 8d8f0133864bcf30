"""``Depends(callgate.bound(gate, ...))``: an endpoint is given the gate of its user."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI

import callgate
from callgate import Gate, InvocationError, RegistrationError, User
from callgate.runtime.gate.bound import Bound
from tests.runtime.gate.making import gate_of
from tests.runtime.hosts.making import Desk, who
from tests.runtime.hosts.serving import served


def application(gate: Gate, bound: Any = None) -> FastAPI:
    bound = bound or callgate.bound(gate, authenticate=who)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with gate:
            yield

    app = FastAPI(lifespan=lifespan)

    async def add(a: int, tools: Annotated[Bound, Depends(bound)]) -> dict[str, Any]:
        try:
            return {"sum": await tools.invoke("add", {"a": a}), "user": tools.user.id}
        except InvocationError as error:
            return {"code": error.code}

    def names(tools: Annotated[Bound, Depends(bound)]) -> list[str]:  # a plain endpoint, in a thread
        return [definition.name for definition in tools.definitions()]

    add.__annotations__["tools"] = names.__annotations__["tools"] = Annotated[Bound, Depends(bound)]
    app.get("/add")(add)
    app.get("/names")(names)
    return app


async def test_an_endpoint_is_given_the_gate_of_its_user() -> None:
    """And nothing of it appears in the endpoint's own OpenAPI."""
    desk = Desk()
    async with (
        served(application(desk.gate)) as running,
        running.client() as ann,
        running.client("max") as manager,
        running.client(None) as nobody,
    ):
        assert (await ann.get("/add", params={"a": 2})).json() == {"sum": 3, "user": "ann"}
        assert (await manager.get("/add", params={"a": 2000})).json() == {"sum": 2001, "user": "max"}
        assert "secret" in (await manager.get("/names")).json()
        assert "secret" not in (await ann.get("/names")).json()
        refused = await nobody.get("/add", params={"a": 2})
        document = (await ann.get("/openapi.json")).json()
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert [parameter["name"] for parameter in document["paths"]["/add"]["get"]["parameters"]] == ["a"]
    assert desk.places.held == 0


async def test_a_request_while_the_gate_is_not_open_is_refused() -> None:
    """It was an error of the server; the other hosts answer 503."""
    app = application(Desk().gate, callgate.bound(Desk().gate, authenticate=who))
    async with served(app) as running, running.client() as ann:
        assert (await ann.get("/add", params={"a": 2})).status_code == 503


def test_a_dependency_that_does_not_know_who_asks_says_so_when_the_application_is_made() -> None:
    """Not at the first request."""
    with pytest.raises(RegistrationError, match="authenticate"):
        callgate.bound(gate_of([]), authenticate=None)


async def test_the_dependency_is_one_object_and_can_be_overridden() -> None:
    """FastAPI looks it up by identity."""
    desk = Desk()
    bound = callgate.bound(desk.gate, authenticate=who)
    app = application(desk.gate, bound)
    app.dependency_overrides[bound] = lambda: Bound(desk.gate, User("test"))
    async with served(app) as running, running.client(None) as nobody:
        assert (await nobody.get("/add", params={"a": 2})).json()["user"] == "test"
