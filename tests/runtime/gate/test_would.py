"""``gate.would``: the dry question whether a call would pass, which takes, counts, stores and runs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any, ClassVar

import pytest

from callgate import (
    Approval,
    DryRun,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    Provide,
    Scoped,
    ToolContext,
    User,
    tool,
)
from callgate.errors import Denied, GateClosed, RetryLater
from callgate.hooks import Audit, Authorize, Cache, Concurrency, Metrics, Quota, forbid, permit
from tests.harness.gate_options import gate_options

ANN = User("ann", "acme", roles={"clerk"})
LEA = User("lea", "acme", roles={"lead"})
RAN: list[str] = []


@tool(effect="read")
async def add(a: int, b: int = 1) -> int:
    """Add."""
    RAN.append("add")
    return a + b


@tool(effect="irreversible", key=("order",), requires_approval=Approval(roles={"lead"}, reason="A lead decides."))
async def refund(order: str) -> str:
    """Give money back."""
    RAN.append("refund")
    return order


@tool(effect="read", allowed_roles={"lead"})
async def ledger() -> str:
    """A tool for leads."""
    RAN.append("ledger")
    return "42"


class Db:
    """A dependency that says when it is closed."""

    closed: ClassVar[list[str]] = []


@tool(effect="read")
async def stored(*, db: Annotated[Db, Provide[Db]], ctx: ToolContext) -> str:
    """Read a dependency."""
    RAN.append("stored")
    return "x"


async def make_db() -> AsyncGenerator[Db]:
    yield Db()
    Db.closed.append("db")


class At(Hook):
    """Do something in one stage of ``add``."""

    def __init__(self, stage: str, deed: Any) -> None:
        self.stage, self.deed = stage, deed

    def _do(self, stage: str, ctx: InvokeContext) -> Any:
        return self.deed(ctx) if stage == self.stage and ctx.tool_id == "add" else None

    def will_create_invoke_context(self, ctx: InvokeContext) -> None:
        self._do("will_create_invoke_context", ctx)

    async def will_authorize(self, ctx: InvokeContext) -> None:
        self._do("will_authorize", ctx)

    def will_check_consent(self, ctx: InvokeContext) -> None:
        self._do("will_check_consent", ctx)

    def will_validate_input(self, ctx: InvokeContext) -> None:
        self._do("will_validate_input", ctx)

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        self._do("will_authorize_input", ctx)


STAGES = (
    "will_create_invoke_context",
    "will_authorize",
    "will_check_consent",
    "will_validate_input",
    "will_authorize_input",
)


def gate_with(*hooks: Any) -> Gate:
    RAN.clear()
    options: dict[str, Any] = {
        "signing_keys": ["k" * 32],
        "durable": False,
        "provide": {Db: Scoped("request", make_db)},
    }
    return Gate([add, refund, ledger, stored], [Authorize(permit("all")), *hooks], **gate_options(**options))


def crashes(_: Any) -> None:
    raise RuntimeError("password=hunter2")


def denies(_: Any) -> None:
    raise Denied("the account 4711 is blocked", code="blocked", public="The account is blocked.")


def waits(_: Any) -> None:
    raise RetryLater(1_000)


DEEDS = {"denies": denies, "crashes": crashes, "waits": waits, "nothing": lambda _: None}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("deed", DEEDS)
async def test_the_verdict_is_that_of_the_call(stage: str, deed: str) -> None:
    """With its code and its public text, and no text that only logs may have."""
    async with gate_with(At(stage, DEEDS[deed])) as gate:
        verdict = await gate.would("add", {"a": 1}, user=ANN)
        assert RAN == []
        result = await gate.call("add", {"a": 1}, user=ANN)
        assert bool(verdict) is result.ok
        if result.error is None:
            assert verdict == DryRun("pass")
        else:
            assert (verdict.verdict, verdict.code) == ("deny", result.error.code)
            assert verdict.reason == result.error.public
        assert "hunter2" not in str(verdict)
        assert "4711" not in str(verdict)


async def test_arguments_are_parsed_and_checked_as_those_of_a_call() -> None:
    """An object or a text; what is wrong is named without its value."""
    async with gate_with() as gate:
        assert await gate.would("add", '{"a": 1}', user=ANN)
        for wrong in ({"a": "secret"}, '{"a": "secret"}', {}, "{"):
            verdict = await gate.would("add", wrong, user=ANN)
            result = await gate.call("add", wrong, user=ANN)
            assert result.error is not None
            assert (verdict.verdict, verdict.code) == ("deny", result.error.code)
            assert verdict.issues == result.error.issues
            assert "secret" not in str(verdict)


async def test_a_call_that_would_wait_for_an_approval_suspends_nothing() -> None:
    """The rules say who may approve; no approver finds a pending call."""
    async with gate_with() as gate:
        verdict = await gate.would("refund", {"order": "A1"}, user=ANN)
        assert (verdict.verdict, verdict.code, verdict.reason) == ("suspend", "approval_required", "A lead decides.")
        assert verdict.rules == (Approval(roles={"lead"}, reason="A lead decides."),)
        assert not verdict
        assert await gate.waits.pending(LEA) == []
        assert (await gate.call("refund", {"order": "A1"}, user=ANN)).outcome is Outcome.SUSPENDED
        assert len(await gate.waits.pending(LEA)) == 1


async def test_hidden_and_unknown_tools_answer_alike() -> None:
    """In ``would`` and in ``may_see``."""
    async with gate_with(Authorize(permit("all"), forbid("no refunds", tools={"refund"}))) as gate:
        told = {name: await gate.would(name, {}, user=ANN) for name in ("ledger", "nosuch", "refund")}
        assert len(set(told.values())) == 1
        assert told["nosuch"].verdict == "deny"
        assert [gate.may_see(name, ANN) for name in ("ledger", "nosuch", "add")] == [False, False, True]
        assert gate.may_see("ledger", LEA)
        assert await gate.would("ledger", {}, user=LEA)


async def test_nothing_is_taken_counted_cached_or_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand questions leave a quota of one, a permit of one, an empty cache and an empty audit log; one call does not."""
    caplog.set_level(logging.INFO, "callgate")
    hooks = [Quota("1/hour"), Concurrency(1), Cache(ttl=60), Audit(), Metrics()]
    async with gate_with(*hooks) as gate:
        verdicts = await asyncio.gather(*(gate.would("add", {"a": 1}, user=ANN) for _ in range(1000)))
        assert all(verdicts)
        assert RAN == []
        assert [row async for row in gate.store.audit.read(None)] == []
        asked = [one for one in caplog.records if "call.asked" in one.getMessage()]
        assert len(asked) == 1000
        assert (await gate.call("add", {"a": 1}, user=ANN)).ok
        assert [row async for row in gate.store.audit.read(None)] != []
        limited = await gate.call("add", {"a": 2}, user=ANN)
        assert limited.outcome is Outcome.RETRY_LATER
        assert await gate.would("add", {"a": 3}, user=ANN), "a rate limit is no part of the question"


async def test_what_hooks_take_for_a_call_is_given_back() -> None:
    """Leases end, and dependencies that hooks have made are closed; those of the tool are not made."""

    class Lease:
        entered = left = 0

        async def __aenter__(self) -> None:
            Lease.entered += 1

        async def __aexit__(self, *_: object) -> None:
            Lease.left += 1

    class Takes(Hook):
        async def will_authorize(self, ctx: InvokeContext) -> None:
            await ctx.lease(Lease())
            await ctx.resolve(Db)

    Db.closed.clear()
    async with gate_with(Takes()) as gate:
        assert await gate.would("stored", {}, user=ANN)
        assert (Lease.entered, Lease.left, Db.closed) == (1, 1, ["db"])
        assert not gate._services.under_way
    async with gate_with() as gate:
        assert await gate.would("stored", {}, user=ANN)
        assert Db.closed == ["db"]


async def test_a_hook_that_hangs_ends_at_the_deadline() -> None:
    """Of the question; a caller who is cancelled is cancelled."""

    class Hangs(Hook):
        async def will_authorize(self, ctx: InvokeContext) -> None:
            await asyncio.Event().wait()

    async with gate_with(Hangs()) as gate:
        verdict = await asyncio.wait_for(gate.would("add", {"a": 1}, user=ANN, deadline=0.05), 10)
        assert verdict.verdict == "deny"
        asking = asyncio.ensure_future(gate.would("add", {"a": 1}, user=ANN))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not gate._services.under_way


async def test_a_gate_that_is_not_open_answers_no_question() -> None:
    """As for a call."""
    with pytest.raises(GateClosed):
        await gate_with().would("add", {"a": 1}, user=ANN)
