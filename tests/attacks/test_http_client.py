"""A hostile user of a service: session ids that they choose."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Literal

import httpx
import pytest

import callgate
from callgate import (
    Deny,
    Effects,
    Gate,
    Limits,
    Outcome,
    Scoped,
    Sessions,
    Suspensions,
    ToolContext,
    ToolResult,
    User,
    tool,
)
from callgate.errors import NotPending
from callgate.hooks import Audit, Cache, Concurrency, Quota
from callgate.tools.schemas.exact import exact_integers
from callgate.tools.schemas.validation import compile_schema

KEY = "a signing key for tests, long enough"
ANN, EVE = User("ann", "acme"), User("eve", "acme")


@pytest.mark.parametrize(
    ("sessions", "left"),
    [(Sessions(), 1_001), (Sessions(per_user=None), 3_001), (Sessions(maximum=500, per_user=None), 500)],
    ids=["by default", "control without a limit for a user", "control with a limit for all users only"],
)
async def test_a_user_with_random_session_ids_ends_only_their_own_sessions(sessions: Sessions, left: int) -> None:
    opened: list[str] = []

    @tool(effect="read")
    async def visit(ctx: ToolContext) -> int:
        """Use an instance of the session."""
        return len(ctx.get("basket"))

    def basket() -> list[str]:
        opened.append("")
        return opened

    gate = Gate(
        [visit], provide={"basket": Scoped("session", basket)}, sessions=sessions, effects=Effects(durable=False)
    )
    async with gate:
        await gate.invoke("visit", user=ANN, session_id="ann's")
        for number in range(3_000):
            await gate.invoke("visit", user=EVE, session_id=f"random {number}")
        table = gate.providers.sessions
        assert len(table) == left
        assert ("ann's" in table) is (sessions.maximum == 10_000)


@pytest.mark.parametrize("limit", [5, None], ids=["limited", "control without a limit"])
async def test_a_user_has_a_bounded_number_of_calls_that_wait(limit: int | None) -> None:
    """Others are served; an answer makes room, and a repeat of a call that waits already is no further one."""

    @tool(effect="irreversible", requires_approval=True)
    async def pay(to: str) -> str:
        """Pay."""
        return to

    suspensions = Suspensions(max_per_user=limit)
    gate = Gate(
        [pay], allow_unguarded=True, suspensions=suspensions, effects=Effects(durable=False), signing_keys=[KEY]
    )

    async def ask(number: int, user: User = EVE) -> ToolResult:
        return await gate.call("pay", {"to": f"{number}"}, user=user, idempotency_key=f"{number} of {user.id}")

    async with gate:
        first = [await ask(number) for number in range(6)]
        assert [one.outcome for one in first[:5]] == [Outcome.SUSPENDED] * 5
        assert first[5].outcome is (Outcome.SUSPENDED if limit is None else Outcome.RETRY_LATER)
        assert (await ask(0)).outcome is Outcome.SUSPENDED
        assert (await ask(0, ANN)).outcome is Outcome.SUSPENDED
        await gate.resume(first[0].pending.handle, Deny(), approver=ANN)
        assert (await ask(7)).outcome is Outcome.SUSPENDED


def test_by_default_a_thousand_calls_of_a_user_wait_at_most() -> None:
    assert Suspensions().max_per_user == 1_000


@pytest.mark.parametrize("id", ["\ud800", "\0", "x" * 9_000])
async def test_an_id_that_no_database_can_keep_is_that_of_no_call(id: str) -> None:
    async with Gate([], allow_unguarded=True, store="sqlite://", effects=Effects(durable=False)) as gate:
        for look in (gate.outcome(id, user=ANN), gate.job(id, user=ANN).status(), gate.waits.look(id, ANN)):
            with pytest.raises(NotPending):
                await look


@pytest.mark.parametrize("seen", [False, True], ids=["hidden", "control that is seen"])
@pytest.mark.parametrize("path", ["", "/stream"])
@pytest.mark.parametrize("body", ['{"a": 1}', '{"a": "x"}', "{", '{"a": 1}' + " " * 2_000])
async def test_a_hidden_tool_and_an_unknown_one_answer_alike(seen: bool, path: str, body: str) -> None:
    """Status, headers and body; also where the hidden tool has limits of its own. Its call is recorded as denied."""

    @tool(effect="read", allowed_roles={"boss"}, limits=Limits(max_bytes=1_000))
    async def secret(a: int) -> int:
        """For one role."""
        return a

    user = User("eve", roles={"boss"} if seen else set())
    gate = Gate([secret], allow_unguarded=True, effects=Effects(durable=False))
    app = callgate.asgi(gate, authenticate=lambda _: user)
    headers = {"content-type": "application/json", "x-request-id": "r1"}
    async with gate, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        found = [
            await client.post(f"/tools/{name}{path}", content=body, headers=headers) for name in ("secret", "nothing")
        ]
    shown = [(one.status_code, dict(one.headers), one.text) for one in found]
    assert (shown[0] == shown[1]) is not seen
    assert found[1].status_code == 404


HEADERS: dict[str, dict[str, str]] = {
    "none": {},
    "key": {"idempotency-key": "k"},
    "long key": {"idempotency-key": "k" * 300},
    "session": {"session-id": "s"},
    "long session": {"session-id": "s" * 500},
    "another content": {"content-type": "text/plain"},
    "another charset": {"content-type": "application/json; charset=latin-1"},
    "events": {"accept": "text/event-stream"},
    "a picture": {"accept": "image/png"},
    "encoded": {"content-encoding": "gzip"},
    "no length": {"content-length": "abc"},
    "a trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
}
BODIES = [
    '{"a": 1}',
    '{"a": "x"}',
    "{",
    "",
    "[]",
    '{"a": 1, "a": 2}',
    '{"a": ' + "[" * 5_000,
    '{"a": 90071992547409935.0}',
]
PATHS = ["", "/", "/stream", "/schema", "?wire=openai_chat", "%00"]


@pytest.mark.parametrize("seen", [False, True], ids=["hidden", "control that is seen"])
async def test_no_request_tells_a_hidden_tool_from_an_unknown_one(seen: bool) -> None:
    """Tools with keys, approvals, limits and caches of their own, in each method and path."""
    allowed = {"boss"}

    @tool(effect="irreversible", allowed_roles=allowed)
    async def xq_once(a: int) -> int:
        """For one role."""
        return a

    @tool(effect="keyed", key=("a",), allowed_roles=allowed, requires_approval=True)
    async def xq_asked(a: int) -> int:
        """For one role, after approval."""
        return a

    @tool(effect="read", allowed_roles=allowed, hooks=[Cache(60), Concurrency(1), Quota("1/day")], deadline=0.001)
    async def xq_bounded(a: int) -> int:
        """For one role, with limits."""
        return a

    user, tools = User("eve", roles=allowed if seen else set()), [xq_once, xq_asked, xq_bounded]
    gate = Gate(tools, [Audit()], allow_unguarded=True, effects=Effects(durable=False), signing_keys=["k" * 16])
    app = callgate.asgi(gate, authenticate=lambda _: user)
    requests = [("POST", path, body) for path in ("", "/stream") for body in BODIES]
    requests += [(method, path, "") for path in PATHS for method in ("GET", "PUT", "HEAD", "OPTIONS", "DELETE")]
    told = set[tuple[str, str, str, str]]()
    async with gate, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        for header, (method, path, body) in itertools.product(HEADERS, requests):
            headers = {"content-type": "application/json", "x-request-id": "r1", **HEADERS[header]}
            shown = set[str]()
            for name in ("xq_once", "xq_asked", "xq_bounded", "xq_none"):
                one = await client.request(method, f"/tools/{name}{path}", content=body, headers=headers)
                shown.add(f"{one.status_code} {dict(one.headers)} {one.text}".replace(name, "NAME"))
            if len(shown) > 1:
                told.add((header, method, path, body))
    assert bool(told) is seen


@pytest.mark.parametrize("effect", ["irreversible", "read"], ids=["strict", "control that is tolerant"])
async def test_an_integer_that_a_float_has_rounded_is_refused_where_calls_are_strict(
    effect: Literal["irreversible", "read"],
) -> None:
    paid: list[int] = []

    @tool(effect=effect)
    async def pay(cents: int, factor: float = 1.0) -> int:
        """Pay."""
        paid.append(cents)
        return cents

    async with Gate([pay], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        result = await gate.call("pay", '{"cents": 90071992547409935.0}', user=EVE)
        assert (result.outcome is Outcome.INVALID) is (effect == "irreversible")
        assert paid == ([] if effect == "irreversible" else [90071992547409936])
        for exact in ('{"cents": 90071992547409935}', '{"cents": 5.0}', '{"cents": 1, "factor": 1e300}'):
            assert (await gate.call("pay", exact, user=EVE)).ok


def test_a_rounded_integer_is_found_at_any_depth() -> None:
    """A number may be as large, and a value that is invalid for another reason keeps its issues."""
    schema = {"properties": {"a": {"type": "array", "items": {"type": ["integer", "null"]}}, "n": {"type": "number"}}}
    plain = compile_schema(schema)
    strict = exact_integers(plain, schema)
    for value, pointer in (
        ({"a": [1, 9e20]}, "/a/1"),
        ({"a": ["x"], "n": 1e300}, "/a/0"),
        ({"a": [5.0], "n": 1e300}, ""),
    ):
        issues = strict.issues(value, 9)
        assert [one.pointer for one in issues] == ([pointer] if pointer else [])
        if pointer:
            with pytest.raises(Exception, match=r"."):
                strict.check(value)
        else:
            strict.check(value)
    plain.check({"a": [9e20]})
    numbers = {"properties": {"n": {"type": "number"}}}
    without = compile_schema(numbers)
    assert exact_integers(without, numbers) is without  # a schema without integers pays for nothing


def modes_in(folder: Path) -> dict[str, int]:
    """What others than the owner may do with the files of a database."""
    return {file.name: file.stat().st_mode & 0o077 for file in folder.glob("own.db*")}


async def test_the_file_of_a_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    """With the files beside it; the control is a file that SQLite makes itself."""
    made = tmp_path / "own.db"
    async with Gate([], allow_unguarded=True, store=f"sqlite:///{made}", signing_keys=[KEY]):
        modes = modes_in(tmp_path)
    assert "own.db" in modes
    assert set(modes.values()) == {0}
    sqlite3.connect(tmp_path / "control.db").execute("CREATE TABLE t (a)").connection.close()
    assert (tmp_path / "control.db").stat().st_mode & 0o077
