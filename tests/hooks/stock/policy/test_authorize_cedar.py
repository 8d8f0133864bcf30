"""``CedarPolicy``: policies that are checked against the tools, and what they decide."""

from __future__ import annotations

import builtins
import itertools
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from callgate import Effects, Gate, Outcome, Stage, ToolCall, ToolDefinition, ToolResult, User, tool
from callgate.errors import DefinitionError, Denied, HookError
from callgate.hooks.stock.policy.authorize import Authorize
from callgate.hooks.stock.policy.cedar_schema import arguments_type, schema_of, value_of
from callgate.hooks.stock.policy.rules import Decider, Verdict, forbid, permit
from callgate.runtime.hosts.a2a.client_tools import client_tools
from callgate.tools.declaring.declare import as_tool
from callgate.tools.registry import ToolRegistry
from tests.hooks.making import Watch

cedarpy = pytest.importorskip("cedarpy", reason="NO CEDAR: install callgate[policy]; its tests are skipped")
from callgate.hooks.stock.policy import cedar  # noqa: E402
from callgate.hooks.stock.policy.cedar import CedarPolicy  # noqa: E402  (after the skip)


def code_of(result: ToolResult) -> str | None:
    return None if result.error is None else result.error.code


CLERK = User("ann", tenant="acme", roles={"clerk"})
MANAGER = User("max", tenant="acme", roles={"manager"}, scopes={"mfa"})
STRANGER = User("max", tenant="globex", roles={"manager"})


@tool(effect="read", tags={"orders"})
async def lookup(order_id: str, near: float = 0.123456789) -> str:
    """What became of an order."""
    return "sent"


@tool(effect="irreversible", key=("order_id",), tags={"money"})
async def refund(
    order_id: str,
    cents: int = 9_000,
    rate: float = 1.0,
    reason: str | None = None,
    items: list[str] | None = None,
    kind: Literal["full", "part"] = "full",
) -> str:
    """Give money back."""
    return "done"


@tool(effect="read")
async def later(n: int) -> int:
    """Come later."""
    return n


TOOLS = [lookup, refund]
POLICIES = """
@id("clerks-read")
permit(principal in Role::"clerk", action in Action::"call", resource in Tag::"orders");

@id("managers-of-acme")
permit(principal in Role::"manager", action in Action::"call", resource) when { principal in Tenant::"acme" };

@id("no-large-refunds")
forbid(principal, action == Action::"refund", resource) when { context.args.cents > 5000 };

@id("sane-rates")
forbid(principal, action == Action::"refund", resource)
when { context.args.rate.greaterThan(decimal("1.5")) };
"""


async def said(policies: CedarPolicy, user: User, name: str, *others: Any, **arguments: Any) -> str:
    async with Gate(TOOLS, [Authorize(policies, *others)], effects=Effects(durable=False)) as gate:
        try:
            return str(await gate.invoke(name, {"order_id": "A-1", **arguments}, user=user))
        except Denied as denied:
            return str(denied).split(": ", 1)[1]


@pytest.mark.parametrize(
    ("user", "name", "arguments", "expected"),
    [
        (CLERK, "lookup", {}, "sent"),
        (CLERK, "refund", {"cents": 1}, "no rule permits it"),
        (MANAGER, "refund", {"cents": 5000}, "done"),
        (MANAGER, "refund", {"cents": 5001}, "forbidden by cedar policy 'no-large-refunds'"),
        (MANAGER, "refund", {}, "forbidden by cedar policy 'no-large-refunds'"),
        (MANAGER, "refund", {"cents": 1, "rate": 1.5}, "done"),
        (MANAGER, "refund", {"cents": 1, "rate": 2}, "forbidden by cedar policy 'sane-rates'"),
        (MANAGER, "refund", {"cents": 6000, "rate": 2}, "forbidden by cedar policy 'no-large-refunds', 'sane-rates'"),
        (MANAGER, "lookup", {"near": 0.987654321}, "sent"),
        (STRANGER, "lookup", {}, "no rule permits it"),
    ],
)
async def test_policies_decide_and_a_denial_names_their_ids(
    user: User, name: str, arguments: dict[str, Any], expected: str
) -> None:
    """Contract I6: default deny, forbid wins."""
    assert await said(CedarPolicy(POLICIES, tools=TOOLS), user, name, **arguments) == expected


@pytest.mark.parametrize("rate", [0.00001, 1.23456, 1e300, 922337203685477.6, -1e15])
async def test_a_number_that_cedar_cannot_hold_exactly_denies_where_a_policy_reads_it(rate: float) -> None:
    """Contract I6: floats never go in raw, and rounding never decides."""
    policies = CedarPolicy(POLICIES, tools=TOOLS)
    assert await said(policies, MANAGER, "refund", cents=1, rate=rate) == "decider 'cedar' failed"
    without = CedarPolicy(POLICIES.split('@id("sane-rates")', maxsplit=1)[0], tools=TOOLS)
    assert await said(without, MANAGER, "refund", cents=1, rate=rate) == "done"


async def test_an_integer_beyond_cedars_long_denies() -> None:
    """Contract I6."""
    assert await said(CedarPolicy(POLICIES, tools=TOOLS), MANAGER, "refund", cents=-(2**70)) == "decider 'cedar' failed"


async def test_a_policy_that_fails_to_evaluate_denies() -> None:
    """Contract I6: Cedar by itself skips it, a forbid included."""
    text = '@id("a") permit(principal, action, resource);'
    overflow = '@id("b") forbid(principal, action == Action::"refund", resource) when { context.args.cents * 2 > 0 };'
    policies = CedarPolicy(text + overflow, tools=TOOLS)
    assert await said(policies, MANAGER, "refund", cents=2**62) == "decider 'cedar' failed"
    assert await said(policies, MANAGER, "refund", cents=-1) == "done"
    raw = cedarpy.is_authorized(  # the control: Cedar alone would have let it pass
        {
            "principal": 'User::"max"',
            "action": 'Action::"refund"',
            "resource": 'Tool::"refund"',
            "context": {"args": {"cents": 2**62}},
        },
        text + overflow,
        [],
    )
    assert raw.allowed
    assert raw.diagnostics.errors


async def test_it_is_one_decider_among_others_in_every_order() -> None:
    """Contract I6."""
    policies = CedarPolicy(POLICIES, tools=TOOLS)
    extra: list[Decider] = [
        policies,
        permit("clerks-refund", roles={"clerk"}),
        forbid("not-b", when_input=lambda *_: False),
    ]
    for order in itertools.permutations(extra):
        async with Gate(TOOLS, [Authorize(*order)], effects=Effects(durable=False)) as gate:
            assert await gate.invoke("refund", {"order_id": "A", "cents": 1}, user=CLERK) == "done"
            with pytest.raises(Denied, match="no-large-refunds"):
                await gate.invoke("refund", {"order_id": "A", "cents": 6_000}, user=CLERK)


async def test_what_can_be_said_without_arguments_is_said_before_they_are_read() -> None:
    """Contract I7."""
    watch = Watch(Stage.WILL_PARSE_INPUT)
    async with Gate(
        TOOLS, [Authorize(CedarPolicy(POLICIES, tools=TOOLS)), watch.hook], effects=Effects(durable=False)
    ) as gate:
        with pytest.raises(Denied, match="no rule permits it"):
            await gate.invoke("refund", "no JSON", user=CLERK)
    assert watch.stages == []


def test_visibility_follows_the_same_policies() -> None:
    """Contract C29."""
    hook = Authorize(CedarPolicy(POLICIES, tools=TOOLS))
    seen = [
        [name for name in ("lookup", "refund") if hook.may_see(user, as_tool(globals()[name]).definition)]
        for user in (CLERK, MANAGER, STRANGER)
    ]
    assert seen == [["lookup"], ["lookup", "refund"], []]


# ---------------------------------------------------------------------- the check


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("permit(principal, action, resource);", "has no @id"),
        ('@id("") permit(principal, action, resource);', "has no @id"),
        ('@id("a") permit(principal, action, resource); @id("a") forbid(principal, action, resource);', "two policies"),
        ("permit(principal", "do not parse"),
        ("", "has no policy"),
        ('@id("t") permit(principal == ?principal, action, resource);', "template"),
        ('@id("a") permit(principal, action == Action::"refnd", resource);', "'a'.*unrecognized action"),
        ('@id("a") permit(principal, action, resource == Tool::"refnd");', "did you mean 'refund'"),
        (
            '@id("a") permit(principal, action, resource) when { resource == Tool::"refnd" };',
            "there is no tool 'refnd'",
        ),
        ('@id("a") permit(principal, action == Action::"refund", resource) when { context.args.cent > 1 };', "cent"),
        ('@id("a") permit(principal, action == Action::"refund", resource) when { context.args.cents > "1" };', "'a'"),
        ('@id("a") permit(principal, action == Action::"refund", resource) when { context.args.rate > 1 };', "'a'"),
        ('@id("a") permit(principal, action in Action::"call", resource) when { context.args.cents > 1 };', "cents"),
        (
            '@id("a") permit(principal, action == Action::"refund", resource) when { context.args.reason == "x" };',
            "'a'",
        ),
        ('@id("a") permit(principal, action, resource) when { principal.role == "x" };', "role"),
    ],
)
def test_what_does_not_parse_or_does_not_fit_the_tools_is_refused(text: str, told: str) -> None:
    """Contract C33: policies are type-checked against a schema made from the tools, before any of them decides."""
    with pytest.raises(HookError, match=told):
        CedarPolicy(text, tools=TOOLS)


async def test_an_optional_argument_is_read_after_has() -> None:
    """Contract I6: left out and null are the same to a policy."""
    text = """@id("a") permit(principal, action == Action::"refund", resource);
    @id("b") forbid(principal, action, resource == Tool::"refund")
    when { context has args && action == Action::"refund" && context.args has items && context.args.items.contains("x")
           && context.args.kind == "part" };"""
    policies = CedarPolicy(text, tools=TOOLS)
    assert await said(policies, CLERK, "refund", items=["x"], kind="part") == "forbidden by cedar policy 'b'"
    assert await said(policies, CLERK, "refund", items=["x"]) == "done"
    assert await said(policies, CLERK, "refund", items=None, kind="part") == "done"
    assert await said(policies, CLERK, "refund", kind="part") == "done"


async def test_policies_may_lie_in_a_file_and_tools_in_a_registry(tmp_path: Path) -> None:
    """Issue 4."""
    path = tmp_path / "policies.cedar"
    path.write_text(POLICIES, "utf-8")
    policies = CedarPolicy(path, tools=ToolRegistry(TOOLS))
    assert policies.ids == ("clerks-read", "managers-of-acme", "no-large-refunds", "sane-rates")
    assert await said(policies, CLERK, "lookup") == "sent"


def test_until_they_are_checked_they_are_an_error_and_so_is_a_tool_that_came_later() -> None:
    """Contract I6: fail closed."""
    policies = CedarPolicy('@id("all") permit(principal, action, resource);')
    first, later = (as_tool(one).definition for one in TOOLS)
    with pytest.raises(DefinitionError, match="were not checked against tool 'lookup'"):
        policies.before_input(CLERK, first)
    policies.check_tools([lookup])
    assert policies.before_input(CLERK, first) is Verdict.PERMIT
    with pytest.raises(DefinitionError, match="were not checked against tool 'refund'"):
        policies.before_input(CLERK, later)
    assert not Authorize(policies).may_see(CLERK, later)
    Authorize(policies).check_tools([first, later])
    assert policies.before_input(CLERK, later) is Verdict.PERMIT
    with pytest.raises(HookError, match="there is no tool 'x'"):
        Authorize(CedarPolicy('@id("a") permit(principal, action, resource == Tool::"x");')).check_tools([first])


def test_a_tool_that_was_replaced_by_another_of_its_name_denies() -> None:
    """Contract I5: policies were checked against other arguments."""
    policies = CedarPolicy(POLICIES, tools=TOOLS)
    other = ToolDefinition("lookup", "Another.", {"type": "object"}, effect="read", tags={"orders"})  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="were not checked against tool 'lookup'"):
        policies.before_input(CLERK, other)


# ---------------------------------------------------------------------- tools of clients


def of_client(parameters: dict[str, Any] | None = None, name: str = "open_file") -> Any:
    """The tools of one client, as a task has them."""
    return client_tools(
        [{"name": name, "description": "Open.", "parameters": parameters or {"type": "object", "properties": {}}}]
    )


@pytest.mark.parametrize("parameters", [None, {"type": "object", "properties": {"cents": {"type": "integer"}}}])
async def test_tools_of_clients_are_checked_as_those_of_the_gate(parameters: dict[str, Any] | None) -> None:
    """Clients at the same time may have different tools of one name; the tools of the gate may change meanwhile."""
    guard = Authorize(CedarPolicy(POLICIES))
    async with Gate([lookup, refund], [guard], effects=Effects(durable=False), signing_keys=["k" * 32]) as gate:
        other = gate.with_tools(of_client({"type": "object", "properties": {"order_id": {"type": "string"}}}))
        more = gate.with_tools(of_client(parameters))
        for _ in range(2):
            for task in (other, more):
                assert "open_file" in [one.name for one in task.tools_for(MANAGER)]
                assert "open_file" not in [one.name for one in task.tools_for(CLERK)]
                wanted = ToolCall(id="c", name="open_file", arguments={})
                assert (await task.call(wanted, user=MANAGER)).outcome is Outcome.SUSPENDED
                denied = await task.call(wanted, user=CLERK)
                assert (denied.outcome, code_of(denied)) == (Outcome.DENIED, "not_authorized")
            gate.add(later)
            gate.remove("later")


async def test_a_policy_that_does_not_fit_the_tool_of_a_client_denies_it() -> None:
    """The other tools stay as they are."""
    text = '@id("a") permit(principal, action in Action::"call", resource) when { context.args.order_id == "A" };'
    guard = Authorize(CedarPolicy(text))
    async with Gate([lookup], [guard], effects=Effects(durable=False), signing_keys=["k" * 32]) as gate:
        task = gate.with_tools(of_client({"type": "object", "properties": {"order_id": {"type": "integer"}}}))
        assert (
            await task.call(ToolCall(id="c", name="open_file", arguments={"order_id": 1}), user=CLERK)
        ).outcome is Outcome.DENIED
        assert [one.name for one in task.tools_for(CLERK)] == ["lookup"]
        assert await task.invoke("lookup", {"order_id": "A"}, user=CLERK) == "sent"


def test_the_facts_of_further_tools_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may send another tool with each task."""
    monkeypatch.setattr(cedar, "MAX_MORE", 3)
    policies = CedarPolicy(POLICIES, tools=TOOLS)
    for number in range(10):
        policies.check_more_tools([one.definition for one in of_client(name=f"t{number}")])
        assert len(policies._more) <= 3


def test_without_cedar_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract C33."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "cedarpy":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(HookError, match=r"callgate\[policy\]"):
        CedarPolicy(POLICIES)


# ---------------------------------------------------------------------- types and values


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "enum": ["a"]}, "String"),
        ({"enum": ["a", "b"]}, "String"),
        ({"const": "a"}, "String"),
        ({"enum": ["a", 1]}, None),
        ({"type": ["integer", "null"]}, "Long"),
        ({"type": ["integer", "string"]}, None),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "Boolean"),
        ({"anyOf": [{"type": "boolean"}, {}]}, None),
        ({"type": "number"}, "Extension"),
        ({"type": "array", "items": {"type": "string"}}, "Set"),
        ({"type": "array"}, None),
        ({"type": "array", "items": {"type": ["string", "null"]}}, None),
        ({"$ref": "#/$defs/name"}, "String"),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "#/$defs/none"}, None),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, "Record"),
        ({"type": "null"}, None),
        ({}, None),
        (True, None),
    ],
)
def test_a_schema_becomes_the_cedar_type_of_its_values_or_none(schema: Any, expected: str | None) -> None:
    """Issue 4: what Cedar has no type for is no attribute, so a policy that reads it is refused."""
    defs = {"name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    definition = ToolDefinition("t", "T.", {"type": "object", "properties": {"a": schema}, "$defs": defs})
    attributes = arguments_type(definition)["attributes"]
    assert (attributes["a"]["type"] if "a" in attributes else None) == expected
    cedarpy.Schema.from_json_str(json.dumps(schema_of([definition])))


def test_values_cannot_smuggle_in_what_cedars_json_gives_a_meaning() -> None:
    """Contract I14: ``__entity`` and ``__extn`` as an argument's name or key."""
    properties = {"__entity": {"type": "string"}, "o": {"type": "object", "properties": {"x": {"type": "string"}}}}
    kind = arguments_type(ToolDefinition("t", "T.", {"type": "object", "properties": properties}))
    given = {"__entity": "y", "o": {"x": "z", "__extn": {"fn": "decimal", "arg": "1.0"}, "y": 1}}
    assert value_of(kind, given) == {"o": {"x": "z"}}


def test_a_value_of_another_type_is_an_error() -> None:
    """Contract I6."""
    for type_, value in [("String", 1), ("Long", True), ("Boolean", "x"), ("Set", {}), ("Record", []), ("Long", "1")]:
        with pytest.raises(TypeError):
            value_of({"type": type_, "attributes": {}, "element": {"type": "String"}}, value)
    with pytest.raises(ValueError, match="Long"):
        value_of({"type": "Long"}, 1.5)
    assert value_of({"type": "Long"}, 5.0) == 5


async def test_odd_ids_reach_cedar_as_they_are() -> None:
    """Contract I6: no text of a user's can end an entity's name."""
    policies = CedarPolicy('@id("a") permit(principal == User::"ann", action, resource);', tools=TOOLS)
    for odd in ('ann"', 'x" || true || "', "ann\n", "Ann", ""):
        assert await said(policies, User(odd, tenant=odd, roles={odd}), "lookup") == "no rule permits it"
    assert await said(policies, User("ann"), "lookup") == "sent"
