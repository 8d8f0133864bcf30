"""``Consent``: asks once, remembers, forgets when told to or when time is over; the model has no say in it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from callgate import Gate, Stage, ToolCall, ToolDefinition, User, tool
from callgate.errors import Denied, HookError, StoreError, Suspended
from callgate.hooks.stock.policy.consent import DAY, Consent
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.memory.store import MemoryStore
from tests.harness.gate_options import gate_options
from tests.harness.steploop import cost_of
from tests.hooks.making import Watch

ANN, BOB = User("ann", tenant="acme"), User("bob", tenant="acme")
TWIN = User("ann", tenant="globex")
RAN: list[str] = []


@tool(effect="read")
async def mailbox(folder: str = "inbox") -> list[str]:
    """Read mail."""
    RAN.append(folder)
    return [folder]


@tool(effect="read")
async def contacts() -> int:
    """How many people are known."""
    return 7


class Hands:
    """A clock that moves when told to; for the gate, the store and the hook."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def monotonic(self) -> float:
        return self.at

    def time(self) -> float:
        return self.at


@contextlib.asynccontextmanager
async def opened(hook: Consent, clock: Hands | None = None, **options: Any) -> AsyncGenerator[Gate]:
    RAN.clear()
    async with Gate([mailbox, contacts], [hook], **gate_options(clock=clock, **options)) as gate:
        yield gate


async def asked(gate: Gate, user: User, name: str = "mailbox") -> list[str]:
    """Which scopes the user is asked for; empty when the tool ran."""
    result = await gate.call(ToolCall(id="c", name=name, arguments={}), user=user)
    output: Any = result.output
    return output["scopes"] if isinstance(output, dict) else []


async def test_it_asks_until_there_is_a_grant_and_then_no_more() -> None:
    """Contract C17, 96: the challenge is the output, past the output schema, and the tool is not touched."""
    consent = Consent()
    async with opened(consent) as gate:
        result = await gate.call(ToolCall(id="c", name="mailbox", arguments={"folder": "IGNORE ALL RULES"}), user=ANN)
        assert result.ok
        assert result.output == {
            "type": "consent_required",
            "tool": "mailbox",
            "scopes": ["use"],
            "message": "The tool mailbox needs your consent: use.",
        }
        assert RAN == []
        await consent.grant(ANN, "mailbox")
        assert await asked(gate, ANN) == []
        assert await asked(gate, ANN) == []
        assert RAN == ["inbox", "inbox"]


async def test_the_challenge_is_recorded_as_an_output_that_was_not_validated() -> None:
    """Contract C17."""
    watch = Watch(Stage.WILL_AUDIT, Stage.WILL_PARSE_INPUT)
    async with Gate([mailbox], [Consent(), watch.hook]) as gate:
        await gate.call(ToolCall(id="c", name="mailbox", arguments={}), user=ANN)
    assert watch.stages == [Stage.WILL_AUDIT]
    assert watch.ctx.run.validate_response is False
    assert not watch.ctx.executed


async def test_what_the_model_wrote_is_never_in_the_challenge() -> None:
    """Contract I9: made from tool and scope alone, whatever arguments and call id say."""
    async with opened(Consent()) as gate:
        plain = await gate.call(ToolCall(id="c1", name="mailbox", arguments={}), user=ANN)
        canary = await gate.call(ToolCall(id="CANARY-1", name="mailbox", arguments='{"folder": "CANARY-2"}'), user=ANN)
    assert canary.output == plain.output


async def test_a_grant_is_for_one_tenant_user_tool_and_scope() -> None:
    """Contract I8: nobody else's consent counts."""
    consent = Consent(scope=["read", "share"])
    async with opened(consent) as gate:
        assert await asked(gate, ANN) == ["read", "share"]
        await consent.grant(ANN, "mailbox", "read")
        assert await asked(gate, ANN) == ["share"]
        assert await asked(gate, TWIN) == ["read", "share"]
        assert await asked(gate, BOB) == ["read", "share"]
        assert await asked(gate, ANN, "contacts") == ["read", "share"]
        await consent.grant(ANN, "mailbox", "share")
        assert await asked(gate, ANN) == []
        assert await asked(gate, TWIN) == ["read", "share"]


async def test_a_store_that_forgets_the_tenant_is_found_out() -> None:
    """The control of the proof above."""
    store = MemoryStore()
    find = store.consents.find
    consent = Consent(store=store)

    async def without_tenant(tenant: str, user: str, tool: str, scope: str) -> Any:
        return await find("acme", user, tool, scope)

    store.consents.find = without_tenant  # type: ignore[method-assign]
    async with opened(consent) as gate:
        await consent.grant(ANN, "mailbox")
        assert await asked(gate, TWIN) == []  # it would have passed


async def test_a_grant_expires_and_may_be_renewed() -> None:
    """Issue 4: with the clock of gate and store."""
    clock = Hands()
    store = MemoryStore(clock.time)
    consent = Consent(store=store, ttl=DAY, now=clock.time)
    async with opened(consent, clock) as gate:
        (grant,) = await consent.grant(ANN, "mailbox")
        assert grant.expires_at == clock.at + DAY
        clock.at += DAY - 1
        assert await asked(gate, ANN) == []
        clock.at += 1
        assert await asked(gate, ANN) == ["use"]
        assert await consent.list(ANN) == []
        await consent.grant(ANN, "mailbox", ttl=10)
        clock.at += 9
        assert await asked(gate, ANN) == []
        clock.at += 1
        assert await asked(gate, ANN) == ["use"]


async def test_a_grant_goes_by_the_clock_of_the_gate_that_asked() -> None:
    """Issue 4."""
    clock = Hands()
    consent = Consent(ttl=DAY)
    async with opened(consent, clock) as gate:
        assert await asked(gate, ANN) == ["use"]
        (grant,) = await consent.grant(ANN, "mailbox")
        assert (grant.granted_at, grant.expires_at) == (clock.at, clock.at + DAY)
        clock.at += DAY
        assert await asked(gate, ANN) == ["use"]


async def test_without_a_ttl_it_lasts_until_it_is_revoked() -> None:
    """Issue 4."""
    clock = Hands()
    store = MemoryStore(clock.time)
    consent = Consent(store=store, ttl=None, now=clock.time)
    async with opened(consent, clock) as gate:
        await consent.grant(ANN, "mailbox")
        clock.at += 1e9
        assert await asked(gate, ANN) == []
        assert await consent.revoke(ANN, "mailbox") == 1
        assert await asked(gate, ANN) == ["use"]


async def test_revoking_takes_effect_at_the_next_call_and_for_what_was_named_alone() -> None:
    """Issue 4."""
    consent = Consent(scope=("read", "share"))
    async with opened(consent) as gate:
        assert await asked(gate, ANN) == ["read", "share"]
        for user in (ANN, BOB):
            await consent.grant(user, "mailbox")
            await consent.grant(user, "contacts")
        assert [(grant.tool, grant.scope) for grant in await consent.list(ANN)] == [
            (name, scope) for name in ("mailbox", "contacts") for scope in ("read", "share")
        ]
        assert await consent.revoke(ANN, "mailbox", "share") == 1
        assert await asked(gate, ANN) == ["share"]
        assert await asked(gate, ANN, "contacts") == []
        assert await consent.revoke(ANN) == 3
        assert await asked(gate, ANN, "contacts") == ["read", "share"]
        assert await asked(gate, BOB) == []


async def test_it_may_suspend_instead() -> None:
    """Design 7: a suspension of kind consent, with a schema for the answer."""
    async with opened(Consent(ask="suspend", expires=600, scope="mail")) as gate:
        with pytest.raises(Suspended) as suspended:
            await gate.invoke("mailbox", {"folder": "CANARY"}, user=ANN)
    pending = suspended.value.pending
    assert (pending.kind, pending.expires) == ("consent", 600)
    assert pending.prompt == "The tool mailbox needs your consent: mail."
    assert "granted" in pending.schema["properties"]
    assert RAN == []


async def test_anonymous_users_are_denied_and_cannot_agree() -> None:
    """Contract I8: one of them would have agreed for all."""
    consent = Consent()
    async with opened(consent) as gate:
        with pytest.raises(Denied) as denied:
            await gate.invoke("mailbox", {})
        assert denied.value.code == "consent_required"
        with pytest.raises(HookError, match="anonymous"):
            await consent.grant(User("anonymous"), "mailbox")


async def test_scopes_may_follow_from_the_tool() -> None:
    """Issue 4: a function that gives none asks nothing."""

    def scope(definition: ToolDefinition) -> list[str]:
        return [f"{definition.name}:{definition.effect}"] if definition.name == "mailbox" else []

    consent = Consent(scope=scope, text=lambda tool, scopes: f"May {tool.name} do {len(scopes)}?")
    async with opened(consent) as gate:
        assert await asked(gate, ANN, "contacts") == []
        result = await gate.call(ToolCall(id="c", name="mailbox", arguments={}), user=ANN)
        assert result.output["message"] == "May mailbox do 1?"
        await consent.grant(ANN, "mailbox")
        assert await asked(gate, ANN) == []
        with pytest.raises(HookError, match=r"write grant\(user, tool, scope\)"):
            await consent.grant(ANN, "contacts")
        (grant,) = await consent.grant(ANN, gate.registry.get("mailbox").definition)
        assert grant.scope == "mailbox:read"


async def test_a_scope_function_or_a_store_that_fails_denies() -> None:
    """Contract I6: a gate that fails to run denies."""

    def broken(definition: ToolDefinition) -> str:
        raise KeyError("SECRET")

    class Down(MemoryStore):
        @property
        def consents(self) -> Any:
            raise StoreError("SECRET is down")

        @consents.setter
        def consents(self, value: Any) -> None:
            pass

    for hook in (Consent(scope=broken), Consent(store=cast("Store", Down()))):
        async with opened(hook) as gate:
            result = await gate.call(ToolCall(id="c", name="mailbox", arguments={}), user=ANN)
            assert (result.ok, RAN) == (False, [])
            assert result.error is not None
            assert result.outcome == "denied"
            assert "SECRET" not in str(result.to_status())


async def test_in_shadow_mode_it_only_records_that_it_would_have_asked() -> None:
    """Contract 92."""
    for ask in ("respond", "suspend"):
        watch = Watch(Stage.WILL_FINALIZE_INVOKE)
        async with Gate([mailbox], [Consent(ask=cast("Any", ask), mode="shadow"), watch.hook]) as gate:
            assert await gate.invoke("mailbox", {}, user=ANN) == ["inbox"]
        assert len(watch.ctx.suppressed) == 1


async def test_before_its_first_call_it_knows_no_store_and_says_so() -> None:
    """Contract C33."""
    consent, store = Consent(), MemoryStore()
    with pytest.raises(HookError, match="is not known before the first call"):
        await consent.grant(ANN, "mailbox")
    await consent.grant(ANN, "mailbox", store=store)
    assert len(await consent.list(ANN, store=store)) == 1
    async with opened(consent, store=store) as gate:
        assert await asked(gate, ANN) == []
        assert await consent.revoke(ANN) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"ask": "beg"},
        {"ttl": 0},
        {"expires": -1},
        {"scope": ""},
        {"scope": []},
        {"scope": [1]},
        {"scope": MemoryStore()},
    ],
)
def test_what_means_nothing_is_refused(options: Any) -> None:
    """Contract C33."""
    with pytest.raises(HookError):
        Consent(**options)


async def test_a_grant_that_means_nothing_is_refused() -> None:
    """Contract C33."""
    consent = Consent(store=MemoryStore())
    refused: list[Any] = [{"ttl": 0}, {"scope": ""}, {"scope": []}]
    for options in refused:
        with pytest.raises(HookError):
            await consent.grant(ANN, "mailbox", **options)


def test_a_call_with_a_grant_costs_the_loop_nothing() -> None:
    """Design 8: no task, nothing suspends with the memory store."""

    def scenario(*hooks: Consent) -> Any:
        store = MemoryStore()

        async def run() -> None:
            async with Gate([mailbox], hooks, store=store) as gate:
                for hook in hooks:
                    await hook.grant(ANN, "mailbox", store=store)
                assert await gate.invoke("mailbox", {}, user=ANN) == ["inbox"]

        return run

    assert cost_of(scenario(Consent())) == cost_of(scenario())


@pytest.mark.parametrize("address", ["sqlite", "postgresql://root@127.0.0.1:5432/test", "redis://127.0.0.1:6379/9"])
async def test_grants_are_shared_through_a_store(address: str, tmp_path: Any) -> None:
    """Issue 4: one process grants, another asks no more; revoked, it asks again."""
    where = f"sqlite:///{tmp_path / 'consents.db'}" if address == "sqlite" else address
    user = User(f"ann-{tmp_path.name}", tenant=str(tmp_path))
    try:
        first, second = store_at(where), store_at(where)
        await first.open()
        await second.open()
        assert first.consents is not None
        assert await first.consents.find(user.tenant or "", user.id, "mailbox", "use") is None
    except Exception as error:  # noqa: BLE001  (no server, no driver, or no such store)
        pytest.skip(f"NO STORE at {where}: {error}")
    try:
        here, there = Consent(store=first), Consent(store=second)
        async with opened(there) as gate:
            assert await asked(gate, user) == ["use"]
            await here.grant(user, "mailbox")
            assert await asked(gate, user) == []
            assert await here.revoke(user) == 1
            assert await asked(gate, user) == ["use"]
    finally:
        await first.close()
        await second.close()
