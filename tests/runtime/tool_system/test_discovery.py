"""Discovery: a large catalogue behind three definitions, through the same gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from callgate import (
    DefinitionError,
    Denied,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Outcome,
    ToolCall,
    ToolContext,
    ToolResult,
    User,
    tool,
)
from callgate.hooks.stock.capacity.rate_limit import Quota
from callgate.hooks.stock.privacy.redact import Redact
from callgate.hooks.stock.records.audit import Audit
from callgate.providers.stores.base import AuditRow
from callgate.runtime.tool_system.discovery import NAMES, Discovery

CLERK, ADMIN = User("c"), User("a", roles=("admin",))


class Watching(Hook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.seen.append((ctx.tool.name, ctx.user.id))


def shop(*hooks: Any, **options: Any) -> tuple[Gate, Discovery]:
    @tool(effect="read")
    async def find_order(order_id: str, ctx: ToolContext) -> str:
        """Find an order of a customer."""
        return f"{order_id} for {ctx.user.id}"

    @tool(effect="read", allowed_roles=("admin",))
    async def audit_order(order_id: str) -> str:
        """Find an order as an auditor."""
        return order_id

    @tool(effect="read", safe=False)
    async def wipe_order(order_id: str) -> str:
        """Wipe an order."""
        return order_id

    gate = Gate([find_order, audit_order, wipe_order], hooks, effects=Effects(durable=False))
    return gate, Discovery(gate, **options)


async def ask(gate: Gate, name: str, arguments: dict[str, Any], user: User = CLERK) -> ToolResult:
    return await gate.call(ToolCall(id="c", name=name, arguments=arguments), user=user)


async def test_a_model_is_told_of_three_tools_and_reaches_the_rest_through_them() -> None:
    """Contract 70, issue 6."""
    gate, discovery = shop()
    assert [one.name for one in discovery.definitions(user=CLERK)] == ["search_tools", "describe_tool", "call_tool"]
    assert len(discovery.definitions("openai_chat", user=CLERK)["tools"]) == 3
    async with gate:
        found = await ask(gate, "search_tools", {"query": "find an order"})
        assert [one["name"] for one in found.output] == ["find_order"]
        shown = await ask(gate, "describe_tool", {"name": "find_order"})
        assert shown.output["parameters"]["required"] == ["order_id"]
        called = await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": "7"}})
        assert called.output == "7 for c"


async def test_a_call_through_it_passes_the_same_gate_as_the_same_user() -> None:
    """Contract 44, 96, I6."""
    watching = Watching()
    gate, _ = shop(watching)
    async with gate:
        await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": "7"}})
        bad = await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": 7}})
    assert watching.seen[:2] == [("call_tool", "c"), ("find_order", "c")]
    assert bad.outcome is Outcome.INVALID


async def test_what_a_policy_denies_stays_denied() -> None:
    """Contract 44, I6."""

    class NoOrders(Hook):
        tools = ("find_order",)

        def will_authorize(self, ctx: InvokeContext) -> None:
            raise Denied("no")

    gate, _ = shop(NoOrders())
    async with gate:
        called = await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": "7"}})
    assert called.outcome is Outcome.DENIED


@pytest.mark.parametrize("name", ["audit_order", "wipe_order", "call_tool", "search_tools"])
async def test_what_is_hidden_is_neither_found_described_nor_called_and_looks_like_nothing(name: str) -> None:
    """Contract C29: the same error as for a tool that does not exist."""
    gate, _ = shop()
    async with gate:
        found = await ask(gate, "search_tools", {"query": f"{name} order auditor wipe", "limit": 25})
        assert name not in [one["name"] for one in found.output]
        for verb, more in (("describe_tool", {}), ("call_tool", {"arguments": {"order_id": "7"}})):
            hidden = await ask(gate, verb, {"name": name, **more})
            nothing = await ask(gate, verb, {"name": "no_such", **more})
            assert hidden.error is not None
            assert nothing.error is not None
            assert (hidden.outcome, hidden.error.code, hidden.error.public) == (
                nothing.outcome,
                nothing.error.code,
                nothing.error.public,
            )
            assert hidden.error.code == "unknown_tool"


async def test_one_who_may_see_it_finds_and_calls_it() -> None:
    """The control of the test above."""
    gate, _ = shop(allow_unsafe=True)
    async with gate:
        found = await ask(gate, "search_tools", {"query": "order"}, ADMIN)
        assert {one["name"] for one in found.output} == {"find_order", "audit_order", "wipe_order"}
        called = await ask(gate, "call_tool", {"name": "audit_order", "arguments": {"order_id": "7"}}, ADMIN)
        assert called.output == "7"


async def test_tools_that_come_later_are_found_too() -> None:
    """Issue 6: the index is kept in step."""
    gate, _ = shop()

    @tool(effect="read")
    async def track_parcel(number: str) -> str:
        """Track a parcel."""
        return number

    async with gate:
        gate.add(track_parcel)
        found = await ask(gate, "search_tools", {"query": "where is my parcel"})
        assert [one["name"] for one in found.output] == ["track_parcel"]


async def test_the_quota_of_a_tool_is_spent_through_it_as_by_itself() -> None:
    """Contract 96, I11: in whatever way it is called."""
    gate, _ = shop(Quota("2/hour", tools=["find_order"]))
    async with gate:
        through = await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": "7"}})
        alone = await ask(gate, "find_order", {"order_id": "7"})
        late = await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": "7"}})
        other = await ask(gate, "call_tool", {"name": "find_order", "arguments": {"order_id": "7"}}, ADMIN)
    assert [one.outcome for one in (through, alone, late, other)] == [
        Outcome.SUCCESS,
        Outcome.SUCCESS,
        Outcome.RETRY_LATER,
        Outcome.SUCCESS,
    ]


CANARY = "canary-4711"
ENDINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "success": ({"name": "pay", "arguments": {"pin": CANARY, "order": "o"}}, ["pay", "call_tool"]),
    "invalid for the tool": ({"name": "pay", "arguments": {"pin": CANARY, "order": 5}}, ["pay", "call_tool"]),
    "invalid for call_tool": ({"name": "pay", "arguments": {"pin": CANARY}, "more": 1}, ["call_tool"]),
    "a name that is none": ({"name": {"pin": CANARY}, "arguments": {"pin": CANARY}}, ["call_tool"]),
    "no such tool": ({"name": "nope", "arguments": {"pin": CANARY}}, ["call_tool"]),
    "hidden": ({"name": "hidden", "arguments": {"pin": CANARY}}, ["call_tool"]),
}


def till(rows: list[AuditRow]) -> Gate:
    @tool(effect="read", hooks=[Redact("pin")])
    async def pay(pin: str, order: str) -> str:
        """Pay for an order."""
        return order

    @tool(effect="read", allowed_roles=("admin",))
    async def hidden(pin: str) -> str:
        """Not for everybody."""
        return pin

    return Gate([pay, hidden], [Audit(sink=rows.append)], effects=Effects(durable=False))


async def recorded(ending: str) -> list[Mapping[str, Any]]:
    rows: list[AuditRow] = []
    gate = till(rows)
    Discovery(gate)
    async with gate:
        await ask(gate, "call_tool", ENDINGS[ending][0])
    return [row.body for row in rows if row.body["kind"] == "outcome"]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_both_calls_are_recorded_and_what_the_tool_masks_is_in_neither(ending: str) -> None:
    """Contract 96, I9: only the inner tool's own hooks know which of its arguments are secret."""
    found = await recorded(ending)
    assert [row["tool"] for row in found] == ENDINGS[ending][1]
    assert CANARY not in str(found)
    if ending == "success":
        assert [row["input"] for row in found] == [{"pin": "***", "order": "o"}, {"name": "pay", "arguments": "***"}]


@pytest.mark.parametrize("ending", ["success", "no such tool"])
async def test_without_that_care_a_record_would_show_it(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr("callgate.runtime.tool_system.discovery._name_alone", lambda value: value)
    assert CANARY in str(await recorded(ending))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_taken_is_refused_before_anything_is_added(name: str) -> None:
    """Contract 30, C6."""

    @tool(name=name, effect="read")
    async def mine() -> str:
        """Has the name."""
        return ""

    gate = Gate([mine])
    with pytest.raises(DefinitionError, match=f"Duplicate tool names: {name}"):
        Discovery(gate)
    assert gate.registry.names == (name,)


@pytest.mark.parametrize("limit", [-5, 0, 1.0, 10**30], ids=["negative", "none", "a whole float", "huge"])
async def test_however_many_are_asked_for_there_are_one_to_25(limit: float) -> None:
    """Contract 67."""
    gate, _ = shop()
    async with gate:
        found = await ask(gate, "search_tools", {"query": "find an order", "limit": limit})
    assert [one["name"] for one in found.output] == ["find_order"]
