"""The gate of the tests of DBOS, in their own process and in workers. Effects are lines in a file."""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from callgate import Approval, Effects, ErrorInfo, Gate, Outcome, ToolCall, ToolResult, User, tool
from tests.providers.stores.backends import POSTGRES

ANN, LEAD = User("ann", "acme"), User("lea", "acme", roles=("lead",))
KEY = "a key of the tests, long enough"
STOP = "CALLGATE_TEST_STOP"


def folder() -> Path:
    return Path(os.environ["CALLGATE_TEST_FOLDER"])


def schema_name() -> str:
    return os.environ["CALLGATE_TEST_SCHEMA"]


def note(line: str) -> None:
    with (folder() / "effects").open("a") as file:
        file.write(f"{line}\n")


def effects() -> list[str]:
    file = folder() / "effects"
    return sorted(file.read_text().splitlines()) if file.exists() else []


async def stop(who: str) -> None:
    """Report that the process may be killed here, and wait for that."""
    (folder() / f"stopped {who}").touch()
    await asyncio.Event().wait()


@tool(effect="irreversible")
async def pay(who: str) -> str:
    """Pay a person."""
    note(who)
    return f"paid {who}"


@tool(effect="irreversible")
async def hang(who: str) -> str:
    """Pay a person, and never end."""
    note(who)
    await stop(who)
    return f"paid {who}"


@tool(effect="irreversible", requires_approval=Approval(roles=["lead"]))
async def refund(who: str) -> str:
    """Pay a person, if a lead approves."""
    note(who)
    return f"refunded {who}"


@tool(effect="irreversible", requires_approval=Approval(roles=["lead"], expires=0.5))
async def expire(who: str) -> str:
    """Pay a person, if a lead approves at once."""
    note(who)
    return f"paid {who}"


@tool(effect="read", requires_approval=Approval(roles=["lead"]))
async def look(who: str) -> str:
    """Look up a person, if a lead approves."""
    return f"saw {who}"


def make_gate() -> Gate:
    tools = [pay, hang, refund, expire, look]
    store = f"{POSTGRES}?options=-csearch_path%3D{schema_name()}"
    return Gate(tools, allow_unguarded=True, store=store, signing_keys=[KEY], effects=Effects(lease=2.0, wait=0.5))


class Faulty:
    """A gate with the faults of the tests, by the person of a call.

    With STOP in the environment the process is killed between the effect and the engine's record of it.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._failed = 0

    async def call(self, call: ToolCall, **options: Any) -> ToolResult:
        who = call.arguments["who"]
        if who == "control":  # sabotage: the key is not that of the step
            options["idempotency_key"] = uuid.uuid4().hex
        if who == "unlucky" and self._failed < 1:
            self._failed += 1
            return ToolResult("c1", call.name, Outcome.ERROR, error=ErrorInfo("not_recorded", "later"))
        result = await self._gate.call(call, **options)
        if STOP in os.environ:
            await stop(who)
        return replace(result, output=f"{result.output} after {self._failed} failure") if who == "unlucky" else result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


def told(result: ToolResult) -> dict[str, Any]:
    """What a workflow of the tests returns."""
    return {
        "outcome": result.outcome.value,
        "output": result.output,
        "replayed": result.replayed,
        "code": result.error and result.error.code,
    }
