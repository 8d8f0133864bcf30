"""``trace``: what it says is what happened, also where the engine goes wrong."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from callgate import (
    Denied,
    Effects,
    Gate,
    GateClosed,
    Hook,
    Invalid,
    InvokeContext,
    Provide,
    Scoped,
    Stage,
    ToolCall,
    ToolError,
    ToolFailed,
    User,
    on,
    tool,
)
from callgate.errors import UnknownTool
from callgate.hooks import Audit
from callgate.runtime.pipeline import closing, leases, run, services
from callgate.testing import Trace, VirtualTime, trace
from tests.runtime.testing.making import Again, Connected, OnlyReleases, Places, Quota, double

USER = User("u1")


def traced(
    virtual_time: VirtualTime, hooks: list[Any], arguments: Any = None, tool: Any = double, **more: Any
) -> Trace:
    async def run() -> Trace:
        async with Gate([tool], hooks, allow_unguarded=True) as gate:
            return await trace(gate, tool, {"n": 2} if arguments is None else arguments, user=USER, **more)

    return virtual_time.run(run())


def test_a_trace_shows_stages_verdicts_and_output(virtual_time: VirtualTime) -> None:
    """Design 4."""

    class Policy(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            assert ctx.user is USER

        def filter(self, ctx: InvokeContext) -> bool:
            return ctx.run.step.stage is Stage.WILL_AUTHORIZE

        def will_audit(self, ctx: InvokeContext) -> None:
            raise AssertionError

    seen = traced(virtual_time, [Policy()])
    assert (seen.output, seen.error, seen.result.ok) == (4, None, True)
    assert seen.stages == (
        Stage.WILL_AUTHORIZE,
        Stage.WILL_PARSE_INPUT,
        Stage.WILL_VALIDATE_INPUT,
        Stage.WILL_EXECUTE,
        Stage.WILL_VALIDATE_OUTPUT,
        Stage.WILL_TRANSFORM_OUTPUT,
        Stage.WILL_AUDIT,
    )
    assert seen.verdicts["Policy.will_authorize"] == "ok"
    assert seen.verdicts["Policy.will_audit"] == "skipped"
    assert seen.verdicts["[tool].will_execute"] == "ok"
    assert all(step.seconds >= 0 for step in seen.steps)
    assert "no leases" in str(seen)


def test_a_trace_says_what_each_step_raised_and_what_ended_the_call(virtual_time: VirtualTime) -> None:
    """Design 4; contract 104."""

    class No(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            ctx.abort("not on Sundays")

    seen = traced(virtual_time, [No()])
    assert seen.verdicts == {"No.will_authorize": "Denied"}
    assert isinstance(seen.error, Denied)
    assert seen.output is None
    assert "denied (Denied: not on Sundays)" in str(seen)
    seen = traced(virtual_time, [], {"n": "two"})
    assert isinstance(seen.error, Invalid)
    assert seen.verdicts["[validate].will_validate_input"] == "Invalid"


def test_a_response_and_a_retry_show_as_steps(virtual_time: VirtualTime) -> None:
    """Contract 93, 99."""
    tries = []

    @tool(effect="read")
    async def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return 7

    seen = traced(virtual_time, [Again()], {}, flaky)
    assert seen.verdicts["[tool].will_execute"] == "ConnectionError"
    assert seen.verdicts["[tool].will_execute#2"] == "ok"
    assert seen.output == 7

    @on(Stage.WILL_READ_CACHE)
    def hit(ctx: InvokeContext) -> None:
        ctx.respond(8)

    seen = traced(virtual_time, [hit])
    assert seen.verdicts["hit.will_read_cache"] == "ControlRespond"
    assert seen.output == 8
    assert Stage.WILL_EXECUTE not in seen.stages


async def test_a_call_a_hydrated_call_and_a_name_are_all_traced() -> None:
    """Design 4; contract 52."""
    async with Gate([double]) as gate:
        call = ToolCall(id="c7", name="double", arguments='{"n": 4}')
        for asked in call, gate.hydrate(call):
            seen = await trace(gate, asked, user=USER)
            assert (seen.output, seen.result.call_id) == (8, "c7")
        assert (await trace(gate, "double", '{"n": 4}')).output == 8
        assert (await trace(gate, double, {"n": 4}, deadline=5, request_id="r")).output == 8
        with pytest.raises(TypeError, match="its own arguments"):
            await trace(gate, call, {"n": 1})
        missing = await trace(gate, "treble", {})
        assert isinstance(missing.error, UnknownTool)
        assert (missing.steps, missing.leases) == ((), ())
        assert (await gate.call(call)).trace is None  # other calls are not watched
    with pytest.raises(GateClosed):
        await trace(gate, "double", {})


async def test_a_tool_that_fails_shows_the_exception_behind_the_public_text() -> None:
    """Design 5."""

    @tool(effect="read")
    async def fails() -> int:
        raise ZeroDivisionError("secret")

    @tool(effect="read")
    async def says() -> int:
        raise ToolError("No.")

    async with Gate([fails, says]) as gate:
        seen = await trace(gate, fails)
        assert "secret" not in str(seen.result)
        assert isinstance(seen.error, ToolFailed)
        assert isinstance(seen.error.__cause__, ZeroDivisionError)
        assert isinstance((await trace(gate, says)).error, ToolError)


# ---------------------------------------------------------------------- leases


def test_leases_show_who_took_them_and_when_they_came_back(virtual_time: VirtualTime) -> None:
    """Design 4; contract C1a, I1."""
    hooks = [Quota(), Places(), Connected(), OnlyReleases()]
    seen = traced(virtual_time, hooks)
    assert [(lease.step, lease.taken, lease.given_back) for lease in seen.leases] == [
        ("Quota.will_acquire_quota", 1, (4,)),
        ("OnlyReleases.did_release_quota", 2, (3,)),
        ("Places.will_acquire_semaphore", 3, (2,)),
        ("lease of Connected.will_inject_secrets", 4, (1,)),
    ]
    assert seen.given_back_in_reverse
    assert seen.held == ()
    assert "lease of Connected.will_inject_secrets" in str(seen)


def test_an_acquire_that_refuses_or_is_skipped_holds_nothing(virtual_time: VirtualTime) -> None:
    """Contract C1a, C1b."""

    class Full(Quota):
        def will_acquire_quota(self, ctx: InvokeContext) -> None:
            ctx.retry_after(10)

    class Elsewhere(Quota):
        def filter(self, ctx: InvokeContext) -> bool:
            return False

    class Mistaken(Quota):
        def will_acquire_quota(self, ctx: InvokeContext) -> Any:
            return True

    assert traced(virtual_time, [Full()]).leases == ()
    assert traced(virtual_time, [Elsewhere()]).leases == ()
    seen = traced(virtual_time, [Mistaken()])
    assert seen.leases == ()
    assert not seen.result.ok


def test_a_release_that_raises_is_named(virtual_time: VirtualTime) -> None:
    """Contract C1c."""

    class Sulky(Quota):
        def did_release_quota(self, ctx: InvokeContext) -> None:
            raise OSError

    (lease,) = traced(virtual_time, [Sulky()]).leases
    assert (lease.times, lease.failed) == (1, "OSError")


def test_leases_of_a_body_that_was_left_behind_show_when_they_come_back(virtual_time: VirtualTime) -> None:
    """Design 5: its leases are kept until it really ends."""

    @tool(effect="read", hard_deadline=True)
    async def stubborn() -> int:
        for _ in range(200):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return 1

    async def run() -> tuple[bool, Trace]:
        async with Gate([stubborn], [Quota()]) as gate:
            seen = await trace(gate, stubborn, deadline=0.5)
            held = bool(seen.held)
            await asyncio.sleep(60)
            return held, seen

    held, seen = virtual_time.run(run())
    assert seen.result.outcome == "unknown"
    assert held
    assert seen.held == ()


def test_a_release_that_the_engine_drops_is_seen_as_held(
    monkeypatch: pytest.MonkeyPatch, virtual_time: VirtualTime
) -> None:
    """I1: control; the trace does not read the ledger that it is there to judge."""

    monkeypatch.setattr(closing, "releases_of", lambda held: [])
    seen = traced(virtual_time, [Quota(), Places(), Connected()])
    assert [lease.step for lease in seen.held] == [
        "Quota.will_acquire_quota",
        "Places.will_acquire_semaphore",
        "lease of Connected.will_inject_secrets",
    ]
    assert not seen.given_back_in_reverse
    assert str(seen).count("NEVER GIVEN BACK") == 3


def test_a_release_that_the_engine_doubles_is_seen_twice(
    monkeypatch: pytest.MonkeyPatch, virtual_time: VirtualTime
) -> None:
    """I1: control."""
    closing_steps = closing.closing_steps

    def twice(plan: Any, ctx: Any) -> Any:
        first, _ = ctx.run.leases
        return (*closing_steps(plan, ctx), first)

    monkeypatch.setattr(run, "closing_steps", twice)
    seen = traced(virtual_time, [Places()])
    assert [lease.times for lease in seen.leases] == [2]
    assert "2 TIMES" in str(seen)
    assert not seen.given_back_in_reverse


def test_releases_in_the_wrong_order_are_seen(monkeypatch: pytest.MonkeyPatch, virtual_time: VirtualTime) -> None:
    """C1a: control."""
    releases_of = leases.releases_of
    monkeypatch.setattr(closing, "releases_of", lambda held: releases_of(held)[::-1])
    monkeypatch.setattr(services, "releases_of", lambda held: releases_of(held)[::-1])
    seen = traced(virtual_time, [Quota(), Places()])
    assert [lease.given_back for lease in seen.leases] == [(1,), (2,)]
    assert not seen.given_back_in_reverse


def test_the_table_for_rich_has_a_row_for_each_step_and_takes_no_name_for_markup(virtual_time: VirtualTime) -> None:
    """Design 4."""
    rich = pytest.importorskip("rich.console")
    console = rich.Console(record=True, width=140, file=io.StringIO())
    console.print(traced(virtual_time, [Quota()]))
    text = console.export_text()
    assert "[tool]" in text
    assert "Quota.will_acquire_quota" in text
    assert "double: success" in text


def test_an_acquire_that_was_interrupted_and_given_back_by_its_token_is_listed_as_not_taken(
    virtual_time: VirtualTime,
) -> None:
    """Contract C1d: ``releases_by_token``."""

    class Token(Places):
        releases_by_token = True

        async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            self.used += 1
            await asyncio.sleep(3600)

    hook = Token()

    async def run() -> Trace:
        async with Gate([double], [hook]) as gate:
            return await trace(gate, double, {"n": 1}, deadline=1)

    (lease,) = virtual_time.run(run()).leases
    assert (lease.taken, lease.times, hook.used) == (0, 1, 0)


@pytest.mark.parametrize("audited", [False, True])
@pytest.mark.parametrize("ends", ["well", "badly", "refused"])
async def test_the_claim_of_an_effect_is_given_back(ends: str, audited: bool) -> None:
    """Issue 36, 4: a trace said NEVER GIVEN BACK for each tool with an effect."""

    @tool(effect="irreversible")
    async def pay(cents: int) -> int:
        if ends == "badly":
            raise RuntimeError("broken")
        return cents

    hooks = [Audit()] if audited else []
    async with Gate([pay], hooks, allow_unguarded=True, effects=Effects(durable=False)) as gate:
        seen = await trace(gate, "pay", {"cents": "text" if ends == "refused" else 5}, user=User("ann"))
    assert seen.held == ()
    assert seen.given_back_in_reverse
    assert [lease.step for lease in seen.leases] == ([] if ends == "refused" else ["[intent].around_execute"])
    assert "NEVER" not in str(seen)


class Unit:
    """A transaction."""


async def a_unit() -> AsyncIterator[Unit]:
    yield Unit()


@pytest.mark.parametrize("hooked", [False, True], ids=["no hook", "hooks"])
@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
@pytest.mark.parametrize("in_unit", [False, True], ids=["no unit", "unit of work"])
@pytest.mark.parametrize("effect", ["read", "idempotent", "keyed", "irreversible"])
async def test_a_trace_names_each_step_of_an_effect_as_the_engine_does(
    effect: Any, in_unit: bool, fails: bool, hooked: bool
) -> None:
    """The end of the unit of work is a step of its own, and no second run of the tool."""

    class Watches(Hook):
        def will_execute(self, ctx: InvokeContext) -> None: ...

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            return await next()

    @tool(effect=effect, key=("n",) if effect == "keyed" else ())
    async def pay(n: int, unit: Annotated[Unit | None, Provide[Unit]] = None) -> int:
        if fails:
            raise ToolError("No.")
        return n

    @tool(effect=effect, name="pay", key=("n",) if effect == "keyed" else ())
    async def without(n: int) -> int:
        return await pay(n)

    async with Gate(
        [pay if in_unit else without],
        [Watches()] if hooked else [],
        allow_unguarded=True,
        effects=Effects(durable=False),
        provide={Unit: Scoped("execution", a_unit)} if in_unit else {},
    ) as gate:
        seen = await trace(gate, "pay", {"n": 1})
        result = await gate.call("pay", {"n": 2}, trace=True)
    named = [(step.stage, step.hook.strip("[]")) for step in seen.steps]
    assert named == [(row[0], row[1]) for row in result.trace or ()]
    assert named.count((Stage.WILL_EXECUTE, "tool")) == 1
    assert named.count((Stage.AROUND_EXECUTE, "unit of work")) == in_unit
    assert seen.verdicts["[tool].will_execute"] == ("ToolError" if fails else "ok")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"user": "ann"}, 'write user=User("ann")'),
        ({"deadlin": 5}, "did you mean 'deadline'"),
        ({"session_id": 5}, "session_id is of type int"),
    ],
)
async def test_a_call_that_was_written_wrongly_is_not_traced_as_an_unknown_tool(
    options: dict[str, Any], says: str
) -> None:
    """The trace said that there is no tool, of a tool that there is."""
    async with Gate([double]) as gate:
        seen = await trace(gate, double, {"n": 2}, **options)
        with pytest.raises(TypeError) as raised:
            await gate.invoke(double, {"n": 2}, **options)
        assert (type(seen.error), str(seen.error)) == (type(raised.value), str(raised.value))
        assert says in str(seen)
        assert isinstance((await trace(gate, "no_such", {})).error, UnknownTool)
