"""``callgate.asgi`` over real sockets: what it serves, to whom, and how it says no."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import callgate
from callgate import Effects, Gate, Hook, InvokeContext, User, tool
from callgate.errors import StoreError
from callgate.runtime.hosts.asgi.problem_details import STATUS, status_of
from callgate.runtime.lifespan import probe
from callgate.tools.calls import ErrorInfo, Outcome, ToolResult
from tests.runtime.gate.making import gate_of, made
from tests.runtime.hosts.making import Desk, who
from tests.runtime.hosts.serving import desk_served, served, until

PROBLEM = "application/problem+json"


async def post(client: httpx.AsyncClient, name: str, arguments: Any, **headers: str) -> httpx.Response:
    return await client.post(
        f"/tools/{name}", json=arguments, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


async def test_arguments_go_in_and_the_output_comes_out() -> None:
    async with desk_served(Desk()) as (_, client):
        said = await post(client, "add", {"a": 40, "b": 2})
    assert (said.status_code, said.json(), said.headers["content-type"]) == (200, 42, "application/json")
    assert said.headers["cache-control"] == "no-store"
    assert len(said.headers["x-request-id"]) == 32


async def test_a_user_is_told_of_the_tools_that_are_theirs_to_see() -> None:
    """Contract I8: and nothing of who else may, in any provider's spelling."""
    async with desk_served(Desk()) as (running, client), running.client("max") as manager:
        mine, theirs = (await client.get("/tools")).json()["tools"], (await manager.get("/tools")).json()["tools"]
        wired = (await client.get("/tools", params={"wire": "openai_chat"})).json()
        unknown = await client.get("/tools", params={"wire": "morse"})
        assert (await client.head("/tools")).content == b""
    names = [found["name"] for found in mine]
    assert (names, [found["name"] for found in theirs]) == ([*names], [*names, "secret"])
    assert "secret" not in names
    assert set(theirs[-1]) == {"name", "description", "parameters", "outputSchema", "effect"}
    assert [found["function"]["name"] for found in wired["tools"]] == names
    assert (unknown.status_code, unknown.json()["code"]) == (400, "unknown_wire")


async def test_headers_set_the_options_of_a_call() -> None:
    """The request's id is the correlation id, and comes back."""
    desk = Desk()
    desk.go.set()
    async with desk_served(desk) as (_, client):
        said = await post(client, "wait", {}, X_Request_ID="req-1", Session_Id="s 1"[:1], Idempotency_Key="once")
        assert said.json() == "done"
        assert said.headers["x-request-id"] == "req-1"
    assert desk.seen[0][:4] == ("ann", "s", "req-1", "once")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Request-ID", "a b"),
        ("X-Request-ID", "x" * 129),
        ("X-Request-ID", ""),
        ("Session-Id", "a b"),
        ("Session-Id", "x" * 129),
        ("Idempotency-Key", "x" * 256),
        ("Idempotency-Key", "ü"),
    ],
)
async def test_a_header_that_is_not_of_its_form_is_refused(header: str, value: str) -> None:
    """These texts end up in logs and in keys of stores."""
    desk = Desk()
    async with desk_served(desk) as (_, client):
        said = await client.post("/tools/add", json={"a": 1}, headers=[(header.encode(), value.encode())])
        twice = await client.post("/tools/add", json={"a": 1}, headers=[(header, "a"), (header, "b")])
    assert (said.status_code, said.json()["code"]) == (400, "bad_header")
    assert twice.status_code == 400
    assert desk.places.taken == 0


async def test_whoever_is_not_known_gets_nothing_but_health() -> None:
    """Authentication comes before all other checks."""
    async with desk_served(Desk()) as (running, _), running.client(None) as nobody, running.client("eve") as eve:
        for client in nobody, eve:
            for method, path in [("GET", "/tools"), ("GET", "/openapi.json"), ("POST", "/tools/add"), ("GET", "/none")]:
                said = await client.request(method, path)
                assert (said.status_code, said.json()["code"]) == (401, "unauthenticated")
                assert said.headers["www-authenticate"] == "Bearer"
            assert (await client.get("/health")).json() == {"live": True, "ready": True}


async def test_without_an_authenticator_everything_is_refused_and_the_start_says_so() -> None:
    """Fail closed."""
    with pytest.warns(RuntimeWarning, match="no authenticate=.* refused with 401") as warned:
        app = callgate.asgi(Desk().gate)
    assert warned[0].filename == __file__
    async with served(app) as running, running.client() as client:
        said = await post(client, "add", {"a": 1})
        assert (said.status_code, (await client.get("/health")).status_code) == (401, 200)


async def test_an_authenticator_may_be_async_and_is_given_headers_without_a_body() -> None:
    """The application never reads without bounds."""
    found: list[str] = []

    async def authenticate(request: Any) -> User | None:
        found.append(request.headers["authorization"])
        with pytest.raises(RuntimeError):
            await request.body()
        return User("bob")

    async with desk_served(Desk(), authenticate=authenticate) as (_, client):
        assert (await post(client, "add", {"a": 1})).json() == 2
    assert found == ["Bearer ann"]


@pytest.mark.parametrize("mistake", ["raises", "another type"])
async def test_an_authenticator_that_fails_lets_nobody_in(mistake: str) -> None:
    """Fail closed, without details of the failure."""

    def authenticate(_: Any) -> Any:
        if mistake == "raises":
            raise OSError("CANARY")
        return {"id": "ann"}

    desk = Desk()
    async with desk_served(desk, authenticate=authenticate) as (_, client):
        said = await post(client, "add", {"a": 1})
    assert (said.status_code, said.json()["code"]) == (500, "internal")
    assert "CANARY" not in said.text
    assert desk.places.taken == 0


@pytest.mark.parametrize(
    ("name", "arguments", "status", "code"),
    [
        ("add", {"a": "CANARY"}, 422, "invalid_arguments"),
        ("add", {"a": 1, "CANARY-b": 2}, 422, "invalid_arguments"),
        ("add", {"a": 1, "b": 99_123_456}, 422, "invalid_arguments"),
        ("none", {"a": "CANARY"}, 404, "unknown_tool"),
        ("secret", {"plan": "CANARY"}, 404, "unknown_tool"),
        ("forbidden", {}, 451, "not_yours"),
        ("busy", {}, 429, "retry_later"),
        ("broken", {}, 500, "error"),
        ("sorry", {"text": "CANARY"}, 500, "cannot"),
    ],
)
async def test_what_goes_wrong_is_told_as_problem_details_without_values(
    name: str, arguments: dict[str, Any], status: int, code: str
) -> None:
    """Contract I8, I9: RFC 9457, the status of the outcome, a code, a correlation id, pointers."""
    desk = Desk()
    async with desk_served(desk) as (_, client):
        said = await post(client, name, arguments, X_Request_ID="req-7")
    told = said.json()
    assert (said.status_code, said.headers["content-type"]) == (status, PROBLEM)
    assert (told["status"], told["type"], told["correlation_id"]) == (status, "about:blank", "req-7")
    assert told["code"] in {code, "tool_failed"}
    for canary in ("99123456", "hunter2", "of the log", "Traceback"):
        assert canary not in said.text
    assert "CANARY" not in said.text.replace("CANARY-b", "")
    if code == "invalid_arguments":
        assert [set(error) for error in told["errors"]] == [{"pointer", "keyword", "detail"}] * len(told["errors"])
        assert told["errors"][0]["pointer"]
    if code == "retry_later":
        assert (said.headers["retry-after"], told["retry_after_ms"]) == ("2", 1500)
    assert desk.places.held == 0


async def test_a_call_that_is_running_is_answered_with_the_time_to_ask_again() -> None:
    """409 ``in_flight``; a conflict, which no repeat mends, has no such time."""
    began, go = asyncio.Event(), asyncio.Event()

    @tool(effect="keyed", key=("order",))
    async def pay(order: str, cents: int) -> int:
        """Pay once."""
        began.set()
        await go.wait()
        return cents

    gate = Gate([pay], allow_unguarded=True, effects=Effects(durable=False, wait=0.0))
    async with served(callgate.asgi(gate, authenticate=who)) as running, running.client() as client:
        first = asyncio.create_task(post(client, "pay", {"order": "A", "cents": 1}))
        await began.wait()
        repeat = await post(client, "pay", {"order": "A", "cents": 1})
        go.set()
        assert (await first).json() == 1
        other = await post(client, "pay", {"order": "A", "cents": 2})
    assert (repeat.status_code, repeat.json()["code"], repeat.headers["retry-after"]) == (409, "in_flight", "1")
    assert repeat.json()["retry_after_ms"] == 1000
    assert (other.status_code, "retry-after" in other.headers) == (409, False)


@pytest.mark.parametrize(
    "body", [b"CANARY", b'{"a": CANARY', b"[1]", b"null", b"\xff\xfe", b'{"a": 1, "a": 2}', b'{"a": NaN}']
)
async def test_a_body_that_is_no_object_of_json_is_refused_without_quoting_it(body: bytes) -> None:
    """Contract 44, I9."""
    async with desk_served(Desk()) as (_, client):
        said = await client.post("/tools/add", content=body, headers={"content-type": "application/json"})
    assert (said.status_code, said.headers["content-type"]) == (422, PROBLEM)
    assert "CANARY" not in said.text


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data", "application/jsonp"]
)
async def test_what_does_not_call_itself_json_is_refused(media: str) -> None:
    """A form on another site's page can send any of these with a user's cookies."""
    desk = Desk()
    async with desk_served(desk) as (_, client):
        said = await client.post("/tools/add", content=b'{"a": 1}', headers={"content-type": media})
        packed = await client.post(
            "/tools/add", content=b"{}", headers={"content-type": "application/json", "content-encoding": "gzip"}
        )
        fine = await client.post(
            "/tools/add", content=b'{"a": 1}', headers={"content-type": "application/vnd.x+json; charset=utf-8"}
        )
    assert (said.status_code, packed.status_code, fine.status_code) == (415, 415, 200)
    assert desk.places.taken == 1


async def test_paths_and_methods_that_are_not_there_are_said_to_be_so() -> None:
    async with desk_served(Desk()) as (_, client):
        for method, path, status, allow in [
            ("GET", "/", 404, None),
            ("GET", "/tools/", 405, "POST"),
            ("POST", "/tools/a/b", 404, None),
            ("POST", "/tools/a/stream/x", 404, None),
            ("GET", "/tools/add", 405, "POST"),
            ("DELETE", "/tools", 405, "GET, HEAD"),
            ("POST", "/health", 405, "GET, HEAD"),
            ("PUT", "/openapi.json", 405, "GET, HEAD"),
        ]:
            said = await client.request(method, path)
            assert (said.status_code, said.headers.get("allow")) == (status, allow), path
            assert said.headers["content-type"] == PROBLEM
        odd = await client.post("/tools/%2e%2e%2f%00%ff", json={})
        assert odd.status_code in {404, 422}


async def test_as_the_main_application_it_opens_and_closes_the_gate() -> None:
    desk = Desk()
    async with desk_served(desk) as (_, client):
        assert desk.gate.is_open
        assert (await client.get("/health")).status_code == 200
    assert not desk.gate.is_open


async def test_a_gate_that_cannot_open_stops_the_server_and_says_why() -> None:
    """The server gets the messages of the ASGI specification."""

    @tool
    async def write(text: str) -> str:
        """Changes the world."""
        return text

    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    gate = Gate([write])
    await callgate.asgi(gate, authenticate=lambda _: None)({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "no hook authorises every call of tool 'write'" in sent[0]["message"]
    assert not gate.is_open


async def test_mounted_it_serves_while_the_application_about_it_holds_the_gate_open() -> None:
    """503 before and after; paths are relative to the mount."""
    desk = Desk()
    inner = callgate.asgi(desk.gate, authenticate=who)

    async with served(Starlette(routes=[Mount("/agent", inner)])) as running, running.client() as client:
        early = [
            await client.get("/agent/tools"),
            await client.get("/agent/health"),
            await client.post("/agent/tools/add"),
        ]
        async with desk.gate:
            added = await client.post("/agent/tools/add", json={"a": 1})
            spec = (await client.get("/agent/openapi.json")).json()
        late = await client.post("/agent/tools/add", json={"a": 1})
    assert [said.status_code for said in (*early, late)] == [503] * 4
    assert (late.json()["code"], early[1].json()) == ("gate_closed", {"live": True, "ready": False})
    assert added.json() == 2
    assert spec["servers"] == [{"url": "/agent"}]


async def test_a_gate_that_was_open_already_is_left_open() -> None:
    desk = Desk()
    async with desk.gate:
        async with desk_served(desk) as (_, client):
            assert (await post(client, "add", {"a": 1})).json() == 2
        assert desk.gate.is_open


async def test_calls_under_way_finish_before_the_server_stops() -> None:
    """Within the server's grace."""
    desk = Desk()
    async with desk_served(desk) as (running, client):
        waiting = asyncio.create_task(post(client, "wait", {}))
        await desk.started.wait()
        stopping = asyncio.create_task(running.stop())
        await until(lambda: running.server.should_exit)
        assert desk.gate.is_open
        desk.go.set()
        assert (await waiting).json() == "done"
        await stopping
    assert (desk.gate.is_open, desk.places.held, desk.cancelled) == (False, 0, 0)


async def test_a_suspended_call_is_accepted_and_its_handle_given() -> None:

    class Ask(Hook):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            ctx.suspend("approval", "CANARY may it?")

    desk = Desk()
    desk.gate.use(Ask())
    async with desk_served(desk) as (_, client):
        for path in "/tools/add", "/tools/add/stream":
            said = await client.post(path, json={"a": 1})
            assert (said.status_code, said.json()["code"]) == (202, "suspended")
            assert "CANARY" not in said.text
            assert set(said.json()) == {"code", "detail", "handle", "correlation_id"}


async def test_an_output_that_breaks_the_contract_is_the_services_fault() -> None:
    """I9, I15: 500, without details."""

    async def odd(n: int) -> Any:
        return {"CANARY": object()}

    gate = gate_of([made(odd)])
    async with served(callgate.asgi(gate, authenticate=lambda _: User("u"))) as running, running.client() as client:
        said = await post(client, "work", {"n": 1})
    assert (said.status_code, "CANARY" in said.text, "errors" in said.json()) == (500, False, False)


def test_every_outcome_has_a_status() -> None:
    assert {*STATUS, Outcome.SUCCESS} == set(Outcome)
    for outcome, status in STATUS.items():
        assert status_of(ToolResult("c", "t", outcome, error=ErrorInfo("x", "y"))) == status
    own = ToolResult("c", "t", Outcome.DENIED, error=ErrorInfo("x", "y", http_status=200))
    assert status_of(own) == 403  # a refusal never looks like a success


def test_the_face_loads_no_web_framework() -> None:
    """Optional packages are imported at their first use."""
    code = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"starlette", "fastapi", "uvicorn", "flask", "werkzeug", "django", "celery"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import callgate
from callgate import Gate, RegistrationError
gate = Gate([])
for use in (callgate.asgi, callgate.bound):
    try:
        use(gate, authenticate=lambda _: None)
    except RegistrationError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        "callgate.asgi needs Starlette: pip install 'callgate[asgi]'",
        "callgate.bound needs Starlette: pip install 'callgate[asgi]'",
    ]


async def test_a_websocket_is_closed() -> None:
    """The application has no web sockets."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await callgate.asgi(Desk().gate, authenticate=who)({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


async def test_readiness_asks_the_store_in_bounded_time_and_liveness_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 34, 6: a service whose database was gone was ready for ever."""
    monkeypatch.setattr(probe, "KEPT", 0.0)
    asked, answers = [0], ["at once", "never", "error", "at once"]

    async def ping() -> None:
        asked[0] += 1
        if (answer := answers[asked[0] - 1]) == "never":
            await asyncio.Event().wait()
        elif answer == "error":
            raise StoreError("gone")

    desk = Desk()
    monkeypatch.setattr(desk.gate.store, "ping", ping, raising=False)
    monkeypatch.setattr(probe, "LIMIT", 0.05)
    async with desk_served(desk) as (running, _), running.client(None) as client:
        found = [(await client.get("/health/ready")).status_code for _ in answers]
        assert found == [200, 503, 503, 200]
        assert (await client.get("/health")).json() == {"live": True, "ready": True}
        assert asked == [4]
        monkeypatch.setattr(probe, "KEPT", 60.0)
        answers.append("at once")
        both = await asyncio.gather(*(client.get("/health/ready") for _ in range(5)))
        assert [one.status_code for one in both] == [200] * 5
        assert asked == [5], "probes share an answer"
