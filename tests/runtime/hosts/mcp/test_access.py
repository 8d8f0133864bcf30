"""Who is served over HTTP, and what is refused before a tool is reached. Each refusal has a control that is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import httpx
from fastapi import FastAPI
from mcp.server.auth.provider import AccessToken

import callgate.mcp
from callgate import User
from callgate.errors import RegistrationError
from callgate.mcp import OAuth
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, Desk, http_client, server_of, text_of, who
from tests.runtime.hosts.serving import Served, served

pytestmark = pytest.mark.timeout(120)
BOTH_ERAS = pytest.mark.parametrize("era", ERAS)
MODE = {"modern": "auto", "handshake": "legacy"}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
WHOAMI = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "whoami", "arguments": {}}}


@contextlib.asynccontextmanager
async def desk_served(**options: Any) -> AsyncGenerator[tuple[Desk, Served, httpx.AsyncClient]]:
    """The desk over HTTP, and a plain client without a token."""
    desk = Desk()
    async with served(server_of(desk.gate(), "http", **options).asgi()) as running, running.client(None) as client:
        client.headers.update(HEADERS)
        yield desk, running, client


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def begun(client: httpx.AsyncClient, name: str) -> str:
    """Begin a session of the older era in a user's name; return its id."""
    response = await client.post("/mcp", json=INITIALIZE, headers=bearer(name))
    assert response.status_code == 200, response.text
    return response.headers["mcp-session-id"]


async def test_a_request_without_a_user_is_refused() -> None:
    """With 401 and the challenge, for each method."""
    async with desk_served() as (_, _, client):
        for method in ("GET", "POST", "DELETE"):
            response = await client.request(method, "/mcp", headers=bearer("nobody"))
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert await begun(client, "ann")


@BOTH_ERAS
async def test_each_request_has_the_user_of_its_own_token(era: str) -> None:
    """Also on one connection: what a client may do does not come from an earlier request."""
    async with desk_served() as (_, running, _):
        for name in ("ann", "lea"):
            async with http_client(running.port, name, mode=MODE[era]) as client:
                assert (await client.call_tool("whoami", {})).structured_content["id"] == name
                shown = {one.name for one in (await client.list_tools()).tools}
                assert ("ledger" in shown) == (name == "lea")


async def test_a_session_is_of_the_user_who_began_it() -> None:
    """Another user's request for it is answered as if it did not exist, also that of a namesake in another tenant."""
    async with desk_served() as (_, _, client):
        session = await begun(client, "ann")
        found: dict[str, int] = {}
        for name in ("eve", "lea", "ann"):
            response = await client.post("/mcp", json=WHOAMI, headers={**bearer(name), "mcp-session-id": session})
            found[name] = response.status_code
        assert found == {"eve": 404, "lea": 404, "ann": 200}
        gone = await client.delete("/mcp", headers={**bearer("eve"), "mcp-session-id": session})
        assert gone.status_code == 404
        again = await client.post("/mcp", json=WHOAMI, headers={**bearer("ann"), "mcp-session-id": session})
        assert again.status_code == 200


async def test_sessions_bodies_and_their_arrival_are_bounded() -> None:
    """A client that opens many sessions, or sends much or slowly, is refused; others are served."""
    async with desk_served(max_sessions=3, max_body=2_000, read_timeout=0.2) as (_, running, client):
        sessions = [await begun(client, "ann") for _ in range(3)]
        assert (await client.post("/mcp", json=INITIALIZE, headers=bearer("ann"))).status_code == 503
        large = {**WHOAMI, "padding": "x" * 2_000}
        of = {**bearer("ann"), "mcp-session-id": sessions[0]}
        assert (await client.post("/mcp", json=large, headers=of)).status_code == 413
        reader, writer = await running.connect()
        head = "POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\nContent-Length: 1000\r\n\r\n{"
        writer.write(head.encode())
        line = await asyncio.wait_for(reader.readline(), 20)
        assert line.split()[1] == b"413"
        writer.close()
        assert (await client.post("/mcp", json=WHOAMI, headers=of)).status_code == 200
        await client.delete("/mcp", headers=of)
        assert await begun(client, "lea")


async def test_a_gate_that_is_not_open_is_not_available() -> None:
    """A mounted application whose lifespan was not entered refuses with 503."""
    desk = Desk()
    app = FastAPI()
    app.mount("/tools", server_of(desk.gate(), "http").asgi("/mcp"))
    async with served(app) as running, running.client("ann") as client:
        assert (await client.post("/tools/mcp", json=INITIALIZE, headers=HEADERS)).status_code == 503


@BOTH_ERAS
async def test_an_application_mounts_it(era: str) -> None:
    """Its lifespan opens and closes the gate."""
    desk = Desk()
    gate = desk.gate()
    mounted = server_of(gate, "http").asgi("/mcp")
    app = FastAPI(lifespan=mounted.lifespan)
    app.mount("/", mounted)
    async with served(app) as running, http_client(running.port, "ann", mode=MODE[era]) as client:
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"
    assert not gate.is_open


@BOTH_ERAS
async def test_an_application_opens_again(era: str) -> None:
    """As the tests of an application do, with one client after another."""
    desk = Desk()
    mounted = server_of(desk.gate(), "http").asgi("/mcp")
    app = FastAPI(lifespan=mounted.lifespan)
    app.mount("/", mounted)
    for number in range(2):
        async with served(app) as running, http_client(running.port, "ann", mode=MODE[era]) as client:
            assert text_of(await client.call_tool("add", {"a": number})) == str(number + 1)
        async with served(mounted) as running, http_client(running.port, "ann", mode=MODE[era]) as client:
            assert text_of(await client.call_tool("add", {"a": number})) == str(number + 1)


async def test_without_authentication_it_serves_its_own_machine_only() -> None:
    """A page of another site that resolves its name to this machine, and another machine, are refused."""
    desk = Desk()
    app = server_of(desk.gate(), "http", authenticate=None, user=PEOPLE["ann"]).asgi()
    async with served(app) as running, running.client(None) as client:
        client.headers.update(HEADERS)
        assert (await client.post("/mcp", json=INITIALIZE)).status_code == 200
        assert (await client.post("/mcp", json=INITIALIZE, headers={"host": "evil.example"})).status_code == 421
        for name in ("x-forwarded-proto", "x-real-ip", "forwarded", "via"):  # a proxy here, whose callers are anywhere
            assert (await client.post("/mcp", json=INITIALIZE, headers={name: "x"})).status_code == 403
        origin = {"origin": "https://evil.example"}
        assert (await client.post("/mcp", json=INITIALIZE, headers=origin)).status_code == 403
        transport = httpx.ASGITransport(app, client=("192.0.2.7", 4000))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=HEADERS) as other:
            assert (await other.post("/mcp", json=INITIALIZE)).status_code == 403
    nobody = server_of(Desk().gate(), "http", authenticate=None).asgi()
    async with served(nobody) as running, running.client(None) as client:
        assert (await client.post("/mcp", json=INITIALIZE, headers=HEADERS)).status_code == 403


# ---------------------------------------------------------------------- OAuth

RESOURCE = "https://tools.example/mcp"


class Tokens:
    """Verifies tokens of the form ``subject/scopes/resource``."""

    async def verify_token(self, token: str) -> AccessToken | None:
        subject, scopes, resource = token.split("|")
        return AccessToken(
            token=token,
            client_id="app",
            scopes=scopes.split(),
            subject=subject,
            resource=resource,
            claims={"iss": "https://login.example", "tenant": "acme", "roles": ["lead"]},
        )


def oauth(**more: Any) -> OAuth:
    roles = {"desk": {"clerk"}, "desk:lead": {"lead"}}
    return OAuth("https://login.example", RESOURCE, Tokens(), scopes=["desk"], roles=roles, **more)


@pytest.mark.parametrize(
    ("token", "status"),
    [
        (f"ann|desk|{RESOURCE}", 200),
        ("ann|desk|https://other.example/mcp", 401),
        (f"ann|mail|{RESOURCE}", 403),
        (None, 401),
    ],
)
async def test_a_token_has_to_be_for_this_server(token: str | None, status: int) -> None:
    """With its audience and its scopes; a refusal names the metadata of the resource."""
    async with desk_served(authenticate=None, oauth=oauth()) as (_, _, client):
        headers = {} if token is None else bearer(token)
        response = await client.post("/mcp", json=INITIALIZE, headers=headers)
        assert response.status_code == status
        if status != 200:
            assert "resource_metadata=" in response.headers["www-authenticate"]
        found = (await client.get("/.well-known/oauth-protected-resource/mcp")).json()
        assert found["authorization_servers"] == ["https://login.example/"]


@BOTH_ERAS
async def test_scopes_map_to_roles_and_claims_are_not_believed(era: str) -> None:
    """The roles of a user are those of the scopes, whatever a claim says; ``user_of`` decides otherwise."""
    async with desk_served(authenticate=None, oauth=oauth()) as (_, running, _):
        for scopes, roles in (("desk", ["clerk"]), ("desk desk:lead", ["clerk", "lead"])):
            async with http_client(running.port, f"ann|{scopes}|{RESOURCE}", mode=MODE[era]) as client:
                found = (await client.call_tool("whoami", {})).structured_content
                assert found == {"id": "ann", "tenant": "acme", "roles": roles}

    def user_of(token: AccessToken) -> User | None:
        return User("lea", roles={"lead"}) if token.subject == "lea" else None

    async with desk_served(authenticate=None, oauth=oauth(user_of=user_of)) as (_, running, plain):
        async with http_client(running.port, f"lea|desk|{RESOURCE}", mode=MODE[era]) as client:
            assert (await client.call_tool("whoami", {})).structured_content["roles"] == ["lead"]
        response = await plain.post("/mcp", json=INITIALIZE, headers=bearer(f"ann|desk|{RESOURCE}"))
        assert response.status_code == 401
        assert "mcp-session-id" not in response.headers


@pytest.mark.parametrize(("tenant", "status"), [("acme", 200), (None, 200), (42, 401), (True, 401), (["acme"], 401)])
async def test_a_tenant_that_is_no_text_is_not_left_out(tenant: object, status: int, monkeypatch: Any) -> None:
    """The users of tenant 42 and of tenant 43 were one user, without a tenant."""
    verify = Tokens.verify_token

    async def claims(self: Tokens, token: str) -> AccessToken | None:
        found = await verify(self, token)
        return None if found is None else found.model_copy(update={"claims": {"tenant": tenant}})

    monkeypatch.setattr(Tokens, "verify_token", claims)
    async with desk_served(authenticate=None, oauth=oauth()) as (_, _, client):
        response = await client.post("/mcp", json=INITIALIZE, headers=bearer(f"ann|desk|{RESOURCE}"))
        assert response.status_code == status


def by_email(token: AccessToken) -> User | None:
    return PEOPLE.get(token.claims["email"]) if token.claims else None


class NoSubjects:
    """Verifies tokens of one client whose users have no subject."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="app", scopes=[], resource=RESOURCE, claims={"email": token})


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_session_is_of_its_user_also_where_tokens_name_the_client_only(method: str) -> None:
    """The SDK compares client, issuer and subject, which all users of a client share here."""
    tokens = OAuth("https://login.example", RESOURCE, NoSubjects(), user_of=by_email)
    async with desk_served(authenticate=None, oauth=tokens) as (_, _, client):
        named = {"mcp-session-id": await begun(client, "ann"), "mcp-protocol-version": "2025-11-25"}
        body = WHOAMI if method == "POST" else None
        response = await client.request(method, "/mcp", json=body, headers={**bearer("eve"), **named})
        assert (response.status_code, response.json()["error"]["message"]) == (404, "Session not found")
        assert (await client.post("/mcp", json=WHOAMI, headers={**bearer("ann"), **named})).status_code == 200


@pytest.mark.parametrize(("way", "status"), [("authenticate", 401), ("oauth", 400)])
async def test_a_request_has_one_credential(way: str, status: int) -> None:
    """Of two, a proxy in front may have checked the other one."""
    options: dict[str, Any] = {} if way == "authenticate" else {"authenticate": None, "oauth": oauth()}
    token = "ann" if way == "authenticate" else f"ann|desk|{RESOURCE}"
    async with desk_served(**options) as (_, _, client):
        own, other = ("authorization", f"Bearer {token}"), ("authorization", "Bearer other")
        for headers, expected in (([own], 200), ([own, other], status), ([other, own], status), ([own, own], status)):
            assert (await client.post("/mcp", json=INITIALIZE, headers=headers)).status_code == expected


@pytest.mark.parametrize("found", [User(""), None], ids=["empty id", "unknown"])
@pytest.mark.parametrize("way", ["authenticate", "oauth"])
async def test_a_user_without_an_id_is_none(way: str, found: User | None) -> None:
    """All callers without the header that the application reads would be one user."""
    options: dict[str, Any] = {
        "authenticate": None if way == "oauth" else lambda _: found,
        "oauth": None if way == "authenticate" else oauth(user_of=lambda _: found),
    }
    async with desk_served(**options) as (_, _, client):
        response = await client.post("/mcp", json=INITIALIZE, headers=bearer(f"ann|desk|{RESOURCE}"))
        assert response.status_code == 401


# ---------------------------------------------------------------------- changes, and what a server refuses


@BOTH_ERAS
async def test_clients_are_told_that_the_tools_have_changed(era: str) -> None:
    """Those of the older era once they have listed them; those of the new era while they listen."""
    desk = Desk()
    server = server_of(desk.gate(), "http")
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        if "list_changed" in str(getattr(message, "method", "")):
            told.set()

    async with (
        served(server.asgi()) as running,
        http_client(running.port, "ann", mode=MODE[era], message_handler=hear) as client,
    ):
        await client.list_tools()
        if era == "modern":
            async with client.listen(tools_list_changed=True) as events:
                await server.tools_changed()
                assert await asyncio.wait_for(anext(aiter(events)), 20)
            return
        for _ in range(200):  # the stream of a session opens beside its first request
            await server.tools_changed()
            if told.is_set():
                break
            await asyncio.sleep(0.01)
        assert told.is_set()


async def later(_: AccessToken) -> User | None:
    return None


def test_what_cannot_be_served_is_refused_at_once() -> None:
    """Two ways to find the user, one that would be awaited, and limits that are no limits."""
    with pytest.raises(RegistrationError, match="user_of is not async"):
        oauth(user_of=later)
    gate = Desk().gate()
    cases: list[dict[str, Any]] = [
        {"authenticate": who, "oauth": oauth()},
        {"page": 0},
        {"max_body": 0},
        {"read_timeout": -1},
        {"max_sessions": 0},
    ]
    for wrong in cases:
        with pytest.raises(RegistrationError):
            callgate.mcp.server(gate, **wrong)
