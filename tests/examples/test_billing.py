"""The billing service: a refund takes place once, a lead approves a large refund, and a worker sends a reminder."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import delete, event, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from callgate import Effects, Gate, User
from examples.billing.database import Billing, Invoice, Mail, connect
from examples.billing.service import TOKENS, make_app, make_gate
from examples.billing.tools import find_invoices, refund_invoice, send_reminder
from tests.examples.running import ROOT
from tests.providers.stores.backends import place
from tests.runtime.hosts.serving import served
from tests.runtime.hosts.test_services import free_port, process

ANN = TOKENS["token-of-ann"]
KEY = "a key for tests that has enough characters"
SMALL = {"invoice_id": "I-1001", "cents": 100}
LARGE = {"invoice_id": "I-1002", "cents": 20_000}


@pytest.fixture(params=["sqlite-file", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (address, _):
        yield address


@pytest.fixture
async def sessions(database: str) -> AsyncGenerator[async_sessionmaker[AsyncSession]]:
    """Sessions of the test itself on the database of the service."""
    async with asynccontextmanager(connect)(database) as engine:
        yield async_sessionmaker(engine)


Sessions = async_sessionmaker[AsyncSession]


async def refunded(sessions: Sessions, id: str = "I-1001") -> int | None:
    async with sessions() as session:
        return await session.scalar(select(Invoice.refunded).where(Invoice.id == id))


async def mails(sessions: Sessions) -> list[str]:
    async with sessions() as session:
        return list(await session.scalars(select(Mail.text)))


async def test_a_refund_that_is_asked_for_twice_takes_place_once(database: str, sessions: Sessions) -> None:
    """At the same time, one after the other, and in another process; other arguments are a conflict."""
    async with make_gate(database, [KEY]) as gate, make_gate(database, [KEY]) as other:
        both = await asyncio.gather(*(one.call(refund_invoice, SMALL, user=ANN) for one in (gate, other)))
        results = [*both, await gate.call(refund_invoice, SMALL, user=ANN)]
        changed = await other.call(refund_invoice, {**SMALL, "cents": 200}, user=ANN)
    assert [result.output for result in results] == ["100 cents of I-1001 are refunded"] * 3
    assert (sorted(result.replayed for result in results), changed.outcome) == ([False, True, True], "conflict")
    assert await refunded(sessions) == 100


async def test_the_control_without_the_shared_ledger_the_refund_takes_place_twice(
    database: str, sessions: Sessions
) -> None:
    for _ in range(2):
        tools = [find_invoices, refund_invoice, send_reminder]
        container = Billing(config={"database": database})
        async with Gate(
            tools, container=container, effects=Effects(durable=False), signing_keys=[KEY], allow_unguarded=True
        ) as alone:
            await alone.invoke(refund_invoice, SMALL, user=ANN)
    assert await refunded(sessions) == 200


class FullDisk(Session):
    """A session that cannot commit."""


@event.listens_for(FullDisk, "before_commit")
def fail(_: Session) -> None:
    raise OSError("the disk is full")


async def test_a_refund_whose_commit_fails_did_not_take_place_and_can_be_asked_for_again(
    database: str, sessions: Sessions
) -> None:
    broken = async_sessionmaker(sessions.kw["bind"], sync_session_class=FullDisk)
    async with make_gate(database, [KEY]) as gate:
        with gate.override({Billing.sessions: broken}):
            failed = await gate.call(refund_invoice, SMALL, user=ANN)
        assert (failed.outcome, await refunded(sessions)) == ("error", 0)
        repeat = await gate.call(refund_invoice, SMALL, user=ANN)
        assert (repeat.outcome, repeat.replayed, await refunded(sessions)) == ("success", False, 100)


async def test_a_test_replaces_the_session_factory(database: str, tmp_path: Path) -> None:
    """The tools use the database of the test inside the block, and that of the service outside of it."""
    async with (
        asynccontextmanager(connect)(f"sqlite:///{tmp_path}/test.db") as engine,
        make_gate(database, [KEY]) as gate,
    ):
        test_sessions = async_sessionmaker(engine)
        async with test_sessions.begin() as session:
            await session.execute(delete(Invoice).where(Invoice.id != "I-1002"))
        with gate.override({Billing.sessions: test_sessions}):
            assert [found.id for found in await gate.invoke(find_invoices, user=ANN)] == ["I-1002"]
        assert [found.id for found in await gate.invoke(find_invoices, user=ANN)] == ["I-1001", "I-1002", "I-1003"]


async def test_another_tenant_finds_refunds_and_reminds_nothing(database: str, sessions: Sessions) -> None:
    """The control is Ann, with the same calls."""
    bob = User("bob", "umbrella", roles={"clerk"})
    reminder = {"invoice_id": "I-1003", "level": "first"}
    async with make_gate(database, [KEY]) as gate:
        assert await gate.invoke(find_invoices, user=bob) == []
        calls: list[tuple[str, dict[str, Any]]] = [("refund_invoice", SMALL), ("send_reminder", reminder)]
        refused = [await gate.call(one, arguments, user=bob) for one, arguments in calls]
        assert [result.error and result.error.code for result in refused] == ["not_refundable", "nothing_due"]
        assert (await refunded(sessions), await mails(sessions)) == (0, [])
        assert [(await gate.call(one, arguments, user=ANN)).outcome for one, arguments in calls] == ["success"] * 2
    assert (await refunded(sessions), len(await mails(sessions))) == (100, 1)


@asynccontextmanager
async def clients(gate: Gate) -> AsyncGenerator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    async with (
        served(make_app(gate)) as running,
        running.client("token-of-ann") as ann,
        running.client("token-of-lea") as lea,
    ):
        yield ann, lea


async def test_only_another_user_with_the_role_approves_a_large_refund_and_it_takes_place_once(
    database: str, sessions: Sessions
) -> None:
    async with clients(make_gate(database, [KEY])) as (ann, lea):
        asked = await ann.post("/agent/tools/refund_invoice", json=LARGE)
        assert (asked.status_code, await refunded(sessions, "I-1002")) == (202, 0)
        assert (await ann.get("/approvals")).json() == []
        (pending,) = (await lea.get("/approvals")).json()
        assert (pending["requested_by"], "cents=20000" in pending["call"]) == ("ann", True)
        decide, approve = f"/approvals/{pending['handle']}", {"decision": "approve"}
        refused = await ann.post(decide, params=approve)
        assert (refused.status_code, await refunded(sessions, "I-1002")) == (403, 0)
        approved = await lea.post(decide, params=approve)
        assert approved.json()["output"] == "20000 cents of I-1002 are refunded"
        assert (await lea.post(decide, params=approve)).status_code == 404
        assert (await ann.post("/agent/tools/refund_invoice", json=LARGE)).headers["idempotent-replayed"] == "true"
    assert await refunded(sessions, "I-1002") == 20_000


async def test_a_denied_refund_does_not_take_place(database: str, sessions: Sessions) -> None:
    async with clients(make_gate(database, [KEY])) as (ann, lea):
        await ann.post("/agent/tools/refund_invoice", json=LARGE)
        (pending,) = (await lea.get("/approvals")).json()
        denied = await lea.post(f"/approvals/{pending['handle']}", params={"decision": "deny"})
        assert (denied.json()["status"], (await lea.get("/approvals")).json()) == ("error", [])
    assert await refunded(sessions, "I-1002") == 0


async def test_a_reminder_is_a_job_and_writes_one_mail(database: str, sessions: Sessions) -> None:
    """In a process that runs no jobs it waits; the process of a worker runs it."""
    async with clients(make_gate(database, [KEY], workers=0)) as (ann, lea):
        jobs = [(await ann.post("/invoices/I-1003/reminders/first")).json()["job"] for _ in range(2)]
        assert (len(set(jobs)), (await ann.get(jobs[0])).json()["state"]) == (1, "queued")
        assert (await lea.get(jobs[0])).status_code == 404
        async with make_gate(database, [KEY], workers=1) as worker:
            await worker.job(jobs[0].rpartition("/")[2], user=ANN)
        assert (await ann.get(jobs[0])).json()["state"] == "done"
    assert await mails(sessions) == ["The first reminder: 9900 cents for I-1003."]


async def test_a_call_makes_a_span(tmp_path: Path) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with make_gate(f"sqlite:///{tmp_path}/billing.db", [KEY], tracer_provider=provider) as gate:
        await gate.call(refund_invoice, SMALL, user=ANN)
        await gate.call(refund_invoice, LARGE, user=ANN)
    found = [(span.name, (span.attributes or {})["callgate.outcome"]) for span in spans.get_finished_spans()]
    assert found == [("execute_tool refund_invoice", "success"), ("execute_tool refund_invoice", "suspended")]


async def test_the_application_authenticates_validates_and_describes_itself(tmp_path: Path) -> None:
    """An error has no value of the request, and the gate is no parameter of the API."""
    async with clients(make_gate(f"sqlite:///{tmp_path}/billing.db", [KEY])) as (ann, _):
        assert (await ann.get((await ann.get("/")).json()["documentation"])).status_code == 200
        assert (await ann.get("/invoices", headers={"authorization": "Bearer other"})).status_code == 401
        assert [row["id"] for row in (await ann.get("/invoices")).json()] == ["I-1001", "I-1002", "I-1003"]
        wrong = await ann.post("/agent/tools/refund_invoice", json={"invoice_id": "CANARY", "cents": 1})
        assert (wrong.status_code, "CANARY" in wrong.text) == (422, False)
        names = [found["name"] for found in (await ann.get("/agent/tools")).json()["tools"]]
        assert names == ["find_invoices", "refund_invoice", "send_reminder"]
        (parameter,) = (await ann.get("/openapi.json")).json()["paths"]["/invoices"]["get"]["parameters"]
        assert parameter["name"] == "customer"


def test_the_printed_commands_work_and_the_command_worker_runs_the_job(tmp_path: Path) -> None:
    settings = {"BILLING_DATABASE": f"sqlite:///{tmp_path}/billing.db", "CALLGATE_SIGNING_KEYS": KEY}
    port = free_port()
    with process("examples.billing", "--port", str(port), "--jobs", "0", **settings) as started:
        assert started.stdout is not None
        commands = [shlex.split(started.stdout.readline()) for _ in range(4)]
        while "Uvicorn running" not in (line := started.stdout.readline()):
            assert line, "the service has ended"
        found = [run(command) for command in commands]
        assert [answer.status_code for answer in found] == [200, 202, 200, 202]
        assert found[2].json()[0]["requested_by"] == "ann"
        job = [*commands[0][:-1], f"http://127.0.0.1:{port}{found[3].json()['job']}"]
        assert run(job).json()["state"] == "queued"
        with process("examples.billing", "worker", "--jobs", "1", **settings):
            deadline = time.monotonic() + 300
            while run(job).json()["state"] != "done":
                assert time.monotonic() < deadline
                time.sleep(0.05)


def run(command: list[str]) -> httpx.Response:
    """Send what a command of curl sends."""
    assert command[0] == "curl"
    options = list(zip(command[1:-1:2], command[2:-1:2], strict=True))
    headers = dict(value.split(": ") for name, value in options if name == "-H")
    body = dict(options).get("-d")
    method = dict(options).get("-X", "GET" if body is None else "POST")
    return httpx.request(method, command[-1], headers=headers, content=body, timeout=300, trust_env=False)


def test_the_example_is_short() -> None:
    """Issue 36: 250 lines at most."""
    lines = [path.read_text("utf-8").splitlines() for path in (ROOT / "examples" / "billing").glob("*.py")]
    assert 0 < sum(map(len, lines)) <= 250
