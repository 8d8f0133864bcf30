"""One process records the decision, and another runs the call: ``resume(here=False)`` and ``proceed``. Issue 35 §1.5."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Edit, Gate, Outcome, Respond, ToolContext, User, tool
from callgate.errors import NotPending, Stale
from callgate.hooks import Audit
from callgate.jobs import CallState, EmbeddedJobs, JobState
from callgate.providers.stores.base import AuditRow
from callgate.runtime.hosts.dbos.steps import is_decided, next_step
from callgate.runtime.suspensions import reads
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.testing import FakeClock
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import (
    AMY,
    ANN,
    BOB,
    CID,
    KEY,
    LEAD,
    RAE,
    Desk,
    asked,
    call,
    code,
    gate_of,
    handle_of,
)
from tests.runtime.suspensions.test_approvals_processes import process

KINDS = ("memory", "sqlite-file", "postgresql")
EVERY_STORE = pytest.mark.parametrize("kind", KINDS)
EVERY_EFFECT = pytest.mark.parametrize("effect", ["irreversible", "idempotent", "read"])
AT_ONCE = 6


@asynccontextmanager
async def processes(kind: str, folder: Path, desk: Desk, *, hooks: Any = (), **options: Any) -> AsyncGenerator[Any]:
    """The gate of the requester, the gate of the approver, and another; a store in memory has one gate for all."""
    tools = options.pop("tools", None) or [desk.tool(requires_approval=LEAD, **options.pop("rules", {}))]
    async with AsyncExitStack() as stack:
        address, _ = stack.enter_context(place(kind, folder))
        settings: dict[str, Any] = {"tools": tools, "hooks": hooks, "durable": False, **options}
        made = [
            await stack.enter_async_context(process(address, desk, **settings))
            for _ in range(1 if kind == "memory" else 3)
        ]
        yield made * 3 if kind == "memory" else made


async def decided(requester: Gate, approver: Gate, **options: Any) -> str:
    """Ask in one process, and decide in another; return the handle."""
    handle = await asked(requester, **options)
    result = await approver.resume(handle, Approve(), approver=BOB, here=False)
    assert (result.outcome, code(result)) == (Outcome.IN_FLIGHT, "in_flight")
    return handle


# ---------------------------------------------------------------------- it runs once, where its requester is


@EVERY_STORE
@EVERY_EFFECT
async def test_a_recorded_decision_runs_nothing_and_its_requester_runs_the_call_once(
    kind: str, effect: str, tmp_path: Path
) -> None:
    """Processes that proceed at once get the same outcome; one of them has run the call."""
    desk = Desk()
    async with processes(kind, tmp_path, desk, rules={"effect": effect}) as (requester, approver, other):
        handle = await decided(requester, approver)
        assert desk.paid == []
        assert await approver.waits.pending(BOB) == []
        known = await requester.outcome(handle, user=ANN)
        assert known.state is CallState.WORKING
        assert known.pending is not None
        assert (known.pending.handle, known.pending.decided) == (handle, True)
        with pytest.raises(NotPending):
            await approver.resume(handle, Approve(), approver=CID)
        results = await asyncio.gather(
            *(gate.proceed(handle, user=ANN) for gate in (requester, other) * (AT_ONCE // 2))
        )
        assert {(one.outcome, one.output) for one in results} == {(Outcome.SUCCESS, "paid 1")}
        assert sum(not one.replayed for one in results) == 1
        assert (await requester.outcome(handle, user=ANN)).state is CallState.COMPLETED
    assert desk.paid == [5]


@pytest.mark.parametrize("kind", ["memory", "sqlite-file"])
async def test_control_a_decision_that_is_not_used_up_runs_the_call_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above sees a second run."""

    async def use(*_: Any) -> bool:
        return True

    monkeypatch.setattr(SuspensionManager, "use", use)
    desk = Desk()
    async with processes(kind, tmp_path, desk, rules={"effect": "read"}) as (requester, approver, other):
        handle = await decided(requester, approver)
        await asyncio.gather(*(gate.proceed(handle, user=ANN) for gate in (requester, other)))
    assert len(desk.paid) > 1


WORKER = """
import asyncio, json, sys
from callgate import Approval, Effects, Gate, User, tool

address, handle, log = sys.argv[1:]

@tool(effect="irreversible", requires_approval=Approval(roles={"lead"}))
async def pay(cents: int) -> str:
    "Pay."
    with open(log, "a") as file:
        file.write("paid\\n")
    await asyncio.sleep(0.05)
    return f"paid {cents}"

async def main():
    gate = Gate([pay], store=address, signing_keys=["KEY"], allow_unguarded=True)
    async with gate:
        if handle == "ask":
            result = await gate.call("pay", {"cents": 7}, user=User("ann", "acme"))
            print(json.dumps(result.pending.handle))
        elif handle.startswith("decide:"):
            bob = User("bob", "acme", {"lead"})
            print(json.dumps((await gate.resume(handle[7:], "approve", approver=bob, here=False)).outcome.value))
        else:
            result = await gate.proceed(handle, user=User("ann", "acme"))
            print(json.dumps([result.outcome.value, result.output]))

asyncio.run(main())
""".replace("KEY", KEY)


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
def test_real_processes_ask_decide_and_run(kind: str, tmp_path: Path) -> None:
    """One asks, one decides, and three that proceed at once run the call once."""
    log = tmp_path / "log"

    def start(what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, address, what, str(log)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def output(running: subprocess.Popen[str]) -> Any:
        text, _ = running.communicate(timeout=120)
        assert running.returncode == 0
        return json.loads(text)

    with place(kind, tmp_path) as (address, _):
        handle = output(start("ask"))
        assert output(start(f"decide:{handle}")) == "in_flight"
        assert not log.exists()
        at_once = [start(handle) for _ in range(3)]
        assert [output(one) for one in at_once] == [["success", "paid 7"]] * 3
    assert log.read_text().split() == ["paid"]


@EVERY_STORE
async def test_the_audit_log_has_the_requester_and_the_people_who_decided(kind: str, tmp_path: Path) -> None:
    """Also of a call that was denied."""
    desk, rows = Desk(), list[AuditRow]()
    hooks = [Audit(sink=rows.append)]
    async with processes(kind, tmp_path, desk, hooks=hooks) as (requester, approver, _):
        await requester.proceed(await decided(requester, approver), user=ANN)
        await approver.resume(await asked(requester), Deny("no"), approver=CID, here=False)
    bodies = [row.body for row in rows if row.body["kind"] == "outcome"]
    ended = [(body["outcome"], body["user"], body.get("decided_by")) for body in bodies]
    assert ("success", "ann", ["bob"]) in ended
    assert ("denied", "ann", ["cid"]) in ended


# ---------------------------------------------------------------------- decisions of every kind


@EVERY_STORE
@pytest.mark.parametrize(
    ("decision", "output", "paid"),
    [("approve", "paid 1", [5]), (Edit({"cents": 3}), "paid 1", [3]), (Respond("a voucher"), "a voucher", [])],
    ids=["approve", "edit", "respond"],
)
async def test_what_was_decided_is_what_runs(
    kind: str, decision: Any, output: str, paid: list[int], tmp_path: Path
) -> None:
    """The last of two approvals decides, and it may be recorded as well."""
    desk, twice = Desk(), Approval(roles={"lead"}, quorum=2)
    async with processes(kind, tmp_path, desk, tools=[desk.tool(requires_approval=twice)]) as (first, second, third):
        handle = await asked(first)
        if not isinstance(decision, Respond):
            result = await second.resume(handle, decision, approver=BOB, here=False)
            assert result.outcome is Outcome.SUSPENDED
        assert handle_of(await first.proceed(handle, user=ANN)) == handle
        last = decision if isinstance(decision, Respond) else Approve()
        assert (await third.resume(handle, last, approver=CID, here=False)).outcome is Outcome.IN_FLIGHT
        for _ in range(2):
            assert (await first.proceed(handle, user=ANN)).output == output
    assert desk.paid == paid


ENDS: dict[str, tuple[Outcome, str, str]] = {
    "not decided": (Outcome.SUSPENDED, "suspended", "The call waits for approval or input."),
    "denied": (Outcome.DENIED, "declined", "There is no receipt."),
    "withdrawn": (Outcome.DENIED, "declined", "The call was declined."),
    "withdrawn after the decision": (Outcome.DENIED, "declined", "The call was declined."),
    "expired": (Outcome.DENIED, "expired", "The approval did not come in time."),
    "decided and expired": (Outcome.DENIED, "expired", "The call was decided, and did not run in time."),
    "too large": (
        Outcome.DENIED,
        "used",
        "The approval was used: the call has run, and its result was too large to keep.",
    ),
}


@EVERY_STORE
async def test_a_call_that_cannot_run_says_why(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps saying so, in every process and also once the expiry was swept."""
    monkeypatch.setattr(reads, "MAX_RESULT", 10)
    desk, clock = Desk(), FakeClock()
    tools = [desk.tool(requires_approval=LEAD), desk.tool("look", effect="read", requires_approval=LEAD)]
    async with processes(kind, tmp_path, desk, clock=clock, tools=tools) as (requester, approver, other):
        for end, expected in ENDS.items():
            handle = await asked(requester, wanted=call(tool="look" if end == "too large" else "pay"))
            if end == "denied":
                await approver.resume(handle, Deny("secret", public="There is no receipt."), approver=BOB, here=False)
            if end in {"withdrawn after the decision", "decided and expired", "too large"}:
                await approver.resume(handle, Approve(), approver=BOB, here=False)
            if "withdrawn" in end:
                await other.waits.withdraw(handle, ANN)
            if "expired" in end:
                clock.advance(86_400.0)
            if end == "too large":
                for _ in range(2):  # the requester may run such a read once more
                    assert (await requester.proceed(handle, user=ANN)).ok
            ran = list(desk.paid)
            for gate in (requester, other):
                result = await gate.proceed(handle, user=ANN)
                assert result.error is not None
                assert (result.outcome, result.error.code, result.error.public) == expected, end
                await gate.maintain()
            assert desk.paid == ran
            assert ran == ([5, 5] if end == "too large" else [])


@EVERY_STORE
async def test_only_its_requester_runs_a_call(kind: str, tmp_path: Path) -> None:
    """Its approver does not either, and the error is that of an unknown handle."""
    desk = Desk()
    async with processes(kind, tmp_path, desk) as (requester, approver, other):
        handle = await decided(requester, approver)
        for gate in (requester, other):
            for user in (AMY, RAE, BOB, User("ann")):
                with pytest.raises(NotPending):
                    await gate.proceed(handle, user=user)
        assert desk.paid == []
        assert (await other.proceed(handle, user=ANN)).ok


async def test_a_process_with_another_version_leaves_the_decision_to_a_process_that_fits(tmp_path: Path) -> None:
    """As for a decision: ``Stale``, and nothing is used up."""
    desk = Desk()
    old, new = ([desk.tool(requires_approval=LEAD, version=version)] for version in "12")
    async with process(tmp_path, desk, tools=old) as fits, process(tmp_path, desk, tools=new) as other:
        handle = await decided(fits, fits)
        with pytest.raises(Stale):
            await other.proceed(handle, user=ANN)
        assert desk.paid == []
        assert (await fits.proceed(handle, user=ANN)).output == "paid 1"


@EVERY_STORE
async def test_the_ledger_protects_an_effect_whose_outcome_is_unknown(kind: str, tmp_path: Path) -> None:
    """The body breaks in the process that runs it; no other process runs it again."""
    desk = Desk()
    async with processes(kind, tmp_path, desk) as (requester, approver, other):
        handle = await decided(requester, approver, wanted=call(how="raise"))
        first = await requester.proceed(handle, user=ANN)
        again = await other.proceed(handle, user=ANN)
        assert not first.ok
        assert again.outcome is Outcome.UNKNOWN
    assert desk.paid == [5]


async def test_a_process_that_waits_for_another_says_so_at_its_deadline() -> None:
    """The loser of the race does not wait longer than its deadline."""
    running, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Desk):
        def tool(self, name: str = "pay", *, effect: str | None = "read", **options: Any) -> Any:
            @tool(name=name, effect="read", requires_approval=LEAD)
            async def pay(cents: int) -> int:
                """Pay."""
                running.set()
                await go_on.wait()
                return cents

            return pay

    async with gate_of(Slow().tool()) as gate:
        handle = await decided(gate, gate)
        first = asyncio.ensure_future(gate.proceed(handle, user=ANN))
        await running.wait()
        late = await gate.proceed(handle, user=ANN, deadline=0.01)
        assert (late.outcome, code(late)) == (Outcome.IN_FLIGHT, "in_flight")
        go_on.set()
        assert (await first).output == 5
        assert (await gate.proceed(handle, user=ANN)).output == 5


# ---------------------------------------------------------------------- other ways to run it


async def test_a_call_that_proceeds_can_be_streamed() -> None:
    """By the gate, for a user, and for synchronous hosts: progress, and then the result."""

    @tool(effect="read", requires_approval=LEAD)
    async def pay(cents: int, ctx: ToolContext) -> int:
        """Pay."""
        ctx.progress(1, 2)
        return cents

    async with gate_of(pay) as gate:
        async with gate.session(user=ANN) as bound:
            for stream in (partial(gate.proceed_stream, user=ANN), bound.proceed_stream):
                events: list[Any] = [event async for event in stream(await decided(gate, gate))]
                assert [type(event).__name__ for event in events] == ["Progress", "Result"]
                assert events[-1].result.output == 5
            assert (await bound.proceed(await decided(gate, gate))).output == 5
        with pytest.raises(NotPending):
            await anext(gate.proceed_stream("unknown", user=ANN))


async def test_a_job_is_decided_without_waiting_for_its_worker() -> None:
    """A worker runs it, and ``proceed`` of its requester returns the outcome of the job."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD), jobs=EmbeddedJobs(0)) as gate:
        job = await gate.submit("pay", {"cents": 5}, user=ANN)
        assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
        pending = (await gate.outcome(job, user=ANN)).pending
        assert pending is not None
        assert pending.handle is not None
        result = await gate.resume(pending.handle, Approve(), approver=BOB, here=False)
        assert (result.outcome, desk.paid) == (Outcome.IN_FLIGHT, [])
        assert (await gate.proceed(pending.handle, user=ANN, deadline=0.01)).outcome is Outcome.IN_FLIGHT
        await gate.jobs.run_invocation()
        assert (await gate.proceed(pending.handle, user=ANN)).output == "paid 1"
    assert desk.paid == [5]


async def test_a_durable_workflow_runs_the_call_that_an_approver_has_decided() -> None:
    """The workflow learns of the decision as of any other, and its next step runs the call."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        assert not await is_decided(gate, handle, ANN)
        await gate.resume(handle, Approve(), approver=BOB, here=False)
        assert await is_decided(gate, handle, ANN)
        step = await next_step(gate, handle, ANN, None)
        assert step.result is not None
        assert step.result.output == "paid 1"
    assert desk.paid == [5]


async def test_options_of_a_run_belong_to_proceed() -> None:
    """The errors have the line to write, and nothing is decided."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        with pytest.raises(TypeError, match=r"gate\.proceed"):
            await gate.resume(handle, Approve(), approver=BOB, here=False, deadline=5)
        with pytest.raises(TypeError, match="has its own idempotency_key"):
            await gate.proceed(handle, user=ANN, idempotency_key="k")
        assert [one.handle for one in await gate.waits.pending(BOB)] == [handle]
