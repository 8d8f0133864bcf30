"""What is written down in the effect ledger and what is not, and where it may lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, ToolCall, invoke_tool
from callgate.errors import Invalid, RegistrationError
from callgate.hooks import Cache
from callgate.providers.principal import ANONYMOUS
from tests.runtime.effects.scene_desk import ANN, Desk, call, gate_of, states

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])


# ---------------------------------------------------------------------- what is in the ledger, and where


@EVERY_STORE
async def test_reading_tools_are_never_in_the_ledger_and_all_others_are(store: str) -> None:
    """I3; design 7: an undeclared effect is recorded, too."""
    desk = Desk()
    kinds: list[Any] = ["read", "idempotent", "keyed", "irreversible", None]
    tools = [
        desk.tool(f"pay_{kind}", effect=kind, **({"key": ("cents",)} if kind == "keyed" else {})) for kind in kinds
    ]
    async with gate_of(tools, store=store) as gate:
        for kind in kinds:
            for _ in range(2):
                await gate.call(call(5, f"pay_{kind}"), user=ANN, idempotency_key="k")
        found = {effect.tool for _, effect in await gate.store.effects.list(None)}
        assert found == {f"pay_{kind}" for kind in kinds[1:]}
        assert desk.paid == [5] * 6, "only what reads runs again"
        assert (desk.keys[:2], desk.tokens[:2]) == (["k", "k"], [None, None])


async def test_what_a_cache_answers_is_no_effect() -> None:
    """I3: a hit makes no claim."""
    desk = Desk()
    async with gate_of(desk.tool(), [Cache(60.0, force=True)]) as gate:
        for _ in range(3):
            assert (await gate.call(call(), user=ANN)).output == "paid 1"
        assert await states(gate) == ["committed"]


async def test_what_never_came_to_the_tool_is_not_in_the_ledger() -> None:
    """I3, I7."""
    desk = Desk()

    class Refuses(Hook):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            if ctx.input["cents"] == 13:
                ctx.abort("no")
            if ctx.input["cents"] == 14:
                ctx.respond("no need")

    async with gate_of(desk.tool(), [Refuses()]) as gate:
        for arguments in ({"cents": 13}, {"cents": 14}, {"cents": "x"}, "not json"):
            await gate.call(ToolCall(id="c", name="pay", arguments=arguments), user=ANN, idempotency_key="k")
        assert (desk.paid, await states(gate)) == ([], [])


async def test_a_call_outside_of_a_gate_has_no_ledger() -> None:
    """Design 10.6."""
    desk = Desk()
    for _ in range(2):
        assert await invoke_tool(desk.tool(), {"cents": 5}, user=ANN) is not None
    assert desk.tokens == [None, None]


@pytest.mark.parametrize("effect", ["idempotent", "keyed", "irreversible", None])
async def test_a_gate_refuses_to_open_where_effects_would_be_forgotten(effect: Any, tmp_path: Path) -> None:
    """Design 8."""
    desk = Desk()
    options: dict[str, Any] = {"key": ("cents",)} if effect == "keyed" else {}
    made = desk.tool(effect=effect, **options)
    for store in (None, "memory://", "sqlite://"):
        with pytest.raises(RegistrationError, match="durable=False"):
            async with Gate([made], allow_unguarded=True, store=store):
                pass
        async with Gate([made], allow_unguarded=True, store=store, effects=Effects(durable=False)) as gate:
            assert (await gate.call(call(), user=ANONYMOUS)).ok
        async with Gate([desk.tool(effect="read")], store=store):
            pass
    async with Gate([made], allow_unguarded=True, store=f"sqlite:///{tmp_path}/store.db") as gate:
        assert (await gate.call(call(), user=ANN, idempotency_key="k")).ok
    async with Gate([made], allow_unguarded=True, store=f"sqlite:///{tmp_path}/store.db") as gate:
        assert (await gate.call(call(), user=ANN, idempotency_key="k")).replayed, "and it is not forgotten"


async def test_a_wrong_answer_to_a_key_is_no_news_to_the_model() -> None:
    """I9: no value and no key in what a model reads."""
    desk = Desk()
    async with gate_of(desk.tool()) as gate:
        await gate.call(call(5), user=ANN, idempotency_key="canary-key")
        clash = await gate.call(call(77_777), user=ANN, idempotency_key="canary-key")
        assert "canary" not in str(clash.error)
        assert "77777" not in str(clash.error)
        with pytest.raises(Invalid):
            await gate.invoke("pay", {"cents": 5}, user=ANN, idempotency_key="")
