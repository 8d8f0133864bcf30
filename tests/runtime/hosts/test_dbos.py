"""Calls as steps of DBOS workflows, on a real PostgreSQL: a recovered workflow has its effects once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from dbos import DBOSClient

from callgate import Approve, Deny, RegistrationError, ToolCall
from callgate.jobs import CallState, call_as_step
from tests.providers.stores.backends import POSTGRES, schema
from tests.runtime.hosts.durable_app import ANN, LEAD, STOP, effects, make_gate, schema_name
from tests.runtime.hosts.durable_runs import Worker, ids, suspended


@pytest.fixture(scope="module")
def name() -> Generator[str]:
    """The name of a schema for the gate and DBOS."""
    with schema() as address:
        yield unquote(address).rpartition("=")[2]


@pytest.fixture(autouse=True)
def _settings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGATE_TEST_SCHEMA", name)
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))


def start(cases: dict[str, str], **environment: str) -> Worker:
    return Worker("dbos_app", *(f"{id}={case}" for id, case in cases.items()), **environment)


async def results(worker: Worker) -> list[Any]:
    return list(json.loads((await asyncio.to_thread(worker.output)).splitlines()[-1]).values())


async def test_a_process_that_is_killed_leaves_each_effect_once() -> None:
    """Killed between effect and checkpoint, and in the body. The control has a key that is not of the step."""
    cases = ids("pay:bob", "hang:eve", "pay:control")
    await asyncio.to_thread(start(cases, **{STOP: "1"}).kill_when_stopped, "bob", "eve", "control")
    assert effects() == ["bob", "control", "eve"]
    paid, hung, control = await results(start(cases))
    assert paid == {"outcome": "success", "output": "paid bob", "replayed": True, "code": None}
    assert hung["outcome"] == "unknown"
    assert control["replayed"] is False
    assert effects() == ["bob", "control", "control", "eve"]


async def test_workflows_and_steps_have_keys_of_their_own_and_a_failed_store_is_asked_again() -> None:
    cases = ids("pay:bob", "pay:bob", "twice:bob", "pay:unlucky", "expire:eve")
    *found, expired = await results(start(cases))
    assert (expired["outcome"], expired["code"]) == ("denied", "expired")
    assert [one["replayed"] for one in found] == [False] * 4
    assert effects() == ["bob"] * 4 + ["unlucky"]
    assert found[-1]["output"] == "paid unlucky after 1 failure"
    async with make_gate() as gate:
        for id, step in zip(list(cases)[:3], (1, 1, 2), strict=True):
            assert (await gate.outcome(f"dbos:{id}:{step}", tool="pay", user=ANN)).state is CallState.COMPLETED


async def test_decisions_in_another_process_complete_the_workflows() -> None:
    cases = ids("refund:bob", "refund:eve", "look:bob", "refund:sue")
    worker = start(cases)
    async with make_gate() as gate:
        handles = await suspended(gate, 4)
        await gate.resume(handles["refund", "bob"], Approve(), approver=LEAD)
        await gate.resume(handles["refund", "eve"], Deny(), approver=LEAD)
        await gate.resume(handles["look", "bob"], Approve(), approver=LEAD)
        await asyncio.to_thread(cancel, list(cases)[3])  # a cancelled workflow withdraws its call
        approved, denied, read, cancelled = await results(worker)
        assert (approved["output"], read["output"]) == ("refunded bob", "saw bob")
        assert (denied["outcome"], denied["code"]) == ("denied", "declined")
        assert cancelled == "CANCELLED"
        await suspended(gate, 0)
    assert effects() == ["bob"]


async def test_a_decision_while_no_process_runs_the_workflow_completes_it_later() -> None:
    cases = ids("refund:bob")
    worker = start(cases)
    async with make_gate() as gate:
        handles = await suspended(gate, 1)
        await asyncio.to_thread(worker.kill)
        await gate.resume(handles["refund", "bob"], Approve(), approver=LEAD)
    (result,) = await results(start(cases))
    assert result["output"] == "refunded bob"
    assert effects() == ["bob"]


async def test_outside_of_a_workflow_a_call_is_refused() -> None:
    async with make_gate() as gate:
        with pytest.raises(RegistrationError, match=r"@DBOS\.workflow"):
            await call_as_step(gate, ToolCall(name="pay", arguments={"who": "bob"}), user=ANN)
        with pytest.raises(RegistrationError, match="poll"):
            await call_as_step(gate, ToolCall(name="pay"), user=ANN, poll=0)


def cancel(workflow: str) -> None:
    client = DBOSClient(system_database_url=POSTGRES, dbos_system_schema=schema_name())
    try:
        client.cancel_workflow(workflow)
    finally:
        client.destroy()
