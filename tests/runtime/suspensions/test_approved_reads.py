"""A read that another person approved runs once, and its requester gets the result: issue 35 §1.4."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Gate, Outcome, Respond, ToolError, User, tool
from callgate.errors import NotPending
from callgate.jobs import CallState
from callgate.providers.clock import FakeClock
from callgate.providers.stores.memory.suspensions import MemorySuspensions
from callgate.runtime.suspensions import reads
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

ANN, BOB = User("ann", "acme"), User("bob", "acme")
LEA = User("lea", "acme", roles={"lead"})
LEAD = Approval(roles={"lead"}, expires=3600)
EVERY_STORE = pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])


class Salaries:
    """A read that notes each of its runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def tool(self) -> Any:
        @tool(effect="read", requires_approval=LEAD)
        async def salary(name: str) -> dict[str, Any]:
            """Read a salary."""
            self.ran.append(name)
            if name == "nobody":
                raise ToolError("There is no such person.", code="no_person")
            return {"name": name, "salary": 5000}

        return salary

    @asynccontextmanager
    async def gate(self, kind: str, folder: Path, **more: Any) -> AsyncGenerator[Gate]:
        with ExitStack() as stack:
            store = "memory://" if kind == "memory" else stack.enter_context(place(kind, folder))[0]
            options: dict[str, Any] = {"store": store, "signing_keys": ["k" * 32], "durable": False, "open": True}
            async with Gate([self.tool()], **gate_options(**{**options, **more})) as gate:
                yield gate


async def asked(gate: Gate, name: str = "kim") -> str:
    """Ask for a salary in Ann's name; return the handle."""
    result = await gate.call("salary", {"name": name}, user=ANN)
    assert result.outcome is Outcome.SUSPENDED
    assert result.pending.handle is not None
    return str(result.pending.handle)


@EVERY_STORE
async def test_the_outcome_has_the_result_and_the_read_ran_once(kind: str, tmp_path: Path) -> None:
    """For its requester alone, however often they ask."""
    salaries = Salaries()
    async with salaries.gate(kind, tmp_path) as gate:
        handle = await asked(gate)
        assert (await gate.resume(handle, Approve(), approver=LEA)).ok
        for _ in range(3):
            found = await gate.outcome(handle, user=ANN)
            assert found.state is CallState.COMPLETED
            assert found.result is not None
            assert (found.result.output, found.result.replayed) == ({"name": "kim", "salary": 5000}, True)
            assert (await gate.repeat_read(handle, ANN, deadline=None)).output == {"name": "kim", "salary": 5000}
        with pytest.raises(NotPending):
            await gate.outcome(handle, user=BOB)
        assert not (await gate.repeat_read(handle, BOB, deadline=None)).ok
    assert salaries.ran == ["kim"]


@EVERY_STORE
@pytest.mark.parametrize("answer", ["an error of the tool", "an output of the approver"])
async def test_other_ends_are_kept_too(kind: str, answer: str, tmp_path: Path) -> None:
    """The requester gets what the approver's process got."""
    salaries = Salaries()
    async with salaries.gate(kind, tmp_path) as gate:
        handle = await asked(gate, "nobody")
        decision = Approve() if answer == "an error of the tool" else Respond({"name": "nobody", "salary": 0})
        decided = await gate.resume(handle, decision, approver=LEA)
        found = (await gate.outcome(handle, user=ANN)).result
        assert found is not None
        assert (found.outcome, found.output) == (decided.outcome, decided.output)
        assert (found.error is None) == (decided.error is None)


@EVERY_STORE
async def test_a_result_that_is_too_large_to_keep_is_read_once_more(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of many requests at once; the approval is used up then."""
    monkeypatch.setattr(reads, "MAX_RESULT", 10)
    salaries = Salaries()
    async with salaries.gate(kind, tmp_path) as gate:
        handle = await asked(gate)
        assert (await gate.resume(handle, Approve(), approver=LEA)).ok
        found = await gate.outcome(handle, user=ANN)
        assert (found.state, found.result) == (CallState.COMPLETED, None)
        results = await asyncio.gather(*(gate.repeat_read(handle, ANN, deadline=None) for _ in range(10)))
        assert sum(one.ok for one in results) == 1
        assert not (await gate.repeat_read(handle, ANN, deadline=None)).ok
    assert salaries.ran == ["kim", "kim"]


@pytest.mark.parametrize("case", ["undecided", "denied", "withdrawn", "expired", "expired after the approval"])
async def test_a_read_without_a_valid_approval_is_not_repeated(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state, the use and the expiry of its suspension are checked."""
    monkeypatch.setattr(reads, "MAX_RESULT", 10)
    salaries, clock = Salaries(), FakeClock()
    async with salaries.gate("memory", tmp_path, clock=clock) as gate:
        handle = await asked(gate)
        if case == "denied":
            await gate.resume(handle, Deny(), approver=LEA)
        elif case == "withdrawn":
            await gate.waits.withdraw(handle, ANN)
        elif case == "expired after the approval":
            await gate.resume(handle, Approve(), approver=LEA)
        if case.startswith("expired"):
            clock.advance(4000)
        before = list(salaries.ran)
        assert not (await gate.repeat_read(handle, ANN, deadline=None)).ok
        assert salaries.ran == before


async def test_a_store_that_hangs_when_the_result_is_kept_holds_no_approver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read has run: the approver gets its result, and the log says that it was not kept."""
    monkeypatch.setattr(reads, "NOTE_LIMIT", 0.01)

    async def put(*_: object) -> None:
        await asyncio.Event().wait()

    salaries = Salaries()
    async with salaries.gate("memory", tmp_path) as gate:
        handle = await asked(gate)
        with monkeypatch.context() as patch:
            patch.setattr(MemorySuspensions, "put", put)
            assert (await asyncio.wait_for(gate.resume(handle, Approve(), approver=LEA), 10)).ok
        assert (await gate.repeat_read(handle, ANN, deadline=None)).ok
