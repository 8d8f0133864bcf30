"""``gate.pick``: the gate's own rule of who may see what, and no other."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from callgate import Effect, Gate, Hook, InvokeContext, ToolDefinition, ToolRecord, User, pick_tools, tool
from callgate.errors import HookError
from callgate.tools.picking.results import Picks
from tests.runtime.gate.making import made

ROLES = ["admin", "clerk", "guest"]
NOBODY_MORE: frozenset[str] = frozenset()
WORDS = ["weather", "mail", "flight", "hotel", "invoice"]


class ByTenant(Hook):
    """Hides what is tagged with another tenant."""

    def may_see(self, user: User, definition: ToolDefinition) -> bool:
        return not definition.tags or user.tenant in definition.tags

    def will_authorize(self, ctx: Any) -> None:
        """Says nothing."""


def catalog(chance: random.Random) -> list[Any]:
    found = []
    for number in range(40):
        about = chance.choice(WORDS)
        definition = ToolDefinition(
            f"{about}_{number}",
            f"Everything about {about}.",
            {"type": "object"},
            effect=Effect.READ,
            allowed_roles=chance.choice([None, frozenset({"admin"}), frozenset({"admin", "clerk"})]),
            tags=chance.choice([NOBODY_MORE, frozenset({"acme"}), frozenset({"other"})]),
        )
        found.append(ToolRecord(definition, _body))
    return found


async def _body(arguments: Any, ctx: Any) -> None:
    raise AssertionError("run")


def users(chance: random.Random) -> User:
    return User("u", tenant=chance.choice(["acme", "other", None]), roles=chance.sample(ROLES, chance.randrange(3)))


async def hidden_offers(gate: Gate, chance: random.Random, **options: Any) -> int:
    """How many tools were offered to users who may not see them."""
    bad = 0
    for _ in range(60):
        user = users(chance)
        may = {one.name for one in gate.tools_for(user)}
        picks = await gate.pick(" ".join(chance.sample(WORDS, 2)), user=user, max_candidates=40, **options)
        bad += sum(one.tool.id not in may for one in picks)
    return bad


async def test_no_tool_is_offered_to_one_who_may_not_see_it() -> None:
    """Contract 66, 70, C29, design 10.7."""
    chance = random.Random(6)
    gate = Gate(catalog(chance), [ByTenant()])
    assert await hidden_offers(gate, chance) == 0
    assert await hidden_offers(gate, chance, visible=lambda definition: True) == 0, "it narrows, it never widens"


async def test_the_proof_sees_a_gate_that_offers_what_is_hidden(monkeypatch: Any) -> None:
    """The control of the test above."""
    chance = random.Random(6)
    gate = Gate(catalog(chance), [ByTenant()])

    @functools.wraps(pick_tools)  # which names the types of its options
    async def careless(query: Any, index: Any, *, visible: Any, **options: Any) -> Any:
        return await pick_tools(query, index, **options)

    monkeypatch.setattr("callgate.tools.picking.pick.pick_tools", careless)
    assert await hidden_offers(gate, chance) > 0


async def test_hidden_tools_have_no_part_in_the_scores() -> None:
    """Design 10.7: the answer is that of a gate that never had them."""
    chance = random.Random(7)
    gate = Gate(catalog(chance), [ByTenant()])
    for _ in range(20):
        user = users(chance)
        picks = await gate.pick("flight and mail", user=user, max_candidates=40)
        alone = await pick_tools("flight and mail", gate.tools_for(user), max_candidates=40)
        assert [(one.tool.id, one.score) for one in picks] == [(one.tool.name, one.score) for one in alone]


async def test_hidden_tools_have_no_part_in_what_is_explained() -> None:
    """Contract 69, design 10.7: not even by how rare a word is."""
    chance = random.Random(9)
    gate = Gate(catalog(chance), [ByTenant()])
    for _ in range(20):
        user = users(chance)
        picks = await gate.pick("flight and mail", user=user, max_candidates=40, debug=True)
        alone = await pick_tools("flight and mail", gate.tools_for(user), max_candidates=40, debug=True)
        assert [one.provenance for one in picks] == [one.provenance for one in alone]


async def test_what_was_hidden_is_told_to_the_audit_and_to_nobody_else() -> None:
    """Contract 69."""
    gate = Gate(catalog(random.Random(8)))
    picks = await gate.pick("hotel", user=User("u"))
    assert isinstance(picks, Picks)
    assert {one.reason for one in picks.excluded} == {"not visible"}
    assert picks.considered + len(picks.excluded) == 40


async def test_the_index_follows_as_tools_come_and_go() -> None:
    """Issue 6: cached by the registry."""
    gate = Gate([made(_body, "send_mail")])
    assert [one.tool.id for one in await gate.pick("send mail")] == ["send_mail"]
    index = gate.registry.index
    gate.add(made(_body, "mail_archive"))
    assert {one.tool.id for one in await gate.pick("mail")} == {"send_mail", "mail_archive"}
    gate.registry.remove("send_mail")
    assert [one.tool.id for one in await gate.pick("mail")] == ["mail_archive"]
    assert gate.registry.index is index


async def test_only_a_plain_yes_shows_a_tool() -> None:
    """Contract C29: an ``async def may_see`` would answer with a coroutine, which counts as true."""

    class Waits(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            """Everybody may."""

        async def may_see(self, user: User, definition: ToolDefinition) -> bool:
            return False

    class Vague(Waits):
        def may_see(self, user: User, definition: ToolDefinition) -> Any:
            return "perhaps"

    @tool(effect="read")
    async def secret() -> int:
        """A secret tool."""
        return 1

    with pytest.raises(HookError, match="may_see"):
        Gate([secret], [Waits()])
    async with Gate([secret], [Vague()]) as gate:
        assert gate.tools_for() == []
        assert await gate.pick("a secret tool") == []
