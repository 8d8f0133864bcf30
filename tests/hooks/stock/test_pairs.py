"""Each pair of stock hooks on one tool, with a fault of its body: what the caller gets is what a small model says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest

from callgate import Approval, Approve, Gate, Hook, InvokeContext, Outcome, ToolCall, ToolContext, ToolError, User, tool
from callgate.hooks import (
    Audit,
    Authorize,
    Cache,
    CircuitBreaker,
    Concurrency,
    Deadline,
    OutputPolicy,
    Quota,
    Redact,
    RequireApproval,
    Retry,
    Timeout,
    forbid,
    permit,
)
from callgate.stores import MemoryStore
from callgate.tools.calls import ToolResult
from tests.world import KEY

SECRET = "correct-horse-battery"
ANN, BOB = User("ann", tenant="acme"), User("bob", tenant="acme")
CALLS = ((ANN, 1), (ANN, 1), (BOB, 1), (ANN, 2))
HOOKS: dict[str, Callable[[], Hook]] = {
    "retry": lambda: Retry(3, wait=lambda _: 0.0),
    "timeout": lambda: Timeout(60),
    "deadline": lambda: Deadline(60),
    "breaker": lambda: CircuitBreaker(2),
    "cache": lambda: Cache(60),
    "quota": lambda: Quota("2/hour", by="user"),
    "quota at input": lambda: Quota("2/hour", by="user", at="input"),
    "permit": lambda: Concurrency(1),
    "redact": lambda: Redact("password"),
    "output": lambda: OutputPolicy(256, on_too_large="truncate"),
    "rules": lambda: Authorize(permit("all")),
    "approval": lambda: RequireApproval(Approval(requester=True)),
    "shadow of a cache": lambda: Cache(60, mode="shadow"),
    "shadow of a refusal": lambda: Authorize(forbid("all"), mode="shadow"),
    "shadow of a quota": lambda: Quota("1/hour", by="tool", mode="shadow"),
}
FAULTS = ("none", "raises", "raises once", "tool error", "bad output", "cancelled")
FLOWS = ("call", "stream", "batch")
PLACES = ((True, True), (True, False), (False, True))
"""For each hook of a pair: with the gate, or else on the tool."""
SCHEMA = {
    "type": "object",
    "properties": {"who": {"type": "string"}, "password": {"type": "string"}},
    "required": ["who"],
}


class Recorder(Hook):
    """Records each outcome, as a metric does."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def on_metrics(self, ctx: InvokeContext) -> None:
        self.outcomes.append(str(ctx.run.outcome))


def expected(names: tuple[str, str], fault: str) -> Iterator[tuple[str, int]]:
    """Yield the outcome of each run, and how often the body has run until then."""
    ran = failures = 0
    spent: dict[str, int] = {}
    kept: set[tuple[str, int]] = set()
    for user, number in CALLS:
        if spent.get(user.id, 0) >= 2 and {"quota", "quota at input"} & set(names):
            yield "retry_later", ran
            continue
        if "approval" in names:
            yield "suspended", ran
        if (user.id, number) in kept:
            spent[user.id] = spent.get(user.id, 0) + 1
            yield "success", ran
            continue
        if "breaker" in names and failures >= 2:  # the body does not start, so the units are given back
            yield "retry_later", ran
            continue
        spent[user.id] = spent.get(user.id, 0) + 1
        raises = fault == "raises" or (fault == "raises once" and not ran)
        ran += 1
        if raises and "retry" in names:
            ran += 2 if fault == "raises" else 1
            raises = fault == "raises"
        failures += raises
        outcome = {"tool error": "error", "bad output": "error", "cancelled": "cancelled"}.get(fault, "success")
        if outcome == "success" and not raises and "cache" in names:
            kept.add((user.id, number))
        yield ("error" if raises else outcome), ran


class Trial:
    """One gate with a pair of hooks, and what its callers saw."""

    def __init__(self, names: tuple[str, str], fault: str, turn: int) -> None:
        self.fault, self.flow = fault, FLOWS[turn % 3]
        self.ran: list[User] = []
        self.seen: list[tuple[str, int]] = []
        self.shown: list[object] = []
        self.foreign: list[object] = []
        self.begun = asyncio.Event()
        made = [HOOKS[name]() for name in names]
        places = PLACES[turn // 3 % 3]
        on_gate = [hook for hook, is_global in zip(made, places, strict=True) if is_global]
        on_tool = [hook for hook, is_global in zip(made, places, strict=True) if not is_global]
        self.recorder, self.store = Recorder(), MemoryStore()
        if turn % 2:
            on_gate.reverse()

        @tool(effect="read", output_schema=SCHEMA, hooks=on_tool)
        async def work(n: int, password: str, ctx: ToolContext) -> dict[str, object]:
            """Work."""
            return await self.body(ctx.user, password)

        self.gate = Gate([work], [Audit(), self.recorder, *on_gate], store=self.store, signing_keys=[KEY])

    async def body(self, user: User, password: str) -> dict[str, object]:
        """The body of the tool, with its fault."""
        self.ran.append(user)
        self.begun.set()
        if self.fault == "raises" or (self.fault == "raises once" and len(self.ran) == 1):
            raise LookupError(f"no {password}")
        if self.fault == "tool error":
            raise ToolError(f"no {password}")
        if self.fault == "cancelled":
            await asyncio.Event().wait()
        return {"password": password} if self.fault == "bad output" else {"who": user.id, "password": password}

    async def run(self) -> None:
        """Make the calls, and approve those that wait."""
        async with self.gate:
            for user, number in CALLS:
                self.begun.clear()
                result = await self.cancelled(self.call(user, number))
                if result is not None and result.outcome is Outcome.SUSPENDED:
                    self.note(user, result)
                    assert result.pending is not None
                    decided = self.gate.resume(result.pending.handle or "", Approve(), approver=user)
                    result = await self.cancelled(decided)
                self.note(user, result)

    async def cancelled(self, call: Any) -> ToolResult | None:
        """Await a call; one whose body hangs is cancelled, and None is returned."""
        running = asyncio.ensure_future(call)
        if self.fault == "cancelled":
            begun = asyncio.ensure_future(self.begun.wait())
            await asyncio.wait([running, begun], return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if not running.done():
                running.cancel()
        with suppress(asyncio.CancelledError):
            result: ToolResult = await running
            return result
        return None

    async def call(self, user: User, number: int) -> ToolResult:
        """Make one call."""
        arguments = {"n": number, "password": SECRET}
        if self.flow == "batch":
            return (await self.gate.call_many([ToolCall(name="work", arguments=arguments)], user=user))[0]
        if self.flow == "call":
            return await self.gate.call("work", arguments, user=user)
        events = [event async for event in self.gate.stream("work", arguments, user=user)]
        self.shown += events
        last: Any = events[-1]
        return last.result  # type: ignore[no-any-return]

    def note(self, user: User, result: ToolResult | None) -> None:
        """Note what the caller got."""
        self.seen.append(("cancelled" if result is None else str(result.outcome), len(self.ran)))
        if result is None or result.outcome is Outcome.SUSPENDED:  # an approver sees the arguments
            return
        self.shown.append(result)
        if result.ok and result.output["who"] != user.id:
            self.foreign.append(result.output)

    async def audited(self) -> list[Any]:
        """The bodies of the audit rows."""
        async with self.store.audit.snapshot() as snapshot:
            segments = [one.name async for one in snapshot.segments()]
            return [row.body for name in segments async for _, row in snapshot.rows(name)]


async def differences(names: tuple[str, str], fault: str, turn: int) -> list[object]:
    """Run one trial; return what differs from the model."""
    trial = Trial(names, fault, turn)
    await trial.run()
    rows, wanted = await trial.audited(), list(expected(names, fault))
    outcomes = [outcome for outcome, _ in trial.seen]
    found: list[object] = []
    if trial.seen != wanted:
        found.append(("the model", wanted, "seen", trial.seen))
    if [row["outcome"] for row in rows] != outcomes or trial.recorder.outcomes != outcomes:
        found.append(("records", rows, trial.recorder.outcomes, outcomes))
    if "redact" in names and SECRET in repr((rows, trial.shown)):
        found.append(("shown", SECRET))
    return found + trial.foreign


PAIRS = list(combinations(HOOKS, 2))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_pair_of_hooks_does_what_each_of_them_promises(fault: str) -> None:
    """One approval, one unit, one permit and one row for each call, nothing of another user, and nothing masked shown."""
    for at, names in enumerate(PAIRS):
        turn = at + FAULTS.index(fault) * 5  # order, place and way of the call differ from fault to fault
        assert await differences(names, fault, turn) == [], (names, fault, turn)


class OfAll(Cache):
    """A cache that forgets whose value it stores."""

    def key(self, ctx: InvokeContext) -> Any:
        return "", f"of {ctx.input['n']}"


class Again(Retry):
    """A retry that runs the tool once more after a success."""

    async def around_execute(self, ctx: InvokeContext, next: Any) -> object:
        await next()
        return await next()


class Masks(Redact):
    """A mask that leaves the output out."""

    def will_redact_output(self, ctx: InvokeContext) -> None:
        pass


class Stays(Quota):
    """A quota that never gives units back."""

    def did_release_quota(self, ctx: InvokeContext) -> None:
        pass


SABOTAGE: dict[str, Callable[[], Hook]] = {
    "cache": lambda: OfAll(60),
    "retry": lambda: Again(3),
    "redact": lambda: Masks("password"),
    "quota": lambda: Stays("2/hour", by="user"),
    "rules": lambda: Authorize(forbid("all")),
}


@pytest.mark.parametrize("name", SABOTAGE)
async def test_control_the_model_finds_a_hook_that_breaks_its_promise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In some pair with it."""
    monkeypatch.setitem(HOOKS, name, SABOTAGE[name])
    pairs = [pair for pair in PAIRS if name in pair]
    assert any([await differences(pair, "none", at) for at, pair in enumerate(pairs)])
