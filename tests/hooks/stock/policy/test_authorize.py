"""``Authorize``: declarative rules, where they are asked, what a denial says, and what a user is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from callgate import Effects, Gate, Stage, ToolCall, ToolDefinition, ToolResult, User, tool
from callgate.errors import Denied, HookError
from callgate.hooks.stock.policy.authorize import Authorize
from callgate.hooks.stock.policy.rules import Decider, Rule, Ruling, Verdict, forbid, permit
from callgate.tools.declaring.declare import as_tool
from tests.harness.steploop import StepLoop, cost_of, on_virtual_time
from tests.hooks.making import Watch
from tests.world import CLERK, MANAGER, RAN, STRANGER, lookup, refund

LOOKUP, REFUND = as_tool(lookup).definition, as_tool(refund).definition


async def outcome(hook: Any, user: User, name: str = "lookup", **arguments: Any) -> ToolResult:
    RAN.clear()
    async with Gate([lookup, refund], [hook], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        return await gate.call(ToolCall(id="c1", name=name, arguments={"order_id": "A-1", **arguments}), user=user)


async def passes(hook: Any, user: User, name: str = "lookup", **arguments: Any) -> bool:
    result = await outcome(hook, user, name, **arguments)
    assert result.ok == ([name] == RAN)
    return result.ok


async def reason(hook: Any, user: User, name: str = "lookup", **arguments: Any) -> str:
    async with Gate([lookup, refund], [hook], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        with pytest.raises(Denied) as denied:
            await gate.invoke(name, {"order_id": "A-1", **arguments}, user=user)
    return str(denied.value)


# ---------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("rule", "who"),
    [
        (permit("r", roles={"clerk", "manager"}), "ann max"),
        (permit("r", scopes={"mfa", "refunds"}), "max"),
        (permit("r", scopes={"mfa", "never"}), ""),
        (permit("r", tenants={"acme"}), "ann max"),
        (permit("r", tenants={"acme"}, roles={"manager"}), "max"),
        (permit("r", tools={"lookup"}), "ann max eve"),
        (permit("r", tools={"refund"}), ""),
        (permit("r", tags={"orders", "other"}), "ann max eve"),
        (permit("r", tags={"money"}), ""),
        (permit("r", effects={"read"}), "ann max eve"),
        (permit("r", effects={"keyed"}), ""),
        (permit("r", when=lambda user, tool: user.id != "eve" and tool.name == "lookup"), "ann max"),
        (permit("r", when_input=lambda user, tool, arguments: arguments["order_id"] == "A-1"), "ann max eve"),
        (permit("r", roles={"manager"}, when_input=lambda *_: True), "max"),
    ],
)
async def test_a_rule_holds_where_all_of_its_conditions_hold(rule: Rule, who: str) -> None:
    """Contract I6."""
    found = [user.id for user in (CLERK, MANAGER, STRANGER) if await passes(Authorize(rule), user)]
    assert found == who.split()


async def test_roles_and_scopes_are_short_for_one_rule() -> None:
    """Contract I6, I7."""
    assert await passes(Authorize(roles={"clerk"}), CLERK)
    assert not await passes(Authorize(roles={"clerk"}), MANAGER)
    assert not await passes(Authorize(roles={"manager"}, scopes={"never"}), MANAGER)
    assert await passes(Authorize(roles={"manager"}, scopes={"mfa"}), MANAGER)


async def test_a_condition_may_be_asynchronous() -> None:
    """Contract I6."""

    async def known(user: User, tool: ToolDefinition) -> bool:
        await asyncio.sleep(0)
        return user.id == "ann"

    assert await passes(Authorize(permit("r", when=known)), CLERK)
    assert not await passes(Authorize(permit("r", when=known)), MANAGER)


async def test_a_condition_on_arguments_sees_the_defaults_of_what_was_left_out() -> None:
    """Contract I2: what is judged is what will run."""
    hook = Authorize(permit("all"), forbid("large", when_input=lambda _u, _t, arguments: arguments["cents"] > 5_000))
    hook_safe = Authorize(permit("r", tools={"refund"}, when_input=lambda _u, _t, a: a["cents"] <= 5_000))
    assert not await passes(Authorize(permit("all"), hook_rule()), MANAGER, "refund")
    assert await passes(Authorize(permit("all"), hook_rule()), MANAGER, "refund", cents=10)
    assert not await passes(hook_safe, MANAGER, "refund")
    assert "failed" in await reason(hook, MANAGER, "lookup")  # a condition that breaks on another tool denies


def hook_rule() -> Rule:
    return forbid("large", tools={"refund"}, when_input=lambda _u, _t, arguments: arguments["cents"] > 5_000)


async def test_a_condition_cannot_change_the_arguments_for_others() -> None:
    """Contract I2."""

    def meddle(user: User, tool: ToolDefinition, arguments: Mapping[str, Any]) -> bool:
        arguments["order_id"] = "A-2"  # type: ignore[index]
        return True

    assert "failed" in await reason(Authorize(permit("r", when_input=meddle)), CLERK)


@pytest.mark.parametrize("answer", [None, 1, "yes", [], object()], ids=["none", "number", "text", "list", "object"])
async def test_a_condition_that_answers_neither_yes_nor_no_denies(answer: Any) -> None:
    """Contract I6: a truthy mistake is no permit."""
    assert not await passes(Authorize(permit("r", when=lambda *_: answer)), CLERK)
    assert not await passes(Authorize(permit("all"), permit("r", when_input=lambda *_: answer)), CLERK)


@on_virtual_time
async def test_a_condition_that_hangs_denies_after_its_time(loop: StepLoop) -> None:
    """Contract I6."""

    async def forever(*_: Any) -> bool:
        await asyncio.Event().wait()
        return True

    began = loop.time()
    told = await reason(Authorize(permit("slow", when=forever), permit("all"), decider_timeout=3), CLERK)
    assert "decider 'slow' did not answer within 3 s" in told
    assert 3 <= loop.time() - began < 4


# ---------------------------------------------------------------------- stages


async def test_a_call_that_can_never_be_permitted_is_refused_before_its_arguments_are_read() -> None:
    """Contract I7: at will_authorize, though rules on arguments exist."""
    watch = Watch(Stage.WILL_PARSE_INPUT)
    hook = Authorize(
        permit("r", roles={"manager"}, when_input=lambda *_: True), forbid("f", when_input=lambda *_: True)
    )
    async with Gate([lookup], [hook, watch.hook], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        with pytest.raises(Denied):
            await gate.invoke("lookup", "not even JSON", user=CLERK)
    assert watch.stages == []


async def test_without_rules_on_arguments_there_is_no_step_at_their_stage() -> None:
    """Contract 94: absent stages cost nothing."""
    async with Gate([lookup], [Authorize(roles={"clerk"})], effects=Effects(durable=False)) as gate:
        assert "will_authorize_input" not in str(gate.explain("lookup"))
    async with Gate(
        [lookup], [Authorize(permit("r", when_input=lambda *_: True))], effects=Effects(durable=False)
    ) as gate:
        assert "will_authorize_input" in str(gate.explain("lookup"))


async def test_registered_without_the_stage_of_its_rules_it_denies() -> None:
    """Contract C33: a rule that would never be asked is no silent hole."""
    hook = Authorize(permit("all"), permit("r", when_input=lambda *_: True))
    async with Gate(
        [lookup], hooks=[{"will_authorize": [hook]}], allow_unguarded=True, effects=Effects(durable=False)
    ) as gate:
        with pytest.raises(Denied, match="not registered at will_authorize_input"):
            await gate.invoke("lookup", {"order_id": "A-1"}, user=CLERK)


async def test_registered_at_the_stage_of_arguments_alone_it_asks_everything_there() -> None:
    """Contract C22."""
    hook = Authorize(permit("r", when_input=lambda *_: True), forbid("f", roles={"clerk"}))
    async with Gate(
        [lookup], hooks=[{"will_authorize_input": [hook]}], allow_unguarded=True, effects=Effects(durable=False)
    ) as gate:
        assert await gate.invoke("lookup", {"order_id": "A-1"}, user=MANAGER) == "sent"
        with pytest.raises(Denied, match="rule 'f'"):
            await gate.invoke("lookup", {"order_id": "A-1"}, user=CLERK)


async def test_a_hook_that_is_told_to_ignore_failures_still_denies_when_a_rule_fails() -> None:
    """Contract I6: an error in a decider is a verdict, not a failure of the hook."""
    hook = Authorize(permit("all"), permit("broken", when=lambda *_: 1 / 0 > 0))
    hook.on_failure = "ignore"
    assert not await passes(hook, CLERK)


async def test_the_same_class_may_be_registered_twice() -> None:
    """Contract I6: each keeps its own account."""
    first = Authorize(permit("r", when_input=lambda *_: True))
    second = Authorize(permit("r", when_input=lambda *_: False))
    for hooks in ([first, second], [second, first]):
        async with Gate([lookup], hooks, effects=Effects(durable=False)) as gate:
            assert not (await gate.call(ToolCall(id="c", name="lookup", arguments={"order_id": "1"}), user=CLERK)).ok


def test_without_conditions_of_its_own_nothing_is_awaited_that_suspends() -> None:
    """Design 8: no task; a call costs the loop what it costs without the hook."""

    def scenario(*hooks: Any) -> Any:
        async def run() -> None:
            async with Gate([lookup], hooks, effects=Effects(durable=False)) as gate:
                await gate.invoke("lookup", {"order_id": "A-1"}, user=CLERK)

        return run

    bare = cost_of(scenario())
    assert cost_of(scenario(Authorize(roles={"clerk"}))) == bare
    assert cost_of(scenario(Authorize(permit("r", when_input=lambda *_: True)))) == bare


# ---------------------------------------------------------------------- what is told


async def test_a_denial_names_the_rule_in_the_log_and_nothing_to_the_model() -> None:
    """Contract I9, C29."""
    hook = Authorize(permit("all"), forbid("no-eve-SECRET", when_input=lambda user, *_: user.id == "eve"))
    result = await outcome(hook, STRANGER)
    assert result.error is not None
    assert result.error.public == "The call was denied."
    shown = f"{result.to_status()} {result.to_success()} {result.error}"
    assert "SECRET" not in shown
    assert "eve" not in shown
    assert await reason(hook, STRANGER) == "eve may not call lookup: forbidden by rule 'no-eve-SECRET'"
    assert await reason(Authorize(roles={"x"}), STRANGER) == "eve may not call lookup: no rule permits it"


async def test_every_denial_has_the_same_code_and_the_sentence_that_was_chosen() -> None:
    """Contract I9: neither tells a model which rule it was."""

    def boom(*_: Any) -> bool:
        raise ValueError("SECRET")

    for rule in (forbid("f"), permit("p", roles={"x"}), permit("b", when=boom), forbid("i", when_input=boom)):
        result = await outcome(Authorize(rule, permit("z", roles={"x"}), public="Ask your manager."), CLERK)
        assert result.error is not None
        assert (result.error.code, result.error.public) == ("not_authorized", "Ask your manager.")


async def test_in_shadow_mode_it_records_once_and_changes_nothing() -> None:
    """Contract 92: both stages."""
    for rule in (
        forbid("f"),
        forbid("f", when_input=lambda *_: True),
        permit("p", roles={"x"}, when_input=lambda *_: True),
    ):
        watch = Watch(Stage.WILL_FINALIZE_INVOKE)
        async with Gate(
            [lookup], [Authorize(rule, mode="shadow"), watch.hook], allow_unguarded=True, effects=Effects(durable=False)
        ) as gate:
            assert await gate.invoke("lookup", {"order_id": "A-1"}, user=CLERK) == "sent"
        assert [type(one.error) for one in watch.ctx.suppressed] == [Denied]


async def test_a_gate_whose_only_authoriser_is_a_shadow_refuses_to_open() -> None:
    """Design 10.6."""
    with pytest.raises(Exception, match="no hook authorises every call of"):
        async with Gate([refund], [Authorize(permit("all"), mode="shadow")], effects=Effects(durable=False)):
            pass


# ---------------------------------------------------------------------- visibility


async def test_a_user_sees_what_some_arguments_could_get_them() -> None:
    """Contract C29: the same rules say what is shown and what is run."""
    hook = Authorize(
        permit("clerks", roles={"clerk"}, tools={"lookup"}),
        permit("managers", roles={"manager"}, when_input=lambda _u, _t, arguments: arguments.get("cents", 0) < 5),
        forbid("globex", tenants={"globex"}),
        forbid("late", when_input=lambda *_: True),
    )
    seen = {
        user.id: [one.name for one in (LOOKUP, REFUND) if hook.may_see(user, one)]
        for user in (CLERK, MANAGER, STRANGER)
    }
    assert seen == {"ann": ["lookup"], "max": ["lookup", "refund"], "eve": []}
    later = {
        user.id: [one.name for one in (LOOKUP, REFUND) if await hook.may_see_async(user, one)]
        for user in (CLERK, MANAGER, STRANGER)
    }
    assert later == seen


async def test_what_is_hidden_is_denied_whatever_the_arguments() -> None:
    """Contract C29: over rules of many kinds, hidden means that no call passes."""
    rules = [
        permit("a", roles={"clerk"}),
        permit("b", when_input=lambda user, *_: user.id == "max"),
        forbid("c", tenants={"globex"}),
        forbid("d", when_input=lambda _u, _t, arguments: arguments.get("cents") == 3),
        permit("e", when=lambda user, _: user.tenant == "acme"),
    ]
    hidden = 0
    for mask in range(1, 2 ** len(rules)):
        hook = Authorize(*(rule for bit, rule in enumerate(rules) if mask >> bit & 1))
        for user in (CLERK, MANAGER, STRANGER):
            if not hook.may_see(user, REFUND):
                hidden += 1
                assert not await passes(hook, user, "refund", cents=1)
                assert not await passes(hook, user, "refund", cents=3)
    assert hidden > 10


async def test_a_decider_that_has_to_wait_hides_the_tool_unless_it_is_waited_for() -> None:
    """Contract C29: what cannot be asked fails closed."""

    async def yes(*_: Any) -> bool:
        await asyncio.sleep(0)
        return True

    def boom(*_: Any) -> bool:
        raise ValueError

    hook = Authorize(permit("r", when=yes))
    assert not hook.may_see(CLERK, LOOKUP)
    assert await hook.may_see_async(CLERK, LOOKUP)
    for broken in (permit("b", when=boom), permit("b", when=lambda *_: 1)):  # type: ignore[arg-type]
        hook = Authorize(permit("all"), broken)
        assert not hook.may_see(CLERK, LOOKUP)
        assert not await hook.may_see_async(CLERK, LOOKUP)
    assert not await Authorize(permit("all"), forbid("f")).may_see_async(CLERK, LOOKUP)


# ---------------------------------------------------------------------- what is refused


MAKE, PERMIT, FORBID = cast("Any", Authorize), cast("Any", permit), cast("Any", forbid)  # used as no type would allow


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (MAKE, "denies every call"),
        (lambda: MAKE(PERMIT("a"), FORBID("a")), "two deciders with the id 'a'"),
        (lambda: MAKE(lambda user, tool: True), r"takes permit\("),
        (lambda: MAKE(Rule), r"takes permit\("),
        (lambda: MAKE("manager"), r"write Authorize\(roles={'manager'}\)"),
        (lambda: MAKE({"manager"}), r"write Authorize\(roles={'manager'}\)"),
        (lambda: MAKE(PERMIT("a"), decider_timeout=0), "decider_timeout"),
        (lambda: PERMIT(""), "needs an id"),
        (lambda: PERMIT("r", roles="manager"), "write roles={'manager'}"),
        (lambda: PERMIT("r", roles=set()), "at least one name"),
        (lambda: FORBID("r", tools={1}), "takes at least one name"),
        (lambda: FORBID("r", tenants={""}), "no empty one"),  # it would forbid nobody: such a user has no tenant
        (lambda: PERMIT("r", when=True), "give a function"),
        (lambda: MAKE(FORBID("f", tools={"refnd"})).check_tools([LOOKUP, REFUND]), "did you mean 'refund'"),
    ],
)
def test_what_means_nothing_is_refused_with_what_to_do(make: Any, told: str) -> None:
    """Contract C33."""
    with pytest.raises(HookError, match=told):
        make()


async def test_an_object_of_ones_own_may_decide_and_give_its_reason() -> None:
    """Contract I6."""

    class Office:
        id = "office-hours"

        def before_input(self, user: User, tool: ToolDefinition) -> Any:
            return Verdict.MAY_FORBID

        def on_input(self, user: User, tool: ToolDefinition, arguments: Mapping[str, Any]) -> Any:
            return Ruling(Verdict.FORBID, "the office is closed") if arguments["order_id"] == "A-1" else Verdict.ABSTAIN

    office = Office()
    assert isinstance(office, Decider)
    assert (await reason(Authorize(office, permit("all")), CLERK)).endswith("forbidden by the office is closed")
    assert await passes(Authorize(office, permit("all")), CLERK, order_id="A-2")
    assert not await passes(Authorize(office), CLERK, order_id="A-2")


async def test_what_a_user_may_not_call_they_are_not_told_of() -> None:
    """C29: one rule for what is offered and what is run; a hook in shadow mode hides nothing."""

    @tool(effect="read", tags={"money"})
    async def refund(order_id: str) -> str:
        """Give money back."""
        return order_id

    @tool(effect="read")
    async def look(order_id: str) -> str:
        """Look."""
        return order_id

    clerk, boss = User("c", roles={"clerk"}), User("b", roles={"boss"})
    rules = [permit("all may look", tools={"look"}), permit("bosses pay", roles={"boss"})]
    shadow = type("Shadow", (Authorize,), {"mode": "shadow"})
    async with Gate(
        [refund, look], [Authorize(*rules), shadow(roles={"nobody"})], effects=Effects(durable=False)
    ) as gate:
        assert [one.name for one in gate.tools_for(clerk)] == ["look"]
        assert [one.name for one in gate.tools_for(boss)] == ["refund", "look"]
        assert "refund" not in str(gate.definitions("openai_chat", user=clerk))
        assert (
            await gate.call(ToolCall(id="c", name="refund", arguments={"order_id": "1"}), user=clerk)
        ).outcome == "denied"
