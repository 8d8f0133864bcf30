"""Ids and texts that a database cannot keep are refused before the call begins, with one error for all stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Respond, ToolCall, tool
from callgate.errors import Invalid, NotPending
from callgate.hooks import Audit
from callgate.providers.principal import User
from callgate.runtime.suspensions.decisions import Deny, as_decision
from callgate.tools.calls import ToolResult
from callgate.tools.values import plain_json
from tests.providers.stores.backends import place

FLAWS = {
    "nul": ("a\0b", "has a NUL character"),
    "surrogate": ("a\ud800b", "has half of a surrogate pair"),
    "large": ("é" * 300, "has 600 bytes, more than 512"),
}
USER = User("ann", "shop")

Ask = Callable[[Gate, str], Awaitable[Any]]
CALLS: dict[str, Ask] = {
    "call id": lambda gate, text: gate.call(ToolCall(name="pay", arguments={}, id=text), user=USER),
    "session_id": lambda gate, text: gate.call("pay", {}, user=USER, session_id=text),
    "request_id": lambda gate, text: gate.call("pay", {}, user=USER, request_id=text),
    "idempotency_key": lambda gate, text: gate.call("pay", {}, user=USER, idempotency_key=text),
}
RAISES: dict[str, Ask] = {
    "invoke": lambda gate, text: gate.invoke("pay", {}, user=USER, idempotency_key=text),
    "invoke again": lambda gate, text: gate.invoke("pay", {}, user=USER, session_id=text),
    "invoke a call": lambda gate, text: gate.invoke(ToolCall(name="pay", arguments={}, id=text), user=USER),
    "submit call id": lambda gate, text: gate.submit(ToolCall(name="pay", arguments={}, id=text), user=USER),
    "submit key": lambda gate, text: gate.submit("pay", {}, user=USER, key=text),
    "submit queue": lambda gate, text: gate.submit("pay", {}, user=USER, queue=text),
    "submit session": lambda gate, text: gate.submit("pay", {}, user=USER, session_id=text),
}


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
async def test_an_id_that_a_database_cannot_keep_is_refused_alike_by_every_store(kind: str, tmp_path: Path) -> None:
    """Issue 34, 5: PostgreSQL answered "try again later", and the batch of the call failed with it."""
    runs = 0

    @tool(effect="irreversible")
    def pay() -> str:
        """Pay."""
        nonlocal runs
        runs += 1
        return "paid"

    with place(kind, tmp_path) as (address, _):
        gate = Gate([pay], hooks=[Audit()], store=address, mode="development", signing_keys=["k" * 32])
        async with gate:
            for text, flaw in FLAWS.values():
                for name, ask in CALLS.items():
                    result: ToolResult = await ask(gate, text)
                    assert result.error is not None
                    assert (result.outcome, result.error.code) == ("invalid", "bad_id")
                    assert (
                        result.error.public == f"The call is not valid: the {name} {flaw}; a database cannot keep it."
                    )
                for ask in RAISES.values():
                    with pytest.raises(Invalid, match=flaw) as refused:
                        await ask(gate, text)
                    assert (refused.value.code, refused.value.no_effect) == ("bad_id", True)
                with pytest.raises(NotPending):
                    await gate.job(text, user=USER).status()
            assert not runs
            assert not await gate.store.effects.list(None)
            assert len([row async for row in gate.store.audit.read(None)]) == len(FLAWS) * len(CALLS)
            assert (await gate.call("pay", {}, user=USER, idempotency_key="é" * 128)).ok


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("name", ["id", "tenant"])
def test_a_user_has_an_id_and_a_tenant_that_every_store_can_keep(flaw: str, name: str) -> None:
    """Issue 34, 5: also those that a host reads from a token."""
    text, why = FLAWS[flaw]
    with pytest.raises(ValueError, match=f"User.{name} {why}"):
        replace(USER, **{name: text})  # type: ignore[arg-type]  # a name of the table
    for id in (None, 5, b"ann", ["ann"]):  # a header that is missing would be a user, whom all that lack it share
        wrong: Any = id
        with pytest.raises(TypeError, match="id is a text"):
            User(wrong)
    assert User("é" * 256, "\u00a0 \u4e2d\U0001f600").id == "é" * 256


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "x" * 70_000])
@pytest.mark.parametrize("decide", [Deny, lambda text: Deny("", text), lambda text: Respond(error=text)])
def test_the_texts_of_a_decision_are_such_that_every_store_can_keep_them(text: str, decide: Any) -> None:
    """Issue 34, 5: the answer of an approver."""
    with pytest.raises(Invalid, match="a database cannot keep it"):
        as_decision(decide(text))
    assert as_decision(decide("no\nthanks \u4e2d")) is not None


def test_the_answer_to_a_suspended_call_has_no_half_of_a_surrogate_pair() -> None:
    """Issue 34, 5: no wire could send it to a model either."""
    with pytest.raises(ValueError, match="surrogates"):
        plain_json({"city": ["\ud800"]}, 10)
    assert plain_json({"city": ["\U0001f600"]}, 10) == {"city": ["\U0001f600"]}
