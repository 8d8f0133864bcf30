"""How an effect ends in the ledger, whatever its body does and whoever stands about it; and finding out what nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide

from callgate import Hook, Invalid, InvokeContext, Outcome, ToolCall, ToolContext, ToolError, tool
from callgate.hooks import Retry
from callgate.hooks.base import Next
from tests.runtime.effects.scene_bodies import BODIES, Make, in_parts
from tests.runtime.effects.scene_desk import ANN, Desk, call, code, gate_of, states

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])
COMMITTED, NO_EFFECT, UNKNOWN = "committed", "no_effect", "unknown"

ENDINGS: list[tuple[str, str, Outcome]] = [
    ("ok", COMMITTED, Outcome.SUCCESS),
    ("tool_error", COMMITTED, Outcome.ERROR),
    ("abort", NO_EFFECT, Outcome.DENIED),
    ("later", NO_EFFECT, Outcome.RETRY_LATER),
    ("no_effect", NO_EFFECT, Outcome.ERROR),
    ("denied", UNKNOWN, Outcome.DENIED),
    ("raise", UNKNOWN, Outcome.ERROR),
    ("exits", UNKNOWN, Outcome.ERROR),
    ("bad", COMMITTED, Outcome.ERROR),
    ("not json", COMMITTED, Outcome.ERROR),
    ("not finite", COMMITTED, Outcome.ERROR),
    ("large", COMMITTED, Outcome.ERROR),
]


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize(("how", "state", "outcome"), ENDINGS, ids=[row[0] for row in ENDINGS])
@pytest.mark.parametrize("make", BODIES, ids=lambda make: make.__name__)
async def test_however_a_body_ends_and_is_run_the_ledger_says_so(
    make: Make, how: str, state: str, outcome: Outcome, trace: bool
) -> None:
    """I4; design 7: what had an effect never runs again, what had none does, and nobody guesses."""
    if make is in_parts and how in {"not json", "not finite", "large"}:
        state, outcome = UNKNOWN, Outcome.ERROR  # it was stopped between two parts
    ran: list[str] = []
    made, hooks = make(ran, {})
    sent = ToolCall(id="c", name="work", arguments={"how": how})
    async with gate_of(made, hooks) as gate:
        first = await gate.call(sent, user=ANN, idempotency_key="k", trace=trace)
        assert (first.outcome, await states(gate)) == (outcome, [state])
        again = await gate.call(sent, user=ANN, idempotency_key="k", trace=trace)
        if state == NO_EFFECT:
            assert (again.outcome, again.replayed) == (outcome, False)
        elif state == COMMITTED:
            assert (again.outcome, again.output, code(again)) == (first.outcome, first.output, code(first))
            assert again.replayed
        else:
            assert (again.outcome, code(again), again.replayed) == (Outcome.UNKNOWN, "outcome_unknown", False)
            other = await gate.call(
                ToolCall(id="c", name="work", arguments={"how": "ok"}), user=ANN, idempotency_key="k"
            )
            assert other.outcome is Outcome.CONFLICT
        assert ran == ([] if state == NO_EFFECT else [how])
        assert await states(gate) == [state]


@EVERY_STORE
async def test_what_had_no_effect_may_be_done_after_all_with_other_arguments_too(store: str) -> None:
    """I4; design 7."""
    desk = Desk()
    async with gate_of(desk.tool(), store=store) as gate:
        for sent in (call(5, how="abort"), call(6, how="later"), call(7)):
            await gate.call(sent, user=ANN, idempotency_key="k")
        assert (desk.paid, desk.tokens, await states(gate)) == ([7], [1, 2, 3], [COMMITTED])


@EVERY_STORE
async def test_an_idempotent_tool_is_run_again_after_nobody_knows_what(store: str) -> None:
    """I4: unless the tool is declared idempotent."""
    desk = Desk()
    async with gate_of(desk.tool(effect="idempotent"), store=store) as gate:
        for _ in range(2):
            assert code(await gate.call(call(5, how="raise"), user=ANN, idempotency_key="k")) == "tool_failed"
        assert (desk.paid, desk.tokens, await states(gate)) == ([5, 5], [1, 2], [UNKNOWN])
        assert (await gate.call(call(5), user=ANN, idempotency_key="k")).outcome is Outcome.CONFLICT


# ---------------------------------------------------------------------- before the body


async def test_what_fails_before_the_body_begins_had_no_effect() -> None:
    """I4, I7: dependencies, arguments that only a type refuses, hooks next to the tool."""
    ran: list[int] = []

    def broken() -> str:
        raise ConnectionError("no database")

    class Box(containers.DeclarativeContainer):
        db = providers.Factory(broken)

    @tool(effect="irreversible")
    async def needs(n: int, db: Annotated[str, Provide[Box.db]]) -> str:
        """Work."""
        ran.append(n)
        return "done"

    @tool(effect="irreversible", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
    class Refuses:
        """Work."""

        def __init__(self, arguments: dict[str, Any]) -> None:
            raise Invalid("never", no_effect=True)

        async def run(self, params: Any = None) -> str:
            ran.append(0)
            return "done"

    async with gate_of([needs, Refuses], container=Box()) as gate:
        for name in ("needs", "Refuses"):
            result = await gate.call(ToolCall(id="c", name=name, arguments={"n": 1}), user=ANN, idempotency_key="k")
            assert result.outcome in {Outcome.ERROR, Outcome.INVALID}
        assert (ran, await states(gate)) == ([], [NO_EFFECT, NO_EFFECT])


class Stops(Hook):
    """Ends the call next to the tool, or about it, without running it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def will_execute(self, ctx: InvokeContext) -> None:
        if self.how == "aborts":
            ctx.abort("no")
        if self.how == "answers":
            ctx.respond("answered")
        if self.how == "breaks":
            raise RuntimeError("broken hook")


class Instead(Hook):
    """Answers about the tool and never runs it."""

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        return "answered"


@pytest.mark.parametrize("about", [False, True])
@pytest.mark.parametrize("how", ["aborts", "answers", "breaks", "instead"])
async def test_a_hook_that_keeps_the_tool_from_running_leaves_no_effect(how: str, about: bool) -> None:
    """I4: also with somebody about the tool."""
    desk = Desk()

    class Around(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            return await next()

    hooks: list[Any] = [Instead()] if how == "instead" else [Stops(how)]
    async with gate_of(desk.tool(), [*hooks, *([Around()] if about else [])]) as gate:
        for _ in range(2):
            result = await gate.call(call(), user=ANN, idempotency_key="k")
            assert (result.ok, result.replayed) == (how in {"answers", "instead"}, False)
        assert (desk.paid, await states(gate)) == ([], [NO_EFFECT])


# ---------------------------------------------------------------------- after the body


AFTER = ["did_execute", "will_write_cache", "will_redact_output", "will_validate_output", "will_transform_output"]
BREAKS: dict[str, Callable[[InvokeContext], None]] = {
    "breaks": lambda ctx: refuse(RuntimeError("broken hook")),
    "aborts": lambda ctx: ctx.abort("too late", code="too_late", http_status=418, public="Too late."),
    "puts off": lambda ctx: ctx.retry_after(70, public="Later."),
    "tells the model": lambda ctx: refuse(ToolError("Ask somebody.", code="ask")),
}


def refuse(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("stage", AFTER)
@pytest.mark.parametrize("how", BREAKS)
@EVERY_STORE
async def test_what_fails_after_the_body_changes_nothing_about_the_effect(stage: str, how: str, store: str) -> None:
    """I4, I10: committed, not run again, and a repeat is told the same."""
    desk = Desk()
    hook = type("Fails", (Hook,), {stage: lambda self, ctx: BREAKS[how](ctx)})()
    async with gate_of(desk.tool(), [hook], store=store) as gate:
        first = await gate.call(call(), user=ANN, idempotency_key="k")
        again = await gate.call(call(), user=ANN, idempotency_key="k")
        assert not first.ok
        for result in (first, again):
            assert result.error is not None
        assert (first.outcome, code(first), first.retry_after) == (again.outcome, code(again), again.retry_after)
        assert (first.error.public, first.error.http_status) == (again.error.public, again.error.http_status)  # type: ignore[union-attr]
        assert (first.replayed, again.replayed) == (False, True)
        assert (desk.paid, await states(gate)) == ([5], [COMMITTED])


@pytest.mark.parametrize("stage", ["will_audit", "did_audit", "on_metrics", "will_finalize_invoke"])
async def test_what_fails_as_the_call_is_closed_changes_nothing(stage: str) -> None:
    """I4, I10."""
    desk = Desk()

    def fails(self: Any, ctx: InvokeContext) -> None:
        raise RuntimeError("broken observer")

    async with gate_of(desk.tool(), [type("Fails", (Hook,), {stage: fails})()]) as gate:
        assert (await gate.call(call(), user=ANN, idempotency_key="k")).output == "paid 1"
        assert (await gate.call(call(), user=ANN, idempotency_key="k")).output == "paid 1"
        assert (desk.paid, await states(gate)) == ([5], [COMMITTED])


# ---------------------------------------------------------------------- about the body


def failing(ran: list[int], endings: Sequence[Any], effect: str) -> Any:
    """A tool that ends in turn as told: with an error, or an output."""

    options: Any = {"effect": effect, **({"key": ("n",)} if effect == "keyed" else {})}

    @tool(name="work", **options)
    async def work(n: int) -> str:
        """Work."""
        ran.append(n)
        ending = endings[len(ran) - 1]
        if isinstance(ending, BaseException):
            raise ending
        return str(ending)

    return work


GONE, NOTHING = ConnectionError("gone"), ConnectionRefusedError("never arrived")
RETRIES: list[tuple[str, list[Any], int, Outcome, str]] = [
    ("keyed", [GONE, "done"], 2, Outcome.SUCCESS, COMMITTED),
    ("idempotent", [GONE, GONE, "done"], 3, Outcome.SUCCESS, COMMITTED),
    ("idempotent", [GONE, GONE, GONE], 3, Outcome.ERROR, UNKNOWN),
    ("idempotent", [GONE, ToolError("No.")], 2, Outcome.ERROR, UNKNOWN),
    ("idempotent", [GONE, ToolError("No.", no_effect=True)], 2, Outcome.ERROR, UNKNOWN),
    ("irreversible", [GONE, "done"], 1, Outcome.ERROR, UNKNOWN),
    ("irreversible", [NOTHING, "done"], 2, Outcome.SUCCESS, COMMITTED),
]


@pytest.mark.parametrize(("effect", "endings", "runs", "outcome", "state"), RETRIES)
async def test_retries_are_one_effect(effect: str, endings: Any, runs: int, outcome: Outcome, state: str) -> None:
    """I4; contract 102: never repeated after an ambiguous failure, unless its effect allows it."""
    ran: list[int] = []
    retry = Retry(3, wait=lambda _: 0.0, safe=ConnectionRefusedError)
    async with gate_of(failing(ran, endings, effect), [retry]) as gate:
        result = await gate.call(ToolCall(id="c", name="work", arguments={"n": 1}), user=ANN, idempotency_key="k")
        assert (result.outcome, len(ran), await states(gate)) == (outcome, runs, [state])


class Fallback(Hook):
    """Answers for a tool that failed."""

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            return await next()
        except RuntimeError:
            return "queued for tomorrow"


async def test_a_fallback_is_the_outcome_and_a_repeat_gets_it() -> None:
    """I4: the tool is not run again behind it."""
    desk = Desk()
    async with gate_of(desk.tool(), [Fallback()]) as gate:
        for replayed in (False, True):
            result = await gate.call(call(how="raise"), user=ANN, idempotency_key="k")
            assert (result.output, result.replayed) == ("queued for tomorrow", replayed)
        assert (desk.paid, await states(gate)) == ([5], [COMMITTED])


async def test_an_outer_call_that_runs_again_does_not_repeat_what_it_called() -> None:
    """I4: a nested call is known by its place in the outer one."""
    desk = Desk()
    breaks = [True, False]

    @tool(effect="idempotent")
    async def both(ctx: ToolContext) -> list[str]:
        """Pay twice."""
        paid = [await ctx.call("pay", {"cents": cents}) for cents in (5, 5)]
        if breaks.pop(0):
            raise RuntimeError("broken in the middle")
        return paid

    async with gate_of([both, desk.tool()]) as gate:
        first = await gate.call(ToolCall(id="c", name="both", arguments={}), user=ANN, idempotency_key="k")
        again = await gate.call(ToolCall(id="c", name="both", arguments={}), user=ANN, idempotency_key="k")
        assert (first.outcome, again.output) == (Outcome.ERROR, ["paid 1", "paid 2"])
        assert desk.paid == [5, 5]


@EVERY_STORE
@pytest.mark.parametrize(("ends", "state"), [("returns", COMMITTED), ("raises", UNKNOWN)])
async def test_a_body_that_a_hook_drives_by_hand_and_leaves_in_the_middle_does_not_run_again(
    ends: str, state: str, store: str
) -> None:
    """The ledger had it as ``no_effect``, although the tool had begun, so a repeat ran it again."""
    ran, left = list[int](), list[Any]()

    class ByHand(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
            left.append(next())
            left[-1].send(None)
            if ends == "raises":
                raise ValueError
            return 7

    @tool(effect="irreversible")
    async def pay(cents: int) -> int:
        """Pay."""
        ran.append(cents)
        await asyncio.sleep(0)
        return cents

    async with gate_of(pay, [ByHand()], store=store) as gate:
        for _ in range(2):
            await gate.call(call(5), user=ANN, idempotency_key="k")
            assert (ran, await states(gate)) == ([5], [state])
    for running in left:
        running.close()
