"""The face of a gate: what it takes, what it refuses, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from callgate import (
    DefinitionError,
    Denied,
    Effects,
    Gate,
    GateClosed,
    Hook,
    Invalid,
    InvokeContext,
    Outcome,
    RegistrationError,
    ToolCall,
    ToolDefinition,
    ToolRecord,
    UnknownTool,
    User,
    tool,
)
from callgate.errors import HookError
from callgate.hooks import Authorize, permit, sampled
from callgate.runtime.models.wire.codec import WireError
from callgate.tools.definition import Effect
from callgate.tools.record import Style
from tests.runtime.gate.making import NUMBER, USER, call, double, gate_of, made


@dataclass
class Receipt:
    order: str
    total: float


@tool(effect="read")
async def receipt(order: str) -> Receipt:
    return Receipt(order, 1.5)


class Allow(Hook):
    """Says yes."""

    def will_authorize(self, ctx: InvokeContext) -> None: ...


class Some(Allow):
    """Is asked for some calls."""

    def filter(self, ctx: InvokeContext) -> bool:
        return ctx.user.id == "ann"


ROLE = permit("clerks", roles={"clerk"})


class Refuse(Hook):
    """Says no."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        raise Denied("no")


# ---------------------------------------------------------------------- calling


async def test_the_tool_object_gives_a_typed_result_and_its_name_gives_json() -> None:
    """Contract 83, C11."""
    async with gate_of([receipt]) as gate:
        typed: Receipt = await gate.invoke(receipt, {"order": "7"}, user=USER)
        assert typed == Receipt("7", 1.5)
        assert await gate.invoke("receipt", '{"order": "7"}', user=USER) == {"order": "7", "total": 1.5}
        assert (await gate.call(ToolCall(id="c", name="receipt", arguments={"order": "7"}))).output == {
            "order": "7",
            "total": 1.5,
        }


async def test_invoke_raises_how_it_ended_and_call_says_it() -> None:
    """Contract 83, C11, C12."""
    async with gate_of([made(double)]) as gate:
        with pytest.raises(Invalid):
            await gate.invoke("work", {"n": "x"}, user=USER)
        with pytest.raises(UnknownTool, match="work"):
            await gate.invoke("wrok", user=USER)
        with pytest.raises(UnknownTool):
            await gate.invoke(receipt, user=USER)
        assert (await gate.call(call({"n": "x"}))).outcome is Outcome.INVALID
        assert (await gate.call(call(name="wrok"))).outcome is Outcome.INVALID


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_gate_that_is_not_open_runs_nothing(when: str) -> None:
    """Contract 83."""
    gate = gate_of([made(double)])
    if when == "after":
        async with gate:
            assert await gate.invoke("work", {"n": 1}) == 2
    with pytest.raises(GateClosed, match="async with"):
        await gate.invoke("work", {"n": 1})
    with pytest.raises(GateClosed):
        await gate.call(call())
    with pytest.raises(GateClosed):
        await gate.call_many([call(), call()])
    with pytest.raises(GateClosed):
        async for _ in gate.stream(call()):
            raise AssertionError


async def test_an_option_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    """Contract 83."""
    given: Any = {"deadlin": 3}
    async with gate_of([made(double)]) as gate:
        with pytest.raises(TypeError, match="did you mean 'deadline'"):
            await gate.invoke("work", {"n": 1}, **given)
        for result in (await gate.call(call(), **given), *await gate.call_many([call(), call()], **given)):
            assert result.error is not None
            assert "did you mean 'deadline'" in result.error.public


def test_an_option_of_the_gate_that_does_not_exist_is_refused() -> None:
    """Contract 83."""
    wrong: Any = {"hook": []}
    with pytest.raises(TypeError, match="hook"):
        Gate([], **wrong, effects=Effects(durable=False))


# ---------------------------------------------------------------------- registering


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.KEYED, Effect.IRREVERSIBLE, None])
async def test_a_tool_that_may_change_the_world_needs_somebody_who_authorises(effect: Effect | None) -> None:
    """Contract 96, I6."""
    key = ("n",) if effect in {Effect.KEYED, Effect.IRREVERSIBLE} else ()
    record = ToolRecord(ToolDefinition("pay", "Pays.", NUMBER, effect=effect, key=key), double, Style.KEYWORDS)
    with pytest.raises(RegistrationError, match="'pay'") as caught:
        await Gate([record], effects=Effects(durable=False)).__aenter__()
    assert "allow_unguarded=True" in str(caught.value)
    with pytest.raises(RegistrationError, match="'pay'"):  # in shadow mode it stops nobody
        await Gate(
            [record], [type("Watching", (Allow,), {"mode": "shadow"})()], effects=Effects(durable=False)
        ).__aenter__()
    asks = type("Asks", (Hook,), {"mode": "shadow", "approval_for": lambda self, ctx: True})()
    with pytest.raises(RegistrationError, match="'pay'"):  # and it asks no approver
        await Gate([record], [asks], effects=Effects(durable=False)).__aenter__()
    for hook in (sampled(Allow(), 50), sampled(Allow, 50), Some(), Some, Authorize(ROLE, filter=lambda _: True)):
        with pytest.raises(RegistrationError, match="'pay'"):  # and for a share it stops a share
            await Gate([record], [hook], effects=Effects(durable=False)).__aenter__()
    for hook in (type("Acme", (Allow,), {"tenants": {"acme"}})(), Authorize(ROLE, tenants={"acme"})):
        with pytest.raises(RegistrationError, match="every call"):
            await Gate([record], [hook], effects=Effects(durable=False)).__aenter__()
    said = type("Said", (Some,), {"guards": True})()
    limited = Authorize(ROLE, tools={"pay"}, tags=None)
    for gate in (
        Gate([record], [said], effects=Effects(durable=False)),
        Gate([record], [limited], effects=Effects(durable=False)),
        Gate([record], [Some(), Allow()], effects=Effects(durable=False)),
    ):
        async with gate:
            pass
    for gate in (
        Gate([record], [Allow()], effects=Effects(durable=False)),
        Gate([record], allow_unguarded=True, effects=Effects(durable=False)),
        Gate([made(double)], effects=Effects(durable=False)),
    ):
        async with gate:
            pass


async def test_a_hook_that_is_limited_to_other_tools_authorises_nothing_here() -> None:
    """Contract 96, I6."""
    gate = Gate([made(double, effect=Effect.IDEMPOTENT)], effects=Effects(durable=False))
    gate.use(Allow(), tools={"other"})
    with pytest.raises(RegistrationError, match="'work'"):
        await gate.__aenter__()


def test_duplicate_names_are_refused_unless_replaced_on_purpose() -> None:
    """Contract 30, C6."""
    with pytest.raises(DefinitionError, match="Duplicate tool names: work"):
        Gate([made(double), made(double)], effects=Effects(durable=False))
    gate = Gate([made(double)], effects=Effects(durable=False))
    with pytest.raises(DefinitionError, match="Duplicate tool names: work"):
        gate.add(made(double))
    newer = made(double, version="2")
    assert gate.add(newer, replace=True) is newer
    assert gate.definitions() == [newer.definition]


async def test_a_tool_added_to_an_open_gate_can_be_called_and_one_replaced_is_gone() -> None:
    """Contract 8, 30."""

    async def triple(n: int) -> int:
        return 3 * n

    async with gate_of([made(double)]) as gate:
        gate.add(made(triple, "triple"))
        assert await gate.invoke("triple", {"n": 2}) == 6
        assert await gate.invoke("work", {"n": 2}) == 4
        gate.add(made(triple), replace=True)
        assert await gate.invoke("work", {"n": 2}) == 6


async def test_a_hook_put_to_use_and_taken_out_again_recompiles_the_plans() -> None:
    """Contract 94, I6."""
    async with gate_of([made(double), made(double, "other")]) as gate:
        assert (await gate.call(call())).ok
        undo = gate.use(Refuse(), tools={"work"})
        assert (await gate.call(call())).outcome is Outcome.DENIED
        assert (await gate.call(call(name="other"))).ok
        with pytest.raises(Denied):
            await gate.invoke("work", {"n": 1})
        undo()
        undo()
        assert (await gate.call(call())).ok
        assert await gate.invoke("work", {"n": 1}) == 2


async def test_a_policy_for_tags_and_tenants_reaches_those_alone() -> None:
    """Contract 94."""

    @tool(effect="read", tags={"money"})
    async def pay(n: int) -> int:
        return n

    async with gate_of([pay, made(double)]) as gate:
        gate.use(Refuse(), tags={"money"}, tenants={"acme"})
        outcomes = {
            (name, tenant): (await gate.call(call(name=name), user=User("u", tenant=tenant))).outcome
            for name in ("pay", "work")
            for tenant in ("acme", "other", None)
        }
    assert {key for key, outcome in outcomes.items() if outcome is Outcome.DENIED} == {("pay", "acme")}


async def test_a_hook_that_is_refused_leaves_the_gate_as_it_was() -> None:
    """Contract 94, C33."""

    class Typo(Hook):
        def will_autorize(self, ctx: InvokeContext) -> None: ...

    async with gate_of([made(double)]) as gate:
        with pytest.raises(HookError, match="will_authorize"):
            gate.use(Typo())
        assert (await gate.call(call())).ok
        assert "Typo" not in str(gate.explain("work"))


@pytest.mark.parametrize("lazy", [False, True])
async def test_a_lazy_gate_behaves_like_an_eager_one(lazy: bool) -> None:
    """Contract 18."""
    async with gate_of([made(double)], lazy=lazy) as gate:
        assert bool(gate._plans.current.plans) is not lazy
        assert await gate.invoke("work", {"n": 2}) == 4
        gate.use(Refuse())
        assert (await gate.call(call())).outcome is Outcome.DENIED


# ---------------------------------------------------------------------- what it says of itself


def test_explain_says_of_each_hook_whether_it_is_in_and_why() -> None:
    """Contract 94, 95."""

    class Filtering(Allow):
        priority = 7

        def filter(self, ctx: InvokeContext) -> bool:
            return True

    class Own(Allow): ...

    gate = Gate([made(double, hooks=[Own()])], [Filtering()], allow_unguarded=True, effects=Effects(durable=False))
    gate.use(type("Elsewhere", (Allow,), {})(), tools={"other"})
    gate.use(type("Tagged", (Allow,), {})(), tags={"money"})
    gate.use(type("Tenanted", (Allow,), {})(), tenants={"globex"})
    explained = gate.explain("work", user=USER)
    chosen = {choice.name: (choice.included, choice.reason) for choice in explained.choices}
    assert chosen["Filtering"] == (True, "priority 7, runs at will_authorize when its filter says so")
    assert chosen["Own"] == (True, "priority 0, runs at will_authorize")
    assert chosen["Elsewhere"] == (False, "limited to tools ['other']")
    assert chosen["Tagged"] == (False, "limited to tags ['money']")
    assert chosen["Tenanted"] == (False, "limited to tenants ['globex']; the user's is 'acme'")
    assert {choice.origin for choice in explained.choices} == {"gate", "gate.use", "tool work"}
    text = str(explained)
    assert "plan of work 1" in text
    assert "in  Own (tool work): priority 0" in text
    assert "out Elsewhere (gate.use): limited to tools" in text
    assert text.index("Filtering") < text.index("Own"), "the plan comes in running order"
    assert "[admit]" in text


def test_explain_takes_a_tool_object_and_knows_no_others() -> None:
    """Contract 95."""
    gate = Gate([receipt], effects=Effects(durable=False))
    assert str(gate.explain(receipt)) == str(gate.explain("receipt"))
    with pytest.raises(UnknownTool, match="receipt"):
        gate.explain("reciept")


WIRES: dict[str, Callable[[Any], Any]] = {
    "openai_chat": lambda part: part["tools"][0]["function"]["name"],
    "anthropic": lambda part: part["tools"][0]["name"],
    "ollama": lambda part: part["tools"][0]["function"]["name"],
}


@pytest.mark.parametrize("wire", WIRES)
def test_definitions_are_told_in_the_spelling_of_each_wire(wire: str) -> None:
    """Contract 57, 58, 59, 60."""
    gate = Gate([made(double)], effects=Effects(durable=False))
    part = gate.definitions(wire)
    assert WIRES[wire](part) == "work"
    part["tools"].clear()
    assert WIRES[wire](gate.definitions(wire)) == "work"
    with pytest.raises(WireError, match="did you mean 'anthropic'"):
        gate.definitions("antropic")


def test_a_model_is_told_only_of_tools_that_its_user_may_see() -> None:
    """Contract 10, C28."""

    @tool(effect="read", allowed_roles={"admin", "support"})
    async def secret() -> None: ...

    gate = Gate([made(double), secret], effects=Effects(durable=False))

    def seen(*roles: str) -> list[str]:
        return [definition.name for definition in gate.definitions(user=User("u", roles=roles))]

    assert seen() == seen("admins") == ["work"]
    assert seen("admin") == seen("support", "x") == ["work", "secret"]
    assert [tool["function"]["name"] for tool in gate.definitions("ollama")["tools"]] == ["work"]


async def test_what_a_user_may_not_see_they_may_not_call() -> None:
    """Contract 10, C28, C29."""

    @tool(effect="read", allowed_roles={"admin"})
    async def secret() -> int:
        return 1

    async with gate_of([secret]) as gate:
        assert (await gate.call(ToolCall(id="c", name="secret", arguments={}), user=User("u", roles={"admin"}))).ok
        assert (await gate.call(ToolCall(id="c", name="secret", arguments={}), user=USER)).outcome is Outcome.DENIED
