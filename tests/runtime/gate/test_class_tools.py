"""Class tools behind a gate: one instance, made after authorisation; and what its constructor raises."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import (
    Denied,
    Effect,
    Hook,
    Invalid,
    InvokeContext,
    Outcome,
    ToolContext,
    ToolError,
    converse,
    hydrate_without_gate,
    tool,
)
from callgate.models import OpenAIChat
from callgate.providers.stores.effects import EffectState
from callgate.tools.arguments import hydration
from callgate.tools.arguments.hydration import UnmadeTool
from tests.runtime.conversation.conversing import FakeModel, asks, says
from tests.runtime.gate.making import NUMBER, USER, call, gate_of

EVENTS: list[str] = []


@tool(name="work", effect="read", parameters=NUMBER)
class Noted:
    """Notes when it is made and when it runs."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        EVENTS.append("made")
        self.n = arguments["n"]

    async def run(self) -> int:
        EVENTS.append("ran")
        return 2 * int(self.n)


class Authorising(Hook):
    """Notes when it authorises, and refuses on request."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        EVENTS.append("authorised")
        if self.refuses:
            raise Denied("no")


@pytest.fixture(autouse=True)
def no_events() -> None:
    EVENTS.clear()


@pytest.mark.parametrize("arguments", ['{"n": 2}', {"n": 2}, "{'n': 2}"])
@pytest.mark.parametrize("refuses", [False, True])
async def test_a_class_tool_is_made_once_after_authorisation(arguments: Any, refuses: bool) -> None:
    """Contract 23, 44, 51, I7."""
    async with gate_of([Noted], Authorising(refuses=refuses)) as gate:
        found = gate.hydrate(call(arguments))
        assert (EVENTS, found.success, type(found.tool)) == ([], True, UnmadeTool)
        await gate.call(found, user=USER)
    assert (["authorised"] if refuses else ["authorised", "made", "ran"]) == EVENTS


async def test_the_probe_sees_a_hydration_that_makes_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: with a hydration that constructs, the probe finds two instances."""
    plain = hydration.Hydrator.hydrate

    def constructing(self: Any, *given: Any) -> Any:
        return hydration.hydrate_and_construct(self, plain(self, *given))

    monkeypatch.setattr(hydration.Hydrator, "hydrate", constructing)
    async with gate_of([Noted], Authorising()) as gate:
        await gate.call(gate.hydrate(call()), user=USER)
    assert EVENTS == ["made", "authorised", "made", "ran"]


async def test_a_conversation_makes_a_class_tool_once() -> None:
    """Contract 23, 51."""
    async with gate_of([Noted], Authorising()) as gate:
        ended = await converse(FakeModel(asks(call('{"n": 2}')), says("done")), gate, "go", user=USER)
    assert [one.result.output for one in ended.calls] == [4]
    assert EVENTS == ["authorised", "made", "ran"]


async def test_a_model_client_makes_no_class_tool_of_a_gate_and_the_instance_of_a_plain_one() -> None:
    """Contract 51, 55, 57: a gate authorises first; ``run`` is not called in either case."""
    from callgate.runtime.models.wire.offered_tools import ToolTranslator
    from callgate.tools.calls import ANONYMOUS

    translator = ToolTranslator(OpenAIChat.codec)
    async with gate_of([Noted]) as gate:
        found = await translator.of(gate, ANONYMOUS, checked=True).hydrate(call('{"n": 2}'), None)
        assert (found.success, isinstance(found.tool, Noted), EVENTS) == (True, False, [])
        found = await translator.of([Noted], ANONYMOUS, checked=True).hydrate(call('{"n": 2}'), None)
        assert (found.success, isinstance(found.tool, Noted), EVENTS) == (True, True, ["made"])


async def test_hydration_without_a_gate_says_so_and_makes_the_instance() -> None:
    """Contract 51, 52."""
    found = await hydrate_without_gate(Noted, call('{"n": 2}'))
    assert (found.tool.n, EVENTS) == (2, ["made"])
    with pytest.raises(ValueError, match="give its own tool"):
        await hydrate_without_gate(Noted, call(name="other"))


# ---------------------------------------------------------------------- what a constructor raises


def raising(what: Any, effect: Effect = Effect.READ) -> Any:
    """A class tool whose constructor does *what*."""

    @tool(name="work", effect=effect, key=["n"] if effect is Effect.KEYED else [], parameters=NUMBER)
    class Raising:
        """Raises."""

        def __init__(self, arguments: dict[str, Any], *, ctx: ToolContext) -> None:
            if isinstance(what, Exception):
                raise what
            what(ctx)

        async def run(self) -> None:
            raise AssertionError("ran")

    return Raising


def aborts(ctx: ToolContext) -> None:
    ctx.abort("private", "closed")


def delays(ctx: ToolContext) -> None:
    ctx.retry_after(700, "busy")


def responds(ctx: ToolContext) -> None:
    ctx.respond("an answer")


RAISED: dict[str, tuple[Any, Outcome, str | None, str | None]] = {
    "ToolError": (ToolError("No such city.", code="city"), Outcome.ERROR, "city", "No such city."),
    "Invalid": (Invalid("x", public="n is a prime."), Outcome.INVALID, "invalid_arguments", "n is a prime."),
    "abort": (aborts, Outcome.DENIED, "closed", "The call was denied."),
    "retry_after": (delays, Outcome.RETRY_LATER, "retry_later", "Busy or over quota; try again later."),
    "respond": (responds, Outcome.SUCCESS, None, None),
    "outage": (ConnectionError("SECRET"), Outcome.ERROR, "tool_failed", "The tool failed."),
}


@pytest.mark.parametrize("hydrated", [False, True])
@pytest.mark.parametrize("name", RAISED)
async def test_what_a_constructor_raises_means_what_it_means_in_a_body(name: str, hydrated: bool) -> None:
    """Contract 51, 88."""
    what, outcome, code, public = RAISED[name]
    async with gate_of([raising(what)]) as gate:
        result = await gate.call(gate.hydrate(call()) if hydrated else call(), user=USER)
    assert result.outcome is outcome
    assert (result.error and result.error.code, result.error and result.error.public) == (code, public)
    assert result.output == ("an answer" if name == "respond" else None)
    assert result.retry_after == (700 if name == "retry_after" else None)


@pytest.mark.parametrize(
    ("what", "state"),
    [
        (ConnectionError("down"), EffectState.UNKNOWN),
        (Invalid("x"), EffectState.UNKNOWN),
        (Invalid("x", no_effect=True), EffectState.NO_EFFECT),
        (ToolError("x"), EffectState.COMMITTED),
        (ToolError("x", no_effect=True), EffectState.NO_EFFECT),
        (aborts, EffectState.NO_EFFECT),
        (delays, EffectState.NO_EFFECT),
        (responds, EffectState.COMMITTED),
    ],
)
async def test_the_ledger_counts_a_constructor_as_part_of_the_body(what: Any, state: EffectState) -> None:
    """Contract I3, I4."""
    async with gate_of([raising(what, Effect.KEYED)], durable=False) as gate:
        await gate.call(call(), user=USER)
        assert [effect.state for _, effect in await gate.store.effects.list(None)] == [state]
